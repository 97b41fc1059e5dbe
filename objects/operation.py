"""Operations: what users and operators ask of a server after its boot, until each has come to its end.

A server is a pointer, and what runs is a body: one claim, one row in one cell, one guest on one host, under one uuid that is never
used again. The first body has the server's uuid. A move boots a second one, the twin, points to it, and deletes the one that lost.
``docs/moves.md`` has the guards.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping

from objects.base import Object
from objects.messages_version import MessagesVersion
from objects.spec import Image
from objects.task import DriveChanges, NewImage, Power, TaskKind


class OperationKind(enum.StrEnum):
    START = "start"
    STOP = "stop"
    REBOOT = "reboot"
    PAUSE = "pause"
    UNPAUSE = "unpause"
    SUSPEND = "suspend"
    RESUME = "resume"
    REBUILD = "rebuild"
    RESET = "reset"  # after a failed task: bring the guest to the power on record
    FAIL = "fail"  # an administrator calls the server failed; its host does not hear of it
    MIGRATE = "migrate"
    RESIZE = "resize"
    LIVE_MIGRATE = "live-migrate"
    EVACUATE = "evacuate"
    RESPAWN = "respawn"  # a build that no host of its cell could take, in another cell; nobody asks for it
    SHELVE = "shelve"  # a snapshot of the server, which then leaves its host
    UNSHELVE = "unshelve"  # a shelved server that is on no host comes to one
    CREATE_IMAGE = "create-image"  # of its disk; the server stays as it is
    CREATE_BACKUP = "create-backup"  # the same, and older backups are removed
    RESCUE = "rescue"  # it runs from another image, with its own root disk as the second one
    UNRESCUE = "unrescue"
    CHANGE_PASSWORD = "change-password"  # noqa: S105 - the name of an operation
    CRASH_DUMP = "crash-dump"
    ATTACH_INTERFACE = "attach-interface"  # the server has its addresses from the accept on
    DETACH_INTERFACE = "detach-interface"  # it has them until its cell has told that the guest is without it
    SOFT_DELETE = "soft-delete"  # it is off until its user restores it, or a conductor reclaims it

    @property
    def is_move(self) -> bool:
        """Whether it boots another body. The others begin with a task for the server's host."""
        return self in _MOVES

    @property
    def makes_image(self) -> bool:
        """Whether it makes an image that users see, under its own UUID."""
        return self in (OperationKind.CREATE_IMAGE, OperationKind.CREATE_BACKUP)

    @property
    def is_harmless(self) -> bool:
        """Whether the server is what it was before, also if the task fails."""
        return self.makes_image or self in (OperationKind.RESCUE, OperationKind.CHANGE_PASSWORD, OperationKind.CRASH_DUMP)

    @property
    def changes_interfaces(self) -> bool:
        """Whether it changes the network interfaces of the server."""
        return self in (OperationKind.ATTACH_INTERFACE, OperationKind.DETACH_INTERFACE)

    @property
    def holds_source(self) -> bool:
        """Whether it is a move whose source must be off before the twin may run."""
        return self in (OperationKind.MIGRATE, OperationKind.RESIZE, OperationKind.EVACUATE)


_MOVES = frozenset(
    {
        OperationKind.MIGRATE,
        OperationKind.RESIZE,
        OperationKind.LIVE_MIGRATE,
        OperationKind.EVACUATE,
        OperationKind.RESPAWN,
        OperationKind.UNSHELVE,
    }
)


class OperationState(enum.StrEnum):
    """States of an open operation, and in the last but one, ``ENDED``, of all others."""

    TASK = "task"  # a task is with the source's cell
    SHELVED = "shelved"  # the snapshot is complete, and the source is off; it waits to be offloaded or unshelved
    SOFT_DELETED = "soft-deleted"  # the source is asked to be off; it waits to be restored or, at its deadline, reclaimed
    PLACING = "placing"  # the twin waits for a host, or is being staged there
    HOLDING = "holding"  # the twin is staged; the source is asked to be off
    BUILDING = "building"  # the twin is handed over to its cell
    SENDING = "sending"  # a live migration: the twin listens, and the source is asked to go over to it
    VERIFY = "verify"  # a resize or a migration: the twin is the server and waits for the user
    REVERTING = "reverting"  # the twin is asked to be off
    UNDOING = "undoing"  # the twin is deleted, and its end is awaited
    STARTING = "starting"  # what the user had wanted is written into the source's row
    ENDED = "ended"


class Outcome(enum.StrEnum):
    DONE = "done"
    FAILED = "failed"  # the task failed; the server stays as the host left it
    GIVEN_UP = "given-up"  # the server is where it was
    REVERTED = "reverted"
    DELETED = "deleted"  # the server was deleted meanwhile


