"""Find a driver by its name, with its own options."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from importlib import metadata
from typing import cast

from oslo_config import cfg

from compute.driver import ComputeDriver
from compute.opts import ComputeSettings
from compute.simulated import SimulatedDriver
from objects import errors
from service.config import Listing

NAMESPACE = "superconductor.compute.drivers"
"""Entry points of this group name a ``Factory``."""

Factory = Callable[[str, cfg.ConfigOpts, ComputeSettings], ComputeDriver]
"""Opens the driver of a host. It does not wait for the hypervisor. Raises ``errors.Misconfigured``.

If its module has ``list_opts``, these options are registered first, in the form that ``oslo.config.opts`` entry points use.
"""


def open_simulated(host: str, conf: cfg.ConfigOpts, settings: ComputeSettings) -> ComputeDriver:
    """The factory of the driver ``simulated``, whose options the agent itself has."""
    del host, conf
    return SimulatedDriver(settings)


BUILT_IN: Mapping[str, str] = {"simulated": "compute.drivers:open_simulated", "libvirt": "compute.libvirt.driver:open_libvirt"}
"""Drivers that work in a source checkout without installed package metadata; the entry points name them too."""

OPTION_MODULES: Mapping[str, str] = {"libvirt": "compute.libvirt.opts"}
"""Where options are that can be known on a machine that cannot load the driver."""


def find_factory(name: str) -> Factory:
    """The factory of the driver with this name, or at ``module:factory``. Raises ``errors.Misconfigured`` with all names."""
    if ":" in (path := BUILT_IN.get(name, name)):
        try:
            return cast(Factory, pkgutil.resolve_name(path))
        except errors.Misconfigured:  # the driver says what it needs
            raise
        except Exception as error:  # a module may raise anything while it is imported
            raise errors.Misconfigured(f"[compute] driver: {name!r} cannot be imported: {error}") from error
    # loaded is only the one that is wanted
    factories = {entry_point.name: entry_point for entry_point in metadata.entry_points(group=NAMESPACE)}
    if name not in factories:
        names = ", ".join(sorted({*BUILT_IN, *factories}))
        raise errors.Misconfigured(f"[compute] driver: there is no {name!r}; choose one of: {names}, or write module:factory.")
    return cast(Factory, factories[name].load())


def options_of(name: str) -> Listing:
    """The options that the driver with this name brings. Raises ``errors.Misconfigured`` if they cannot be known."""
    module = importlib.import_module(OPTION_MODULES[name] if name in OPTION_MODULES else find_factory(name).__module__)
    list_opts: Callable[[], Listing] | None = getattr(module, "list_opts", None)
    return list_opts() if list_opts is not None else ()


def prepare_driver(conf: cfg.ConfigOpts, name: str) -> Factory:
    """The factory of the driver with this name, once its options are registered and read. Raises ``errors.Misconfigured``."""
    factory = find_factory(name)
    try:
        for group, options in options_of(name):
            conf.register_opts(options, group=group)
            for option in options:
                value = conf[group][option.dest] if group else conf[option.dest]
                if value is None and option.required:
                    raise ValueError(f"[{group or 'DEFAULT'}] {option.dest} is not set")
    except (cfg.Error, ValueError) as error:
        raise errors.Misconfigured(f"Configuration of driver {name!r}: {' '.join(str(error).split())}") from error
    return factory


def open_driver(conf: cfg.ConfigOpts, settings: ComputeSettings) -> ComputeDriver:
    """Open the driver that ``[compute] driver`` names. Raises ``errors.Misconfigured``."""
    return prepare_driver(conf, settings.driver)(settings.host, conf, settings)
