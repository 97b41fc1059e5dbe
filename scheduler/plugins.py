"""Load the configured filters, weighers and drivers, by entry point or as ``module:Class``."""

from __future__ import annotations

import functools
import pkgutil
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from typing import Any

from objects import errors
from scheduler.engine.driver import SchedulerDriver
from scheduler.filters.adapter import Adapter, HostPasses
from scheduler.framework.filter import Filter
from scheduler.framework.settings import SchedulerSettings
from scheduler.framework.weigher import Weigher


def load_driver(settings: SchedulerSettings) -> SchedulerDriver:
    """The configured driver with the configured filters and weighers.

    Raises Misconfigured for an unknown name, listing the known ones, and for a plugin that cannot be used.
    """
    filters = [_make_filter(name, make, settings) for name, make in _load_plugins("enabled_filters", settings.enabled_filters)]
    weighers = [
        _make_weigher("enabled_weighers", name, make, settings)
        for name, make in _load_plugins("enabled_weighers", settings.enabled_weighers)
    ]
    [(name, make)] = _load_plugins("driver", [settings.driver])
    driver = _build_plugin("driver", name, make, settings, filters, weighers)
    if not isinstance(driver, SchedulerDriver):
        raise errors.Misconfigured(f"[scheduler] driver: {name!r} is not a scheduler driver")
    return driver


FILTERS_NAMESPACE = "superconductor.scheduler.filters"
WEIGHERS_NAMESPACE = "superconductor.scheduler.weighers"
_NAMESPACES = {
    "enabled_filters": FILTERS_NAMESPACE,
    "enabled_weighers": WEIGHERS_NAMESPACE,
    "driver": "superconductor.scheduler.drivers",
}


def _load_plugins(option: str, names: Sequence[str]) -> list[tuple[str, Callable[..., Any]]]:
    """The classes of these names, which are entry points or paths like ``module:Class``, in their order."""
    registered = registered_plugins(_NAMESPACES[option])
    unknown = [name for name in names if name not in registered and ":" not in name]
    if unknown:
        wrong = ", ".join(repr(name) for name in unknown)
        raise errors.Misconfigured(f"[scheduler] {option}: there is no {wrong}; choose from {', '.join(sorted(registered))}")
    for name in names:
        if names.count(name) > 1:
            raise errors.Misconfigured(f"[scheduler] {option}: {name!r} is named twice")
        if len(paths := registered.get(name, ())) > 1:
            raise errors.Misconfigured(
                f"[scheduler] {option}: {name!r} is registered twice, as {' and '.join(paths)}; name the path"
            )
    return [(name, _import_plugin(option, registered[name][0] if name in registered else name)) for name in names]


@functools.cache
def registered_plugins(namespace: str) -> Mapping[str, Sequence[str]]:
    """The paths of the entry points in a namespace, by name. Installed distributions are read once in a process."""
    paths = defaultdict(set)
    for entry_point in metadata.entry_points(group=namespace):
        paths[entry_point.name].add(entry_point.value)
    return {name: sorted(values) for name, values in paths.items()}


def _import_plugin(option: str, path: str) -> Callable[..., Any]:
    """Import ``module:Class``."""
    plugin = _build_plugin(option, path, pkgutil.resolve_name, path)
    if not callable(plugin):
        raise errors.Misconfigured(f"[scheduler] {option}: {path!r} is not a class")
    return plugin


def _build_plugin(option: str, name: str, make: Callable[..., Any], *arguments: object) -> object:
    try:
        return make(*arguments)
    except Exception as error:  # a site's own code may raise anything; the message names the plugin to fix
        text = f"[scheduler] {option}: {name!r} cannot be used: {type(error).__name__}: {error}"
        raise errors.Misconfigured(text) from error


def _make_filter(name: str, make: Callable[..., Any], settings: SchedulerSettings) -> Filter:
    if isinstance(make, type) and not issubclass(make, Filter) and hasattr(make, "host_passes"):
        adapted = _build_plugin("enabled_filters", name, make)
        if isinstance(adapted, HostPasses):
            return Adapter(settings, name, adapted)
    filter_ = _build_plugin("enabled_filters", name, make, settings)
    if not isinstance(filter_, Filter):
        raise errors.Misconfigured(f"[scheduler] enabled_filters: {name!r} is neither a Filter nor has it host_passes(host, spec)")
    return filter_


def _make_weigher(option: str, name: str, make: Callable[..., Any], settings: SchedulerSettings) -> Weigher:
    weigher = _build_plugin(option, name, make, settings)
    if not isinstance(weigher, Weigher):
        raise errors.Misconfigured(f"[scheduler] {option}: {name!r} is not a Weigher")
    return weigher
