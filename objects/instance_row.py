"""A cell's row of an instance without its build, for audits and for the repair of what a restored API database has lost."""

from __future__ import annotations

from objects.base import Object
from objects.instance import State
from objects.port import Port
from objects.task import Power, StoredContent


class InstanceRow(Object, frozen=True, kw_only=True):
    """Times in seconds since the epoch.

    ``power``, ``task_state``: as written, because another release may have other ones. The last five fields: see ``Instance``.
    """

    uuid: str
    state: State
    fence: int
    attempt: int
    version: int
    host: str | None
    node: str | None
    availability_zone: str | None
    batch_id: str | None
    project_id: str
    user_id: str
    name: str
    launch_index: int
    created_at: float
    updated_at: float
    rolled_back: str | None
    server_uuid: str | None
    turn: int
    power: str
    task_number: int
    task_state: str

    @property
    def uuid_of_server(self) -> str:
        """The server whose body this is."""
        return self.server_uuid or self.uuid

    @property
    def may_run(self) -> bool:
        """Whether its guest may run, or may be started by its user."""
        return self.state is State.ACTIVE and self.power not in (Power.HELD, Power.INCOMING)


class TombstoneSnapshot(Object, frozen=True, kw_only=True):
    """What the last task of a body has written before the body ended. ``number``: of the task. ``image_id``: its name in the image
    store. ``content``: what the host has written there; None: not known.
    """

    number: int
    image_id: str
    content: StoredContent | None = None


class Stray(Object, frozen=True, kw_only=True):
    """A cell's row to adopt. ``spec``: the stored text of its batch's spec; None if the cell has lost it. ``ports``: the
    network interfaces of its server. ``snapshot``: the body has ended because its server was shelved.
    """

    row: InstanceRow
    fault: str | None = None
    spec: str | None = None
    ports: tuple[Port, ...] = ()
    snapshot: TombstoneSnapshot | None = None

    @property
    def is_leaving(self) -> bool:
        """Whether a user's delete reached the cell. A roll-back does not count: it ends in ERROR."""
        if self.snapshot is not None:
            return False
        return self.row.state is State.DELETED or (self.row.state is State.DELETING and self.row.rolled_back is None)
