"""Tasks: what the host of an ACTIVE instance is to do to its guest.

The API level gives each task a number, four for each operation. A cell takes a task only if its number is higher than the last one,
and an agent asks its cell before it acts. So late and doubled orders do nothing (``docs/moves.md``).
"""

from __future__ import annotations

import enum
from typing import Annotated, ClassVar, Literal

import msgspec

from objects.base import INT64_MAX, Message, Number, Object
from objects.port import Port


class Power(enum.StrEnum):
    """What a guest is to be, or is.

    ``HELD``: off, and may not run until a later task says so, because another body may run. ``INCOMING``: it listens for the memory
    and disk of another body's guest, and is as that was once it has received them. ``RESCUED``: it runs from a rescue image, and
    has its own root disk as the second one.
    """

    ON = "on"
    OFF = "off"
    PAUSED = "paused"
    SUSPENDED = "suspended"
    HELD = "held"
    INCOMING = "incoming"
    RESCUED = "rescued"

    @property
    def uses_disk(self) -> bool:
        """Whether the guest may use its disk."""
        return self in (Power.ON, Power.PAUSED, Power.RESCUED)


class TaskKind(enum.StrEnum):
    """``POWER``: bring the guest to the row's power. ``SNAPSHOT``: the same, and copy its disk to the image store. ``SEND``: live
    migration of the guest, which runs or is paused, to a body that is INCOMING. ``IMAGE``: make an image of its disk as it is at
    one moment; the guest stays as it is. ``RESCUE``: boot it from a rescue image. ``PASSWORD``: give it another
    administrator's password. ``CRASH_DUMP``: interrupt it so that its system dumps its memory. ``INTERFACES``: bring it to the
    row's power, with these network interfaces and no others.

    Reboots, rebuilds and crash dumps are carried out once at most. The others may be repeated.
    """

    POWER = "power"
    REBOOT = "reboot"
    REBUILD = "rebuild"
    SNAPSHOT = "snapshot"
    SEND = "send"
    IMAGE = "image"
    RESCUE = "rescue"
    PASSWORD = "password"  # noqa: S105 - the name of a task
    CRASH_DUMP = "crash-dump"
    INTERFACES = "interfaces"

    @property
    def has_secrets(self) -> bool:
        """Whether secrets may belong to it, which come with the grant."""
        return self in (TaskKind.REBUILD, TaskKind.RESCUE, TaskKind.PASSWORD)

    @property
    def runs_once(self) -> bool:
        return self in (TaskKind.REBOOT, TaskKind.REBUILD, TaskKind.CRASH_DUMP)


class TaskState(enum.StrEnum):
    ORDERED = "ordered"
    RUNNING = "running"  # an agent was granted it
    DONE = "done"
    FAILED = "failed"

    @property
    def is_over(self) -> bool:
        return self in (TaskState.DONE, TaskState.FAILED)


class SendTarget(Object, frozen=True, kw_only=True):
    """The INCOMING body that a guest is sent to, and its host."""

    instance_uuid: str
    host: str


class NewImage(Object, frozen=True, kw_only=True):
    """An image to be made of a server's disk.

    ``owner``: the only project that may use it. ``min_disk``: GiB, ``min_ram``: MiB, which a flavor must have. ``properties``:
    those of the image that the guest was built from are added where they do not contradict. ``backup_type``: of a backup; empty:
    it is none. ``rotation``: how many backups of this type the server has when this one is complete.
    """

    name: str
    owner: str
    min_disk: int = 0
    min_ram: int = 0
    properties: dict[str, str] = {}
    backup_type: str = ""
    rotation: int = 0


class StoredContent(Object, frozen=True, kw_only=True):
    """What a host has written into the image store, as it saw it while it wrote.

    ``size``: bytes of the file. ``hash_value``: its SHA-512 in hexadecimal digits. ``virtual_size``: bytes of the disk that guests
    see; None: not known. ``disk_format``: raw or qcow2; empty: that of the host's driver.
    """

    size: Annotated[int, msgspec.Meta(ge=0, le=INT64_MAX)]
    hash_value: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{128}$")]
    virtual_size: Annotated[int, msgspec.Meta(ge=0, le=INT64_MAX)] | None = None
    disk_format: Literal["", "raw", "qcow2"] = ""


class DriveChanges(Object, frozen=True, kw_only=True):
    """What a rebuild changes in the config drive of its guest. Of a rescue and of a new password only ``has_secrets`` counts.

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
    """``hard``: do not ask the guest's system to stop by itself. ``image_id``: of a rebuild or a rescue; None: the image that it
    has. Of a snapshot and of an image: its name in the image store. ``image_hash``: see ``objects.spec.Image``. ``target``: where a
    guest is sent. ``drive``: of a rebuild, a rescue, a password. ``image``: what an image is to be. ``ports``: the interfaces of
    the guest.
    """

    hard: bool = False
    image_id: str | None = None
    target: SendTarget | None = None
    drive: DriveChanges = DriveChanges()
    image: NewImage | None = None
    ports: tuple[Port, ...] = ()
    image_hash: str = ""


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

    VERSION: ClassVar[str] = "1.5"

    instance_uuid: str
    fence: Number
    attempt: Number
    number: Number
    kind: TaskKind
    power: Power
    args: TaskArgs = TaskArgs()
    request_id: str = ""
