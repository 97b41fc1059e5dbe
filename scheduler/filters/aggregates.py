"""Filters by the metadata of a host's aggregates: reserved for projects, flavors, traits or images, or asked for by a flavor."""

from __future__ import annotations

from functools import partial

import numpy as np

from scheduler.filters.image_properties import canonical_value, current_properties
from scheduler.filters.operators import matches_spec
from scheduler.framework.batch_request import Request
from scheduler.framework.columns import Aggregates, Mask
from scheduler.framework.filter import Filter
from scheduler.framework.hosts import Hosts

TENANT_PREFIX = "filter_tenant_id"


class AggregateMultiTenancyIsolation(Filter):
    """Reserves aggregates for certain projects.

    If keys beginning with ``filter_tenant_id`` exist in a host's aggregates, their comma-separated values must list the project.
    The filter keeps other projects out; it does not confine the listed ones to these hosts.
    """

    reason = "kept for other projects"
    on_demand = True
    reads = ("project_id",)

    def passes(self, hosts: Hosts, request: Request) -> Mask | None:
        keys = hosts.table.current_aggregates.keys_starting(TENANT_PREFIX)
        if not keys:
            return None
        project = request.spec.project_id

        def aggregates_admit(aggregates: Aggregates) -> Mask:
            return ~aggregates.any_in_combination(aggregates.aggregates_having(keys)) | aggregates.any_in_combination(
                aggregates.aggregates_having(keys, lambda _, value: project in value.words)
            )

        return hosts.in_passing_aggregates((self.name, project), aggregates_admit)


class RequireTenantAggregate(Filter):
    """Keeps projects that have aggregates of their own in these.

    The counterpart of AggregateMultiTenancyIsolation. If keys beginning with ``filter_tenant_id`` list the project, it goes only
    to hosts of these aggregates. Otherwise it goes to any host, or with ``aggregate_required_for_tenants`` to none.
    """

    reason = "not in an aggregate of the project"
    on_demand = True
    reads = ("project_id",)

    def passes(self, hosts: Hosts, request: Request) -> Mask | None:
        project = request.spec.project_id
        aggregates = hosts.table.current_aggregates
        own_aggregates = aggregates.cached_mask((self.name, project), partial(_aggregates_listing, aggregates, project))
        if own_aggregates.any():
            return hosts.in_passing_aggregates(
                (self.name, project, "hosts"), lambda aggregates: aggregates.any_in_combination(own_aggregates)
            )
        return np.zeros(len(hosts), dtype=np.bool_) if self.settings.aggregate_required_for_tenants else None


def _aggregates_listing(aggregates: Aggregates, project: str) -> Mask:
    """The aggregates, also those without hosts, that list the project."""
    return aggregates.aggregates_having(
        aggregates.keys_starting(TENANT_PREFIX, with_hosts=False), lambda _, value: project in value.words
    )


FLAVOR_KEY = "instance_type"


class AggregateTypeAffinityFilter(Filter):
    """Reserves aggregates for certain flavors.

    If a host's aggregates have the key ``instance_type``, its comma-separated values must contain the flavor's name.
    """

    reason = "kept for other flavors"
    on_demand = True
    reads = ("flavor_name",)

    def passes(self, hosts: Hosts, request: Request) -> Mask | None:
        if FLAVOR_KEY not in hosts.table.current_aggregates.keys:
            return None
        name = request.spec.flavor.name
        return hosts.in_passing_aggregates((self.name, name), partial(_without_or_with_word, FLAVOR_KEY, name))


TRAIT_SCOPE = "trait:"
REQUIRED = "required"


