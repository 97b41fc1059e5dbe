"""Tasks: what the host of an ACTIVE instance is to do to its guest.

The API level gives each task a number, four for each operation. A cell takes a task only if its number is higher than the last one,
and an agent asks its cell before it acts. So late and doubled orders do nothing (``docs/moves.md``).
"""

from __future__ import annotations

import enum
from typing import ClassVar

from objects.base import Message, Number, Object


class Power(enum.StrEnum):
    """What a guest is to be, or is.

    ``HELD``: off, and may not run until a later task says so, because another body may run. ``INCOMING``: it listens for the memory
    and disk of another body's guest, and runs once it has received them.
    """

    ON = "on"
    OFF = "off"
    PAUSED = "paused"
    SUSPENDED = "suspended"
    HELD = "held"
    INCOMING = "incoming"

    @property
    def runs(self) -> bool:
        """Whether the guest may use its disk."""
        return self in (Power.ON, Power.PAUSED)


class TaskKind(enum.StrEnum):
    """``POWER``: bring the guest to the row's power. ``SNAPSHOT``: the same, and copy its disk to the image store. ``SEND``: live
    migration of the running guest to a body that is INCOMING.

    These three may be repeated; the others are carried out once at most.
    """

    POWER = "power"
    REBOOT = "reboot"
    REBUILD = "rebuild"
    SNAPSHOT = "snapshot"
    SEND = "send"

    @property
    def once(self) -> bool:
        return self in (TaskKind.REBOOT, TaskKind.REBUILD)


class TaskState(enum.StrEnum):
    ORDERED = "ordered"
    RUNNING = "running"  # an agent was granted it
    DONE = "done"
    FAILED = "failed"

    @property
    def over(self) -> bool:
        return self in (TaskState.DONE, TaskState.FAILED)


class SendTarget(Object, frozen=True, kw_only=True):
    """The INCOMING body that a guest is sent to, and its host."""

    instance_uuid: str
    host: str


class DriveChanges(Object, frozen=True, kw_only=True):
    """What a rebuild changes in the config drive of its guest.

    ``has_secrets``: ``BootSecrets`` are stored beside it, and the guest must not be rebuilt without them. ``key_name`` None: the
    key pair stays; empty: it is removed. ``public_key``: the text of the new key. ``removes_user_data``: the user data of the old
    drive goes. Otherwise it stays, unless the secrets have new user data.
    """

    has_secrets: bool = False
    key_name: str | None = None
    public_key: str = ""
    removes_user_data: bool = False

    def __bool__(self) -> bool:
        return self != DriveChanges()


class TaskArgs(Object, frozen=True, kw_only=True):
    """``hard``: do not ask the guest's system to stop by itself. ``image_id``: of a rebuild, None: the image that it has; of a
    snapshot its name in the image store. ``target``: where a guest is sent. ``drive``: of a rebuild.
    """

    hard: bool = False
    image_id: str | None = None
    target: SendTarget | None = None
    drive: DriveChanges = DriveChanges()


class Task(Object, frozen=True, kw_only=True):
    """A task for one instance. ``power``: what its guest is to be then. ``builder``: the agent start that it is granted to."""

    number: int
    kind: TaskKind
    power: Power
    args: TaskArgs = TaskArgs()
    request_id: str = ""
    builder: str | None = None


class TaskOrder(Message, frozen=True, kw_only=True):
    """Carry out this task, if the cell grants it. The agent ignores doubled and stale orders."""

    VERSION: ClassVar[str] = "1.2"

    instance_uuid: str
    fence: Number
    attempt: Number
    number: Number
    kind: TaskKind
    power: Power
    args: TaskArgs = TaskArgs()
    request_id: str = ""
