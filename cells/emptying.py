"""Empty hosts: what each server on them needs, and the loop that moves all that can be moved.

Nothing is stored: what there is to do is read from the rows each time, so an interrupted loop is begun again. Operations that are
accepted here are carried out by the conductors, whose sweeps find them.
"""

from __future__ import annotations

import enum
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from math import inf
from typing import TypeVar

import msgspec

from cells.cell import Cell
from cells.registry import CellRegistry
from db.api.claims.claims import Ledger
from db.api.operations import accepting, operations, shelving, steps
from db.api.operations.accepting import NewOperation
from db.api.operations.operations import Body
from db.cell import instances, services
from db.cell.instances import DueRow
from db.cell.services import SeenService
from db.sql.connection import ApiTransaction
from objects import errors, lifecycle
from objects.base import Object
from objects.instance import State
from objects.operation import Operation, OperationArgs, OperationKind, OperationState, Outcome, allows_operation
from objects.phase import vm_state_of
from objects.process import AGENT_BINARY
from objects.task import Power, TaskState
from service.bisect import isolate_failures

T = TypeVar("T")

MOVE_TIMEOUT_S = 3600.0
"""Seconds after which a move that was accepted here is given up, as the API's ``move_timeout`` has it by default."""
POLL_INTERVAL_S = 0.5
"""Seconds between two looks at moves under way."""
CONFLICT_PATIENCE_S = 900.0
"""Seconds for which a server that refuses its move is tried again: its all-or-nothing batch may be unfinished for as long."""
HOSTS_PER_READ = 50
ERRORS_PER_READ = 1000
MOVES_PER_TRANSACTION = 50
"""Moves accepted together at most."""

OCCUPYING = (*sorted(lifecycle.LIVE), State.STAGED, State.ACTIVE, State.DELETING)
"""States of rows that keep a host from being deleted."""


# -- hosts -------------------------------------------------------------------------------------------------------------------------


class HostCondition(enum.StrEnum):
    """Whether a host can take part in a move of its servers."""

    UP = "up"
    DEAD = "dead"  # called dead, or silent while others of its cell are heard
    SILENT = "silent"  # so is every other host of its cell: the cell's bus or conductor may be down instead


def conditions_by_host(agents: Iterable[SeenService], down_after: float) -> dict[str, HostCondition]:
    """The condition of each host of a cell. ``agents``: all of the cell. ``down_after``: seconds of silence."""
    seen = list(agents)
    silent = HostCondition.DEAD if any(agent.age <= down_after for agent in seen) else HostCondition.SILENT
    return {agent.service.host: _condition_of(agent, down_after, silent) for agent in seen}


def _condition_of(agent: SeenService, down_after: float, silent: HostCondition) -> HostCondition:
    if agent.service.forced_down:
        return HostCondition.DEAD
    return HostCondition.UP if agent.age <= down_after else silent


# -- what is on them ---------------------------------------------------------------------------------------------------------------


class Need(enum.StrEnum):
    """What a server needs next, so that it leaves its host."""

    MOVE = "move"
    CONFIRM = "confirm"  # its resize or migration
    OFFLOAD = "offload"  # it is shelved, and its host may forget it
    GIVE_UP = "give up"  # its migration or resize from a dead host, which cannot be asked to be off
    WAIT = "wait"  # until what is under way has ended
    STUCK = "stuck"  # somebody else must do something first


class Occupant(Object, frozen=True, kw_only=True):
    """A body of a server on a host. ``kind``: the move that it needs. ``operation``: the open one of its server.

    ``reason``: why it is there, for a person.
    """

    body_uuid: str
    server_uuid: str
    host: str
    need: Need
    name: str = ""
    reason: str = ""
    kind: OperationKind | None = None
    operation: Operation | None = None


