"""A hold: a batch that was given hosts and is not built, until its user boots it."""

from __future__ import annotations

from enum import StrEnum

from objects.base import Object

HELD = "held"
"""The state of a build request that keeps its claim and waits for its hold to be booted."""


class HoldState(StrEnum):
    """``PLACING``: servers wait for their hosts. ``HELD``: all that are left have one. ``REFUSED``: none found a host."""

    PLACING = "placing"
    HELD = "held"
    REFUSED = "refused"


class HeldServer(Object, frozen=True, kw_only=True):
    """A server of a hold. ``held``: it has its host, and waits for its hold.

    ``fault``: why it found no host. ``cell`` (its name), ``host``, ``node``: None while it has no host.
    """

    uuid: str
    name: str
    held: bool
    fault: str | None = None
    cell: str | None = None
    host: str | None = None
    node: str | None = None


class Hold(Object, frozen=True, kw_only=True):
    """A hold and its servers that are not deleted, in their order. ``id``: of its batch. Times in seconds since the epoch."""

    id: str
    project_id: str
    user_id: str
    created_at: float
    expires_at: float
    servers: tuple[HeldServer, ...] = ()

    @property
    def hold_state(self) -> HoldState:
        if any(not server.held and server.fault is None for server in self.servers):
            return HoldState.PLACING
        return HoldState.HELD if any(server.held for server in self.servers) else HoldState.REFUSED
