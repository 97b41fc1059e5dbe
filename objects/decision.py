"""A stored scheduling decision with its explanation."""

from __future__ import annotations

from typing import ClassVar

from objects.base import Message, Object
from objects.basis import Basis
from objects.relaxation import Relaxation, RelaxationPair


class FilterCount(Object, frozen=True, kw_only=True):
    """One filter of the chain, in order: the number of hosts before and after it.

    ``reason``: why it refused some; a record leaves it out if it refused none. ``partial``: it was asked of the best hosts only,
    until enough passed.
    """

    name: str
    before: int
    after: int
    reason: str = ""
    partial: bool = False


class RecordedCount(FilterCount, frozen=True, kw_only=True, omit_defaults=True):
    """The same for a new record, whose text is shorter. It is read as ``FilterCount``, with all fields."""


class Candidate(Object, frozen=True, kw_only=True):
    """A host with its total score and the weighted part of each weigher."""

    host: str
    node: str
    cell: str
    score: float
    parts: dict[str, float] = {}


class DecidedInstance(Object, frozen=True, kw_only=True):
    """The host of one instance of the batch; ``host`` is None if none was found."""

    instance_uuid: str
    host: str | None
    node: str | None = None
    cell: str | None = None
    alternates: tuple[str, ...] = ()


class Decision(Message, frozen=True, kw_only=True, omit_defaults=True):
    """Why a batch got its hosts, or none.

    ``filters``: the counts for the first instance that found no host, otherwise for the first instance of the batch. ``cells``: by
    cell name, the age of the view used in seconds, or None if there is none. ``seed``: of every random choice. ``message`` is
    safe for a tenant. The other fields are for administrators, except the ``words`` of relaxations.

    ``conflicts``: how often another claim had taken a planned host by the time its row was locked. ``taken``: those hosts, or some
    of them if there are many. ``relaxations``: single changes of the request with which it would have been placed, the smallest
    first; None: not examined. ``pairs``: where none of them is for tenants, the smallest two changes that are enough together, and
    the smallest for tenants if these are others. ``largest_flavor``: the name of the largest flavor of the project that fits then.
    ``unread_hints``: scheduler hints of the request that no filter reads, so that they change nothing.
    ``waits``: why the decision is not final and the batch is retried until its deadline; for
    administrators, as it may name cells. ``basis``: what it takes to take the decision again; None if no host was found.
    """

    VERSION: ClassVar[str] = "1.7"

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
    pairs: tuple[RelaxationPair, ...] = ()
    largest_flavor: str = ""
    unread_hints: tuple[str, ...] = ()
    basis: Basis | None = None

    @property
    def is_refused(self) -> bool:
        """Not all instances that needed a host found one, so none got one."""
        return bool(self.message)