class MoveOrder(Object, frozen=True, kw_only=True):
    """How servers are to be moved. ``kinds``: by the condition of their hosts; servers of other hosts are left there.

    ``live``: migrate servers live that run. ``to``: the destination, in the cell ``to_cell``; None: any. ``confirm_operation``:
    confirm moves that wait for their users.
    """

    kinds: Mapping[HostCondition, OperationKind]
    user_id: str
    request_id: str = msgspec.field(default_factory=lambda: f"req-{uuid.uuid4()}")
    to: str | None = None
    to_cell: str | None = None
    cross_cell: bool = False
    live: bool = False
    confirm: bool = False
    down_after: float = 60.0


_LEFT = {
    HostCondition.UP: "its host is up: 'host drain' migrates its servers",
    HostCondition.DEAD: "its host is dead: 'host evacuate' moves its servers",
    HostCondition.SILENT: "its host is silent, as its whole cell is: see 'cell check', or call it dead with 'host set --down'",
}


def judge_row(row: DueRow, body: Body | None, operation: Operation | None, condition: HostCondition, order: MoveOrder) -> Occupant:
    """What the body of this row needs. ``operation``: the open one of its server."""
    kind = order.kinds.get(condition)
    occupant = Occupant(
        body_uuid=row.uuid, server_uuid=row.uuid, host=row.host or "", need=Need.STUCK, kind=kind, operation=operation
    )
    if body is None:
        return msgspec.structs.replace(occupant, reason="only its cell knows it: see 'superconductor verify'")
    if order.live and kind is OperationKind.MIGRATE and allows_operation(OperationKind.LIVE_MIGRATE, body.server.power):
        kind = OperationKind.LIVE_MIGRATE
    occupant = msgspec.structs.replace(occupant, server_uuid=body.server.uuid, name=body.server.name, kind=kind)
    need, reason = (Need.STUCK, _LEFT[condition]) if kind is None else _need_of(row, body, operation, kind, order)
    return msgspec.structs.replace(occupant, need=need, reason=reason)


def _need_of(row: DueRow, body: Body, operation: Operation | None, kind: OperationKind, order: MoveOrder) -> tuple[Need, str]:
    server = body.server
    if operation is not None and operation.frozen is not None:
        return Need.STUCK, f"{_under_way(operation)}, and has not been compared since a restore: {operation.frozen}"
    if operation is not None and operation.state is OperationState.VERIFY:
        text = f"its {operation.kind} waits for its user: 'move confirm' or 'move revert' {operation.uuid}"
        return (Need.CONFIRM, text) if order.confirm else (Need.STUCK, text)
    if operation is not None and operation.state is OperationState.SOFT_DELETED:
        return Need.STUCK, "it is soft-deleted: restore it, delete it with 'server delete --force', or wait until it is reclaimed"
    if operation is not None and operation.state is OperationState.SHELVED:
        return Need.OFFLOAD, _under_way(operation)
    if operation is not None and kind is OperationKind.EVACUATE and _waits_for(operation, body):
        return Need.GIVE_UP, _under_way(operation)
    if operation is not None and (kind is not OperationKind.EVACUATE or not operation.waits_for_host):
        return Need.WAIT, _under_way(operation)
    if server.deleted:
        return Need.WAIT, "it is being deleted"
    if (server.state, row.state) != ("active", State.ACTIVE):
        return Need.WAIT, f"it is in state {server.state if server.state != 'active' else row.state}"
    if body.hidden or server.host != row.host:  # what its cell did has not been read yet
        return Need.WAIT, "its server is elsewhere: see 'superconductor verify' if it stays"
    if not allows_operation(kind, accepting.wanted_power(body, operation), failed=server.task_state is TaskState.FAILED):
        state = vm_state_of(server)
        is_paused = server.power is Power.PAUSED and not order.live
        also = ", and with --live while it is paused" if is_paused and kind is OperationKind.MIGRATE else ""
        return Need.STUCK, f"it is {state}: a server is migrated while it is active or stopped{also}"
    return Need.MOVE, ""


