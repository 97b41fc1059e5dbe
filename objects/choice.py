"""The scheduler's answer for one of several batches in one call."""

from __future__ import annotations

from typing import ClassVar

from objects import errors
from objects.base import Message
from objects.selection import Selection

REFUSALS: dict[str, type[errors.SuperconductorError]] = {
    cls.__name__: cls
    for cls in (
        errors.NoValidHost,
        errors.Conflict,
        errors.CellUnavailable,
        errors.NotFound,
        errors.Invalid,
        errors.DatabaseUnavailable,
    )
}
"""Errors that a scheduler may return instead of hosts."""


class Choice(Message, frozen=True, kw_only=True):
    """The result of ``select_destinations`` for this batch, or the name and text of the error that it would have raised."""

    VERSION: ClassVar[str] = "1.1"

    selections: tuple[tuple[Selection, ...], ...] = ()
    refusal: str | None = None
    message: str = ""
    decision_id: str | None = None

    def get_selections(self) -> list[list[Selection]]:
        """The selections. Raises the scheduler's error if it refused."""
        if self.refusal is None:
            return [list(selections) for selections in self.selections]
        if self.refusal == errors.NoValidHost.__name__:
            raise errors.NoValidHost(self.message, self.decision_id)
        raise REFUSALS.get(self.refusal, errors.Conflict)(self.message)


def refusal_choice(error: errors.SuperconductorError) -> Choice:
    """A choice that raises ``error``, or its base class in ``REFUSALS``."""
    name = next((cls.__name__ for cls in type(error).__mro__ if cls.__name__ in REFUSALS), errors.Conflict.__name__)
    decision_id = error.decision_id if isinstance(error, errors.NoValidHost) else None
    return Choice(refusal=name, message=str(error), decision_id=decision_id)
