"""Find the largest flavor with which a refused request would have been placed, with all else unchanged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from objects.flavor import Flavor
from objects.move import MoveKind
from scheduler.engine.driver import SchedulerDriver
from scheduler.explain.counterfactual import ChangeSearch, request_with_spec
from scheduler.explain.refusal_matrix import passing_mask, rows_within_reach
from scheduler.filters.capacity import CoreFilter, DiskFilter, RamFilter
from scheduler.framework.batch_request import Request
from scheduler.framework.hosts import Hosts
from scheduler.table.arrays import Floats
from scheduler.table.host_table import HostTable

FLAVORS_TRIED = 8
"""Maximum number of flavors that are tried on the table, of those whose amounts are free on a host."""
_LIMITING = {"vcpus": CoreFilter, "memory_mb": RamFilter, "disk_gb": DiskFilter}
_FLAVOR_FIELDS = frozenset({"amounts", "resources", "extra_specs", "flavor_name"})


class _FreeAmounts(NamedTuple):
    """What is free of each limited amount on the hosts that a flavor's other conditions leave, and the most of each."""

    free: dict[str, Floats]
    most: dict[str, float]


def by_size(flavor: Flavor) -> tuple[int, int, int, str]:
    """The order of flavors, the largest first: by vCPUs, then memory, then disk; equals by name."""
    return -flavor.vcpus, -flavor.memory_mb, -flavor.disk_gb, flavor.name


def largest_flavor(table: HostTable, driver: SchedulerDriver, single: ChangeSearch, flavors: Sequence[Flavor]) -> Flavor | None:
    """The first of ``flavors`` with which all wanted instances fit. They are sorted with the largest first.

    Hosts are passed over once for all flavors, and once more for each set of extra specs. None for a move that keeps the flavor.
    """
    move = single.request.spec.move
    if not flavors or (move is not None and move.kind is not MoveKind.RESIZE):
        return None
    tried = 0
    rooms = _Rooms(table, driver, single.request)
    for flavor in flavors:
        if rooms.may_hold(flavor, single.needed_count):
            if single.fits_all(request_with_spec(single.request, msgspec.structs.replace(single.request.spec, flavor=flavor))):
                return flavor
            tried += 1
            if tried == FLAVORS_TRIED:
                return None
    return None


class _Rooms:
    """The rooms for flavors by their conditions beside amounts."""

    def __init__(self, table: HostTable, driver: SchedulerDriver, request: Request) -> None:
        self._table, self._driver, self._request = table, driver, request
        self._rows, _ = rows_within_reach(table, driver, request, _FLAVOR_FIELDS)
        chain = driver.chain_for(request).at_once
        self._limited = [resource for resource, filter_ in _LIMITING.items() if any(isinstance(one, filter_) for one in chain)]
        self._by_name = any("flavor_name" in (one.reads or ()) for one in chain)
        self._rooms: dict[object, _FreeAmounts] = {}

    def may_hold(self, flavor: Flavor, count: int) -> bool:
        """Whether the hosts that pass have the amounts free. Other limits per host are not looked at."""
        key = tuple(sorted(flavor.extra_specs.items())), flavor.name if self._by_name else ""
        room = self._rooms.get(key)
        if room is None:
            room = self._rooms[key] = self._free_amounts(flavor)
        takes = flavor.taken_amounts
        amounts = {resource: getattr(takes, resource) for resource in self._limited}
        if any(amount > room.most[resource] for resource, amount in amounts.items()):
            return False
        held = np.full(next(iter(room.free.values())).size if room.free else 1, float(count))
        for resource, amount in amounts.items():
            if amount:
                np.minimum(held, room.free[resource] / amount, out=held)
        return int(np.floor(held, out=held).sum()) >= count

    def _free_amounts(self, flavor: Flavor) -> _FreeAmounts:
        request = request_with_spec(self._request, msgspec.structs.replace(self._request.spec, flavor=flavor))
        request.vcpus = request.memory_mb = request.disk_gb = 0
        remaining = passing_mask(
            self._driver, self._driver.chain_for(request).at_once, Hosts(self._table, request, self._rows), request
        )
        hosts = Hosts(self._table, request, self._rows[remaining])
        free = {resource: np.maximum(hosts.free_room(resource), 0.0) for resource in self._limited}
        return _FreeAmounts(free, {resource: float(amounts.max(initial=-1.0)) for resource, amounts in free.items()})