class OperationArgs(Object, frozen=True, kw_only=True):
    """What was asked for beside the kind.

    ``hard``, ``image_hash``: see ``TaskArgs``. ``image_id``: of a rebuild or a rescue. ``flavor_id``: of a resize. ``host``: the
    destination asked for. ``cross_cell``: the destination may be in another cell. ``availability_zone``: of an unshelved server;
    None: as before, or ``any_zone``. ``stopped``: an evacuated server is off on its new host. ``verify``: a migrated server waits
    for its user, as a resized one does. ``drive``: see ``TaskArgs``. ``image``: the image to be made. ``mac``: of the interface
    that comes or goes. ``rebuilt_from``: the image of a rebuild, as filters judged it. ``mends``: an evacuation has ended a change
    of the interfaces: if it is given up, its source is given those of its server.
    """

    hard: bool = False
    image_id: str | None = None
    flavor_id: str | None = None
    host: str | None = None
    cross_cell: bool = False
    availability_zone: str | None = None
    any_zone: bool = False
    stopped: bool = False
    verify: bool = False
    drive: DriveChanges = DriveChanges()
    image: NewImage | None = None
    rebuilt_from: Image | None = None
    mac: str | None = None
    mends: bool = False
    image_hash: str = ""


class Operation(Object, frozen=True, kw_only=True):
    """``number``: the first of its four task numbers. ``source_uuid``, ``twin_uuid``: the two bodies; a task has no twin.

    ``power_before``: what the source gets back where it is started again. ``held``: whether the source was ever asked to be off
    or to go over, or may still be changed by a task that was ended. ``forced``: the source's host is called dead. ``vcpus``,
    ``memory_mb`` (MiB): the twin's size. ``outcome`` None: it is open. ``unreadable``: the columns of its row that cannot be read,
    if any; their fields mean nothing. ``frozen``: why it takes no step before it was compared with the cells; None: it was.
    Times in seconds since the epoch.
    """

    uuid: str
    server_uuid: str
    kind: OperationKind
    state: OperationState
    number: int
    power_before: Power
    project_id: str
    user_id: str
    request_id: str
    created_at: float
    updated_at: float
    deadline: float
    args: OperationArgs = OperationArgs()
    held: bool = False
    forced: bool = False
    source_uuid: str | None = None
    twin_uuid: str | None = None
    source_host: str | None = None
    target_host: str | None = None
    vcpus: int | None = None
    memory_mb: int | None = None
    ended_at: float | None = None
    outcome: Outcome | None = None
    fault: str | None = None
    frozen: str | None = None
    unreadable: str = ""

    @property
    def settles_interfaces(self) -> bool:
        """Whether *starting* gives the source the interfaces that it is to have, and ends once the cell has told how that ended."""
        return self.kind.changes_interfaces or self.args.mends

    @property
    def waits_for_host(self) -> bool:
        """Whether only the source's host can take it further. An evacuation ends it, because that host is called dead."""
        return self.state is OperationState.TASK or (self.state is OperationState.STARTING and self.settles_interfaces)

    @property
    def waits_for_user(self) -> bool:
        """Whether its user decides about the server once it has moved."""
        return self.kind is OperationKind.RESIZE or (self.kind is OperationKind.MIGRATE and self.args.verify)


class Initiator(Object, frozen=True, kw_only=True):
    """Who asks for something: the API request and its user. None: nobody did, or it is not known."""

    request_id: str | None = None
    user_id: str | None = None

    @classmethod
    def of_operation(cls, operation: Operation) -> Initiator:
        """Who asked for the operation."""
        return cls(request_id=operation.request_id, user_id=operation.user_id)


NOBODY = Initiator()


WANTED: dict[OperationKind, Power] = {
    OperationKind.START: Power.ON,
    OperationKind.STOP: Power.OFF,
    OperationKind.REBOOT: Power.ON,
    OperationKind.PAUSE: Power.PAUSED,
    OperationKind.UNPAUSE: Power.ON,
    OperationKind.SUSPEND: Power.SUSPENDED,
    OperationKind.RESUME: Power.ON,
    OperationKind.RESCUE: Power.RESCUED,
    OperationKind.UNRESCUE: Power.ON,
    OperationKind.SHELVE: Power.HELD,  # it may run elsewhere before its host hears of that
}
"""What a guest is to be after an operation in place. Others leave it as it is."""

CALLED_FAILED = "An administrator has set the server to ERROR."
"""The fault of a server after ``FAIL``."""

