"""Plan moves that empty hosts, tentatively. Greedy: the host with the fewest servers first, each server to the fullest host.

Every function needs the table's lock, and the caller wraps planning in ``table.tentative()``. The filters of production judge each
destination, for the request that the migration would make, after all moves before it. A host that has got a server is not emptied,
and no server goes to an empty host. So a server moves once, and each move gives its room back before the next one.

Emptying a host takes all its servers. With so many moves, no choice empties more hosts than those with the fewest servers whose
servers are no more than the moves: ``bound``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from db.api.displaced import ClaimedBody
from db.api.movable import MovableServers
from objects import errors
from objects.context import RequestContext
from objects.destination import Destination
from objects.inventory import Slot
from objects.move import Move, MoveKind
from objects.rebalance import RebalanceMove, RoomLeft
from scheduler.drivers.base import SchedulerDriver
from scheduler.plan import capacity, engine
from scheduler.plan.job import Job, PlanContext, checked
from scheduler.plan.members import Members
from scheduler.plan.request import Request
from scheduler.table.arrays import Floats, Ints
from scheduler.table.host_table import HostTable

SERVERS_LIMIT = 1_000
"""Servers that are looked at, and moved, at most: planning holds the table's lock."""
CHECKS_LIMIT = 10_000_000
"""Servers times hosts: in large fleets fewer servers are looked at."""


class Mover(NamedTuple):
    """A server that can be moved, with the request of its migration."""

    body: ClaimedBody
    job: Job
    live: bool


class RebalancePlan(NamedTuple):
    """``rows``: of the hosts that ``moves`` empty, in order."""

    moves: tuple[RebalanceMove, ...]
    rows: tuple[int, ...]


