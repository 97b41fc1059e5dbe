"""A move on its way through the code of one conductor of the API level, which may stop after any step and never go on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any
from uuid import uuid4

from db.api.operations import operations, shelving
from db.api.operations import steps as operation_steps
from db.api.operations.operations import OpenOperation
from db.api.queue import builds
from db.api.servers import mappings
from objects.instance import Instance, Server, State
from objects.operation import Operation, OperationArgs, OperationKind, OperationState
from objects.task import Power
from service.periodic import wait_until
from tests.support import fleet
from tests.support.conductor_process import Conductor, Drive
from tests.support.world import PATIENCE, World

STEPS = (
    "accepted",
    "leased",
    "claimed",
    "staged",
    "held",  # the operation says so; the cell does not know
    "asked",  # the cell knows; the order is lost
    "told",  # the source is off, and its cell has told
    "due",
    "leased again",
    "staged again",
    "handed over",
    "ordered",
    "active",  # the twin is, and its cell has told
    "switched",
    "deleted",  # the source's cell knows
)
"""How far a conductor gets with a move, in this order."""

LIVE_STEPS = (
    *STEPS[: STEPS.index("held") + 1],
    "handed over",
    "ordered",
    "active",  # the twin listens, and its cell has told
    "sending",
    "send asked",  # the source's cell knows; the order is lost
    "sent",  # the guest has gone over, and the source's cell has told
    "twin asked",  # the twin's cell knows; the order is lost
    "received",  # the twin has answered, and its cell has told
    "switched",
    "deleted",
)
"""The same of a live migration."""


def boot(cloud: World, host: str = "a1") -> str:
    """A server that is ACTIVE on this host. Its cell and its agent run; of the API level only the scheduler does."""
    spec = cloud.accept(force_hosts=(host,), size=fleet.flavor(vcpus=1, memory_mb=512, root_gb=1))
    cloud.conductor("boots").build(spec)
    cloud.keeper.keep()
    [uuid] = cloud.uuids(spec)
    assert wait_until(lambda: cloud.row(uuid).state is State.ACTIVE, PATIENCE)
    cloud.keeper.keep()
    return uuid


def server(cloud: World, uuid: str) -> Server:
    found = cloud.api.read(mappings.get, uuid)
    assert found is not None
    return found


class MoveDrive:
    """A move that a conductor of its own drives step by step."""

    def __init__(
        self,
        cloud: World,
        uuid: str,
        kind: OperationKind = OperationKind.MIGRATE,
        conductor: Conductor | None = None,
        **asked: Any,
    ) -> None:
        self.cloud = cloud
        self.conductor = conductor or cloud.conductor("driver")
        self.batch_id = str(uuid4())
        self.operation = cloud.operate(uuid, kind, batch_id=self.batch_id, **asked)
        self.twin = self.operation.twin_uuid or ""
        self.source = self.operation.source_uuid or ""
        self._drive: Drive | None = None
        self._steps: dict[str, Callable[[], object]] = {
            "leased": self.lease,
            "claimed": lambda: self.drive.claim(),
            "staged": lambda: self.drive.stage(),
            "held": self.hold,
            "asked": self.ask,
            "told": self.wait_held,
            "due": self.due,
            "leased again": self.lease,
            "staged again": self.stage_again,
            "handed over": self.hand_over,
            "ordered": self.order,
            "active": self.wait_active,
            "sending": self.send,
            "send asked": self.ask,
            "sent": lambda: self.wait_over(self.source, self.operation.number),
            "twin asked": self.ask,
            "received": lambda: self.wait_over(self.twin, self.operation.number + 2),
            "switched": self.switch,
            "deleted": lambda: self.conductor.deleter.run_round(),
        }

    @property
    def drive(self) -> Drive:
        assert self._drive is not None
        return self._drive

    def upto(self, last: str) -> MoveDrive:
        """Itself, driven up to one of STEPS, or of LIVE_STEPS."""
        steps = LIVE_STEPS if self.operation.kind is OperationKind.LIVE_MIGRATE else STEPS
        for step in steps[1 : steps.index(last) + 1]:
            self._steps[step]()
        return self

    def take(self, steps: Sequence[str]) -> MoveDrive:
        """Itself, driven through these."""
        for step in steps:
            if step in self._steps:
                self._steps[step]()
        return self

    def state(self) -> Operation:
        [found] = self.cloud.api.read(operations.get, [self.operation.uuid])
        return found

    def opened(self) -> list[OpenOperation]:
        return self.cloud.api.read(operations.with_bodies, [self.operation.uuid])

    # -- the steps, each of which may be taken too late --------------------------------------------------------------------------

    def lease(self) -> None:
        self._drive = self.conductor.lease(self.batch_id)

    def hold(self) -> bool:
        return bool(
            self.conductor.database.write(
                operation_steps.hold_sources, self.drive.fences, self._until(), self.cloud.api.current_time()
            )
        )

    def _until(self) -> dict[str, float]:
        """The conductor that dies leaves nothing for others to wait for."""
        return dict.fromkeys(self.drive.fences, 0.0)

    def ask(self) -> None:
        """Tell the cell, which learns of it, and no host does."""
        for bus in self.conductor.buses.values():
            bus.losing = True
        self.conductor.operator.advance_operations([self.operation.uuid])
        for bus in self.conductor.buses.values():
            bus.losing = False

    def wait_held(self) -> None:
        assert wait_until(lambda: self.row(self.source).power is Power.HELD and self.row(self.source).task_state.is_over, PATIENCE)
        self.cloud.keeper.keep()

    def due(self) -> bool:
        return bool(
            self.conductor.database.write(
                operation_steps.queue_twins, [self.operation.uuid], self.cloud.api.current_time()
            ).operations
        )

    def stage_again(self) -> None:
        self.drive.claim()
        self.drive.stage()
        self.hold()

    def hand_over(self) -> list[str]:
        items = [p.hand_over for p in self.drive.placed]
        self.drive.won = self.conductor.database.write(builds.hand_over_twins, items, self.cloud.api.current_time())
        return self.drive.won

    def order(self) -> None:
        self.drive.send()

    def wait_active(self) -> None:
        assert wait_until(lambda: self.row(self.twin).state is State.ACTIVE, PATIENCE)
        self.cloud.keeper.keep()

    def send(self) -> bool:
        return bool(
            self.conductor.database.write(operation_steps.send, [self.operation.uuid], self.cloud.api.current_time()).operations
        )

    def wait_over(self, body: str, number: int) -> None:
        """The body's host has carried out this task."""

        def is_over() -> bool:
            row = self.row(body)
            return row.task_number == number and row.task_state.is_over

        self.cloud.keeper.keep()
        assert wait_until(is_over, PATIENCE)
        self.cloud.keeper.keep()

    def switch(self) -> bool:
        found = self.conductor.ledger.write(operation_steps.switch_servers, [self.operation.uuid], self.cloud.api.current_time())
        return bool(found.operations)

    def give_up(self, *, fenced: bool = False) -> bool:
        fences = self.drive.fences if fenced else None
        faults = {self.operation.uuid: "Given up too late."}
        found = self.conductor.ledger.write(operation_steps.give_up, faults, self.cloud.api.current_time(), fences)
        return bool(found.operations)

    def late(self) -> list[str]:
        """All steps that a conductor might still take, whatever the one before said. Those that changed something."""
        now, uuids = self.cloud.api.current_time(), [self.operation.uuid]
        ledger, database = self.conductor.ledger, self.conductor.database
        tries: dict[str, Callable[[], bool]] = {
            "due": self.due,
            "send": self.send,
            "switch": self.switch,
            "give up": self.give_up,
            "given up": lambda: bool(database.write(operation_steps.given_up, uuids, now).operations),
            "confirm": lambda: bool(ledger.write(operation_steps.confirm_moves, uuids, now).operations),
            "revert": lambda: bool(database.write(operation_steps.revert_moves, uuids, now).operations),
            "point back": lambda: bool(ledger.write(operation_steps.point_back, uuids, (), now).operations),
            "time out": lambda: bool(database.write(operation_steps.time_out, uuids, now).operations),
            "finish": lambda: bool(database.write(operation_steps.finish_tasks, uuids, now).operations),
        }
        if self._drive is not None:
            tries |= {"hold": self.hold, "give up its own": partial(self.give_up, fenced=True)}
            if self.drive.placed:
                tries["hand over"] = lambda: bool(self.hand_over())
        return [name for name, step in tries.items() if step()]

    # -- what there is -----------------------------------------------------------------------------------------------------------

    def row(self, body: str) -> Instance:
        """Its row, wherever it is."""
        [found] = self.cloud.rows(body).values()
        return found


