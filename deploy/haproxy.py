"""An HAProxy of our own in front of a cluster: clients have one address, whichever node serves them."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from deploy import ports
from deploy.server import Server
from objects.base import Object


class Backend(Object, frozen=True, kw_only=True):
    """A node. ``backup``: it is used while no other one serves."""

    name: str
    port: int
    backup: bool = False


class HAProxy(Server):
    NAME = "HAProxy"
    PACKAGE = "haproxy"
    PROGRAM = "haproxy"

    CHECK: ClassVar[str] = "inter 1s fall 3 rise 2"
    """A check each second; so many alike decide."""

    def lead_to(self, backends: Sequence[Backend], *, check: Path | None = None, greeting: bytes = b"") -> None:
        """Before the start. ``check``: a program that ends with 0 for a node that serves, and gets its name as HAPROXY_SERVER_NAME.

        ``greeting``: what a node is sent instead; any answer will do.
        """
        self._backends = tuple(backends)
        self._check = check
        self._greeting = greeting

    @property
    def admin_url(self) -> str:
        return f"tcp://{ports.HOST}:{self.port}"

    def _prepare_folder(self) -> None:
        self._data_folder().mkdir(exist_ok=True)
        outside = [] if self._check is None else ["    external-check", "    insecure-fork-wanted"]
        checked = (
            []
            if self._check is None
            else [
                "    option external-check",
                '    external-check path "/usr/bin:/bin"',
                f"    external-check command {self._check}",
            ]
        )
        if self._greeting:
            greet = ["connect", f"send-binary {self._greeting.hex()}", "expect binary 01"]
            checked = ["    option tcp-check", *(f"    tcp-check {step}" for step in greet)]
        lines = [
            "global",
            "    maxconn 4000",
            *outside,
            "defaults",
            "    mode tcp",
            "    retries 1",
            "    option redispatch",
            "    timeout connect 2s",
            "    timeout check 6s",
            "    timeout client 2h",  # connections rest in pools
            "    timeout server 2h",
            "listen cluster",
            f"    bind {ports.HOST}:{self.port}",
            "    balance roundrobin",
            *checked,
            # connections to a node that fails are closed. One that comes back gets new ones: meanwhile two nodes write
            f"    default-server {self.CHECK} on-marked-down shutdown-sessions",
            *(f"    server {b.name} {ports.HOST}:{b.port} check{' backup' * b.backup}" for b in self._backends),
            "",
        ]
        self._write_private("haproxy.cfg", "\n".join(lines).encode())

    def _server_command(self) -> list[str]:
        return [self._find_program(self.PROGRAM), "-db", "-f", str(self.folder / "haproxy.cfg")]

    def _is_serving(self) -> bool:
        try:
            socket.create_connection((ports.HOST, self.port), timeout=1).close()
        except OSError:
            return False
        return True
