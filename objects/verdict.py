"""What is to become of an operation of a restored database, once it was compared with the cells (``cells/verdict.py``)."""

from __future__ import annotations

import enum

from objects.base import Object
from objects.operation import OperationState


class Fate(enum.StrEnum):
    """``UNDECIDED``: it stays frozen."""

    RESUME = "resume"  # in a state, from which its steps go on
    ARRIVE = "arrive"  # it has ended, and its server is a body
    RETURN = "return"  # its new body has ended, and its server is the source
    OFFLOAD = "offload"  # the shelved server has left its host
    DELETE = "delete"  # its server was deleted
    END = "end"  # it has ended; what its server is, is not known
    UNDECIDED = "undecided"


class OperationVerdict(Object, frozen=True, kw_only=True):
    """``state``: of RESUME. ``body``: what the server is, of ARRIVE and END. ``reason``: of UNDECIDED.

    ``twin``: of ARRIVE: the body of a later move, which is on its way. ``gone``: those of the operation's bodies that have ended in
    their cells. ``asked``: whether the source was asked to be off. ``image``: whether the image that the operation makes may be in
    the store.
    """

    fate: Fate
    state: OperationState | None = None
    body: str | None = None
    twin: str | None = None
    gone: tuple[str, ...] = ()
    reason: str = ""
    asked: bool = False
    image: bool = False
