"""Count the outcomes of builds in a cell after they are committed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

from objects.instance import Instance, State
from objects.lifecycle import Change, Outcome
from service import metrics


def measure(outcomes: Iterable[Outcome], now: float) -> None:
    """Measure transitions of builds made at ``now``: durations of steps, retries on other hosts, and ended builds."""
    for outcome in outcomes:
        if isinstance(outcome, Change):
            with contextlib.suppress(TypeError):  # SQLite allows non-numbers in a column of times
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
