"""Questions about the guest of a server: a super conductor asks the server's host, and nobody waits for longer than for a cell."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol, TypeVar

from api.http import policies
from api.http.call import Call
from api.http.validation import is_uuid
from api.lookup.server_lookup import server_not_found
from api.opts import ApiSettings
from cells.bulkhead import Bulkhead, BulkheadSettings
from db.api.servers import mappings
from db.sql.engine import ApiDatabase
from objects import errors
from objects.console import ConsoleKind, ConsolePlace
from objects.context import RequestContext
from objects.diagnostics import Diagnostics
from objects.instance import Server
from rpc.errors import RemoteFault, Timeout, Unreachable

T = TypeVar("T")


class GuestSource(Protocol):
    """Asks the hosts of servers: ``rpc.super_conductor.SuperConductorClient``."""

    def console_output(self, context: RequestContext, uuid: str, lines: int | None, timeout: float) -> str: ...

    def open_console(
        self, context: RequestContext, uuid: str, kind: ConsoleKind, path_digest: str, lifetime: float, timeout: float
    ) -> ConsolePlace: ...

    def diagnostics(self, context: RequestContext, uuid: str, timeout: float) -> Diagnostics: ...


class GuestAsker:
    """``inline``: the bus to the super conductors is inside this process, and needs no threads."""

    def __init__(self, settings: ApiSettings, database: ApiDatabase, source: GuestSource, *, inline: bool) -> None:
        self._database = database
        self._source = source
        self._timeout = settings.cell_timeout
        patience = BulkheadSettings(timeout=settings.cell_timeout)
        self._conductors = Bulkhead("the API level", "bus", patience, inline=inline, silent=(Timeout, Unreachable))

    def find_server(self, call: Call, server_id: str) -> Server:
        """A server of the caller's. Raises errors.NotFound."""
        server = self._database.read(mappings.get, server_id, call.project_scope) if is_uuid(server_id) else None
        if server is None or server.deleted:
            raise server_not_found(server_id)
        return server

    def console_output(self, call: Call, uuid: str, lines: int | None) -> str:
        """The end of the console output. Raises errors.Conflict, errors.NotOffered."""
        ask = partial(self._source.console_output, call.context, uuid, lines, self._timeout)
        return self._ask_agent(call, uuid, ask, "console", "be read")

    def open_console(self, call: Call, uuid: str, kind: ConsoleKind, path_digest: str, lifetime: float) -> ConsolePlace:
        """Have the server's host connect whoever shows the access path with this digest. Raises what ``console_output`` does."""
        ask = partial(self._source.open_console, call.context, uuid, kind, path_digest, lifetime, self._timeout)
        return self._ask_agent(call, uuid, ask, "console", "be opened")

    def get_diagnostics(self, call: Call, uuid: str) -> Diagnostics:
        """What the hypervisor knows of the guest. Raises what ``console_output`` does."""
        ask = partial(self._source.diagnostics, call.context, uuid, self._timeout)
        return self._ask_agent(call, uuid, ask, "diagnostics", "be read")

    def _ask_agent(self, call: Call, uuid: str, ask: Callable[[], T], subject: str, done: str) -> T:
        try:
            return self._conductors.run(ask)
        except (errors.Conflict, errors.Unsupported, RemoteFault) as refusal:
            if call.is_allowed(policies.ATTRIBUTES):
                raise errors.Conflict(str(refusal)) from refusal
            reason = "it has no guest on a host, or its host does not answer"
            raise errors.Conflict(f"The {subject} of instance {uuid} cannot {done} now: {reason}.") from refusal
