"""Plan moves that empty hosts, tentatively. Greedy: the host with the fewest servers first, each server to the fullest host.

Every function but ``Rebalancer.run`` needs the table's lock. The filters of production judge each destination, for the request that
the migration would make, after all moves before it. A host that has got a server is not emptied, and no server goes to an empty
host. So a server moves once, and each move gives its room back before the next one.

Emptying a host takes all its servers. With so many moves, no choice empties more hosts than those with the fewest servers whose
servers are no more than the moves: ``emptied_bound``.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import msgspec
import numpy as np

from db.api.claims.displaced import ClaimedBody
from db.api.operations.movable import MovableServers
from objects import errors
from objects.context import RequestContext
from objects.destination import Destination
from objects.inventory import Slot
from objects.move import Move, MoveKind
from objects.rebalance import RebalanceMove, RoomLeft
from scheduler.engine import capacity, engine
from scheduler.engine.driver import SchedulerDriver
from scheduler.engine.job import Job, PlanContext, checked_job
from scheduler.framework.batch_request import Request
from scheduler.framework.members import Members
from scheduler.table.arrays import Floats, Ints, Mask
from scheduler.table.host_table import HostTable

HOLD_S = 0.01
"""Seconds after which planning gives the table's lock away."""
PAUSE_S = 0.001
"""Seconds between two holds, in which decisions that wait get the lock."""
SERVERS_LIMIT = 1_000
"""Servers that are looked at, and moved, at most."""
CHECKS_LIMIT = 10_000_000
"""Servers times hosts: in large fleets fewer servers are looked at."""


def _pause_scan() -> None:
    time.sleep(PAUSE_S)


class Mover(NamedTuple):
    """A server that can be moved, with the request of its migration."""

    body: ClaimedBody
    job: Job
    live: bool


class RebalancePlan(NamedTuple):
    """``rows``: of the hosts that ``moves`` empty, in order."""

    moves: tuple[RebalanceMove, ...]
    rows: tuple[int, ...]


