"""The scheduler's answer about one of several batches that were asked about together."""

from __future__ import annotations

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
"""What a scheduler may answer instead of hosts."""


class Choice(Message, frozen=True, kw_only=True):
    """What ``select_destinations`` would have returned for this batch, or the name and text of what it would have raised."""

    selections: tuple[tuple[Selection, ...], ...] = ()
    refusal: str | None = None
    message: str = ""
    decision_id: str | None = None

    def answer(self) -> list[list[Selection]]:
        """Raises what the scheduler did."""
        if self.refusal is None:
            return [list(selections) for selections in self.selections]
        if self.refusal == errors.NoValidHost.__name__:
            raise errors.NoValidHost(self.message, self.decision_id)
        raise REFUSALS.get(self.refusal, errors.Conflict)(self.message)


def refused(error: errors.SuperconductorError) -> Choice:
    """A choice that raises ``error``, or what it is a kind of."""
    name = next((cls.__name__ for cls in type(error).__mro__ if cls.__name__ in REFUSALS), errors.Conflict.__name__)
    decision_id = error.decision_id if isinstance(error, errors.NoValidHost) else None
    return Choice(refusal=name, message=str(error), decision_id=decision_id)
