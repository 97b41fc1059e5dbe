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
WRONG_PASSWORD = "wrong-password"


class Keystone:
    """``tokens``: what callers may send, each with its project (None: unscoped) and roles. ``image_url``: of the image service."""

    def __init__(self, tokens: Mapping[str, tuple[str | None, tuple[str, ...]]], image_url: str = "") -> None:
        self.tokens = dict(tokens)
        self.image_url = image_url
        self.passwords: list[str] = []
        """Passwords and secrets that it was sent, in order."""
        self.asked: list[str] = []
        """Tokens it was asked about, in order."""
        keystone = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                keystone._get(self)

            def do_POST(self) -> None:
                keystone._log_in(self)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/v3"
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _service(self) -> dict[str, Any]:
        catalog = [{"id": "i", "type": "identity", "name": "keystone", "endpoints": _endpoints(self.url)}]
        if self.image_url:
            catalog.append({"id": "g", "type": "image", "name": "glance", "endpoints": _endpoints(self.image_url)})
        return _token("service", "service", ("service",)) | {"catalog": catalog}

    def _log_in(self, handler: BaseHTTPRequestHandler) -> None:
        body = json.loads(handler.rfile.read(int(handler.headers.get("Content-Length") or 0)))
        identity = body["auth"]["identity"]
        given = identity["application_credential"]["secret"] if "application_credential" in identity else None
        self.passwords.append(given or identity["password"]["user"]["password"])
        if self.passwords[-1] == WRONG_PASSWORD:
            _answer(handler, 401, {"error": {"code": 401, "message": "The request you have made requires authentication."}})
        else:
            _answer(handler, 201, {"token": self._service()}, {"X-Subject-Token": SERVICE_TOKEN})

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


def _endpoints(url: str) -> list[dict[str, str]]:
    return [{"id": name, "interface": name, "region": "R", "region_id": "R", "url": url} for name in ("internal", "public")]


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
