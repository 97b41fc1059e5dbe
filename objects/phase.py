"""What a server is at as its users see it: from its state, its power and its open operation."""

from __future__ import annotations

import enum

from objects.instance import Server
from objects.operation import Operation, OperationKind, OperationState
from objects.task import Power, TaskState


class ServerPhase(enum.StrEnum):
    BUILDING = "building"
    ACTIVE = "active"
    STOPPED = "stopped"
    PAUSED = "paused"
    SUSPENDED = "suspended"
    RESCUED = "rescued"
    RESIZING = "resizing"  # or migrated
    MIGRATING = "migrating"  # while it runs
    VERIFYING = "verifying"
    REVERTING = "reverting"
    REBUILDING = "rebuilding"  # or evacuated
    REBOOTING = "rebooting"
    HARD_REBOOTING = "hard-rebooting"
    CHANGING_PASSWORD = "changing-password"  # noqa: S105 - what it is at
    SHELVED = "shelved-on-host"  # its disk is in the image store, and on its host
    SHELVED_OFFLOADED = "shelved"  # in the image store only
    SOFT_DELETED = "soft-deleted"  # until it is restored or reclaimed
    ERROR = "error"
    DELETED = "deleted"


OF_POWER = {
    Power.ON: ServerPhase.ACTIVE,
    Power.OFF: ServerPhase.STOPPED,
    Power.HELD: ServerPhase.STOPPED,
    Power.PAUSED: ServerPhase.PAUSED,
    Power.SUSPENDED: ServerPhase.SUSPENDED,
    Power.INCOMING: ServerPhase.ACTIVE,
    Power.RESCUED: ServerPhase.RESCUED,
}
"""The phases of ACTIVE servers without an operation that shows, by their power."""

MOVING_STATES = (
    OperationState.PLACING,
    OperationState.HOLDING,
    OperationState.BUILDING,
    OperationState.UNDOING,
)
"""States of a move while its server is moved, or is left where it was."""


def phase_of(server: Server) -> ServerPhase | None:
    """The phase; None for a state that this release does not know."""
    operation = server.operation
    if server.state == "error" and operation is not None and operation.kind is OperationKind.RESPAWN:
        return ServerPhase.BUILDING
    if server.state != "active":
        return _OTHERS.get(server.state)
    if operation is None:
        return ServerPhase.ERROR if server.task_state is TaskState.FAILED else OF_POWER[server.power]
    return _phase_in(operation)


def _phase_in(operation: Operation) -> ServerPhase:
    if operation.kind is OperationKind.FAIL:
        return ServerPhase.ERROR
    if operation.kind is OperationKind.SOFT_DELETE:
        return ServerPhase.SOFT_DELETED
    if operation.state is OperationState.SHELVED:
        return ServerPhase.SHELVED
    if operation.state is OperationState.VERIFY:
        return ServerPhase.VERIFYING
    if operation.state is OperationState.REVERTING:
        return ServerPhase.REVERTING
    if operation.kind is OperationKind.LIVE_MIGRATE:
        return ServerPhase.MIGRATING
    if operation.kind is OperationKind.REBUILD or (operation.kind is OperationKind.EVACUATE and operation.state in MOVING_STATES):
        return ServerPhase.REBUILDING
    if operation.kind is OperationKind.REBOOT:
        return ServerPhase.HARD_REBOOTING if operation.args.hard else ServerPhase.REBOOTING
    if operation.kind is OperationKind.CHANGE_PASSWORD:
        return ServerPhase.CHANGING_PASSWORD
    return ServerPhase.RESIZING if operation.kind.is_move else OF_POWER[operation.power_before]


_OTHERS = {
    "building": ServerPhase.BUILDING,
    "shelved": ServerPhase.SHELVED_OFFLOADED,
    "error": ServerPhase.ERROR,
    "deleted": ServerPhase.DELETED,
    "deleting": ServerPhase.ACTIVE,  # as the Compute API shows it
    "rolling-back": ServerPhase.BUILDING,
}
"""The phases of servers that are not ACTIVE, by state."""

