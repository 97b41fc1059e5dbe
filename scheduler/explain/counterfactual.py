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
from scheduler.engine.capacity import takes
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
    """Tries changes of one request on the table. ``asked``: its number of instances; ``wanted``: how many are enough."""

    def __init__(self, table: HostTable, driver: SchedulerDriver, request: Request, asked: int, wanted: int) -> None:
        self._table, self._driver, self._asked, self.wanted = table, driver, asked, wanted
        self.request = request
        self._spec = request.spec

    def all(self) -> tuple[Relaxation, ...] | None:
        """All single changes that are enough, the smallest first. None: the request fits unchanged."""
        as_asked = self.total()
        if as_asked >= self.wanted:
            return None
        found = [self._fewer(as_asked), *map(self.amount, AMOUNTS), *map(self.condition, self.conditions())]
        enough = [one for one in found if one is not None]
        return tuple(sorted(enough, key=lambda one: one.share))  # sorted() keeps equals in their order

    # -- kinds of changes ------------------------------------------------------------------------------------------------------

    def conditions(self) -> list[Relaxation]:
        """The conditions of the request that can be dropped."""
        spec = self._spec
        found: list[Relaxation] = []
        if self.request.zone is not None:
            found.append(Relaxation(asked=Asked.ZONE))
        closed = any(cell.state is not CellState.ENABLED for cell in self._table.cells)
        if not self.request.any_cell and (self.request.excluded_cells or closed):
            found.append(Relaxation(asked=Asked.CELL))
        return [*found, *_conditions(spec)]

    def fewer(self) -> Relaxation | None:
        """With fewer servers."""
        return self._fewer(self.total())

    def _fewer(self, as_asked: int) -> Relaxation | None:
        less = self._asked - as_asked
        return Relaxation(asked=Asked.SERVERS, less=less, share=less / self._asked) if as_asked else None

    def amount(self, asked: Asked) -> Relaxation | None:
        """With less of an amount, as little less as is enough."""
        what, least = AMOUNTS[asked]
        amount: int = getattr(self.request, what)
        enough = self._enough(what, least, amount) if amount > least else None
        if enough is None or self._fits(sized(self.request, what, enough)) is None:
            return None
        return less_of(self.request, asked, enough)

    def condition(self, condition: Relaxation) -> Relaxation | None:
        """Without a condition; of a zone or cell, with the places that could take all instances."""
        request = without(self.request, condition)
        room = self._fits(request)
        if room is None:
            return None
        table = self._table
        if condition.asked is Asked.ZONE:
            return self._somewhere(condition, request, room, table.zone, table.zones.__getitem__)
        if condition.asked is Asked.CELL:
            return self._somewhere(condition, request, room, table.cell, lambda number: table.cells[number].name)
        return condition

    # -- looking ---------------------------------------------------------------------------------------------------------------

    def fits(self, request: Request) -> bool:
        """Whether all wanted instances find room."""
        return self._fits(request) is not None

    def total(self) -> int:
        """How many of the wanted instances find room."""
        return self._total(self.request, self._takers(self.request).counts)

    def _fits(self, request: Request) -> _Room | None:
        """The rows and counts if all wanted instances find room, otherwise None."""
        room = self._room(request)
        if self._total(request, room.counts) < self.wanted:
            return None
        if self.wanted > 1 and request.group is not None and request.group.policy.strict:
            with self._table.tentative():  # members restrict each other, so they must be placed to know
                found = survey(self._table, self._driver, request, self.wanted)
                if len(self._driver.place(self._table, request, found, self.wanted)) < self.wanted:
                    return None
        return room

    def _room(self, request: Request) -> _Room:
        """What is needed to tell whether all find room: of an affinity group, only the hosts that take all."""
        if request.policy is not GroupPolicy.AFFINITY:
            return self._takers(request)
        rows = engine.passing(self._table, self._driver, request)
        rows = rows[engine.fits(self._driver, self._table, request, rows, self.wanted - 1)]
        return _Room(rows, np.full(rows.size, self.wanted, np.int64))

    def _takers(self, request: Request) -> _Room:
        """How many of the instances each host takes."""
        rows = engine.passing(self._table, self._driver, request)
        return _Room(rows, takes(self._table, self._driver, request, rows, self.wanted))

    def _total(self, request: Request, counts: Ints) -> int:
        """How many of the wanted instances find room on these hosts together; an affinity group must fit on one row."""
        if not counts.size:
            return 0
        return min(self.wanted, int(counts.max() if request.policy is GroupPolicy.AFFINITY else counts.sum()))

    def _enough(self, what: str, least: int, amount: int) -> int | None:
        """The largest amount below ``amount`` with which all fit; None if they do not fit even with ``least``."""
        if self._table.classes.numa:
            return self._enough_on_nodes(what, least, amount)
        nothing = sized(self.request, what, 0)
        rows, counts = self._room(nothing)
        free: Floats = np.maximum(Hosts(self._table, nothing, rows).room(what), 0.0)

        def fit(each: int) -> bool:
            limits = np.minimum(counts, np.floor(free / each).astype(np.int64)) if each else counts
            return self._total(nothing, limits) == self.wanted

        if not fit(least):
            return None
        low, high = least, amount - 1
        while low < high:
            half = (low + high + 1) // 2
            low, high = (half, high) if fit(half) else (low, half - 1)
        return low

    def _enough_on_nodes(self, what: str, least: int, amount: int) -> int | None:
        """The same where hosts have NUMA nodes, on which the free amounts of a host do not tell what fits. A pass for each try."""
        step = max(self.request.part.nodes, 1) if what != "disk_gb" else 1
        low, high = -(-least // step), (amount - 1) // step

        def fit(parts: int) -> bool:
            return self._fits(sized(self.request, what, parts * step)) is not None

        if low > high or not fit(low):
            return None
        while low < high:
            half = (low + high + 1) // 2
            low, high = (half, high) if fit(half) else (low, half - 1)
        return low * step

    def _somewhere(
        self, condition: Relaxation, request: Request, room: _Room, column: Ints, name: Callable[[int], str]
    ) -> Relaxation:
        """The relaxation with the places that could take all of the instances."""
        places = column[room.rows]
        numbers = np.unique(places).tolist()
        whole = [number for number in numbers if self._total(request, room.counts[places == number]) == self.wanted]
        return msgspec.structs.replace(condition, places=tuple(sorted(map(name, whole))[:PLACES_LIMIT]))


# -- changed requests --------------------------------------------------------------------------------------------------------------


def asking(request: Request, spec: RequestSpec) -> Request:
    """A fresh request like this one, with this spec."""
    changed = dataclasses.replace(
        request,
        spec=spec,
        members=request.members.copy(),
        in_cells={},
        draws=0,
        **msgspec.structs.asdict(spec.takes),
        _memory={},
    )
    if spec.group is None:
        changed.members = Members()
    return changed


def without(request: Request, condition: Relaxation) -> Request:
    """A fresh request without this condition."""
    changed = asking(request, _dropped(request.spec, condition))
    if condition.asked is Asked.ZONE:
        changed.zone = None
    if condition.asked is Asked.CELL:
        changed.excluded_cells, changed.any_cell = frozenset(), True
    return changed


def sized(request: Request, what: str, amount: int) -> Request:
    """A fresh request with this amount."""
    changed = asking(request, msgspec.structs.replace(request.spec, flavor=_flavor(request.spec.flavor, what, amount)))
    setattr(changed, what, amount)
    return changed


def less_of(request: Request, asked: Asked, enough: int) -> Relaxation:
    """The relaxation by which only ``enough`` of an amount is asked for."""
    what, _ = AMOUNTS[asked]
    amount: int = getattr(request, what)
    name = override(what) if override(what) in request.spec.flavor.extra_specs else ""
    return Relaxation(asked=asked, name=name, less=amount - enough, share=(amount - enough) / amount)


def _conditions(spec: RequestSpec) -> Iterator[Relaxation]:
    """Each optional condition of the spec."""
    if spec.group is not None and spec.group.policy.strict:
        yield Relaxation(asked=Asked.GROUP, name=spec.group.policy.value)
    if spec.ignore_hosts:
        yield Relaxation(asked=Asked.IGNORED_HOSTS)
    if spec.force_hosts or spec.force_nodes:
        yield Relaxation(asked=Asked.FORCED_HOST)
    for name in _first(name for name in spec.scheduler_hints if name not in NO_HINTS):
        yield Relaxation(asked=Asked.HINT, name=name)
    for name in _first(spec.flavor.extra_specs):
        yield Relaxation(asked=Asked.EXTRA_SPEC, name=name)
    for name in _first(spec.image.properties if spec.image else ()):
        yield Relaxation(asked=Asked.IMAGE_PROPERTY, name=name)


def _dropped(spec: RequestSpec, condition: Relaxation) -> RequestSpec:
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
            change = {"scheduler_hints": _without(spec.scheduler_hints, condition.name)}
        case Asked.EXTRA_SPEC:
            extra_specs = _without(spec.flavor.extra_specs, condition.name)
            change = {"flavor": msgspec.structs.replace(spec.flavor, extra_specs=extra_specs)}
        case Asked.IMAGE_PROPERTY if spec.image is not None:
            properties = _without(spec.image.properties, condition.name)
            change = {"image": msgspec.structs.replace(spec.image, properties=properties)}
    return msgspec.structs.replace(spec, **change)


def _flavor(flavor: Flavor, what: str, amount: int) -> Flavor:
    name = override(what)
    if name in flavor.extra_specs:
        flavor = msgspec.structs.replace(flavor, extra_specs=_without(flavor.extra_specs, name))
    if what == "disk_gb":
        return msgspec.structs.replace(flavor, root_gb=amount, ephemeral_gb=0, swap_mb=0)
    return msgspec.structs.replace(flavor, **{what: amount})


def override(what: str) -> str:
    """The extra spec that overrides the flavor's amount."""
    return f"resources:{what.upper().removesuffix('S')}"


def _without(given: Mapping[str, object], name: str) -> dict[str, object]:
    """``given`` without ``name``, and without the hint ``cidr`` if ``name`` is the hint that it belongs to."""
    leaving = {name, hints.CIDR} if name == hints.NEAR else {name}
    return {key: value for key, value in given.items() if key not in leaving}


def _first(names: Iterable[str]) -> list[str]:
    return sorted(names)[:CHANGES_PER_KIND]
