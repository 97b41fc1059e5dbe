"""Which moves would free the most: the answer of a scheduler, which changes nothing."""

from __future__ import annotations

from typing import ClassVar

from objects.base import Message, Object


class RebalanceMove(Object, frozen=True, kw_only=True):
    """A move of one server, after those before it. ``live``: its power allows a live migration.

    ``gain``: its share of the host that it helps to empty, from 0 to 1.
    """

    server: str
    name: str
    project_id: str
    flavor: str
    vcpus: int
    memory_mb: int
    source: str
    destination: str
    live: bool
    gain: float


class RoomLeft(Object, frozen=True, kw_only=True):
    """The hosts as they are at one time. ``empty_hosts``: those without claims.

    ``stranded_vcpus``: free vCPUs of hosts whose free share of memory is smaller, beyond that share. The same for memory, in MiB.
    ``fits``: by flavor, how many more servers fit.
    """

    empty_hosts: int
    stranded_vcpus: float
    stranded_memory_mb: float
    fits: dict[str, int] = {}


class Rebalance(Message, frozen=True, kw_only=True):
    """``moves`` in the order in which each is possible: one begins when the one before it has ended. They empty ``hosts``.

    ``servers``: all there are. ``allowed``: how many of them may be moved. ``bound``: with so many moves, no more hosts can be
    emptied by any choice. ``considered``: servers that were looked at, those on the hosts with the fewest; ``kept``: of them, by
    reason, those that cannot be moved now. ``early``: the scheduler has just started, and hosts are missing.
    """

    VERSION: ClassVar[str] = "1.0"

    servers: int
    allowed: int
    moves: tuple[RebalanceMove, ...]
    hosts: tuple[str, ...]
    bound: int
    before: RoomLeft
    after: RoomLeft
    considered: int
    kept: dict[str, int] = {}
    early: bool = False