def server_limit(table: HostTable) -> int:
    """How many servers are looked at, and moved, at most."""
    return min(SERVERS_LIMIT, CHECKS_LIMIT // max(table.size, 1))


def source_rows(table: HostTable, moment: PlanContext, allowed: int) -> Ints:
    """Hosts that are up and have no more servers than may be moved, those with the fewest first, of these the largest.

    They have ``server_limit`` servers together at most.
    """
    counts = table.instances[: table.size]
    up = table.hosts_up(moment.alive_since)[: table.size] & table.eligible[: table.size]
    mask = up & (counts > 0) & (counts <= allowed)
    rows: Ints = np.flatnonzero(mask)
    order = np.lexsort((table.inventory[rows], -table.cap_vcpus[rows], counts[rows]))
    rows = rows[order]
    chosen: Ints = rows[np.cumsum(counts[rows]) <= server_limit(table)]
    return chosen


def emptied_bound(table: HostTable, allowed: int) -> int:
    """How many hosts so many moves can empty at most."""
    counts = np.sort(table.instances[: table.size][(table.instances[: table.size] > 0) & (table.cell[: table.size] >= 0)])
    return int(np.count_nonzero(np.cumsum(counts) <= allowed))


def movers_of(context: RequestContext, movable: MovableServers) -> dict[int, list[Mover]]:
    """What can be moved, by inventory, the largest first."""
    movers: dict[int, list[Mover]] = {}
    for body in movable.claims.bodies:
        spec = movable.specs.get(body.uuid)
        if spec is None:
            continue
        host, cell_uuid = movable.hosts[body.uuid]
        move = Move(kind=MoveKind.MIGRATE, instance_uuid=body.uuid, source_host=host, source_cell_uuid=cell_uuid)
        twin = f"twin of {body.uuid}"
        moving = msgspec.structs.replace(spec.for_move(move, body.batch_id, destination=Destination()), fences={twin: 1})
        try:
            job = checked_job(context, moving, [twin])
        except errors.SuperconductorError:
            continue  # its flavor or image asks for what no host can have by now
        movers.setdefault(body.inventory_id, []).append(Mover(body, job, body.uuid in movable.live))
    for movers_of_host in movers.values():
        movers_of_host.sort(key=lambda mover: (-mover.job.takes.vcpus, -mover.job.takes.memory_mb, mover.body.uuid))
    return movers


class _More(NamedTuple):
    """How much more is used of a row; less, if negative. ``resources``: by custom resource class."""

    row: int
    vcpus: int
    memory_mb: int
    disk_gb: int
    instances: int
    building: int
    resources: Mapping[str, int]


class _Emptied(NamedTuple):
    """A host that is emptied: its moves, where each server goes, and what that changes of rows."""

    row: int
    moves: list[RebalanceMove]
    changes: list[_More]


class Rebalancer:
    """Plans on one table, which shows the plan only while the lock is held. Decisions get the lock in between.

    What they change of a host of the plan, so that it may not hold any more, takes that host's moves out of it.
    """

    def __init__(
        self,
        table: HostTable,
        driver: SchedulerDriver,
        moment: PlanContext,
        slots: Sequence[Slot],
        sources: Sequence[int],
        movers: Mapping[int, Sequence[Mover]],
        allowed: int,
    ) -> None:
        """``slots``: of the server groups of all movers. ``sources``: inventories to empty, in order, by at most so many moves."""
        self._table = table
        self._driver = driver
        self._moment = moment
        self._movers = movers
        self._allowed = allowed
        self._all_slots: dict[str, list[Slot]] = {}
        for slot in slots:
            self._all_slots.setdefault(slot.group_uuid, []).append(slot)
        self._slots, self._places = dict(self._all_slots), dict[str, str]()
        self._emptied: list[_Emptied] = []
        self._placed: list[tuple[Mover, int, _More]] = []  # servers of the host that is being emptied
        self._source = -1
        self._is_lost = False
        self._seen: dict[int, tuple[float, ...]] = {}
        self._before: dict[int, tuple[tuple[float, float, float], int, int]] = {}
        self._lent: list[_More] = []
        self._steps = self._empty_each(sources)

    @property
    def plan_so_far(self) -> RebalancePlan:
        """What was planned so far."""
        moves = tuple(move for emptied in self._emptied for move in emptied.moves)
        return RebalancePlan(moves, tuple(emptied.row for emptied in self._emptied))

    def run(self, pause: Callable[[], None] = _pause_scan) -> None:
        """Plan to the end, in holds of the lock. ``pause``: called between two of them."""
        while True:
            with self._table.lock, self.show_plan():
                until = time.monotonic() + HOLD_S
                while next(self._steps, self._steps) is not self._steps:
                    if time.monotonic() >= until:
                        break
                else:
                    return
            pause()

    @contextmanager
    def show_plan(self) -> Iterator[None]:
        """Show the plan in the table meanwhile, as far as it still holds. Needs the lock."""
        try:
            self._give_up_changed()
            for change in self._planned_changes():
                self._show_change(change)
            yield
        finally:
            for change in self._lent:
                self._table.classes.give_back(change.row, change.resources)
            for row, (free, instances, building) in self._before.items():
                self._table.lend_row(row, free, instances, building)
            self._before, self._lent = {}, []

    def _planned_changes(self) -> Iterator[_More]:
        for emptied in self._emptied:
            yield from emptied.changes
        for _, _, change in self._placed:
            yield change

    def _show_change(self, change: _More) -> None:
        """Show a change, and remember what was there."""
        table, row = self._table, change.row
        free = table.free_vcpus.item(row), table.free_memory_mb.item(row), table.free_disk_gb.item(row)
        instances, building = table.instances.item(row), table.building.item(row)
        self._before.setdefault(row, (free, instances, building))
        if change.resources:
            table.classes.take_amounts(row, change.resources)
            self._lent.append(change)
        remaining = free[0] - change.vcpus, free[1] - change.memory_mb, free[2] - change.disk_gb
        table.lend_row(row, remaining, instances + change.instances, building + change.building)

    def _state_of(self, row: int) -> tuple[float, ...]:
        """What the row is without the plan."""
        table = self._table
        free = table.free_vcpus.item(row), table.free_memory_mb.item(row), table.free_disk_gb.item(row)
        free, instances, _ = self._before.get(row, (free, table.instances.item(row), 0))
        flags = table.eligible.item(row), table.enabled.item(row)
        return (table.inventory.item(row), table.generation.item(row), *free, instances, *flags)

    def _give_up_changed(self) -> None:
        """Take out of the plan what concerns rows that have changed since it was made."""
        changed = {row for row, seen in self._seen.items() if self._state_of(row) != seen}
        if not changed:
            return
        for row in changed:
            del self._seen[row]
        self._is_lost = self._source in changed or any(to in changed for _, to, _ in self._placed)
        unchanged = [emptied for emptied in self._emptied if changed.isdisjoint(change.row for change in emptied.changes)]
        if len(unchanged) < len(self._emptied):
            self._emptied = unchanged
            self._slots, self._places = dict(self._all_slots), {}
            servers = {mover.body.server_uuid: mover for movers_of_host in self._movers.values() for mover in movers_of_host}
            for move in self.plan_so_far.moves:
                self._note_host(servers[move.server], move.destination)
            for server, row, _ in self._placed:
                self._note_host(server, self._table.hosts[row])

    # -- planning, in a hold -----------------------------------------------------------------------------------------------------

    def _empty_each(self, sources: Sequence[int]) -> Iterator[None]:
        """Empty as many of these as the moves can. Each step places a server."""
        table = self._table
        taken: set[int] = set()
        open_rows = (table.instances[: table.size] > 0) & (table.cell[: table.size] >= 0)
        for inventory in sources:
            row = table.find_inventory(inventory)
            servers = self._movers.get(inventory, ())
            if not servers or row is None or row in taken or len(servers) != table.instances.item(row):
                continue  # it got a server, has one that stays, or none any more
            if sum(len(emptied.moves) for emptied in self._emptied) + len(servers) > self._allowed:
                break  # the next hosts have as many or more
            slots, places = dict(self._slots), dict(self._places)
            self._source = row
            open_rows[row] = False
            self._note_state(row)
            yield from self._place_all(servers, open_rows)
            if len(self._placed) == len(servers) == table.instances.item(row):
                taken.update(to for _, to, _ in self._placed)
                self._emptied.append(self._emptied_now(row))
            else:
                open_rows[row] = True
                self._slots, self._places = slots, places
            self._placed = []

    def _place_all(self, servers: Sequence[Mover], open_rows: Mask) -> Iterator[None]:
        """Place each of these servers; stop, with nothing placed, if one fits on none of these rows."""
        self._is_lost = False
        for server in servers:
            request, rows = self._request_of(server), np.flatnonzero(open_rows)
            to = self._fullest_row(request, rows[engine.fitting_rows(self._driver, self._table, request, rows)])
            if to is None:
                break
            self._note_state(to)
            takes = server.job.takes
            resources = engine.amounts_on(self._table, request, to)
            change = _More(to, takes.vcpus, takes.memory_mb, takes.disk_gb, 1, 1, resources)
            self._show_change(change)
            self._placed.append((server, to, change))
            self._note_host(server, self._table.hosts[to])
            yield
            if self._is_lost:
                break
        else:
            return
        self._hide_placed()

    def _hide_placed(self) -> None:
        for _, row, change in self._placed:
            back = {name: -amount for name, amount in change.resources.items()}
            self._show_change(_More(row, -change.vcpus, -change.memory_mb, -change.disk_gb, -1, -1, back))
        self._placed = []

    def _note_state(self, row: int) -> None:
        if row not in self._seen:
            self._seen[row] = self._state_of(row)

    def _emptied_now(self, row: int) -> _Emptied:
        """All servers of the row leave it. The last takes along what is left of the row's claims: those on NUMA nodes."""
        table, changes, moves = self._table, [change for _, _, change in self._placed], list[RebalanceMove]()
        for server, to, _ in self._placed:
            takes, body, spec = server.job.takes, server.body, server.job.spec
            resources = takes.resources if table.instances.item(row) > 1 else table.classes.claimed_on(row)
            less = {name: -amount for name, amount in resources.items()}
            change = _More(row, -takes.vcpus, -takes.memory_mb, -takes.disk_gb, -1, 0, less)
            self._show_change(change)
            changes.append(change)
            moves.append(
                RebalanceMove(
                    server=body.server_uuid,
                    name=body.name,
                    project_id=spec.project_id,
                    flavor=spec.flavor.name,
                    vcpus=takes.vcpus,
                    memory_mb=takes.memory_mb,
                    source=table.hosts[row],
                    destination=table.hosts[to],
                    live=server.live,
                    gain=round(1 / len(self._placed), 6),
                )
            )
        return _Emptied(row, moves, changes)

    def _request_of(self, server: Mover) -> Request:
        job = server.job
        request = job.make_request(self._table, self._moment)
        request.places = {uuid: self._places.get(uuid, host) for uuid, host in request.places.items()}
        if job.spec.group is not None:
            slots = self._slots.get(job.spec.group.uuid, [])
            request.members = Members(slots).view_without([slot for slot in slots if slot.instance_uuid == server.body.uuid])
        return request

    def _note_host(self, server: Mover, host: str) -> None:
        """Its server is on this host from now on."""
        self._places[server.body.server_uuid] = host
        group = server.job.spec.group
        if group is not None:
            other_slots = [slot for slot in self._slots.get(group.uuid, []) if slot.instance_uuid != server.body.uuid]
            domain = server.job.spec.fault_domain
            slot = Slot(group_uuid=group.uuid, instance_uuid=server.body.uuid, host=host, fault_domain=domain)
            self._slots[group.uuid] = [*other_slots, slot]

    def _fullest_row(self, request: Request, rows: Ints) -> int | None:
        """The row with the smallest free shares once the server is there; the first inventory of those that are alike."""
        if not rows.size:
            return None
        table = self._table
        free = _share_of(table.free_vcpus[rows] - request.vcpus, table.cap_vcpus[rows])
        free += _share_of(table.free_memory_mb[rows] - request.memory_mb, table.cap_memory_mb[rows])
        return int(rows[np.lexsort((table.inventory[rows], free))[0]])


def fleet_state(table: HostTable, driver: SchedulerDriver, jobs: Sequence[Job], moment: PlanContext) -> RoomLeft:
    """The hosts as they are in the table now. ``jobs``: of which it is told how many servers fit."""
    requests = {job.spec.flavor.name: job.make_request(table, moment) for job in jobs}
    rows: Ints = np.flatnonzero(table.cell[: table.size] >= 0)
    caps = table.cap_vcpus[rows], table.cap_memory_mb[rows]
    vcpus, memory = _share_of(table.free_vcpus[rows], caps[0]), _share_of(table.free_memory_mb[rows], caps[1])
    return RoomLeft(
        empty_hosts=int(np.count_nonzero(table.instances[rows] == 0)),
        stranded_vcpus=round(float((np.maximum(vcpus - memory, 0.0) * caps[0]).sum()), 3),
        stranded_memory_mb=round(float((np.maximum(memory - vcpus, 0.0) * caps[1]).sum()), 3),
        fits={name: int(capacity.host_room(table, driver, request).counts.sum()) for name, request in requests.items()},
    )


def kept_of(movable: MovableServers) -> dict[str, int]:
    """How many servers cannot be moved now, by reason."""
    return dict(Counter(movable.kept.values()).most_common())


def _share_of(part: Floats, total: Floats) -> Floats:
    """Of each host, from 0 to 1; 0 of nothing."""
    shares: Floats = np.clip(part / np.maximum(total, 1e-9), 0.0, 1.0)
    return np.where(total > 0, shares, 0.0)
