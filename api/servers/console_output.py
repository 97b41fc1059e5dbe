"""The action ``os-getConsoleOutput``."""

from __future__ import annotations

from typing import Any

import falcon

from api.http import policies, schemas
from api.http.call import Call, send_json
from api.lookup.guest_asker import GuestAsker
from api.servers.actions import ServerAction
from objects import console


class ConsoleActions:
    """The action ``os-getConsoleOutput``."""

    def __init__(self, asker: GuestAsker) -> None:
        self._asker = asker

    def server_actions(self) -> tuple[ServerAction, ...]:
        return (
            ServerAction(
                name="os-getConsoleOutput", rule=policies.CONSOLE_OUTPUT, versions=schemas.CONSOLE_OUTPUT, run=self._send_output
            ),
        )

    def _send_output(self, call: Call, server_id: str, value: dict[str, Any], resp: falcon.Response) -> None:
        length = value.get("length")
        lines = None if length is None or int(length) < 0 else int(length)
        output = self._asker.console_output(call, self._asker.find_server(call, server_id).uuid, lines)
        send_json(resp, {"output": console.readable_output(output, lines)})  # again: agents are not trusted
