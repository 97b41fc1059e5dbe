"""How cells are: their databases, their buses and their hosts, all asked at the same time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from cells.cell import Cell
from db.cell import services
from db.sql import clock, ready, sync
from db.sql.connection import CellTransaction
from objects import errors
from objects.base import Object
from objects.process import AGENT_BINARY


class Answer(Object, frozen=True, kw_only=True):
    """What one part of a cell has answered: after how many seconds, or why it did not (``trouble``)."""

    seconds: float | None = None
    trouble: str | None = None


class Health(Object, frozen=True, kw_only=True):
    """One cell. ``bus`` is None where it has none.

    ``schema`` and the hosts are None where its database does not say. ``since``: when this process first found that a part does not
    answer, in seconds since the epoch.
    """

    database: Answer
    bus: Answer | None
    schema: str | None = None
    hosts_up: int | None = None
    hosts: int | None = None
    since: float | None = None

    @property
    def is_well(self) -> bool:
        return self.database.trouble is None and (self.bus is None or self.bus.trouble is None)


def look_at_cells(cells: Iterable[Cell], down_after: float) -> list[Health]:
    """The health of each cell, in their order. It takes as long as the slowest of all, and never longer than the cells' deadline.

    A host is up that was heard of in the last ``down_after`` seconds, by the clock of the cell's database.
    """
    read = partial(_read, down_after=down_after)
    started = [(cell, cell.begin_timed_read(read), cell.begin_check_bus()) for cell in cells]
    return [_collect_health(cell, database, bus) for cell, database, bus in started]


class _DatabaseReading(Object, frozen=True, kw_only=True):
    schema: str | None
    tally: services.ServiceCount | None
    refusal: str


def _read(tx: CellTransaction, down_after: float) -> _DatabaseReading:
    schema = sync.schema_version(tx, "cell")
    return _DatabaseReading(
        schema=schema,
        tally=None if schema is None else services.count_services(tx, AGENT_BINARY, clock.read(tx) - down_after),
        refusal=ready.why_read_only(tx),
    )


def _collect_health(cell: Cell, database: Callable[[], tuple[_DatabaseReading, float]], bus: Callable[[], float]) -> Health:
    wire = None if cell.current_mapping.is_cell0 else _collect_time(bus)
    try:
        reading, seconds = database()
    except errors.SuperconductorError as error:
        return Health(database=Answer(trouble=str(error)), bus=wire, since=cell.silent_since)
    tally = reading.tally
    return Health(
        database=Answer(seconds=seconds, trouble=_refusal_of(cell, reading.schema, reading.refusal)),
        bus=wire,
        schema=reading.schema,
        hosts_up=tally.up if tally else None,
        hosts=tally.all if tally else None,
        since=cell.silent_since,
    )


def _collect_time(collect: Callable[[], float]) -> Answer:
    try:
        return Answer(seconds=collect())
    except errors.SuperconductorError as error:
        return Answer(trouble=str(error))


def _refusal_of(cell: Cell, schema: str | None, refusal: str) -> str | None:
    """Why a database that answers cannot be worked on."""
    try:
        ready.judge_schema(cell.database, "cell", schema)
        cell.database.check_writable(refusal)
    except errors.DatabaseUnavailable as error:
        return str(error)
    return None