def _waits_for(operation: Operation, body: Body) -> bool:
    """Whether the operation goes on only after the host of this body has answered."""
    if operation.state is OperationState.SENDING:
        return True
    before_copy = operation.state in (OperationState.PLACING, OperationState.HOLDING)
    return before_copy and not operation.forced and operation.source_uuid == body.uuid


def _under_way(operation: Operation) -> str:
    return f"its {operation.kind} is in state {operation.state}: operation {operation.uuid}"


def destination_cell(registry: CellRegistry, host: str, cell: Cell, *, cross_cell: bool) -> str:
    """The cell of the host that servers of ``cell`` are to go to. Raises errors.HostNotMapped, and errors.Invalid."""
    target = registry.of_host(host)
    if target.uuid != cell.uuid and not cross_cell:
        raise errors.Invalid(
            f"Host {host!r} is in cell '{target.name}', not in '{cell.name}': give --cross-cell to move servers there"
        )
    return target.uuid


class Emptier:
    """Reads what is on hosts of one cell, and accepts the moves."""

    def __init__(self, ledger: Ledger, cell: Cell, order: MoveOrder) -> None:
        self._ledger = ledger
        self.database = ledger.database
        self.cell = cell
        self._order = order

    def _read_conditions(self) -> dict[str, HostCondition]:
        return conditions_by_host(self.cell.read(services.list_seen, AGENT_BINARY), self._order.down_after)

    def count_bodies(self, hosts: Sequence[str]) -> int:
        """How many bodies are on these hosts."""
        return sum(
            len(self.cell.read(instances.on_hosts, hosts_page, OCCUPYING)) for hosts_page in split_batches(hosts, HOSTS_PER_READ)
        )

    def list_occupants(self, hosts: Sequence[str]) -> Iterator[Occupant]:
        """The bodies on these hosts, by host. They are read from the cell, whose rows have an index by host."""
        condition_by_host = self._read_conditions()
        for hosts_page in split_batches(hosts, HOSTS_PER_READ):
            rows = self.cell.read(instances.on_hosts, hosts_page, OCCUPYING)
            bodies, opened = self.database.read(_read_known, [row.uuid for row in rows])
            for row in sorted(rows, key=lambda row: (row.host or "", row.uuid)):
                body = bodies.get(row.uuid)
                operation = opened.get(body.server.uuid) if body is not None else None
                yield judge_row(row, body, operation, condition_by_host.get(row.host or "", HostCondition.SILENT), self._order)

    def failed_builds(self) -> Iterator[Occupant]:
        """Servers in ERROR in this cell: they are on no host, but the cell is not empty while it has them."""
        after = ""
        while rows := self.cell.read(instances.in_state, [State.ERROR], inf, ERRORS_PER_READ, after):
            after = rows[-1].uuid
            bodies, _ = self.database.read(_read_known, [row.uuid for row in rows])
            for row in rows:
                body = bodies.get(row.uuid)
                if body is not None and not body.server.deleted:
                    yield Occupant(
                        body_uuid=row.uuid,
                        server_uuid=body.server.uuid,
                        host=row.host or "",
                        need=Need.STUCK,
                        name=body.server.name,
                        reason="it is in ERROR: it can only be deleted",
                    )

    def accept_moves(self, occupants: Sequence[Occupant]) -> tuple[list[Operation], dict[str, errors.SuperconductorError]]:
        """Accept the moves of occupants that need one; return the operations, and by server why others were refused.

        They may have been judged long ago, so an evacuation looks at their hosts again, and is refused if these have come back.
        """
        refused: dict[str, errors.SuperconductorError] = {}
        if any(occupant.kind is OperationKind.EVACUATE for occupant in occupants):
            condition_by_host = self._read_conditions()
            for occupant in occupants:
                if occupant.kind is OperationKind.EVACUATE and condition_by_host.get(occupant.host) is not HostCondition.DEAD:
                    text = f"Cannot 'evacuate' instance {occupant.server_uuid}: host {occupant.host} has come back"
                    refused[occupant.server_uuid] = errors.Conflict(text)
        accepted: list[Operation] = []
        for chunk in split_batches(
            [occupant for occupant in occupants if occupant.server_uuid not in refused], MOVES_PER_TRANSACTION
        ):
            done = isolate_failures(self._accept_operations, chunk)
            accepted += [operation for operations_ in done.results for operation in operations_]
            for occupant, error in done.failed:
                if not isinstance(error, errors.SuperconductorError):
                    raise error
                refused[occupant.server_uuid] = error
        return accepted, refused

    def _accept_operations(self, occupants: Sequence[Occupant]) -> list[Operation]:
        now = self.database.current_time()
        return self.database.write(accepting.accept_all, [self._new_operation(occupant, now) for occupant in occupants], now)

    def _new_operation(self, occupant: Occupant, now: float) -> NewOperation:
        if occupant.kind is None:
            raise ValueError(f"server {occupant.server_uuid} needs no move")
        order = self._order
        return NewOperation(
            uuid=str(uuid.uuid4()),
            server_uuid=occupant.server_uuid,
            kind=occupant.kind,
            scope=None,
            user_id=order.user_id,
            request_id=order.request_id,
            deadline=now + MOVE_TIMEOUT_S,
            args=OperationArgs(host=order.to, cross_cell=order.cross_cell),
            body_uuid=occupant.body_uuid,
            overrides_lock=True,
            twin_uuid=str(uuid.uuid4()),
            batch_id=str(uuid.uuid4()),
            destination_cell=order.to_cell,
        )

    def give_up(self, operation: Operation) -> None:
        """Give up a move that waits for a dead host; nothing if it does not any more. The server can be evacuated afterwards."""
        fault = {operation.uuid: "The server's host was called dead."}
        self._ledger.write(steps.give_up, fault, self.database.current_time())
        self.database.write(steps.recall_migrations, list(fault), self.database.current_time())

    def offload_server(self, operation: Operation) -> None:
        """Let a shelved server leave its host; nothing if it does not wait for that any more."""
        self._ledger.write(shelving.offload_servers, [operation.uuid], self.database.current_time())

    def confirm_operation(self, operation: Operation) -> None:
        """Confirm an operation that waits for its user; nothing if it does not any more."""
        self._ledger.write(steps.confirm_moves, [operation.uuid], self.database.current_time())


