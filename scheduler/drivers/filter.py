"""The default driver: filters narrow down the fleet, and weighers rank the hosts that are left."""

from __future__ import annotations

from collections.abc import Sequence

from objects.decision import FilterCount
from scheduler.engine.driver import SchedulerDriver


class FilterScheduler(SchedulerDriver):
    name = "filter"

    def refusal_message(self, counts: Sequence[FilterCount], hosts: int, placed_count: int, needed_count: int) -> str:
        whom = "" if placed_count == 0 else f" for instance {placed_count + 1} of {needed_count}"
        if not hosts:
            return f"No valid host was found{whom}: no host is known yet."
        effective = [count for count in counts if count.after < count.before]
        steps = [f"{count.after} {'' if i else 'were left '}by {count.name}" for i, count in enumerate(effective)]
        if effective and effective[-1].reason:
            steps[-1] += f" ({effective[-1].reason})"
        return f"No valid host was found{whom}: of {hosts} hosts {', '.join(steps) or 'none fits'}."