def limit(table: HostTable) -> int:
    """How many servers are looked at, and moved, at most."""
    return min(SERVERS_LIMIT, CHECKS_LIMIT // max(table.size, 1))


def sources(table: HostTable, moment: PlanContext, allowed: int) -> Ints:
    """Hosts that are up and have no more servers than may be moved, those with the fewest first, of these the largest.

    They have ``limit`` servers together at most.
    """
    counts = table.instances[: table.size]
    up = table.up(moment.alive_since)[: table.size] & table.eligible[: table.size]
    mask = up & (counts > 0) & (counts <= allowed)
    rows: Ints = np.flatnonzero(mask)
    order = np.lexsort((table.inventory[rows], -table.cap_vcpus[rows], counts[rows]))
    rows = rows[order]
    chosen: Ints = rows[np.cumsum(counts[rows]) <= limit(table)]
    return chosen


def bound(table: HostTable, allowed: int) -> int:
    """How many hosts so many moves can empty at most."""
    counts = np.sort(table.instances[: table.size][(table.instances[: table.size] > 0) & (table.cell[: table.size] >= 0)])
    return int(np.count_nonzero(np.cumsum(counts) <= allowed))


def movers_of(context: RequestContext, found: MovableServers) -> dict[int, list[Mover]]:
    """What can be moved, by inventory, the largest first."""
    movers: dict[int, list[Mover]] = {}
    for body in found.claims.bodies:
        spec = found.specs.get(body.uuid)
        if spec is None:
            continue
        host, cell_uuid = found.hosts[body.uuid]
        move = Move(kind=MoveKind.MIGRATE, instance_uuid=body.uuid, source_host=host, source_cell_uuid=cell_uuid)
        twin = f"twin of {body.uuid}"
        moving = msgspec.structs.replace(spec.moving(move, body.batch_id, destination=Destination()), fences={twin: 1})
        try:
            job = checked(context, moving, [twin])
        except errors.SuperconductorError:
            continue  # its flavor or image asks for what no host can have by now
        movers.setdefault(body.inventory_id, []).append(Mover(body, job, body.uuid in found.live))
    for some in movers.values():
        some.sort(key=lambda each: (-each.job.takes.vcpus, -each.job.takes.memory_mb, each.body.uuid))
    return movers


class Rebalancer:
    """Plans on one table. What its moves leave is given back by ``undo``; what they take, by the end of ``table.tentative()``.

    ``slots``: of the server groups of all movers.
    """

    def __init__(self, table: HostTable, driver: SchedulerDriver, moment: PlanContext, slots: Sequence[Slot]) -> None:
        self._table = table
        self._driver = driver
        self._moment = moment
        self._slots: dict[str, list[Slot]] = {}
        for slot in slots:
            self._slots.setdefault(slot.group_uuid, []).append(slot)
        self._places: dict[str, str] = {}
        self._left: list[tuple[int, tuple[float, float, float], Mapping[str, int]]] = []

    def plan(self, rows: Ints, movers: Mapping[int, Sequence[Mover]], allowed: int) -> RebalancePlan:
        """Empty as many of these rows, in order, as so many moves can."""
        table = self._table
        moves: list[RebalanceMove] = []
        emptied: list[int] = []
        taken: set[int] = set()
        open_rows = (table.instances[: table.size] > 0) & (table.cell[: table.size] >= 0)
        for row in rows.tolist():
            servers = movers.get(table.inventory.item(row), ())
            if row in taken or len(servers) != table.instances.item(row):
                continue  # it got a server, or has one that stays
            if len(moves) + len(servers) > allowed:
                break  # the next hosts have as many or more
            open_rows[row] = False
            chosen = self._elsewhere(servers, np.flatnonzero(open_rows))
            if chosen is None:
                open_rows[row] = True
                continue
            taken.update(chosen)
            emptied.append(row)
            moves += [self._moved(row, to, server, 1 / len(servers)) for to, server in zip(chosen, servers, strict=True)]
        return RebalancePlan(tuple(moves), tuple(emptied))

    def _elsewhere(self, servers: Sequence[Mover], rows: Ints) -> list[int] | None:
        """A row for each server, which then has its room; None, with nothing taken, if one fits on none of these rows."""
        mark, slots, places = self._table.mark, dict(self._slots), dict(self._places)
        chosen: list[int] = []
        for server in servers:
            request = self._request(server)
            row = self._fullest(request, server.job, rows[engine.fits(self._driver, self._table, request, rows)])
            if row is None:
                self._table.give_back(mark)
                self._slots, self._places = slots, places
                return None
            engine.take(self._table, request, row)
            chosen.append(row)
            self._note(server, self._table.hosts[row])
        return chosen

    def _request(self, server: Mover) -> Request:
        job = server.job
        request = job.request(self._table, self._moment)
        request.places = {uuid: self._places.get(uuid, host) for uuid, host in request.places.items()}
        if job.spec.group is not None:
            slots = self._slots.get(job.spec.group.uuid, [])
            request.members = Members(slots).without([slot for slot in slots if slot.instance_uuid == server.body.uuid])
        return request

    def _note(self, server: Mover, host: str) -> None:
        """Its server is on this host from now on."""
        self._places[server.body.server_uuid] = host
        group = server.job.spec.group
        if group is not None:
            theirs = [slot for slot in self._slots.get(group.uuid, []) if slot.instance_uuid != server.body.uuid]
            domain = server.job.spec.fault_domain
            slot = Slot(group_uuid=group.uuid, instance_uuid=server.body.uuid, host=host, fault_domain=domain)
            self._slots[group.uuid] = [*theirs, slot]

    def _fullest(self, request: Request, job: Job, rows: Ints) -> int | None:
        """The row with the smallest free shares once the server is there; the first inventory of those that are alike."""
        if not rows.size:
            return None
        table = self._table
        free = _share(table.free_vcpus[rows] - request.vcpus, table.cap_vcpus[rows])
        free += _share(table.free_memory_mb[rows] - request.memory_mb, table.cap_memory_mb[rows])
        return int(rows[np.lexsort((table.inventory[rows], free))[0]])

    def _moved(self, row: int, to: int, server: Mover, gain: float) -> RebalanceMove:
        """The move, whose server leaves the row. The last one takes along what is left of the row's claims: those on NUMA nodes."""
        table, takes, body, spec = self._table, server.job.takes, server.body, server.job.spec
        free = table.free_vcpus.item(row), table.free_memory_mb.item(row), table.free_disk_gb.item(row)
        resources = takes.resources if table.instances.item(row) > 1 else table.classes.claimed_on(row)
        self._left.append((row, free, resources))
        table.instances[row] -= 1
        if resources:
            table.classes.give_back(row, resources)
        table.set_free(row, free[0] + takes.vcpus, free[1] + takes.memory_mb, free[2] + takes.disk_gb)
        return RebalanceMove(
            server=body.server_uuid,
            name=body.name,
            project_id=spec.project_id,
            flavor=spec.flavor.name,
            vcpus=takes.vcpus,
            memory_mb=takes.memory_mb,
            source=table.hosts[row],
            destination=table.hosts[to],
            live=server.live,
            gain=round(gain, 6),
        )

    def undo(self) -> None:
        """Put back what left its rows. No move took anything on them."""
        while self._left:
            row, free, resources = self._left.pop()
            self._table.instances[row] += 1
            if resources:
                self._table.classes.take(row, resources)
            self._table.set_free(row, *free)


def state(table: HostTable, driver: SchedulerDriver, requests: Mapping[str, Request]) -> RoomLeft:
    """The hosts as they are in the table now. ``requests``: by flavor."""
    rows: Ints = np.flatnonzero(table.cell[: table.size] >= 0)
    caps = table.cap_vcpus[rows], table.cap_memory_mb[rows]
    vcpus, memory = _share(table.free_vcpus[rows], caps[0]), _share(table.free_memory_mb[rows], caps[1])
    return RoomLeft(
        empty_hosts=int(np.count_nonzero(table.instances[rows] == 0)),
        stranded_vcpus=round(float((np.maximum(vcpus - memory, 0.0) * caps[0]).sum()), 3),
        stranded_memory_mb=round(float((np.maximum(memory - vcpus, 0.0) * caps[1]).sum()), 3),
        fits={name: int(capacity.room(table, driver, request).counts.sum()) for name, request in requests.items()},
    )


def kept_of(found: MovableServers) -> dict[str, int]:
    """How many servers cannot be moved now, by reason."""
    return dict(Counter(found.kept.values()).most_common())


def _share(part: Floats, whole: Floats) -> Floats:
    """Of each host, from 0 to 1; 0 of nothing."""
    shares: Floats = np.clip(part / np.maximum(whole, 1e-9), 0.0, 1.0)
    return np.where(whole > 0, shares, 0.0)
