"""Filters by the metadata of a host's aggregates: reserved for projects, flavors, traits or images, or asked for by a flavor."""

from __future__ import annotations

from functools import partial

import numpy as np

from scheduler.filters.image_properties import canonical, current
from scheduler.filters.operators import matches
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
        keys = hosts.table.aggregates.starting(TENANT_PREFIX)
        if not keys:
            return None
        project = request.spec.project_id

        def admitted(some: Aggregates) -> Mask:
            return ~some.any(some.having(keys)) | some.any(some.having(keys, lambda _, value: project in value.words))

        return hosts.aggregated((self.name, project), admitted)


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
        some = hosts.table.aggregates
        own = some.answer((self.name, project), partial(_listing, some, project))
        if own.any():
            return hosts.aggregated((self.name, project, "hosts"), lambda some: some.any(own))
        return np.zeros(len(hosts), dtype=np.bool_) if self.settings.aggregate_required_for_tenants else None


def _listing(some: Aggregates, project: str) -> Mask:
    """The aggregates, also those without hosts, that list the project."""
    return some.having(some.starting(TENANT_PREFIX, with_hosts=False), lambda _, value: project in value.words)


FLAVOR_KEY = "instance_type"


class AggregateTypeAffinityFilter(Filter):
    """Reserves aggregates for certain flavors.

    If a host's aggregates have the key ``instance_type``, its comma-separated values must contain the flavor's name.
    """

    reason = "kept for other flavors"
    on_demand = True
    reads = ("flavor_name",)

    def passes(self, hosts: Hosts, request: Request) -> Mask | None:
        if FLAVOR_KEY not in hosts.table.aggregates.keys:
            return None
        name = request.spec.flavor.name
        return hosts.aggregated((self.name, name), partial(_without_or_with_word, FLAVOR_KEY, name))


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
        keys = hosts.table.aggregates.starting(TRAIT_SCOPE)
        if not keys:
            return None
        spec = request.spec
        given = [*spec.flavor.extra_specs.items(), *(spec.image.properties.items() if spec.image else ())]
        required = frozenset(key for key, value in given if value == REQUIRED)

        def admitted(some: Aggregates) -> Mask:
            return ~some.any(some.having(keys, lambda key, value: value.text == REQUIRED and key not in required))

        return hosts.aggregated((self.name, required), admitted)


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
        wanted: list[tuple[str, str]] = []  # a key may occur twice, with and without the scope
        for key, value in request.spec.flavor.extra_specs.items():
            scope, _, rest = key.partition(":")
            if not rest or scope == EXTRA_SPECS_SCOPE:
                wanted.append((rest or scope, value))
        if not wanted:
            return None

        passed: Mask | None = None
        for key, value in wanted:
            found = hosts.aggregated((self.name, key, value), partial(_with_value, key, value))
            passed = found if passed is None else passed & found
        return passed


def _with_value(key: str, wanted: str, some: Aggregates) -> Mask:
    return some.any(some.having([key], lambda _, value: any(matches(have, wanted) for have in value.words)))


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
        properties = current(request.spec.image.properties) if request.spec.image else {}
        namespace = self.settings.aggregate_image_properties_isolation_namespace
        prefix = f"{namespace}." if namespace else ""
        keys = hosts.table.aggregates.keys
        bearing = [key for key, value in properties.items() if value and key.startswith(prefix) and key in keys]
        if not bearing:
            return None
        passed: Mask | None = None
        for key in bearing:
            wanted = canonical(key, properties[key])
            found = hosts.aggregated((self.name, key, wanted), partial(_without_or_with_property, key, wanted))
            passed = found if passed is None else passed & found
        return passed


def _without_or_with_word(key: str, word: str, some: Aggregates) -> Mask:
    return ~some.any(some.having([key])) | some.any(some.having([key], lambda _, value: word in value.words))


def _without_or_with_property(key: str, wanted: str, some: Aggregates) -> Mask:
    having = some.having([key], lambda _, value: any(canonical(key, word) == wanted for word in value.words))
    return ~some.any(some.having([key])) | some.any(having)
