"""A RabbitMQ of our own, with an Erlang port mapper of its own, so that it shares nothing with another broker of the machine."""

from __future__ import annotations

import json
import secrets
import shlex
import socket
from collections.abc import Mapping, Sequence
from typing import ClassVar

from deploy import ports
from deploy.server import MARK, Server

ADMINISTRATOR = "guest"
GREETING = b"AMQP\x00\x00\x09\x01"


class RabbitMQ(Server):
    NAME = "RabbitMQ"
    PACKAGE = "rabbitmq-server"
    PROGRAM = "rabbitmq-server"
    PLACES: ClassVar[Sequence[str]] = (
        "/usr/lib/rabbitmq/bin",
        "/usr/local/lib/rabbitmq/bin",
    )  # what is in /usr/sbin changes the user and the folder

    @property
    def admin_url(self) -> str:
        return self._build_url("rabbit", ADMINISTRATOR, self._password, "")

    def create_vhost(self, name: str, user: str, password: str) -> str:
        """Make the virtual host and the user where they are missing, with all permissions on it and no other new one; its URL."""
        return self.create_vhosts([(name, user, password)])[0]

    def create_vhosts(self, logins: Sequence[tuple[str, str, str]]) -> list[str]:
        """The same for several virtual hosts at once, each with its user and password. A tool's start takes a second."""
        rights = {"configure": ".*", "write": ".*", "read": ".*"}
        definitions = {
            "users": [{"name": user, "password": password, "tags": ""} for _, user, password in logins],
            "vhosts": [{"name": name} for name, _, _ in logins],
            "permissions": [{"user": who, "vhost": name, **rights} for name, user, _ in logins for who in (user, ADMINISTRATOR)],
        }
        self._run_ctl("import_definitions", said=json.dumps(definitions))
        return [self._build_url("rabbit", user, password, name) for name, user, password in logins]

    def import_definitions(self, definitions: Sequence[Mapping[str, Sequence[object]]]) -> None:
        """Make users, and give them their rights, all at once."""
        kinds = sorted({kind for definition in definitions for kind in definition})
        merged = {kind: [entry for definition in definitions for entry in definition.get(kind, ())] for kind in kinds}
        self._run_ctl("import_definitions", said=json.dumps(merged))

    def run_ctl(self, *arguments: str) -> str:
        """Run rabbitmqctl against this broker and return what it prints. Raises Unavailable."""
        return self._run_ctl(*arguments)

    def _run_ctl(self, *arguments: str, said: str = "") -> str:
        return self._run(str(self.folder / "ctl"), "-q", *arguments, said=said)

    def _prepare_folder(self) -> None:
        self._data_folder().mkdir(exist_ok=True)
        cookie = self._data_folder() / ".erlang.cookie"
        if not cookie.exists():
            self._write_private(f"data/{cookie.name}", self._erlang_cookie().encode()).chmod(0o400)
        self._write_private("rabbitmq.conf", "\n".join([*self._broker_settings(), ""]).encode())
        for empty in ("enabled_plugins", "rabbitmq-env.conf"):
            self._write_private(empty, b"[].\n" if empty == "enabled_plugins" else b"")
        self._ports = {"RABBITMQ_DIST_PORT": str(ports.free_port()), "ERL_EPMD_PORT": str(self._port_of_mapper())}
        # The mark too: the tool starts a port mapper where there is none any more, and may hang when the broker goes while it runs.
        variables = {**self._server_environment(), MARK: str(self.folder)}
        settings = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in variables.items())
        control = self._find_program("rabbitmqctl")
        self._write_private("ctl", f'#!/bin/sh\n# rabbitmqctl for this broker\n{settings}exec {control} "$@"\n'.encode()).chmod(
            0o700
        )

    def _broker_settings(self) -> list[str]:
        return [
            f"listeners.tcp.1 = {ports.HOST}:{self.port}",
            f"default_user = {ADMINISTRATOR}",
            f"default_pass = {self._password}",
            "log.console = true",
            "log.console.level = info",
            "log.file = false",
        ]

    def _erlang_cookie(self) -> str:
        """The secret that nodes and tools share."""
        return secrets.token_hex(16)

    def _port_of_mapper(self) -> int:
        """The port of the Erlang port mapper."""
        return ports.free_port()

    def _node_name(self) -> str:
        return "superconductor@localhost"

    def _server_environment(self) -> Mapping[str, str]:
        return {
            "HOME": str(self._data_folder()),  # the cookie is there
            "RABBITMQ_NODENAME": self._node_name(),
            "RABBITMQ_MNESIA_BASE": str(self._data_folder()),
            "RABBITMQ_LOG_BASE": str(self.folder),
            "RABBITMQ_PID_FILE": str(self.folder / "rabbitmq.pid"),
            "RABBITMQ_CONFIG_FILE": str(self.folder / "rabbitmq.conf"),
            "RABBITMQ_CONF_ENV_FILE": str(self.folder / "rabbitmq-env.conf"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.folder / "enabled_plugins"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
            "RUNNING_UNDER_SYSTEMD": "true",  # the script becomes the broker, with its process number, and not its parent
            "ERL_EPMD_ADDRESS": ports.HOST,
            "LANG": "C.UTF-8",
            **self._ports,
        }

    def _server_command(self) -> list[str]:
        return [self._find_program(self.PROGRAM)]

    def _is_serving(self) -> bool:
        try:
            with socket.create_connection((ports.HOST, self.port), timeout=1) as connection:
                connection.settimeout(5)
                connection.sendall(GREETING)
                return connection.recv(1) == b"\x01"  # a method frame: the broker introduces itself
        except OSError:
            return False
