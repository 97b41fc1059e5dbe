"""A scheduling decision as it is stored and explained."""

from __future__ import annotations

from typing import ClassVar

from objects.base import Message, Object
from objects.relaxation import Relaxation


class FilterCount(Object, frozen=True, kw_only=True):
    """One filter of the chain, in order: how many hosts it was shown and how many it left."""

    name: str
    before: int
    after: int
    reason: str = ""


class Candidate(Object, frozen=True, kw_only=True):
    """A host with its total score and the weighted part each weigher added."""

    host: str
    node: str
    cell: str
    score: float
    parts: dict[str, float] = {}


class DecidedInstance(Object, frozen=True, kw_only=True):
    """What one instance of the batch got; ``host`` is None where nothing was found."""

    instance_uuid: str
    host: str | None
    node: str | None = None
    cell: str | None = None
    alternates: tuple[str, ...] = ()


class Decision(Message, frozen=True, kw_only=True):
    """Why a batch went where it went, or nowhere.

    ``filters`` are the counts for the first instance that found no host, or else for the first instance of the batch. ``cells``
    maps each cell's name to the age in seconds of the view used, or to None where nothing is known of it. ``seed`` replays every
    random choice. ``message`` is safe for a tenant; all else is for administrators, but for the ``words`` of relaxations.

    ``conflicts``: how often a host that was planned for an instance had been taken by another claim when its row was locked;
    ``taken``: those hosts, some of them if they are many. ``relaxations``: single changes of the request with which it would have
    been placed, the smallest first; None where that was not looked into. ``waits``: why it is not the last word: the batch is asked
    about again until its deadline. For administrators, as it may name cells.
    """

    VERSION: ClassVar[str] = "1.2"

    id: str
    batch_id: str
    request_id: str
    at: float
    driver: str
    hosts: int
    filters: tuple[FilterCount, ...] = ()
    candidates: tuple[Candidate, ...] = ()
    choices: tuple[DecidedInstance, ...] = ()
    cells: dict[str, float | None] = {}
    seed: int = 0
    message: str = ""
    elapsed_ms: float = 0.0
    conflicts: int = 0
    taken: tuple[str, ...] = ()
    relaxations: tuple[Relaxation, ...] | None = None
    waits: str = ""

    @property
    def refused(self) -> bool:
        """No host was found for all of the instances that needed one, so none got one."""
        return bool(self.message)
