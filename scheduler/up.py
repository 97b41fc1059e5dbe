"""Which hosts are up: known until somebody is silent for too long, because most of them are most of the time."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from scheduler.arrays import Mask
from scheduler.columns import Columns


class Up(NamedTuple):
    """Hosts that are welcoming and were heard of since ``since``: the same as since any later time up to ``until``.

    ``until`` is when the most silent of them was heard of. Monotonic clock.
    """

    mask: Mask
    since: float
    until: float

    @classmethod
    def of(cls, table: Columns, since: float) -> Up:
        """As the table is now."""
        heard_at = table.heard_at[: table.size]
        mask = table.welcoming[: table.size] & (heard_at >= since)
        return cls(mask, since, float(np.where(mask, heard_at, np.inf).min(initial=np.inf)))

    def holds(self, since: float, size: int) -> bool:
        """Whether it says who was heard of since then, of a table of so many rows where nothing else has changed."""
        return self.since <= since <= self.until and self.mask.size == size