TASKS = {
    OperationKind.START: "powering-on",
    OperationKind.STOP: "powering-off",
    OperationKind.PAUSE: "pausing",
    OperationKind.UNPAUSE: "unpausing",
    OperationKind.SUSPEND: "suspending",
    OperationKind.RESUME: "resuming",
    OperationKind.REBUILD: "rebuilding",
    OperationKind.RESET: "powering-on",
    OperationKind.EVACUATE: "rebuilding",
    OperationKind.LIVE_MIGRATE: "migrating",
    OperationKind.CREATE_IMAGE: "image_snapshot",
    OperationKind.CREATE_BACKUP: "image_backup",
    OperationKind.RESCUE: "rescuing",
    OperationKind.UNRESCUE: "unrescuing",
    OperationKind.CHANGE_PASSWORD: "updating_password",
}
MOVE_TASKS = {
    OperationState.PLACING: "resize_prep",
    OperationState.HOLDING: "resize_migrating",
    OperationState.BUILDING: "resize_finish",
    OperationState.REVERTING: "resize_reverting",
    OperationState.UNDOING: "resize_reverting",
    OperationState.STARTING: "resize_reverting",
}


SHELVE_TASKS = {OperationState.TASK: "shelving", OperationState.STARTING: "unshelving"}
"""The task states of a server that is being shelved on its host."""

SOFT_DELETE_TASKS = {OperationState.STARTING: "restoring"}
"""The task states of a soft-deleted server."""


POWER_STATES = {
    Power.ON: 1,
    Power.PAUSED: 3,
    Power.OFF: 4,
    Power.HELD: 4,
    Power.SUSPENDED: 4,
    Power.INCOMING: 1,
    Power.RESCUED: 1,
}
"""The numbers of powers in the Compute API. 0: nothing is known."""


def power_state_of(server: Server) -> int:
    """The power as the Compute API numbers it. A server that is migrated live has meanwhile the one that it had."""
    if server.state not in ("active", "deleting", "shelved"):
        return 0
    operation = server.operation
    is_live = operation is not None and operation.kind is OperationKind.LIVE_MIGRATE
    return POWER_STATES[operation.power_before if operation is not None and is_live else server.power]


SOFT_DELETED = "soft-delete"
"""``OS-EXT-STS:vm_state`` of a soft-deleted server."""

_VM_STATES = {OperationState.VERIFY: "resized", OperationState.SHELVED: "shelved"}


def vm_state_of(server: Server) -> str:
    """The state as the Compute API names it, without what is under way."""
    operation = server.operation
    if phase_of(server) is ServerPhase.BUILDING:
        return "building"
    if server.state != "active":
        return {"deleting": "active", "shelved": "shelved_offloaded"}.get(server.state, server.state)
    if operation is not None and operation.kind is OperationKind.SOFT_DELETE:
        return SOFT_DELETED
    if operation is not None and operation.state in _VM_STATES:
        return _VM_STATES[operation.state]
    if operation is not None and operation.kind is OperationKind.FAIL:
        return "error"
    if operation is None and server.task_state is TaskState.FAILED:
        return "error"
    return OF_POWER[operation.power_before if operation is not None else server.power]


def task_of(server: Server) -> str | None:
    """The task state, as the Compute API names it; None: nothing is under way."""
    if phase_of(server) is ServerPhase.BUILDING and server.state != "rolling-back":
        return "scheduling" if server.cell_uuid is None else "spawning"
    if server.state in ("deleting", "rolling-back"):
        return "deleting"
    operation = server.operation
    if operation is not None and server.is_shelved:
        return "unshelving"
    if operation is None or server.state != "active":
        return None
    if operation.kind is OperationKind.SHELVE:
        return SHELVE_TASKS.get(operation.state)
    if operation.kind is OperationKind.SOFT_DELETE:
        return SOFT_DELETE_TASKS.get(operation.state)
    if operation.kind is OperationKind.REBOOT:
        return "rebooting_hard" if operation.args.hard else "rebooting"
    if operation.kind in TASKS:
        return TASKS[operation.kind]
    return MOVE_TASKS.get(operation.state)
