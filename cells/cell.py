"""A cell as a process holds it: its database, its bus, and a bulkhead before each."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial
from typing import Concatenate, ParamSpec, TypeVar

from cells.bulkhead import Bulkhead, BulkheadSettings, PendingCall
from cells.releases import cell_peers
from db.sql.connection import CellTransaction
from db.sql.engine import CellDatabase
from objects import errors
from objects.cell import CellMapping
from rpc.compute import ComputeClient
from rpc.errors import Timeout, Unreachable
from rpc.transport import Bus
from service.rate_limited_log import RateLimitedLog
from service.upgrade_levels import Pinned

LOG = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")


class Cell:
    """Holding a ``Cell`` is being targeted at it: there is no other state that says where a query or an order goes.

    ``compute`` is the client for the cell's agents; cell0 has no bus and no agents, so there it is None. Every call to the cell
    goes through ``read``, ``write`` or ``send``, which raise CellUnavailable within the configured time where the cell does not
    answer. Errors of the function itself pass unchanged.
    """

    def __init__(self, mapping: CellMapping, database: CellDatabase, bus: Bus | None, settings: BulkheadSettings) -> None:
        self._mapping = mapping
        self.database = database
        self._bus = bus
        self.compute = ComputeClient(bus) if bus is not None else None
        self.complaints = RateLimitedLog(LOG)
        """What this process has said of the cell lately."""
        self.asked: Callable[[], None] = _no_trouble
        """Call it when the cell has been asked for something whose end its feed will tell. ``send`` does."""
        cell_name = f"cell {mapping.name!r}"
        # A SQLite file can stall as a server can: another process that holds its lock is waited for. So it gets its threads too.
        self._rows = Bulkhead(cell_name, "database", settings, inline=False, silent=(errors.DatabaseUnavailable,))
        inline = bus is not None and bus.is_embedded
        self._wire = Bulkhead(cell_name, "bus", settings, inline=inline, silent=(Timeout, Unreachable))
        # Agents that do not answer must not hold up orders to others, nor be taken for a bus that does not.
        self._questions = Bulkhead(cell_name, "bus", settings, inline=inline, silent=(Unreachable,))

    def know_peers(self, pinned: Pinned) -> None:
        """Write to its agents what they know by the cell's records, or what is pinned."""
        if self._bus is not None:
            self._bus.peers = cell_peers(self.read, pinned)

    @property
    def current_mapping(self) -> CellMapping:
        """As last read from the API database: state and name may change while the cell is held, its URLs never do.

        The URLs may be templates (``cells/template.py``).
        """
        return self._mapping

    @property
    def uuid(self) -> str:
        return self._mapping.uuid

    @property
    def name(self) -> str:
        return self._mapping.name

    @property
    def silent_since(self) -> float | None:
        """Since when (seconds since the epoch) its database or its bus has not answered; None: both did when last asked."""
        since = [s for s in (self._rows.breaker.silent_since, self._wire.breaker.silent_since) if s is not None]
        return min(since, default=None)

    @property
    def database_silent_since(self) -> float | None:
        """The same of its database alone."""
        return self._rows.breaker.silent_since

    @property
    def bus_silent_since(self) -> float | None:
        """The same of its bus alone."""
        return self._wire.breaker.silent_since

    def refusals_by_resource(self) -> dict[str, bool]:
        """Of its database and its bus, whether calls are refused now because it does not answer."""
        return {"database": self._rows.breaker.open, "bus": self._wire.breaker.open}

    def read(self, fn: Callable[Concatenate[CellTransaction, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """``fn(tx, ...)`` in a read-only transaction of the cell's database."""
        return self._rows.run(partial(self.database.read, fn, *args, **kwargs))

    def write(self, fn: Callable[Concatenate[CellTransaction, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """``fn(tx, ...)`` in a transaction of the cell's database. After CellUnavailable it may or may not have been committed."""
        return self._rows.run(partial(self.database.write, fn, *args, **kwargs))

    def begin_write(self, fn: Callable[Concatenate[CellTransaction, P], T], *args: P.args, **kwargs: P.kwargs) -> PendingCall[T]:
        """Start a ``write`` and return what waits for its result (see Bulkhead.begin_call)."""
        return self._rows.begin_call(partial(self.database.write, fn, *args, **kwargs))

    def begin_timed_read(self, fn: Callable[[CellTransaction], T]) -> Callable[[], tuple[T, float]]:
        """``begin_read`` whose result comes with the seconds that it took, without those it waited for a thread."""
        return self._rows.begin_call(partial(_time_call, partial(self.database.read, fn)))

    def begin_read(self, fn: Callable[Concatenate[CellTransaction, P], T], *args: P.args, **kwargs: P.kwargs) -> Callable[[], T]:
        """Start a ``read`` and return what waits for its result (see Bulkhead.begin_call)."""
        return self._rows.begin_call(partial(self.database.read, fn, *args, **kwargs))

    def send(self, fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """``fn(...)``, a call or cast of one of the cell's clients: ``cell.send(cell.compute.order, [...])``."""
        self.asked()
        return self._wire.run(partial(fn, *args, **kwargs))

    def ask_agent(self, call: Callable[[], T], timeout: float) -> T:
        """``call()``, which waits for the answer of one agent, within ``timeout`` seconds. Raises CellUnavailable as ``send`` does,
        and ``Timeout`` of an agent that does not answer.
        """
        return self._questions.run(call, timeout)

    def current_time(self) -> float:
        """What the clock of the cell's database says, in seconds since the epoch. Raises CellUnavailable."""
        return self.database.current_time() if self.database.knows_time else self._rows.run(self.database.current_time)

    def check_bus(self) -> None:
        """Raise CellUnavailable unless the cell's broker answers and lets us in. cell0 has none, and is content."""
        self.begin_check_bus()()

    def begin_check_bus(self) -> Callable[[], float]:
        """Start that, and return what waits for it (see Bulkhead.begin_call) and gives the seconds that it took."""
        check = _no_trouble if self._bus is None else self._bus.check_login
        timed = self._wire.begin_call(partial(_time_call, check))
        return lambda: timed()[1]

    def probe_bus(self) -> None:
        """The same without a bound. Raises Unreachable."""
        if self._bus is not None:
            self._bus.check_login()

    def with_timeout(self, timeout: float) -> Deadline:
        """The same cell for a caller who waits at most ``timeout`` seconds."""
        return Deadline(self, self._rows, self._wire, timeout)

    def follow_mapping(self, mapping: CellMapping) -> bool:
        """Take over a change of the mapping; False where its URLs differ, so that another Cell must be made."""
        old = self._mapping
        if (old.database_url, old.transport_url) != (mapping.database_url, mapping.transport_url):
            return False
        self._mapping = mapping
        return True

    def close(self) -> None:
        """Let go of threads and connections. Calls under way are not interrupted."""
        self._rows.close()
        self._wire.close()
        self._questions.close()
        self.database.dispose_connections()
        if self._bus is not None:
            self._bus.close()

    def __repr__(self) -> str:
        return f"Cell({self.name!r}, {self.uuid})"


def _no_trouble() -> None:
    """There is no bus to complain of, and nobody who reads the feed."""


def _time_call(call: Callable[[], T]) -> tuple[T, float]:
    began = time.monotonic()
    return call(), time.monotonic() - began


class Deadline:
    """``read``, ``write`` and ``send`` of a cell, with another time limit than the configured one."""

    def __init__(self, cell: Cell, rows: Bulkhead, wire: Bulkhead, timeout: float) -> None:
        self._cell = cell
        self._rows = rows
        self._wire = wire
        self._timeout = timeout

    def read(self, fn: Callable[Concatenate[CellTransaction, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        return self._rows.run(partial(self._cell.database.read, fn, *args, **kwargs), self._timeout)

    def write(self, fn: Callable[Concatenate[CellTransaction, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        return self._rows.run(partial(self._cell.database.write, fn, *args, **kwargs), self._timeout)

    def send(self, fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return self._wire.run(partial(fn, *args, **kwargs), self._timeout)

    def begin_read(self, fn: Callable[Concatenate[CellTransaction, P], T], *args: P.args, **kwargs: P.kwargs) -> Callable[[], T]:
        """As the cell's: start it, and return what waits for its result."""
        return self._rows.begin_call(partial(self._cell.database.read, fn, *args, **kwargs), self._timeout)

    def begin_check_bus(self) -> Callable[[], None]:
        """Start to ask whether the cell's broker answers, and return what waits for that."""
        return self._wire.begin_call(self._cell.probe_bus, self._timeout)
