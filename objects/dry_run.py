"""A scheduling decision that was not carried out: what a request would get if it were accepted now."""

from __future__ import annotations

from typing import ClassVar

from objects.base import Message, Object
from objects.decision import Decision


class PlannedServer(Object, frozen=True, kw_only=True):
    """The host that one server would get; ``host`` is None if it would find none.

    ``score`` and ``parts`` (by weigher) are those of the host when this server is placed, after the servers of the request before
    it. ``numa_nodes``: those of the host that it would be tied to.
    """

    instance_uuid: str
    host: str | None = None
    node: str | None = None
    cell: str | None = None
    availability_zone: str | None = None
    score: float = 0.0
    parts: dict[str, float] = {}
    alternates: tuple[str, ...] = ()
    numa_nodes: tuple[int, ...] = ()


class DryRun(Message, frozen=True, kw_only=True):
    """A decision that is stored nowhere: nothing was claimed, and its ``id`` is empty.

    ``servers`` are in the order of the request's fences. ``one_of``: the first server's host was drawn from so many hosts. A boot
    draws anew, by its own request ID.
    """

    VERSION: ClassVar[str] = "1.5"

    decision: Decision
    servers: tuple[PlannedServer, ...] = ()
    one_of: int = 0
