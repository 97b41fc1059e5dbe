"""A cell's row of an instance without its build, for audits and for the repair of a lost hand-over."""

from __future__ import annotations

from objects.base import Object
from objects.instance import State
from objects.port import Port
from objects.task import Power


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
    def server(self) -> str:
        """The server whose body this is."""
        return self.server_uuid or self.uuid

    @property
    def may_run(self) -> bool:
        """Whether its guest may run, or may be started by its user."""
        return self.state is State.ACTIVE and self.power not in (Power.HELD, Power.INCOMING)


class Stray(Object, frozen=True, kw_only=True):
    """A cell's row to adopt. ``spec``: the stored text of its batch's spec; None if the cell has lost it. ``ports``: the
    network interfaces of its server. ``is_shelved``: the body has ended, but its server is in the image store.
    """

    row: InstanceRow
    fault: str | None = None
    spec: str | None = None
    ports: tuple[Port, ...] = ()
    is_shelved: bool = False

    @property
    def leaving(self) -> bool:
        """Whether a user's delete reached the cell. A roll-back does not count: it ends in ERROR."""
        if self.is_shelved:
            return False
        return self.row.state is State.DELETED or (self.row.state is State.DELETING and self.row.rolled_back is None)
