"""An instance in its cell."""

from __future__ import annotations

import enum
import math
from typing import ClassVar

import msgspec

from objects import text
from objects.base import Message, Object
from objects.operation import Operation
from objects.port import Port
from objects.selection import HostCapacity, Selection
from objects.spec import Image, ServerProperties
from objects.task import Power, StoredContent, TaskState


class State(enum.StrEnum):
    """States of an instance row in a cell; ``objects/lifecycle.py`` owns the changes between them."""

    STAGED = "staged"
    SCHEDULED = "scheduled"
    BUILDING = "building"
    ACTIVE = "active"
    ERROR = "error"
    DELETING = "deleting"
    DELETED = "deleted"
    UNKNOWN = "unknown"  # never written: the row holds a state that this release does not know


class FailureClass(enum.StrEnum):
    """The cause of a failed build; it decides what happens next."""

    HOST = "host"  # another host may succeed
    NO_ROOM = "no-room"  # the host's own claim was refused: another host, and no failure is counted for this one
    RESTARTED = "restarted"  # the agent restarted during the build: the same host again, and no attempt is used up
    STOPPING = "stopping"  # the agent is about to stop: another host, or this one later; no attempt is used up
    POLICY = "policy"  # a placement policy would be broken here: another host, and no failure is counted
    REQUEST = "request"  # the request itself cannot be built anywhere: ERROR at once
    DEADLINE = "deadline"  # the build's deadline has passed: ERROR


class Failure(Message, frozen=True, kw_only=True):
    """Why one attempt failed. ``at`` in seconds since the epoch; 0 if it was not a finite number.

    Drivers write the texts. Every new object, even one decoded from a message or a row, has them without unsafe characters.
    ``error`` has at most ``text.NAME_LENGTH`` bytes of UTF-8, ``message`` at most ``text.FAULT_SIZE``.
    """

    VERSION: ClassVar[str] = "1.1"

    kind: FailureClass
    error: str
    message: str
    at: float

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "error", text.clean_text(self.error, text.NAME_LENGTH))
        msgspec.structs.force_setattr(self, "message", text.clean_text(self.message, text.FAULT_SIZE))
        if not math.isfinite(self.at):
            msgspec.structs.force_setattr(self, "at", 0.0)


class Attempt(Object, frozen=True, kw_only=True):
    """One failed attempt of a build. ``started_at`` None: its host had not begun, or an older release did not record it."""

    number: int
    host: str
    node: str
    failure: Failure
    started_at: float | None = None


class Instance(Object, frozen=True, kw_only=True):
    """The protocol's view of one instance row and of its build: everything that a transition may read or change.

    ``fence``, ``attempt`` and ``builder`` are the three fencing values of ``docs/protocol.md``. ``version`` rises with every change
    and is part of the row's feed events. ``rolled_back``: why its batch is rolled back; the instance then ends in ERROR with this
    fault, not in DELETED. ``building_at``: when the agent was granted the current attempt. Times are seconds since the epoch.
    ``created_at`` and ``changed_at`` (when the row was last written) are for measurements only: no transition reads them.
    ``damage``: which of the row's columns could not be decoded and have their defaults here.

    ``server_uuid``: whose body it is; None: of the server with its own uuid. ``turn``: which body of its server, from 0. ``power``:
    what its guest is to be. ``task_number``, ``task_state``, ``task_fault``: its latest task (``objects.task``), and why it failed.
    ``task_stored``: what it has written into the image store.
    ``ports``: the network interfaces of its guest.
    """

    uuid: str
    state: State
    fence: int
    attempt: int = 1
    builder: str | None = None
    version: int = 0
    host: str | None = None
    node: str | None = None
    limits: HostCapacity | None = None
    availability_zone: str | None = None
    alternates: tuple[Selection, ...] = ()
    max_attempts: int = 3
    history: tuple[Attempt, ...] = ()
    deadline: float = 0.0
    has_group: bool = False
    batch_id: str | None = None
    building_at: float | None = None
    launched_at: float | None = None
    terminated_at: float | None = None
    fault: str | None = None
    rolled_back: str | None = None
    created_at: float = 0.0
    changed_at: float = 0.0
    damage: str | None = None
    server_uuid: str | None = None
    turn: int = 0
    power: Power = Power.ON
    task_number: int = 0
    task_state: TaskState = TaskState.DONE
    task_fault: str | None = None
    task_stored: StoredContent | None = None
    ports: tuple[Port, ...] = ()

    @property
    def uuid_of_server(self) -> str:
        """The server whose body this is."""
        return self.server_uuid or self.uuid


