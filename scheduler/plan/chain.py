"""The filters and weighers that apply to requests of one kind."""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import NamedTuple

from scheduler.filters.base import Filter
from scheduler.plan.request import OPTIONAL
from scheduler.weighers.base import Weigher

NAMED = frozenset({"flavor.extra_specs", "image"})
"""The optional fields that requests of which answers are kept may have."""
UNKEPT = frozenset({*OPTIONAL, "cells"}) - NAMED
"""What ``reads`` may name beside: requests with it are not kept."""


class Chain(NamedTuple):
    """``at_once``: filters of all hosts at once. ``singly``: those of one host at a time, which run after them.

    ``reads``: what their answers depend on beside the table, by the names in ``shapes.FIELDS``; None: one of them does not say, or
    requests of this kind have a field of which there are no names.
    """

    at_once: tuple[Filter, ...]
    singly: tuple[Filter, ...]
    weighers: tuple[Weigher, ...]
    reads: tuple[str, ...] | None

    @classmethod
    def of(cls, filters: Sequence[Filter], weighers: Sequence[Weigher], given: Set[str]) -> Chain:
        """``given``: the fields of ``OPTIONAL`` that requests of this kind have."""
        said: list[tuple[str, ...] | None] = [() if given <= NAMED else None]
        said += [*(one.reads for one in filters), *(one.reads for one in weighers)]
        return cls(
            tuple(one for one in filters if not one.host_by_host),
            tuple(one for one in filters if one.host_by_host),
            tuple(weighers),
            None if None in said else tuple(sorted({name for reads in said if reads is not None for name in reads} - UNKEPT)),
        )

    @property
    def filters(self) -> tuple[Filter, ...]:
        return self.at_once + self.singly
