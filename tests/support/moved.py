"""A world whose conductor, agents and cells the test plays, and whose servers it moves."""

from __future__ import annotations

from typing import Any

from db.api.operations import operations as api_operations
from db.api.operations import steps
from db.api.queue import builds
from db.api.servers import mappings
from db.cell import instances, tasks
from db.cell.tasks import TaskFor
from objects import lifecycle
from objects.instance import Instance, Server
from objects.operation import Operation, OperationArgs, OperationKind, OperationState, Outcome
from objects.task import Power, StoredContent, Task, TaskKind
from tests.support.auditing import Ground
from tests.support.conductor_process import FaultyDatabase


class Moved(Ground):
    """Servers are booted in cell1."""

    def server(self, uuid: str) -> Server:
        found = self.cloud.api.read(mappings.get, uuid)
        assert found is not None
        return found

    def state(self, operation: Operation) -> tuple[OperationState, Outcome | None]:
        [found] = self.cloud.api.read(api_operations.get, [operation.uuid])
        return found.state, found.outcome

    def held(self, uuid: str, number: int) -> None:
        """Its cell asks its agent, and that turns it off."""
        task = Task(number=number, kind=TaskKind.POWER, power=Power.HELD)
        self.tasked(uuid, task)

    def tasked(self, uuid: str, task: Task, content: StoredContent | None = None) -> None:
        """``content``: what its host has written into the image store."""
        row, database = self.cloud.row(uuid), self.database(uuid)
        database.write(tasks.ask_tasks, [TaskFor(instance_uuid=uuid, task=task)], 80.0)
        about = (row.host or "", row.fence, row.attempt, task.number)
        database.write(instances.transition_rows, [uuid], lambda asked: lifecycle.task_over(asked, *about, stored=content), 82.0)
        database.write(tasks.forget_tasks, [uuid])
        self.keep()

    def database(self, uuid: str) -> FaultyDatabase:
        """Of the cell that the body is mapped to."""
        mapped = self.cloud.mapped(uuid).cell_uuid
        return next(self.cloud.databases[name] for name in self.cloud.cells if self.uuid_of(name) == mapped)

    def placing(self, uuid: str, kind: OperationKind = OperationKind.MIGRATE, **asked: Any) -> Operation:
        args = OperationArgs(cross_cell=True)
        return self.cloud.operate(uuid, kind, timeout=1e9, args=args, **asked)

    def building(self, uuid: str, kind: OperationKind = OperationKind.MIGRATE, to: str = "cell1", **asked: Any) -> Operation:
        """A move whose source is off, and whose twin is handed over to this cell."""
        operation = self.placing(uuid, kind, **asked)
        driven = self.conductor.lease(self.body(operation).batch_id)
        driven.claim(excluded_cells=tuple(self.uuid_of(name) for name in self.cloud.cells if name != to))
        driven.stage()
        self.cloud.api.write(steps.hold_sources, driven.fences, dict.fromkeys(driven.fences, 0.0), self.cloud.api.current_time())
        if kind.holds_source:
            self.held(uuid, operation.number)
        twins = [placed.hand_over for placed in driven.placed]
        assert self.cloud.api.write(builds.hand_over_twins, twins, self.cloud.api.current_time()) == driven.uuids
        self.keep()
        return operation

    def listening(self, uuid: str, to: str) -> Operation:
        """A live migration whose twin listens in this cell, and whose source is to go over."""
        operation = self.building(uuid, OperationKind.LIVE_MIGRATE, to)
        self.built(operation)
        self.cloud.api.write(steps.send, [operation.uuid], self.cloud.api.current_time())
        return operation

    def built(self, operation: Operation) -> None:
        """The twin runs."""
        twin = operation.twin_uuid or ""
        row, database = self.cloud.row(twin), self.database(twin)
        about = (row.host or "", row.fence, row.attempt, "agent")
        database.write(instances.transition_rows, [twin], lambda asked: lifecycle.accept_order(asked, *about), 70.0)
        database.write(instances.transition_rows, [twin], lambda asked: lifecycle.confirm_active(asked, *about, 77.0), 77.0)
        self.keep()

    def switched(self, operation: Operation) -> None:
        """The server is its twin."""
        self.built(operation)
        self.conductor.ledger.write(steps.switch_servers, [operation.uuid], self.cloud.api.current_time())

    def body(self, operation: Operation) -> Server:
        [found] = self.cloud.api.read(mappings.of_bodies, [operation.twin_uuid or ""])
        return found

    def moved(self, uuid: str) -> Operation:
        """A migration that is over."""
        operation = self.building(uuid)
        self.switched(operation)
        self.end(operation.source_uuid or "")
        return operation

    def finish(self) -> None:
        """Operations whose tasks are over end."""
        for each in self.cloud.api.read(api_operations.open_page, 100):
            self.cloud.api.write(steps.finish_tasks, [each.operation.uuid], self.cloud.api.current_time())

    def give_up(self, operation: Operation) -> None:
        """The operation leaves nothing."""
        now = self.cloud.api.current_time()
        self.conductor.ledger.write(steps.give_up, {operation.uuid: "enough"}, now)
        if operation.twin_uuid is not None and self.body(operation).cell_uuid is not None:
            self.end(operation.twin_uuid)
        self.cloud.api.write(steps.given_up, [operation.uuid], now)
        if self.state(operation)[0] is OperationState.STARTING:
            source = operation.source_uuid or ""
            self.tasked(source, Task(number=operation.number + 3, kind=TaskKind.POWER, power=Power.ON))
            self.finish()
        assert self.state(operation)[1] is Outcome.GIVEN_UP

    def end(self, *ended: str) -> None:
        """Deletes reach their hosts."""
        self.conductor.deleter.run_round()
        for uuid in ended:
            self.database(uuid).write(instances.transition_rows, [uuid], _gone, 80.0)
        self.keep()


def _gone(row: Instance) -> lifecycle.Outcome:
    return lifecycle.confirm_gone(row, row.host or "", row.attempt, 80.0)