def _read_known(tx: ApiTransaction, uuids: Sequence[str]) -> tuple[dict[str, Body], dict[str, Operation]]:
    bodies = operations.bodies_by_uuid(tx, uuids)
    return bodies, operations.open_for(tx, {body.server.uuid for body in bodies.values()})


def split_batches(items: Iterable[T], most: int) -> Iterator[list[T]]:
    """Lists of at most ``most`` items, in order; ``itertools.batched`` of Python 3.12."""
    remaining = iter(items)
    while batch := list(islice(remaining, most)):
        yield batch


# -- the loop ----------------------------------------------------------------------------------------------------------------------

Progress = Callable[[int], object]
"""Called with the number of servers moved so far."""


class Emptying:
    """Moves all that can be moved off hosts of one cell, ``jobs`` servers at a time.

    A server whose move failed is not tried again. ``timeout``: seconds to go on at most.
    """

    def __init__(
        self,
        emptier: Emptier,
        hosts: Sequence[str],
        *,
        jobs: float,
        timeout: float = inf,
        progress: Progress = lambda moved: None,
    ) -> None:
        self._emptier = emptier
        self._hosts = hosts
        self._jobs = jobs
        self._end = time.monotonic() + timeout
        self._progress = progress
        self._moving: dict[str, str] = {}
        """Servers by the uuid of the open operation that was accepted here."""
        self._failed: dict[str, str] = {}
        """Reasons by server."""
        self._refused_since: dict[str, float] = {}
        self.moved = 0

    def run(self) -> list[Occupant]:
        """Go on until nothing is left that can be moved or waited for; returns what is left."""
        while True:
            remaining = list(self._walk_bodies())
            if not any(occupant.need is Need.WAIT for occupant in remaining) or time.monotonic() > self._end:
                return remaining
            self._pause_for_ends()

    def accept_movable(self) -> tuple[int, list[Occupant]]:
        """Accept what can be moved now and wait for nothing; returns how many these are, and the others."""
        remaining = [occupant for occupant in self._walk_bodies() if occupant.server_uuid not in self._moving.values()]
        return len(self._moving), remaining

    # -- inside ------------------------------------------------------------------------------------------------------------------

    def _walk_bodies(self) -> Iterator[Occupant]:
        """Every body once, with what it needs after this has done what it can."""
        for batch in split_batches(self._emptier.list_occupants(self._hosts), MOVES_PER_TRANSACTION):
            moved = self._move_occupants([occupant for occupant in batch if occupant.need is Need.MOVE])
            yield from (self._act_on_body(occupant, moved) for occupant in batch)

    def _act_on_body(self, occupant: Occupant, moved: Mapping[str, tuple[Need, str]]) -> Occupant:
        if occupant.server_uuid in moved and occupant.need is Need.MOVE:
            need, reason = moved[occupant.server_uuid]
            return msgspec.structs.replace(occupant, need=need, reason=reason)
        if occupant.need is Need.CONFIRM and occupant.operation is not None:
            self._emptier.confirm_operation(occupant.operation)
            return msgspec.structs.replace(occupant, need=Need.WAIT)
        if occupant.need is Need.OFFLOAD and occupant.operation is not None:
            self._emptier.offload_server(occupant.operation)
            return msgspec.structs.replace(occupant, need=Need.WAIT)
        if occupant.need is Need.GIVE_UP and occupant.operation is not None:
            self._emptier.give_up(occupant.operation)
            return msgspec.structs.replace(occupant, need=Need.WAIT)
        return occupant

    def _move_occupants(self, occupants: Sequence[Occupant]) -> dict[str, tuple[Need, str]]:
        """Accept the moves of these, as places become free; returns what each server needs then, with the reason."""
        needs = {
            occupant.server_uuid: (Need.STUCK, self._failed[occupant.server_uuid])
            for occupant in occupants
            if occupant.server_uuid in self._failed
        }
        remaining = [occupant for occupant in occupants if occupant.server_uuid not in needs]
        while remaining:
            while len(self._moving) >= self._jobs and time.monotonic() < self._end:
                self._pause_for_ends()
            if time.monotonic() > self._end:
                return needs | {
                    occupant.server_uuid: (Need.WAIT, "the time was over before it was its turn") for occupant in remaining
                }
            count = int(min(len(remaining), self._jobs - len(self._moving)))
            accepted, refused = self._emptier.accept_moves(remaining[:count])
            remaining = remaining[count:]
            for operation in accepted:
                self._moving[operation.uuid] = operation.server_uuid
                needs[operation.server_uuid] = Need.WAIT, _under_way(operation)
            needs |= {uuid: (self._after_refusal(uuid, error), str(error)) for uuid, error in refused.items()}
        return needs

    def _after_refusal(self, server_uuid: str, error: errors.SuperconductorError) -> Need:
        if not isinstance(error, (errors.Conflict, errors.NotFound)):
            return Need.STUCK
        since = self._refused_since.setdefault(server_uuid, time.monotonic())
        return Need.WAIT if time.monotonic() - since < CONFLICT_PATIENCE_S else Need.STUCK

    def _pause_for_ends(self) -> None:
        """Wait a moment, and see which moves have ended."""
        time.sleep(POLL_INTERVAL_S)
        for operation in self._emptier.database.read(operations.get, sorted(self._moving)):
            if operation.outcome is None:
                continue
            del self._moving[operation.uuid]
            if operation.outcome is Outcome.DONE:
                self.moved += 1
            elif operation.outcome is not Outcome.DELETED:
                self._failed[operation.server_uuid] = operation.fault or f"its {operation.kind} was {operation.outcome}"
        self._progress(self.moved)
