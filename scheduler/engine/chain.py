"""The filters and weighers that apply to requests of one kind."""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import NamedTuple

from scheduler.framework.batch_request import OPTIONAL
from scheduler.framework.filter import Filter
from scheduler.framework.weigher import Weigher

NAMED = frozenset({"flavor.extra_specs", "image"})
"""The optional fields by which kept answers are told apart."""
BY_ROWS = frozenset({"group", "founding", "ignore_hosts", "excluded_hosts"})
"""Those that requests with kept answers may have, too, if only filters and weighers with ``row_inputs`` use them."""
UNKEPT = frozenset({*OPTIONAL, "cells"}) - NAMED
"""What ``reads`` may name beside what is in ``shapes.FIELDS``."""


class Chain(NamedTuple):
    """``at_once``: filters of all hosts at once. ``singly``: those of one host at a time, which run after them.

    ``reads``: what their answers depend on beside the table, by the names in ``shapes.FIELDS``; None: one of them does not say, or
    requests of this kind have a field of which there are no names. Those with ``row_inputs`` do not count.

    ``shared``: the positions in ``at_once`` of filters whose answers are the same for all requests that ``reads`` says are alike.
    ``own_filters``: those of the others.

    ``per_host``: placing a member of a group changes the answers for its own host alone, where alternates are chosen.
    """

    at_once: tuple[Filter, ...]
    singly: tuple[Filter, ...]
    weighers: tuple[Weigher, ...]
    reads: tuple[str, ...] | None
    shared: tuple[int, ...]
    shared_filters: tuple[Filter, ...]
    shared_weighers: tuple[Weigher, ...]
    own_filters: tuple[int, ...]
    own_weighers: tuple[Weigher, ...]
    per_host: bool

    @classmethod
    def build_chain(cls, filters: Sequence[Filter], weighers: Sequence[Weigher], present_fields: Set[str]) -> Chain:
        """``present_fields``: the CONDITIONS that hold for requests of this kind."""
        at_once = tuple(one for one in filters if not one.host_by_host)
        shared = tuple(position for position, one in enumerate(at_once) if not one.row_inputs)
        filters_shared = tuple(at_once[position] for position in shared)
        weighers_shared = tuple(one for one in weighers if not one.row_inputs)
        reads = [*(one.reads for one in filters_shared), *(one.reads for one in weighers_shared)]
        named = {name for reads in reads if reads is not None for name in reads}
        is_kept = None not in reads and present_fields <= NAMED | BY_ROWS and named.isdisjoint(present_fields - NAMED)
        return cls(
            at_once,
            tuple(one for one in filters if one.host_by_host),
            tuple(weighers),
            tuple(sorted(named - UNKEPT)) if is_kept else None,
            shared,
            filters_shared,
            weighers_shared,
            tuple(position for position, one in enumerate(at_once) if one.row_inputs),
            tuple(one for one in weighers if one.row_inputs),
            all(map(_is_per_host, filters)) and all(map(_is_per_host, weighers)),
        )

    @property
    def all_filters(self) -> tuple[Filter, ...]:
        return self.at_once + self.singly


def _is_per_host(one: Filter | Weigher) -> bool:
    return one.per_host or (one.reads is not None and "group" not in one.reads)
