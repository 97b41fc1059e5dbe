"""Consoles: a super conductor asks the server's host, and nobody waits for longer than for a cell. ``os-getConsoleOutput``."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol, TypeVar

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
from objects.console import ConsoleKind, ConsolePlace
from objects.context import RequestContext
from rpc.errors import RemoteFault, Timeout, Unreachable

T = TypeVar("T")


class ConsoleSource(Protocol):
    """Reads and opens consoles: ``rpc.super_conductor.SuperConductorClient``."""

    def console_output(self, context: RequestContext, uuid: str, lines: int | None, timeout: float) -> str: ...

    def open_console(
        self, context: RequestContext, uuid: str, kind: ConsoleKind, path_digest: str, lifetime: float, timeout: float
    ) -> ConsolePlace: ...


class ConsoleAsker:
    """``inline``: the bus to the super conductors is inside this process, and needs no threads."""

    def __init__(self, settings: ApiSettings, database: ApiDatabase, source: ConsoleSource, *, inline: bool) -> None:
        self._database = database
        self._source = source
        self._timeout = settings.cell_timeout
        patience = BulkheadSettings(timeout=settings.cell_timeout)
        self._conductors = Bulkhead("the API level", "bus", patience, inline=inline, silent=(Timeout, Unreachable))

    def find(self, call: Call, server_id: str) -> str:
        """The uuid of a server of the caller's. Raises errors.NotFound."""
        server = self._database.read(mappings.get, server_id, call.scope) if is_uuid(server_id) else None
        if server is None or server.deleted:
            raise missing(server_id)
        return server.uuid

    def output(self, call: Call, uuid: str, lines: int | None) -> str:
        """The end of the console output. Raises errors.Conflict, errors.NotOffered."""
        ask = partial(self._source.console_output, call.context, uuid, lines, self._timeout)
        return self._ask(call, uuid, ask, "be read")

    def open(self, call: Call, uuid: str, kind: ConsoleKind, path_digest: str, lifetime: float) -> ConsolePlace:
        """Have the server's host connect whoever shows the access path with this digest. Raises what ``output`` does."""
        ask = partial(self._source.open_console, call.context, uuid, kind, path_digest, lifetime, self._timeout)
        return self._ask(call, uuid, ask, "be opened")

    def _ask(self, call: Call, uuid: str, ask: Callable[[], T], what: str) -> T:
        try:
            return self._conductors.run(ask)
        except (errors.Conflict, errors.Unsupported, RemoteFault) as refusal:
            if call.may(policies.ATTRIBUTES):
                raise errors.Conflict(str(refusal)) from refusal
            reason = "it has no guest on a host, or its host does not answer"
            raise errors.Conflict(f"The console of instance {uuid} cannot {what} now: {reason}.") from refusal


class ConsoleActions:
    """The action ``os-getConsoleOutput``."""

    def __init__(self, asker: ConsoleAsker) -> None:
        self._asker = asker

    def actions(self) -> tuple[ServerAction, ...]:
        return (
            ServerAction(
                name="os-getConsoleOutput", rule=policies.CONSOLE_OUTPUT, versions=schemas.CONSOLE_OUTPUT, run=self._output
            ),
        )

    def _output(self, call: Call, server_id: str, value: dict[str, Any], resp: falcon.Response) -> None:
        length = value.get("length")
        lines = None if length is None or int(length) < 0 else int(length)
        output = self._asker.output(call, self._asker.find(call, server_id), lines)
        answer(resp, {"output": console.readable(output, lines)})  # again: agents are not trusted
