"""A small identity service on loopback: enough of the Identity API for a service to have tokens checked by it."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

SERVICE_TOKEN = "a-service"
PASSWORD = "identity-password"


class Keystone:
    """``tokens``: what callers may send, each with its project (None: unscoped) and roles."""

    def __init__(self, tokens: Mapping[str, tuple[str | None, tuple[str, ...]]]) -> None:
        self.tokens = dict(tokens)
        self.asked: list[str] = []
        """Tokens it was asked about, in order."""
        keystone = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                keystone._get(self)

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                _answer(self, 201, {"token": keystone._service()}, {"X-Subject-Token": SERVICE_TOKEN})

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/v3"
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _service(self) -> dict[str, Any]:
        endpoints = [
            {"id": name, "interface": name, "region": "R", "region_id": "R", "url": self.url} for name in ("internal", "public")
        ]
        catalog = [{"id": "i", "type": "identity", "name": "keystone", "endpoints": endpoints}]
        return _token("service", "service", ("service",)) | {"catalog": catalog}

    def _get(self, handler: BaseHTTPRequestHandler) -> None:
        if not handler.path.startswith("/v3/auth/tokens"):
            link = {"rel": "self", "href": self.url}
            _answer(handler, 200, {"version": {"id": "v3.14", "status": "stable", "links": [link]}})
            return
        token = handler.headers.get("X-Subject-Token", "")
        self.asked.append(token)
        if token not in self.tokens:
            _answer(handler, 404, {"error": {"code": 404, "message": "no such token"}})
        else:
            _answer(handler, 200, {"token": _token(token, *self.tokens[token])})


def _token(user: str, project: str | None, roles: tuple[str, ...]) -> dict[str, Any]:
    now = datetime.now(UTC)
    late = now + (timedelta(hours=-1) if user.startswith("expired") else timedelta(hours=1))
    domain = {"id": "default", "name": "Default"}
    document: dict[str, Any] = {
        "methods": ["password"],
        "user": {"id": f"user-{user}", "name": user, "domain": domain},
        "audit_ids": ["x"],
        "issued_at": now.isoformat().replace("+00:00", "Z"),
        "expires_at": late.isoformat().replace("+00:00", "Z"),
        "roles": [{"id": role, "name": role} for role in roles],
    }
    return document | ({"project": {"id": project, "name": project, "domain": domain}} if project else {})


def _answer(handler: BaseHTTPRequestHandler, status: int, document: Any, headers: Mapping[str, str] | None = None) -> None:
    body = json.dumps(document).encode()
    handler.send_response(status)
    for name, value in {"Content-Type": "application/json", "Content-Length": str(len(body)), **(headers or {})}.items():
        handler.send_header(name, value)
    handler.end_headers()
    handler.wfile.write(body)
