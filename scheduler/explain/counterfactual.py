"""Find the single changes of a refused request that would have let it be placed, by trying each one on the table.

This runs only for refused batches. A change costs one pass over the fleet. A smaller amount costs a second pass, whatever its size:
it is derived from what is free on the hosts that would take the server if it needed none of that resource.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

import msgspec
import numpy as np

from objects import hints
from objects.cell import CellState
from objects.flavor import Flavor
from objects.group import GroupPolicy
from objects.relaxation import Asked, Relaxation
from objects.spec import RequestSpec
from scheduler.engine import engine
from scheduler.engine.capacity import count_takes
from scheduler.engine.driver import SchedulerDriver
from scheduler.engine.surveying import survey
from scheduler.framework.batch_request import Request
from scheduler.framework.hosts import Hosts
from scheduler.framework.members import Members
from scheduler.table.arrays import Floats, Ints
from scheduler.table.host_table import HostTable

CHANGES_PER_KIND = 8
"""Maximum number tried of each of: hints, extra specs, image properties."""
PLACES_LIMIT = 5
"""Maximum number of zones or cells that a relaxation names."""
AMOUNTS = {Asked.VCPUS: ("vcpus", 1), Asked.MEMORY: ("memory_mb", 1), Asked.DISK: ("disk_gb", 0)}
"""Each amount with its name in the table and the minimum that a server can have."""
NO_HINTS = frozenset({"group", "ignore_hosts", hints.CIDR, "all_or_nothing"})
"""Hints that are covered by another kind of change, or that place no condition on hosts."""


class _Room(NamedTuple):
    """``counts``: how many of the instances each of ``rows`` takes by itself. Two arrays of equal length."""

    rows: Ints
    counts: Ints


class ChangeSearch:
    """Tries changes of one request on the table. ``asked``: its number of instances; ``needed_count``: how many are enough."""

    def __init__(self, table: HostTable, driver: SchedulerDriver, request: Request, asked_count: int, needed_count: int) -> None:
        self._table, self._driver, self._asked_count, self.needed_count = table, driver, asked_count, needed_count
        self.request = request
        self._spec = request.spec

    def all_changes(self) -> tuple[Relaxation, ...] | None:
        """All single changes that are enough, the smallest first. None: the request fits unchanged."""
        as_asked = self.count_placeable()
        if as_asked >= self.needed_count:
            return None
        changes = [
            self._reduce_servers(as_asked),
            *map(self.with_less_amount, AMOUNTS),
            *map(self.without_condition, self.droppable_conditions()),
        ]
        enough = [one for one in changes if one is not None]
        return tuple(sorted(enough, key=lambda one: one.share))  # sorted() keeps equals in their order

    # -- kinds of changes ------------------------------------------------------------------------------------------------------

    def droppable_conditions(self) -> list[Relaxation]:
        """The conditions of the request that can be dropped."""
        spec = self._spec
        conditions: list[Relaxation] = []
        if self.request.zone is not None:
            conditions.append(Relaxation(asked=Asked.ZONE))
        closed = any(cell.state is not CellState.ENABLED for cell in self._table.cells)
        if not self.request.any_cell and (self.request.excluded_cells or closed):
            conditions.append(Relaxation(asked=Asked.CELL))
        return [*conditions, *_optional_conditions(spec)]

    def with_fewer_servers(self) -> Relaxation | None:
        """With fewer servers."""
        return self._reduce_servers(self.count_placeable())

    def _reduce_servers(self, as_asked: int) -> Relaxation | None:
        less = self._asked_count - as_asked
        return Relaxation(asked=Asked.SERVERS, less=less, share=less / self._asked_count) if as_asked else None

    def with_less_amount(self, amount_kind: Asked) -> Relaxation | None:
        """With less of an amount, as little less as is enough."""
        resource, least = AMOUNTS[amount_kind]
        amount: int = getattr(self.request, resource)
        enough = self._largest_enough(resource, least, amount) if amount > least else None
        if enough is None or self._room_for_all(request_with_amount(self.request, resource, enough)) is None:
            return None
        return less_of(self.request, amount_kind, enough)

    def without_condition(self, condition: Relaxation) -> Relaxation | None:
        """Without a condition; of a zone or cell, with the places that could take all instances."""
        request = request_without(self.request, condition)
        room = self._room_for_all(request)
        if room is None:
            return None
        table = self._table
        if condition.asked is Asked.ZONE:
            return self._with_places(condition, request, room, table.zone, table.zones.__getitem__)
        if condition.asked is Asked.CELL:
            return self._with_places(condition, request, room, table.cell, lambda number: table.cells[number].name)
        return condition

    # -- looking ---------------------------------------------------------------------------------------------------------------

    def fits_all(self, request: Request) -> bool:
        """Whether all wanted instances find room."""
        return self._room_for_all(request) is not None

    def count_placeable(self) -> int:
        """How many of the wanted instances find room."""
        return self._total_of(self.request, self._count_takers(self.request).counts)

    def _room_for_all(self, request: Request) -> _Room | None:
        """The rows and counts if all wanted instances find room, otherwise None."""
        room = self._room_by_host(request)
        if self._total_of(request, room.counts) < self.needed_count:
            return None
        if self.needed_count > 1 and request.server_group is not None and request.server_group.policy.is_strict:
            with self._table.take_tentatively():  # members restrict each other, so they must be placed to know
                surveyed = survey(self._table, self._driver, request, self.needed_count)
                if len(self._driver.place_instances(self._table, request, surveyed, self.needed_count)) < self.needed_count:
                    return None
        return room

    def _room_by_host(self, request: Request) -> _Room:
        """What is needed to tell whether all find room: of an affinity group, only the hosts that take all."""
        if request.group_policy is not GroupPolicy.AFFINITY:
            return self._count_takers(request)
        rows = engine.passing_rows(self._table, self._driver, request)
        rows = rows[engine.fitting_rows(self._driver, self._table, request, rows, self.needed_count - 1)]
        return _Room(rows, np.full(rows.size, self.needed_count, np.int64))

    def _count_takers(self, request: Request) -> _Room:
        """How many of the instances each host takes."""
        rows = engine.passing_rows(self._table, self._driver, request)
        return _Room(rows, count_takes(self._table, self._driver, request, rows, self.needed_count))

    def _total_of(self, request: Request, counts: Ints) -> int:
        """How many of the wanted instances find room on these hosts together; an affinity group must fit on one row."""
        if not counts.size:
            return 0
        return min(self.needed_count, int(counts.max() if request.group_policy is GroupPolicy.AFFINITY else counts.sum()))

    def _largest_enough(self, resource: str, least: int, amount: int) -> int | None:
        """The largest amount below ``amount`` with which all fit; None if they do not fit even with ``least``."""
        if self._table.classes.numa:
            return self._enough_on_nodes(resource, least, amount)
        nothing = request_with_amount(self.request, resource, 0)
        rows, counts = self._room_by_host(nothing)
        free: Floats = np.maximum(Hosts(self._table, nothing, rows).free_room(resource), 0.0)

        def amount_fits(candidate: int) -> bool:
            limits = np.minimum(counts, np.floor(free / candidate).astype(np.int64)) if candidate else counts
            return self._total_of(nothing, limits) == self.needed_count

        if not amount_fits(least):
            return None
        low, high = least, amount - 1
        while low < high:
            half = (low + high + 1) // 2
            low, high = (half, high) if amount_fits(half) else (low, half - 1)
        return low

    def _enough_on_nodes(self, resource: str, least: int, amount: int) -> int | None:
        """The same where hosts have NUMA nodes, on which the free amounts of a host do not tell what fits. A pass for each try."""
        step = max(self.request.node_part.nodes, 1) if resource != "disk_gb" else 1
        low, high = -(-least // step), (amount - 1) // step

        def parts_fit(parts: int) -> bool:
            return self._room_for_all(request_with_amount(self.request, resource, parts * step)) is not None

        if low > high or not parts_fit(low):
            return None
        while low < high:
            half = (low + high + 1) // 2
            low, high = (half, high) if parts_fit(half) else (low, half - 1)
        return low * step

    def _with_places(
        self, condition: Relaxation, request: Request, room: _Room, column: Ints, name: Callable[[int], str]
    ) -> Relaxation:
        """The relaxation with the places that could take all of the instances."""
        places = column[room.rows]
        numbers = np.unique(places).tolist()
        sufficient = [number for number in numbers if self._total_of(request, room.counts[places == number]) == self.needed_count]
        return msgspec.structs.replace(condition, places=tuple(sorted(map(name, sufficient))[:PLACES_LIMIT]))


# -- changed requests --------------------------------------------------------------------------------------------------------------


def request_with_spec(request: Request, spec: RequestSpec) -> Request:
    """A fresh request like this one, with this spec."""
    changed = dataclasses.replace(
        request,
        spec=spec,
        members=request.members.copy_counts(),
        in_cells={},
        draws=0,
        **msgspec.structs.asdict(spec.taken_amounts),
        _memory={},
    )
    if spec.group is None:
        changed.members = Members()
    return changed


def request_without(request: Request, condition: Relaxation) -> Request:
    """A fresh request without this condition."""
    changed = request_with_spec(request, _spec_without(request.spec, condition))
    if condition.asked is Asked.ZONE:
        changed.zone = None
    if condition.asked is Asked.CELL:
        changed.excluded_cells, changed.any_cell = frozenset(), True
    return changed


def request_with_amount(request: Request, resource: str, amount: int) -> Request:
    """A fresh request with this amount."""
    changed = request_with_spec(
        request, msgspec.structs.replace(request.spec, flavor=_flavor_with_amount(request.spec.flavor, resource, amount))
    )
    setattr(changed, resource, amount)
    return changed


def less_of(request: Request, amount_kind: Asked, enough: int) -> Relaxation:
    """The relaxation by which only ``enough`` of an amount is asked for."""
    resource, _ = AMOUNTS[amount_kind]
    amount: int = getattr(request, resource)
    name = override_key(resource) if override_key(resource) in request.spec.flavor.extra_specs else ""
    return Relaxation(asked=amount_kind, name=name, less=amount - enough, share=(amount - enough) / amount)


def _optional_conditions(spec: RequestSpec) -> Iterator[Relaxation]:
    """Each optional condition of the spec."""
    if spec.group is not None and spec.group.policy.is_strict:
        yield Relaxation(asked=Asked.GROUP, name=spec.group.policy.value)
    if spec.ignore_hosts:
        yield Relaxation(asked=Asked.IGNORED_HOSTS)
    if spec.force_hosts or spec.force_nodes:
        yield Relaxation(asked=Asked.FORCED_HOST)
    for name in _first_names(name for name in spec.scheduler_hints if name not in NO_HINTS):
        yield Relaxation(asked=Asked.HINT, name=name)
    for name in _first_names(spec.flavor.extra_specs):
        yield Relaxation(asked=Asked.EXTRA_SPEC, name=name)
    for name in _first_names(spec.image.properties if spec.image else ()):
        yield Relaxation(asked=Asked.IMAGE_PROPERTY, name=name)


def _spec_without(spec: RequestSpec, condition: Relaxation) -> RequestSpec:
    """The spec without this condition."""
    change: dict[str, object] = {}
    match condition.asked:
        case Asked.ZONE:
            change = {"availability_zone": None}
        case Asked.CELL:
            change = {"excluded_cells": ()}
        case Asked.GROUP:
            change = {"group": None}
        case Asked.IGNORED_HOSTS:
            change = {"ignore_hosts": ()}
        case Asked.FORCED_HOST:
            change = {"force_hosts": (), "force_nodes": ()}
        case Asked.HINT:
            change = {"scheduler_hints": _hints_without(spec.scheduler_hints, condition.name)}
        case Asked.EXTRA_SPEC:
            extra_specs = _hints_without(spec.flavor.extra_specs, condition.name)
            change = {"flavor": msgspec.structs.replace(spec.flavor, extra_specs=extra_specs)}
        case Asked.IMAGE_PROPERTY if spec.image is not None:
            properties = _hints_without(spec.image.properties, condition.name)
            change = {"image": msgspec.structs.replace(spec.image, properties=properties)}
    return msgspec.structs.replace(spec, **change)


def _flavor_with_amount(flavor: Flavor, resource: str, amount: int) -> Flavor:
    name = override_key(resource)
    if name in flavor.extra_specs:
        flavor = msgspec.structs.replace(flavor, extra_specs=_hints_without(flavor.extra_specs, name))
    if resource == "disk_gb":
        return msgspec.structs.replace(flavor, root_gb=amount, ephemeral_gb=0, swap_mb=0)
    return msgspec.structs.replace(flavor, **{resource: amount})


def override_key(resource: str) -> str:
    """The extra spec that overrides the flavor's amount."""
    return f"resources:{resource.upper().removesuffix('S')}"


def _hints_without(entries: Mapping[str, object], name: str) -> dict[str, object]:
    """``entries`` without ``name``, and without the hint ``cidr`` if ``name`` is the hint that it belongs to."""
    leaving = {name, hints.CIDR} if name == hints.NEAR else {name}
    return {key: value for key, value in entries.items() if key not in leaving}


def _first_names(names: Iterable[str]) -> list[str]:
    return sorted(names)[:CHANGES_PER_KIND]
