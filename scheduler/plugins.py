"""Load the configured filters, weighers and drivers, by entry point or as ``module:Class``."""

from __future__ import annotations

import logging
import pkgutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import stevedore

from objects import errors
from scheduler.drivers.base import SchedulerDriver
from scheduler.drivers.chance import ChanceScheduler
from scheduler.drivers.filter import FilterScheduler
from scheduler.filters.adapter import Adapter, HostPasses
from scheduler.filters.affinity import (
    DifferentHostFilter,
    SameHostFilter,
    ServerGroupAffinityFilter,
    ServerGroupAntiAffinityFilter,
    SimpleCIDRAffinityFilter,
)
from scheduler.filters.aggregates import (
    AggregateImagePropertiesIsolation,
    AggregateInstanceExtraSpecsFilter,
    AggregateMultiTenancyIsolation,
    AggregateTypeAffinityFilter,
    IsolateAggregates,
    RequireTenantAggregate,
)
from scheduler.filters.all_hosts import AllHostsFilter
from scheduler.filters.availability_zone import AvailabilityZoneFilter
from scheduler.filters.base import Filter
from scheduler.filters.capacity import CoreFilter, DiskFilter, RamFilter
from scheduler.filters.compute import ComputeFilter
from scheduler.filters.compute_capabilities import ComputeCapabilitiesFilter
from scheduler.filters.image_properties import ImagePropertiesFilter
from scheduler.filters.isolated_hosts import IsolatedHostsFilter
from scheduler.filters.json_query import JsonFilter
from scheduler.filters.load import IoOpsFilter, NumInstancesFilter
from scheduler.filters.traits import TraitsFilter
from scheduler.settings import SchedulerSettings
from scheduler.weighers.affinity import (
    AffinityRoomWeigher,
    ServerGroupSoftAffinityWeigher,
    ServerGroupSoftAntiAffinityWeigher,
)
from scheduler.weighers.balance import BalanceWeigher
from scheduler.weighers.base import Weigher
from scheduler.weighers.capacity import CPUWeigher, DiskWeigher, RAMWeigher
from scheduler.weighers.cells import CellCapacityWeigher, CellSpreadWeigher, CrossCellWeigher
from scheduler.weighers.leftover import LeftoverWeigher
from scheduler.weighers.load import BuildFailureWeigher, IoOpsWeigher, NumInstancesWeigher

LOG = logging.getLogger(__name__)

Plugins = Mapping[str, Callable[..., Any]]

# These names are also entry points of the distribution. Listed here, they work from a checkout that is not installed too.
FILTERS: Plugins = {
    plugin.__name__: plugin
    for plugin in (
        ComputeFilter,
        AvailabilityZoneFilter,
        RamFilter,
        CoreFilter,
        DiskFilter,
        ServerGroupAntiAffinityFilter,
        ServerGroupAffinityFilter,
        IoOpsFilter,
        NumInstancesFilter,
        IsolatedHostsFilter,
        SameHostFilter,
        DifferentHostFilter,
        SimpleCIDRAffinityFilter,
        ComputeCapabilitiesFilter,
        ImagePropertiesFilter,
        AggregateInstanceExtraSpecsFilter,
        AggregateImagePropertiesIsolation,
        AggregateMultiTenancyIsolation,
        AggregateTypeAffinityFilter,
        JsonFilter,
        TraitsFilter,
        RequireTenantAggregate,
        IsolateAggregates,
        AllHostsFilter,
    )
}
WEIGHERS: Plugins = {
    plugin.__name__: plugin
    for plugin in (
        RAMWeigher,
        CPUWeigher,
        DiskWeigher,
        NumInstancesWeigher,
        BuildFailureWeigher,
        ServerGroupSoftAffinityWeigher,
        ServerGroupSoftAntiAffinityWeigher,
        IoOpsWeigher,
        BalanceWeigher,
        LeftoverWeigher,
        AffinityRoomWeigher,
        CellCapacityWeigher,
        CellSpreadWeigher,
        CrossCellWeigher,
    )
}
DRIVERS: Plugins = {FilterScheduler.name: FilterScheduler, ChanceScheduler.name: ChanceScheduler}