ALLOWED: dict[OperationKind, frozenset[Power]] = {
    OperationKind.START: frozenset({Power.OFF}),
    OperationKind.STOP: frozenset({Power.ON}),
    OperationKind.REBOOT: frozenset({Power.ON}),
    OperationKind.PAUSE: frozenset({Power.ON}),
    OperationKind.UNPAUSE: frozenset({Power.PAUSED}),
    OperationKind.SUSPEND: frozenset({Power.ON}),
    OperationKind.RESUME: frozenset({Power.SUSPENDED}),
    OperationKind.REBUILD: frozenset({Power.ON, Power.OFF}),  # and it stays so
    OperationKind.MIGRATE: frozenset({Power.ON, Power.OFF}),
    OperationKind.RESIZE: frozenset({Power.ON, Power.OFF}),
    OperationKind.LIVE_MIGRATE: frozenset({Power.ON, Power.PAUSED}),  # and it stays so
    OperationKind.EVACUATE: frozenset({Power.ON, Power.OFF, Power.PAUSED, Power.SUSPENDED, Power.RESCUED}),
    OperationKind.RESET: frozenset(),
    OperationKind.FAIL: frozenset({Power.ON, Power.OFF, Power.PAUSED, Power.SUSPENDED}),
    OperationKind.RESPAWN: frozenset(),
    OperationKind.SHELVE: frozenset({Power.ON, Power.OFF, Power.PAUSED, Power.SUSPENDED}),
    OperationKind.UNSHELVE: frozenset({Power.OFF}),  # of the shelved body
    OperationKind.CREATE_IMAGE: frozenset({Power.ON, Power.OFF, Power.PAUSED, Power.SUSPENDED}),
    OperationKind.CREATE_BACKUP: frozenset({Power.ON, Power.OFF, Power.PAUSED, Power.SUSPENDED}),
    OperationKind.RESCUE: frozenset({Power.ON, Power.OFF}),
    OperationKind.UNRESCUE: frozenset({Power.RESCUED}),
    OperationKind.CHANGE_PASSWORD: frozenset({Power.ON}),
    OperationKind.CRASH_DUMP: frozenset({Power.ON, Power.PAUSED, Power.RESCUED}),
    OperationKind.ATTACH_INTERFACE: frozenset({Power.ON, Power.OFF, Power.PAUSED}),
    OperationKind.DETACH_INTERFACE: frozenset({Power.ON, Power.OFF, Power.PAUSED}),
    OperationKind.SOFT_DELETE: frozenset({Power.ON, Power.OFF, Power.PAUSED, Power.SUSPENDED, Power.RESCUED}),
}
"""The powers of a server for which an operation is accepted. A hard reboot is accepted for each but HELD and RESCUED."""


def task_kind(kind: OperationKind) -> TaskKind:
    """The task that an operation in place is."""
    return _TASKS.get(kind, TaskKind.POWER)


_TASKS = {
    OperationKind.REBOOT: TaskKind.REBOOT,
    OperationKind.REBUILD: TaskKind.REBUILD,
    OperationKind.SHELVE: TaskKind.SNAPSHOT,
    OperationKind.CREATE_IMAGE: TaskKind.IMAGE,
    OperationKind.CREATE_BACKUP: TaskKind.IMAGE,
    OperationKind.RESCUE: TaskKind.RESCUE,
    OperationKind.CHANGE_PASSWORD: TaskKind.PASSWORD,
    OperationKind.CRASH_DUMP: TaskKind.CRASH_DUMP,
    OperationKind.ATTACH_INTERFACE: TaskKind.INTERFACES,
    OperationKind.DETACH_INTERFACE: TaskKind.INTERFACES,
}


SINCE: Mapping[OperationKind, MessagesVersion] = {}
"""The messages versions that have the kinds which processes of the release before cannot read. They wait for the upgrade's end."""

AFTER_FAILURE = frozenset(
    {
        OperationKind.RESET,
        OperationKind.FAIL,
        OperationKind.STOP,
        OperationKind.REBUILD,
        OperationKind.RESCUE,
        OperationKind.EVACUATE,
        OperationKind.CRASH_DUMP,
        OperationKind.SOFT_DELETE,
    }
)
"""Operations that are accepted after a task has failed, whatever the power: nobody knows what the guest is at.

No others are, except a hard reboot.
"""

WITHOUT_HOST = frozenset(
    {
        OperationKind.RESET,
        OperationKind.FAIL,
        OperationKind.EVACUATE,
        OperationKind.RESPAWN,
        OperationKind.UNSHELVE,
        OperationKind.SOFT_DELETE,
    }
)
"""Operations that go on, or end, without the agent of the server's host."""


def allows_operation(kind: OperationKind, power: Power, *, hard: bool = False, failed: bool = False) -> bool:
    """Whether the operation is accepted for a server with this power. ``failed``: its latest task has failed."""
    if kind is OperationKind.REBOOT and hard:
        return power not in (Power.HELD, Power.RESCUED)
    return kind in AFTER_FAILURE if failed else power in ALLOWED[kind]
