"""Ask about the guest of a server: the host that its cell names, in bounded time."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, TypeVar

from cells.cell import Cell
from cells.registry import CellRegistry
from db.api.servers import mappings
from db.cell import instances, services
from db.cell.services import SeenService
from db.sql.connection import CellTransaction
from db.sql.engine import ApiDatabase
from objects import errors
from objects.console import ConsoleKind, ConsoleListener, ConsolePlace
from objects.context import RequestContext
from objects.diagnostics import Diagnostics
from objects.instance import Instance, State
from objects.process import AGENT_BINARY
from rpc.compute import ANSWERING_VERSION, CONNECTING_VERSION, DIAGNOSING_VERSION, ComputeClient

ANSWER_SHARE = 0.9
"""Share of the time that an agent has for its answer. The rest is for saying that there is none."""

T = TypeVar("T")


class BodyPlace(NamedTuple):
    """A body's row, and the agent of its host, as the cell knows them."""

    row: Instance | None
    agent: SeenService | None


class AskedHost(NamedTuple):
    """A host to be asked about a body, until ``end`` on the monotonic clock."""

    cell: Cell
    host: str
    body_uuid: str
    end: float

    @property
    def display_name(self) -> str:
        return f"Host '{self.host}' of cell {self.cell.name!r}"


class GuestReader:
    """Asks the agent of the body that the server points at. ``down_time``: seconds after which a silent agent is not asked."""

    def __init__(self, database: ApiDatabase, registry: CellRegistry, down_time: float) -> None:
        self._database = database
        self._registry = registry
        self._down_time = down_time

    def console_output(self, context: RequestContext, server_uuid: str, lines: int | None, timeout: float) -> str:
        """The last ``lines`` lines of the console output, or all that is kept if None, within ``timeout`` seconds.

        Raises errors.NotFound, errors.NotOffered if the driver keeps no consoles, and errors.Conflict for everything else. It names
        the host or cell that gives no answer.
        """
        asked_host = self._find_host(server_uuid, timeout, ANSWERING_VERSION)

        def ask_agent(agents: ComputeClient, seconds_left: float) -> str:
            return agents.console_output(context, asked_host.host, asked_host.body_uuid, lines, seconds_left)

        return _ask_host(asked_host, ask_agent)

    def open_console(
        self, context: RequestContext, server_uuid: str, kind: ConsoleKind, path_digest: str, lifetime: float, timeout: float
    ) -> ConsolePlace:
        """The way to a console of the server, within ``timeout`` seconds. Raises what ``console_output`` does."""
        asked_host = self._find_host(server_uuid, timeout, CONNECTING_VERSION)

        def ask_agent(agents: ComputeClient, seconds_left: float) -> ConsoleListener:
            return agents.open_console(context, asked_host.host, asked_host.body_uuid, kind, path_digest, lifetime, seconds_left)

        return ConsolePlace(host=asked_host.host, body_uuid=asked_host.body_uuid, listener=_ask_host(asked_host, ask_agent))

    def diagnostics(self, context: RequestContext, server_uuid: str, timeout: float) -> Diagnostics:
        """What the hypervisor knows of the guest, within ``timeout`` seconds. Raises what ``console_output`` does."""
        asked_host = self._find_host(server_uuid, timeout, DIAGNOSING_VERSION)

        def ask_agent(agents: ComputeClient, seconds_left: float) -> Diagnostics:
            return agents.diagnostics(context, asked_host.host, asked_host.body_uuid, seconds_left)

        return _ask_host(asked_host, ask_agent)

    def _find_host(self, server_uuid: str, timeout: float, version: int) -> AskedHost:
        """The host to ask, whose agent has at least this service version."""
        end = time.monotonic() + timeout
        server = self._database.read(mappings.get, server_uuid)
        if server is None or server.deleted:
            raise errors.NotFound(f"Instance {server_uuid} could not be found.")
        if server.cell_uuid is None:
            raise not_ready(server_uuid)
        try:
            cell = self._registry.get(server.cell_uuid)
            place = cell.with_timeout(timeout).read(_place_of, server.body_uuid)
        except (errors.CellUnavailable, errors.NotFound) as error:
            raise errors.Conflict(f"The host of instance {server_uuid} cannot be asked: {error}") from error
        if place.row is None or place.row.state is not State.ACTIVE or place.row.host is None:
            raise not_ready(server_uuid)
        asked_host = AskedHost(cell, place.row.host, server.body_uuid, end)
        agent = place.agent
        if agent is None or agent.service.forced_down or agent.service.stopping or agent.age > self._down_time:
            raise errors.Conflict(f"{asked_host.display_name} is down and cannot be asked.")
        if agent.service.version < version:
            raise errors.Conflict(
                f"{asked_host.display_name} has an agent of an older release, which cannot answer this: upgrade it."
            )
        return asked_host


def _ask_host(asked_host: AskedHost, question: Callable[[ComputeClient, float], T]) -> T:
    """What the agent answers. ``question`` asks it, and waits for so many seconds."""
    seconds_left = asked_host.end - time.monotonic()
    if asked_host.cell.compute is None or seconds_left <= 0:
        raise errors.Conflict(f"{asked_host.display_name} was not asked: no time was left, or the cell has no bus.")
    try:
        return asked_host.cell.ask_agent(partial(question, asked_host.cell.compute, seconds_left * ANSWER_SHARE), seconds_left)
    except errors.NotOffered:
        raise
    except errors.SuperconductorError as error:
        raise errors.Conflict(f"{asked_host.display_name} cannot answer: {error}") from error


def not_ready(server_uuid: str) -> errors.Conflict:
    """The refusal for a server that has no guest on a host."""
    return errors.Conflict(f"Instance {server_uuid} is not ready: it has no guest on a host.")


def _place_of(tx: CellTransaction, body_uuid: str) -> BodyPlace:
    row = instances.get(tx, body_uuid)
    seen = services.list_seen(tx, AGENT_BINARY, row.host) if row is not None and row.host is not None else []
    return BodyPlace(row, seen[0] if seen else None)