class Server(Object, frozen=True, kw_only=True):
    """One server at the API level: its instance mapping and summary.

    ``cell_uuid`` None: it is still a build request, or shelved. ``state`` comes from the summary: building, active, shelved (its
    disk is in the image store, and no cell has it), error or deleted. If its cell was asked, it may also be deleting or
    rolling-back.

    ``own_uuid``: the uuid of the body that is shown, of its row here and in its cell; None: the server's. ``turn``: which body it
    is, from 0. ``boot_batch_id``: the batch that the server was booted in, if the body that is shown came later.
    ``power``, ``task_number``, ``task_state``, ``task_fault``: see ``Instance``. The last fields are the tenant's
    changes since the boot; None: as in the request spec. ``user_version`` rises with each of them.
    ``image_id``, ``image_hash``: of its last rebuild; None: as in the request spec. ``rebuilt_from``: that image, as filters judged
    it. ``operation``: its open one, where it was asked for.
    """

    uuid: str
    batch_id: str
    project_id: str
    user_id: str
    name: str
    state: str
    created_at: float
    updated_at: float
    cell_uuid: str | None = None
    deleted: bool = False
    launch_index: int = 0
    host: str | None = None
    node: str | None = None
    availability_zone: str | None = None
    mapped_at: float | None = None
    deleted_at: float | None = None
    deleted_by: str | None = None
    deleted_by_user: str | None = None
    launched_at: float | None = None
    terminated_at: float | None = None
    fault: str | None = None
    own_uuid: str | None = None
    boot_batch_id: str | None = None
    turn: int = 0
    power: Power = Power.ON
    task_number: int = 0
    task_state: TaskState = TaskState.DONE
    task_fault: str | None = None
    task_stored: StoredContent | None = None
    locked_by: str | None = None
    locked_reason: str | None = None
    description: str | None = None
    metadata: dict[str, str] | None = None
    tags: tuple[str, ...] | None = None
    user_version: int = 0
    hostname: str | None = None
    access_ip_v4: str | None = None
    access_ip_v6: str | None = None
    auto_disk_config: bool | None = None
    key_name: str | None = None
    public_key: str | None = None
    image_id: str | None = None
    image_hash: str | None = None
    rebuilt_from: Image | None = None
    operation: Operation | None = None

    @property
    def body_uuid(self) -> str:
        """The uuid of the body that is shown."""
        return self.own_uuid or self.uuid

    @property
    def is_shelved(self) -> bool:
        """Whether its disk is in the image store only, and no cell has it."""
        return self.state == "shelved"

    def current_properties(self, boot_properties: ServerProperties) -> ServerProperties:
        """What was asked for at the boot, with the tenant's changes since. An empty description or key name means that it was
        cleared.
        """
        return msgspec.structs.replace(
            boot_properties,
            metadata=boot_properties.metadata if self.metadata is None else self.metadata,
            tags=boot_properties.tags if self.tags is None else self.tags,
            description=boot_properties.description if self.description is None else self.description or None,
            hostname=self.hostname or boot_properties.hostname,
            access_ip_v4=boot_properties.access_ip_v4 if self.access_ip_v4 is None else self.access_ip_v4,
            access_ip_v6=boot_properties.access_ip_v6 if self.access_ip_v6 is None else self.access_ip_v6,
            auto_disk_config=boot_properties.auto_disk_config if self.auto_disk_config is None else self.auto_disk_config,
            key_name=boot_properties.key_name if self.key_name is None else self.key_name or None,
            public_key=boot_properties.public_key if self.key_name is None else self.public_key or None,
        )
