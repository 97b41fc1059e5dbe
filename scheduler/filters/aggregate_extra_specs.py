"""AggregateInstanceExtraSpecsFilter: passes hosts whose aggregates have the metadata that the flavor asks for."""

from __future__ import annotations

from scheduler.filters.base import Filter
from scheduler.filters.operators import matches
from scheduler.plan.request import Request
from scheduler.table.aggregation import Aggregation
from scheduler.table.arrays import Mask
from scheduler.table.hosts import Hosts

SCOPE = "aggregate_instance_extra_specs"


class AggregateInstanceExtraSpecsFilter(Filter):
    """A value of one of the host's aggregates must match each ``aggregate_instance_extra_specs:KEY`` and each ``KEY`` without
    a scope."""

    reason = "not in an aggregate with what the flavor wants"
    on_demand = True
    applies_when = ("flavor.extra_specs",)

    def passes(self, hosts: Hosts, request: Request) -> Mask | None:
        wanted: list[tuple[str, str]] = []  # a key may occur twice, with and without the scope
        for key, value in request.spec.flavor.extra_specs.items():
            scope, _, rest = key.partition(":")
            if not rest or scope == SCOPE:
                wanted.append((rest or scope, value))
        if not wanted:
            return None

        def has(aggregates: Aggregation) -> bool:
            return all(any(matches(have, value) for have in aggregates.words.get(key, ())) for key, value in wanted)

        return hosts.aggregated(self.name, has)