def load_driver(settings: SchedulerSettings) -> SchedulerDriver:
    """The configured driver with the configured filters and weighers.

    Raises Misconfigured for an unknown name, listing the known ones, and for a plugin that cannot be used.
    """
    filters = [_filter(name, make, settings) for name, make in _named("enabled_filters", FILTERS, settings.enabled_filters)]
    weighers = [
        _made("enabled_weighers", name, make, settings)
        for name, make in _named("enabled_weighers", WEIGHERS, settings.enabled_weighers)
    ]
    [(name, make)] = _named("driver", DRIVERS, [settings.driver])
    driver = _built("driver", name, make, settings, filters, weighers)
    if not isinstance(driver, SchedulerDriver):
        raise errors.Misconfigured(f"[scheduler] driver: {name!r} is not a scheduler driver")
    return driver


_NAMESPACES = {
    "enabled_filters": "superconductor.scheduler.filters",
    "enabled_weighers": "superconductor.scheduler.weighers",
    "driver": "superconductor.scheduler.drivers",
}


def _named(option: str, built_in: Plugins, names: Sequence[str]) -> list[tuple[str, Callable[..., Any]]]:
    plugins = _installed(_NAMESPACES[option]) if any(name not in built_in and ":" not in name for name in names) else {}
    plugins.update(built_in)
    plugins.update((name, _imported(option, name)) for name in names if ":" in name)
    unknown = [name for name in names if name not in plugins]
    if unknown:
        wrong = ", ".join(repr(name) for name in unknown)
        raise errors.Misconfigured(f"[scheduler] {option}: there is no {wrong}; choose from {', '.join(sorted(plugins))}")
    doubled = [name for name in names if names.count(name) > 1]
    if doubled:
        raise errors.Misconfigured(f"[scheduler] {option}: {doubled[0]!r} is named twice")
    return [(name, plugins[name]) for name in names]


def _imported(option: str, path: str) -> Callable[..., Any]:
    """Import ``module:Class``."""
    found = _built(option, path, pkgutil.resolve_name, path)
    if not callable(found):
        raise errors.Misconfigured(f"[scheduler] {option}: {path!r} is not a class")
    return found


def _installed(namespace: str) -> dict[str, Callable[..., Any]]:
    """The plugins that other distributions have registered. Skips one that cannot be imported, and logs a warning."""
    found: Iterable[Any] = stevedore.ExtensionManager(namespace, on_load_failure_callback=_complain)
    return {extension.name: extension.plugin for extension in found}


def _complain(manager: object, entry_point: Any, error: BaseException) -> None:
    LOG.warning("plugin %s cannot be loaded: %s: %s", entry_point.name, type(error).__name__, error)


def _built(option: str, name: str, make: Callable[..., Any], *given: object) -> object:
    try:
        return make(*given)
    except Exception as error:  # a site's own code may raise anything; the message names the plugin to fix
        text = f"[scheduler] {option}: {name!r} cannot be used: {type(error).__name__}: {error}"
        raise errors.Misconfigured(text) from error


def _filter(name: str, make: Callable[..., Any], settings: SchedulerSettings) -> Filter:
    if isinstance(make, type) and not issubclass(make, Filter) and hasattr(make, "host_passes"):
        adapted = _built("enabled_filters", name, make)
        if isinstance(adapted, HostPasses):
            return Adapter(settings, name, adapted)
    made = _built("enabled_filters", name, make, settings)
    if not isinstance(made, Filter):
        raise errors.Misconfigured(f"[scheduler] enabled_filters: {name!r} is neither a Filter nor has it host_passes(host, spec)")
    return made


def _made(option: str, name: str, make: Callable[..., Any], settings: SchedulerSettings) -> Weigher:
    made = _built(option, name, make, settings)
    if not isinstance(made, Weigher):
        raise errors.Misconfigured(f"[scheduler] {option}: {name!r} is not a Weigher")
    return made
