"""The action ``os-getConsoleOutput``: a super conductor asks the server's host, and nobody waits for longer than for a cell."""

from __future__ import annotations

from functools import partial
from typing import Any, Protocol

import falcon

from api import policies, schemas
from api.call import Call
from api.finding import missing
from api.opts import ApiSettings
from api.server_actions import ServerAction
from api.validation import is_uuid
from api.versions import answer
from cells.bulkhead import Bulkhead, BulkheadSettings
from db.api import mappings
from db.sql.engine import ApiDatabase
from objects import console, errors
from objects.context import RequestContext
from rpc.errors import RemoteFault, Timeout, Unreachable


class ConsoleSource(Protocol):
    """Reads consoles: ``rpc.super_conductor.SuperConductorClient``."""

    def console_output(self, context: RequestContext, uuid: str, lines: int | None, timeout: float) -> str: ...


class ConsoleActions:
    """``inline``: the bus to the super conductors is inside this process, and needs no threads."""

    def __init__(self, settings: ApiSettings, database: ApiDatabase, source: ConsoleSource, *, inline: bool) -> None:
        self._database = database
        self._source = source
        self._timeout = settings.cell_timeout
        patience = BulkheadSettings(timeout=settings.cell_timeout)
        self._conductors = Bulkhead("the API level", "bus", patience, inline=inline, silent=(Timeout, Unreachable))

    def actions(self) -> tuple[ServerAction, ...]:
        return (
            ServerAction(
                name="os-getConsoleOutput", rule=policies.CONSOLE_OUTPUT, versions=schemas.CONSOLE_OUTPUT, run=self._output
            ),
        )

    def _output(self, call: Call, server_id: str, value: dict[str, Any], resp: falcon.Response) -> None:
        length = value.get("length")
        lines = None if length is None or int(length) < 0 else int(length)
        server = self._database.read(mappings.get, server_id, call.scope) if is_uuid(server_id) else None
        if server is None or server.deleted:
            raise missing(server_id)
        output = self._ask(call, server.uuid, lines)
        answer(resp, {"output": console.readable(output, lines)})  # again: agents are not trusted

    def _ask(self, call: Call, uuid: str, lines: int | None) -> str:
        ask = partial(self._source.console_output, call.context, uuid, lines, self._timeout)
        try:
            return self._conductors.run(ask)
        except (errors.Conflict, errors.Unsupported, RemoteFault) as refusal:
            if call.may(policies.ATTRIBUTES):
                raise errors.Conflict(str(refusal)) from refusal
            reason = "it has no guest on a host, or its host does not answer"
            raise errors.Conflict(f"The console of instance {uuid} cannot be read now: {reason}.") from refusal
