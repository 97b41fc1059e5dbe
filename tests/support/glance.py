"""A small image service on loopback: its two requests, and the faults that such services have."""

from __future__ import annotations

import hashlib
import json
import socket
import threading
from collections import deque
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal

Fault = Literal["503", "500", "401", "403", "302", "302 to nothing", "204", "hang", "cut", "not json"]


class Glance:
    """``images``: the records that it tells of, with the key ``content`` for their bytes. ``token``: what callers must send."""

    def __init__(self, token: str = "") -> None:
        self.images: dict[str, dict[str, Any]] = {}
        self.faults: deque[Fault] = deque()
        """What happens to the next requests for records, in order; requests after them are answered."""
        self.file_faults: deque[Fault] = deque()
        """The same for requests for files."""
        self.asked: list[str] = []
        """Paths of all requests, in order."""
        self._token = token
        self._closing = threading.Event()
        glance = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                glance._get(self)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def close(self) -> None:
        self._closing.set()
        self._server.shutdown()
        self._server.server_close()

    def add(self, image_id: str, content: bytes, **fields: Any) -> None:
        """An image as the service shows it; ``fields`` override what is true."""
        self.images[image_id] = {
            "id": image_id,
            "name": "one",
            "status": "active",
            "visibility": "public",
            "owner": "operators",
            "disk_format": "qcow2",
            "container_format": "bare",
            "size": len(content),
            "virtual_size": None,
            "checksum": hashlib.md5(content, usedforsecurity=False).hexdigest(),
            "os_hash_algo": "sha512",
            "os_hash_value": hashlib.sha512(content).hexdigest(),
            "os_hidden": False,
            "min_disk": 1,
            "min_ram": 64,
            "protected": False,
            "tags": [],
            "created_at": "2026-01-01T00:00:00Z",
            "updated_at": "2026-01-01T00:00:00Z",
            "file": f"/v2/images/{image_id}/file",
            "schema": "/v2/schemas/image",
            "hw_disk_bus": "virtio",
            "content": content,
            **fields,
        }

    def _get(self, handler: BaseHTTPRequestHandler) -> None:
        self.asked.append(handler.path)
        faults = self.file_faults if handler.path.endswith("/file") else self.faults
        fault = faults.popleft() if faults else None
        _, _, image_id = handler.path.removesuffix("/file").partition("/v2/images/")
        image = self.images.get(image_id)
        if fault is not None and fault.isdigit():
            _send(handler, int(fault), b"", {"Location": f"{self.url}/elsewhere"} if fault == "302" else {})
        elif fault == "302 to nothing":
            _send(handler, 302, b"")
        elif fault == "hang":
            self._closing.wait()
        elif fault == "not json":
            _send(handler, 200, b"<html>")
        elif self._token and handler.headers.get("X-Auth-Token") != self._token:
            _send(handler, 401, b"")
        elif image is None:
            _send(handler, 404, b"")
        elif not handler.path.endswith("/file"):
            _send(handler, 200, json.dumps({key: value for key, value in image.items() if key != "content"}).encode())
        elif fault == "cut":
            _send(handler, 200, image["content"][:70_000], {"Content-Length": str(len(image["content"]))})
            handler.connection.shutdown(socket.SHUT_RDWR)
        else:
            _send(handler, 200, image["content"])


def _send(handler: BaseHTTPRequestHandler, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
    handler.send_response(status)
    for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
        handler.send_header(name, value)
    handler.end_headers()
    handler.wfile.write(body)
