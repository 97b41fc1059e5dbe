"""How many more servers fit: the answer of a scheduler, which changes nothing."""

from __future__ import annotations

import enum
from typing import ClassVar

from objects.base import Message, Object
from objects.decision import FilterCount


class PlaceRoom(Object, frozen=True, kw_only=True):
    """A cell, a zone or an aggregate. ``servers``: how many more fit on its hosts; ``hosts``: how many of these take one."""

    name: str
    servers: int
    hosts: int


class FlavorRoom(Object, frozen=True, kw_only=True):
    """How many more servers of one flavor fit, if no other server comes. The number is exact.

    ``filters``: how many hosts each filter left. ``limits``: by filter, how many hosts it keeps from taking one more than counted.
    """

    flavor: str
    servers: int
    hosts: int
    cells: tuple[PlaceRoom, ...] = ()
    zones: tuple[PlaceRoom, ...] = ()
    aggregates: tuple[PlaceRoom, ...] = ()
    filters: tuple[FilterCount, ...] = ()
    limits: dict[str, int] = {}


class LossKind(enum.StrEnum):
    ZONE = "zone"
    RACK = "rack"
    HOST = "host"
    CELL = "cell"


class Loss(Message, frozen=True, kw_only=True):
    """What is lost. ``name``: of a zone, rack or host; the uuid of a cell."""

    VERSION: ClassVar[str] = "1.1"

    kind: LossKind
    name: str


class StrandedServer(Object, frozen=True, kw_only=True):
    """A server of a lost host that fits nowhere else, and why."""

    id: str
    name: str
    project_id: str
    flavor: str
    host: str
    reason: str


class LossOutcome(Object, frozen=True, kw_only=True):
    """What becomes of the ``servers`` on lost ``hosts``: so many are ``placed`` elsewhere, the others are stranded.

    Greedy: the largest are placed first, and no server moves to make room. Another order may place more.
    """

    hosts: int
    servers: int
    placed: int
    stranded: tuple[StrandedServer, ...] = ()


class SetRoom(Object, frozen=True, kw_only=True):
    """How many sets fit, each of one server of every flavor: at least and at most."""

    least: int
    most: int


class Capacity(Message, frozen=True, kw_only=True):
    """``flavors`` are in the order asked for, each alone. ``sets``: of all flavors together; None for one flavor.

    ``hosts``: those that cells report. ``cells``: by cell name, the age of the view used in seconds, or None if there is none.
    ``host_limit``: more than so many servers are not counted on one host. ``early``: the scheduler has just started, and hosts that
    it has not heard of yet are missing. ``loss``: what the numbers assume to be lost.
    """

    flavors: tuple[FlavorRoom, ...]
    hosts: int
    sets: SetRoom | None = None
    cells: dict[str, float | None] = {}
    host_limit: int = 0
    early: bool = False
    loss: LossOutcome | None = None
