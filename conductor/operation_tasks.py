"""What the state of an operation asks of the host of a body."""

from __future__ import annotations

from collections.abc import Sequence

from db.api.operations import operations
from db.api.operations.operations import Body, OpenOperation
from db.api.servers import addresses, mappings
from db.sql.engine import ApiDatabase
from objects.operation import WANTED, Operation, OperationKind, OperationState, task_kind
from objects.port import Port
from objects.task import Power, SendTarget, Task, TaskArgs, TaskKind


def task_of(opened: OpenOperation, body: Body, ports: tuple[Port, ...]) -> Task:
    """The task that the operation's state calls for. ``body``: the one that gets it. ``ports``: the server's, if they change."""
    operation, twin = opened.operation, opened.twin
    number, kind, power, args = operation.number, TaskKind.POWER, Power.HELD, TaskArgs()
    if operation.state is OperationState.TASK:
        kind, power = task_kind(operation.kind), WANTED.get(operation.kind, operation.power_before)
        asked_args = operation.args
        image_id = operation.uuid if kind in (TaskKind.SNAPSHOT, TaskKind.IMAGE) else asked_args.image_id
        args = TaskArgs(
            hard=asked_args.hard,
            image_id=image_id,
            drive=asked_args.drive,
            image=asked_args.image,
            image_hash=asked_args.image_hash,
        )
        if operation.kind.changes_interfaces:
            args = TaskArgs(ports=_ports_without(operation, ports, OperationKind.DETACH_INTERFACE))
    elif operation.state is OperationState.SENDING and body is opened.source and twin is not None:
        kind, args = TaskKind.SEND, TaskArgs(target=SendTarget(instance_uuid=twin.uuid, host=twin.server.host or ""))
    elif operation.state is OperationState.SENDING:
        number, power = number + 2, operation.power_before
    elif operation.state is OperationState.REVERTING:
        number += 2
    elif operation.state is OperationState.STARTING:
        number, power = number + 3, operation.power_before
        if operation.settles_interfaces:
            kind, args = TaskKind.INTERFACES, TaskArgs(ports=_ports_without(operation, ports, OperationKind.ATTACH_INTERFACE))
    return Task(number=number, kind=kind, power=power, args=args, request_id=operation.request_id)


def interface_tasks(database: ApiDatabase, bodies: Sequence[str]) -> dict[str, Task]:
    """The tasks of open operations about the interfaces of these bodies: a POWER in their place would say that they are done."""
    servers = [server.uuid for server in database.read(mappings.of_bodies, bodies)]
    opened = [
        opened_operation
        for opened_operation in database.read(operations.open_for, servers).values()
        if not opened_operation.unreadable and opened_operation.settles_interfaces
    ]
    if not opened:
        return {}
    ports = database.read(addresses.ports_of, [opened_operation.server_uuid for opened_operation in opened])
    interface_operations = database.read(operations.with_bodies, [opened_operation.uuid for opened_operation in opened])
    return {
        opened_operation.source.uuid: task_of(
            opened_operation, opened_operation.source, ports.get(opened_operation.operation.server_uuid, ())
        )
        for opened_operation in interface_operations
        if opened_operation.source is not None
        and opened_operation.operation.state in (OperationState.TASK, OperationState.STARTING)
    }


def _ports_without(operation: Operation, ports: tuple[Port, ...], kind: OperationKind) -> tuple[Port, ...]:
    """The interfaces that the guest is to have; those of the server without the operation's own, if it is of this kind."""
    return tuple(port for port in ports if operation.kind is not kind or port.mac != operation.args.mac)
