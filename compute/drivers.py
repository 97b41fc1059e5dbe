"""Find a driver by its name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import cast

import stevedore

from compute import opts
from compute.driver import ComputeDriver
from compute.simulated import SimulatedDriver
from objects import errors

NAMESPACE = "superconductor.compute.drivers"
"""Entry points of this group are called with the agent's settings and return a ``ComputeDriver``."""

Factory = Callable[[opts.ComputeSettings], ComputeDriver]

BUILT_IN: Mapping[str, Factory] = {"simulated": SimulatedDriver}
"""Drivers that work in a source checkout without installed package metadata; the entry points name them too."""


def find(name: str) -> Factory:
    """The factory of the driver with this name. Raises ``errors.Misconfigured`` with the names of all drivers."""
    if name in BUILT_IN:
        return BUILT_IN[name]
    found: stevedore.ExtensionManager[ComputeDriver] = stevedore.ExtensionManager(NAMESPACE)
    if name not in found:
        names = ", ".join(sorted({*BUILT_IN, *found.names()}))
        raise errors.Misconfigured(f"[compute] driver: there is no {name!r}; choose one of: {names}.")
    return cast(Factory, found[name].plugin)


def load(settings: opts.ComputeSettings) -> ComputeDriver:
    """Open the driver that ``[compute] driver`` names. Raises ``errors.Misconfigured`` with the names of all drivers."""
    return find(settings.driver)(settings)