class IsolateAggregates(Filter):
    """Reserves aggregates for servers that require their traits.

    If a host's aggregates have ``trait:NAME`` = ``required``, the flavor or image must have the same key and value, for each
    such trait.
    """

    reason = "kept for servers that require other traits"
    on_demand = True
    reads = ("extra_specs", "image")

    def passes(self, hosts: Hosts, request: Request) -> Mask | None:
        keys = hosts.table.current_aggregates.keys_starting(TRAIT_SCOPE)
        if not keys:
            return None
        spec = request.spec
        properties = [*spec.flavor.extra_specs.items(), *(spec.image.properties.items() if spec.image else ())]
        required = frozenset(key for key, value in properties if value == REQUIRED)

        def aggregates_admit(aggregates: Aggregates) -> Mask:
            return ~aggregates.any_in_combination(
                aggregates.aggregates_having(keys, lambda key, value: value.text == REQUIRED and key not in required)
            )

        return hosts.in_passing_aggregates((self.name, required), aggregates_admit)


EXTRA_SPECS_SCOPE = "aggregate_instance_extra_specs"


class AggregateInstanceExtraSpecsFilter(Filter):
    """Passes hosts whose aggregates have the metadata that the flavor asks for.

    A value of one of the host's aggregates must match each ``aggregate_instance_extra_specs:KEY`` and each ``KEY`` without
    a scope.
    """

    reason = "not in an aggregate with what the flavor wants"
    on_demand = True
    applies_when = ("flavor.extra_specs",)
    reads = ("extra_specs",)

    def passes(self, hosts: Hosts, request: Request) -> Mask | None:
        requirements: list[tuple[str, str]] = []  # a key may occur twice, with and without the scope
        for key, value in request.spec.flavor.extra_specs.items():
            scope, _, rest = key.partition(":")
            if not rest or scope == EXTRA_SPECS_SCOPE:
                requirements.append((rest or scope, value))
        if not requirements:
            return None

        passed: Mask | None = None
        for key, value in requirements:
            matching = hosts.in_passing_aggregates((self.name, key, value), partial(_with_value, key, value))
            passed = matching if passed is None else passed & matching
        return passed


def _with_value(key: str, expected: str, aggregates: Aggregates) -> Mask:
    return aggregates.any_in_combination(
        aggregates.aggregates_having([key], lambda _, value: any(matches_spec(have, expected) for have in value.words))
    )


class AggregateImagePropertiesIsolation(Filter):
    """Reserves aggregates for images with certain properties.

    If an aggregate and the image both have a property, the aggregate's comma-separated values must contain the image's. Aliases
    count as equal, such as ``amd64`` and ``x86_64``, and so do former names of properties, such as ``architecture``.
    """

    reason = "kept for images with other properties"
    on_demand = True
    applies_when = ("image",)
    reads = ("image",)

    def passes(self, hosts: Hosts, request: Request) -> Mask | None:
        properties = current_properties(request.spec.image.properties) if request.spec.image else {}
        namespace = self.settings.aggregate_image_properties_isolation_namespace
        prefix = f"{namespace}." if namespace else ""
        keys = hosts.table.current_aggregates.keys
        bearing = [key for key, value in properties.items() if value and key.startswith(prefix) and key in keys]
        if not bearing:
            return None
        passed: Mask | None = None
        for key in bearing:
            expected = canonical_value(key, properties[key])
            matching = hosts.in_passing_aggregates((self.name, key, expected), partial(_without_or_with_property, key, expected))
            passed = matching if passed is None else passed & matching
        return passed


def _without_or_with_word(key: str, word: str, aggregates: Aggregates) -> Mask:
    return ~aggregates.any_in_combination(aggregates.aggregates_having([key])) | aggregates.any_in_combination(
        aggregates.aggregates_having([key], lambda _, value: word in value.words)
    )


def _without_or_with_property(key: str, expected: str, aggregates: Aggregates) -> Mask:
    having = aggregates.aggregates_having(
        [key], lambda _, value: any(canonical_value(key, word) == expected for word in value.words)
    )
    return ~aggregates.any_in_combination(aggregates.aggregates_having([key])) | aggregates.any_in_combination(having)
