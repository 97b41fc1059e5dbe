"""Read the console output of a server: from the host that its cell names, in bounded time."""

from __future__ import annotations

import time
from functools import partial
from typing import NamedTuple

from cells.cell import Cell
from cells.registry import CellRegistry
from db.api import mappings
from db.cell import instances, services
from db.cell.services import SeenService
from db.sql.connection import CellTransaction
from db.sql.engine import ApiDatabase
from objects import errors
from objects.context import RequestContext
from objects.instance import Instance, State
from objects.process import AGENT_BINARY
from rpc.compute import ANSWERING_VERSION

ANSWER_SHARE = 0.9
"""Share of the time that an agent has for its answer. The rest is for saying that there is none."""


class BodyPlace(NamedTuple):
    """A body's row, and the agent of its host, as the cell knows them."""

    row: Instance | None
    agent: SeenService | None


class ConsoleReader:
    """Asks the agent of the body that the server points at. ``down_time``: seconds after which a silent agent is not asked."""

    def __init__(self, database: ApiDatabase, registry: CellRegistry, down_time: float) -> None:
        self._database = database
        self._registry = registry
        self._down_time = down_time

    def read(self, context: RequestContext, server_uuid: str, lines: int | None, timeout: float) -> str:
        """The last ``lines`` lines, or all that is kept if None, within ``timeout`` seconds.

        Raises errors.NotFound, errors.NotOffered if the driver keeps no consoles, and errors.Conflict for everything else. It names
        the host or cell that gives no answer.
        """
        end = time.monotonic() + timeout
        server = self._database.read(mappings.get, server_uuid)
        if server is None or server.deleted:
            raise errors.NotFound(f"Instance {server_uuid} could not be found.")
        if server.cell_uuid is None:
            raise not_ready(server_uuid)
        try:
            cell = self._registry.get(server.cell_uuid)
            place = cell.within(timeout).read(_place_of, server.body_uuid)
        except (errors.CellUnavailable, errors.NotFound) as error:
            raise errors.Conflict(f"The console of instance {server_uuid} cannot be read: {error}") from error
        if place.row is None or place.row.state is not State.ACTIVE or place.row.host is None:
            raise not_ready(server_uuid)
        self._check_agent(place.row.host, cell, place.agent)
        return self._ask(context, cell, place.row.host, server.body_uuid, lines, end - time.monotonic())

    def _check_agent(self, host: str, cell: Cell, agent: SeenService | None) -> None:
        what = f"Host '{host}' of cell {cell.name!r}"
        if agent is None or agent.service.forced_down or agent.service.stopping or agent.age > self._down_time:
            raise errors.Conflict(f"{what} is down: its consoles cannot be read.")
        if agent.service.version < ANSWERING_VERSION:
            raise errors.Conflict(f"{what} has an agent of an older release, which cannot read consoles: upgrade it.")

    def _ask(self, context: RequestContext, cell: Cell, host: str, body: str, lines: int | None, left: float) -> str:
        if cell.compute is None or left <= 0:
            raise errors.Conflict(f"Host '{host}' of cell {cell.name!r} was not asked: no time was left, or the cell has no bus.")
        ask = partial(cell.compute.console_output, context, host, body, lines, left * ANSWER_SHARE)
        try:
            return cell.ask(ask, left)
        except errors.NotOffered:
            raise
        except errors.SuperconductorError as error:
            raise errors.Conflict(f"Host '{host}' of cell {cell.name!r} gives no console output: {error}") from error


def not_ready(server_uuid: str) -> errors.Conflict:
    """The refusal for a server that has no guest on a host."""
    return errors.Conflict(f"Instance {server_uuid} is not ready: it has no guest on a host.")


def _place_of(tx: CellTransaction, body_uuid: str) -> BodyPlace:
    row = instances.get(tx, body_uuid)
    seen = services.list_seen(tx, AGENT_BINARY, row.host) if row is not None and row.host is not None else []
    return BodyPlace(row, seen[0] if seen else None)
