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


def task_of(each: OpenOperation, body: Body, ports: tuple[Port, ...]) -> Task:
    """The task that the operation's state calls for. ``body``: the one that gets it. ``ports``: the server's, if they change."""
    operation, twin = each.operation, each.twin
    number, kind, power, args = operation.number, TaskKind.POWER, Power.HELD, TaskArgs()
    if operation.state is OperationState.TASK:
        kind, power = task_kind(operation.kind), WANTED.get(operation.kind, operation.power_before)
        asked = operation.args
        image_id = operation.uuid if kind in (TaskKind.SNAPSHOT, TaskKind.IMAGE) else asked.image_id
        args = TaskArgs(hard=asked.hard, image_id=image_id, drive=asked.drive, image=asked.image, image_hash=asked.image_hash)
        if operation.kind.connects:
            args = TaskArgs(ports=_without(operation, ports, OperationKind.DETACH_INTERFACE))
    elif operation.state is OperationState.SENDING and body is each.source and twin is not None:
        kind, args = TaskKind.SEND, TaskArgs(target=SendTarget(instance_uuid=twin.uuid, host=twin.server.host or ""))
    elif operation.state is OperationState.SENDING:
        number, power = number + 2, operation.power_before
    elif operation.state is OperationState.REVERTING:
        number += 2
    elif operation.state is OperationState.STARTING:
        number, power = number + 3, operation.power_before
        if operation.settles:
            kind, args = TaskKind.INTERFACES, TaskArgs(ports=_without(operation, ports, OperationKind.ATTACH_INTERFACE))
    return Task(number=number, kind=kind, power=power, args=args, request_id=operation.request_id)


def interface_tasks(database: ApiDatabase, bodies: Sequence[str]) -> dict[str, Task]:
    """The tasks of open operations about the interfaces of these bodies: a POWER in their place would say that they are done."""
    servers = [server.uuid for server in database.read(mappings.of_bodies, bodies)]
    opened = [each for each in database.read(operations.open_for, servers).values() if not each.unreadable and each.settles]
    if not opened:
        return {}
    ports = database.read(addresses.ports_of, [each.server_uuid for each in opened])
    found = database.read(operations.with_bodies, [each.uuid for each in opened])
    return {
        each.source.uuid: task_of(each, each.source, ports.get(each.operation.server_uuid, ()))
        for each in found
        if each.source is not None and each.operation.state in (OperationState.TASK, OperationState.STARTING)
    }


def _without(operation: Operation, ports: tuple[Port, ...], kind: OperationKind) -> tuple[Port, ...]:
    """The interfaces that the guest is to have; those of the server without the operation's own, if it is of this kind."""
    return tuple(port for port in ports if operation.kind is not kind or port.mac != operation.args.mac)