SHELVE_STEPS = ("accepted", "asked", "saved", "shelved", "offloaded", "deleted")
"""How far a conductor gets with a server that is shelved. ``saved``: the snapshot is complete, and the cell has told."""

UNSHELVE_STEPS = ("accepted", "leased", "claimed", "staged", "held", "handed over", "ordered", "active", "switched")
"""Those of STEPS that a server takes which no host has."""


class ShelveDrive:
    """A server that a conductor of its own shelves step by step."""

    def __init__(self, cloud: World, uuid: str, **asked: Any) -> None:
        self.cloud = cloud
        self.conductor = cloud.conductor("shelves")
        self.operation = cloud.operate(uuid, OperationKind.SHELVE, **asked)
        self.source = self.operation.source_uuid or ""
        self._steps: dict[str, Callable[[], object]] = {
            "asked": self.ask,
            "saved": self.wait_saved,
            "shelved": self.finish,
            "offloaded": self.offload,
            "deleted": lambda: self.conductor.deleter.run_round(),
        }

    def upto(self, last: str) -> ShelveDrive:
        """Itself, driven up to one of SHELVE_STEPS."""
        for step in SHELVE_STEPS[1 : SHELVE_STEPS.index(last) + 1]:
            self._steps[step]()
        return self

    def ask(self) -> None:
        """Tell the cell, which learns of it, and no host does."""
        for bus in self.conductor.buses.values():
            bus.losing = True
        self.conductor.operator.advance_operations([self.operation.uuid])
        for bus in self.conductor.buses.values():
            bus.losing = False

    def wait_saved(self) -> None:
        assert wait_until(lambda: self.cloud.row(self.source).task_state.is_over, PATIENCE)
        self.cloud.keeper.keep()

    def finish(self) -> bool:
        uuids, now = [self.operation.uuid], self.cloud.api.current_time()
        return bool(self.conductor.database.write(operation_steps.finish_tasks, uuids, now).operations)

    def offload(self) -> bool:
        uuids, now = [self.operation.uuid], self.cloud.api.current_time()
        return bool(self.conductor.ledger.write(shelving.offload_servers, uuids, now).operations)

    def start_again(self) -> bool:
        uuids, now = [self.operation.uuid], self.cloud.api.current_time()
        state = OperationState.SHELVED
        return bool(self.conductor.database.write(operation_steps.start_again, uuids, state, now).operations)

    def late(self) -> list[str]:
        """All steps that a conductor or a user might still take. Those that changed something."""
        uuids, now, database = [self.operation.uuid], self.cloud.api.current_time(), self.conductor.database
        tries: dict[str, Callable[[], bool]] = {
            "finish": self.finish,
            "offload": self.offload,
            "start again": self.start_again,
            "time out": lambda: bool(database.write(operation_steps.time_out, uuids, now).operations),
        }
        return [name for name, step in tries.items() if step()]

    def state(self) -> Operation:
        [found] = self.cloud.api.read(operations.get, [self.operation.uuid])
        return found


def cross_cell(host: str = "b1") -> OperationArgs:
    return OperationArgs(host=host, cross_cell=True)
