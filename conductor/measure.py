"""Count what became of builds in a cell, once it is committed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

from objects.instance import Instance, State
from objects.lifecycle import Change, Outcome
from service import metrics


def measure(outcomes: Iterable[Outcome], now: float) -> None:
    """``outcomes`` of transitions of builds, made at ``now``: how long steps took, what goes on to another host, and what ends."""
    for outcome in outcomes:
        if isinstance(outcome, Change):
            with contextlib.suppress(TypeError):  # SQLite lets a column of times hold what is no number
                _count(outcome.row, now)


def _count(row: Instance, now: float) -> None:
    match row.state:
        case State.BUILDING:
            metrics.STAGE["grant"].observe(max(0.0, now - row.changed_at))
        case State.ACTIVE:
            metrics.STAGE["build"].observe(max(0.0, now - row.changed_at))
            metrics.BOOT.observe(max(0.0, now - row.created_at))
            metrics.ENDED.labels("active").inc()
        case State.SCHEDULED if row.history:
            metrics.RETRIES.labels(row.history[-1].failure.kind).inc()
        case State.ERROR if row.rolled_back is None:
            metrics.ENDED.labels("error").inc()
