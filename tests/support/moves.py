"""Servers that are moved at the API level alone: what their cells would tell is told by the test."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable
from typing import Any

import sqlalchemy as sa

from db.api.operations import accepting, operations, steps
from db.api.operations.accepting import NewOperation
from db.api.operations.operations import Body
from db.api.operations.steps import Stepped
from db.api.projects import quotas
from db.api.queue import builds, leases
from db.api.queue.builds import HandOver
from db.api.reconcile import events
from db.api.reconcile.events import FeedPosition
from db.api.rows.tables import instance_mappings
from db.api.servers import mappings
from objects.feed import EventKind, InstanceEvent, InstanceSummary
from objects.instance import Server
from objects.operation import Operation, OperationArgs, OperationKind, Outcome
from objects.quota import QuotaUsage
from objects.task import Power, TaskState
from tests.support.conductor import FAR, LEASE, NOW, Queue
from tests.support.fleet import CELLS, CONTEXT


class Moves:
    """Operations of the servers of a queue, step by step. All hosts are in ``cell`` unless a test says otherwise."""

    def __init__(self, queue: Queue, cell: str = CELLS[0]) -> None:
        self.queue = queue
        self.database = queue.database
        self.cell = cell
        self._versions = itertools.count(10)

    def active(self, **asked: Any) -> str:
        """A server that is ACTIVE on the host of its claim."""
        [server] = self.queue.claimed(1, **asked)
        self.queue.give_hosts_to(self.cell)
        assert self.queue.hand_over({server: 1}, self.cell, self.queue.site.claimed()[server]) == [server]
        self.tell(server, EventKind.ACTIVE)
        return server

    # -- what is asked ---------------------------------------------------------------------------------------------------------

    def accept(self, server: str, kind: OperationKind, **asked: Any) -> Operation:
        values: dict[str, Any] = {"scope": None, "user_id": "u", "request_id": f"req-{uuid.uuid4()}", "deadline": FAR}
        if kind.is_move:
            values |= {"twin_uuid": str(uuid.uuid4()), "batch_id": str(uuid.uuid4())}
        wanted = NewOperation(uuid=str(uuid.uuid4()), server_uuid=server, kind=kind, **(values | asked))
        return self.database.write(accepting.accept_operation, wanted, NOW)

    def migrate(self, server: str, **args: Any) -> Operation:
        return self.accept(server, OperationKind.MIGRATE, args=OperationArgs(**args))

    # -- the conductor that leases the twin ------------------------------------------------------------------------------------

    def placed(self, operation: Operation) -> HandOver:
        """Lease the twin's request and claim a host for it."""
        twin = operation.twin_uuid or ""
        batch_id = self.body(twin).server.batch_id
        [batch] = self.database.write(leases.lease_batches, "one", [batch_id], NOW, LEASE)
        [request] = batch.requests
        assert (request.server_uuid, request.turn) == (operation.server_uuid, operation.number // 4)
        spec = batch.spec
        asked = type(spec)(**{name: getattr(spec, name) for name in spec.__struct_fields__} | {"fences": {twin: request.fence}})
        [[selection, *_]] = self.queue.site.scheduler().select_destinations(CONTEXT, asked, [twin])
        return HandOver(
            instance_uuid=twin,
            fence=request.fence,
            cell_uuid=self.cell,
            host=selection.host,
            node=selection.node,
            availability_zone="zone",
        )

    def hold(self, item: HandOver) -> bool:
        return bool(self.database.write(steps.hold_sources, {item.instance_uuid: item.fence}, {item.instance_uuid: FAR}, NOW))

    def hand_over(self, item: HandOver) -> bool:
        return bool(self.database.write(builds.hand_over_twins, [item], NOW))

    # -- what cells tell -------------------------------------------------------------------------------------------------------

    def tell(self, body: str, kind: EventKind, *, host: str | None = None, **changes: Any) -> None:
        """An event of a body, on the host of its mapping."""
        found = self.body(body).server
        shown = {EventKind.ACTIVE: "active", EventKind.TASK: "active", EventKind.ENDED: "error"}.get(kind, "building")
        values: dict[str, Any] = {"state": shown, "host": host or found.host, "node": host or found.node, "power": found.power}
        values |= {"task_number": found.task_number, "task_state": found.task_state}
        summary = InstanceSummary(**(values | changes))
        version = next(self._versions)
        event = InstanceEvent(kind=kind, key=body, version=version, summary=summary)
        cursor = self.database.write(events.lock_cursor, self.cell)
        self.queue.ledger.write(events.apply_page, FeedPosition(cell_uuid=self.cell, cursor=cursor, upto=cursor + 1), [event])

    def tell_held(self, body: str, number: int, state: TaskState = TaskState.DONE) -> None:
        self.tell(body, EventKind.TASK, power=Power.HELD, task_number=number, task_state=state)

    def tell_gone(self, body: str) -> None:
        self.tell(body, EventKind.ENDED, state="deleted")

    # -- steps of the sweep ----------------------------------------------------------------------------------------------------

    def step(self, name: str, operation: Operation, *args: Any, charges: bool = False) -> Stepped:
        step, uuids = getattr(steps, name), [operation.uuid]
        write: Callable[..., Stepped] = self.queue.ledger.write if charges else self.database.write
        return write(step, uuids, *args, NOW)

    def switch(self, operation: Operation) -> Stepped:
        return self.step("switch_servers", operation, charges=True)

    def give_up(self, operation: Operation, fault: str = "given up") -> Stepped:
        return self.queue.ledger.write(steps.give_up, {operation.uuid: fault}, NOW)

    def moved(self, server: str, kind: OperationKind = OperationKind.MIGRATE, **asked: Any) -> Operation:
        """An operation whose twin is ACTIVE, before the switch."""
        operation = self.accept(server, kind, **asked)
        item = self.placed(operation)
        assert self.hold(item)
        self.tell_held(operation.source_uuid or "", operation.number)
        assert self.hand_over(item)
        self.tell(operation.twin_uuid or "", EventKind.ACTIVE)
        return operation

    # -- what is written -------------------------------------------------------------------------------------------------------

    def body(self, body: str) -> Body:
        return self.database.read(operations.bodies_by_uuid, [body])[body]

    def server(self, server: str) -> Server:
        found = self.database.read(mappings.get, server)
        assert found is not None
        return found

    def state(self, operation: Operation) -> tuple[str, Outcome | None]:
        [found] = self.database.read(operations.get, [operation.uuid])
        return str(found.state), found.outcome

    def used(self) -> QuotaUsage:
        return self.database.read(quotas.get, "p").used

    def shown(self, server: str) -> list[str]:
        """The bodies that lists show of a server."""
        query = sa.select(instance_mappings.c.instance_uuid).where(
            sa.func.coalesce(instance_mappings.c.server_uuid, instance_mappings.c.instance_uuid) == server,
            instance_mappings.c.hidden == sa.false(),
        )
        return self.database.read(lambda tx: list(tx.execute(query).scalars()))
