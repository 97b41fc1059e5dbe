"""Find the single changes of a refused request that would have let it be placed, by trying each one on the table.

This runs only for refused batches. A change costs one pass over the fleet. A smaller amount costs a second pass, whatever its size:
it is derived from what is free on the hosts that would take the server if it needed none of that resource.
"""

from __future__ import annotations

import dataclasses
import logging
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
from scheduler.drivers.base import SchedulerDriver
from scheduler.plan import engine
from scheduler.plan.members import Members
from scheduler.plan.request import Request
from scheduler.plan.together import together
from scheduler.table.arrays import Floats, Ints
from scheduler.table.host_table import HostTable
from scheduler.table.hosts import Hosts

LOG = logging.getLogger(__name__)

CHANGES_PER_KIND = 8
"""Maximum number tried of each of: hints, extra specs, image properties."""
PLACES_LIMIT = 5
"""Maximum number of zones or cells that a relaxation names."""
AMOUNTS = {Asked.VCPUS: ("vcpus", 1), Asked.MEMORY: ("memory_mb", 1), Asked.DISK: ("disk_gb", 0)}
"""Each amount with its name in the table and the minimum that a server can have."""
NO_HINTS = frozenset({"group", "ignore_hosts", hints.CIDR, "all_or_nothing"})
"""Hints that are covered by another kind of change, or that place no condition on hosts."""


def relaxations(
    table: HostTable, driver: SchedulerDriver, request: Request, wanted: int, least: int | None = None
) -> tuple[Relaxation, ...] | None:
    """The changes of which each alone would have placed all ``wanted`` instances, sorted by the share that is given up.

    ``least``: the number of instances that is enough (``min_count``); None: all ``wanted``.

    The table must be as the refusal left it, and is not changed. Returns an empty tuple if no single change is enough, or if the
    request fits unchanged by now. Returns None if a filter raised.
    """
    try:
        return _Search(table, driver, request, wanted, least or wanted).all()
    except Exception:  # a site's own filter may fail on a request that no user made; the refusal is valid without relaxations
        LOG.exception("batch %s: could not compute what would have been enough", request.spec.batch_id)
        return None


class _Room(NamedTuple):
    """``counts``: how many of the instances each of ``rows`` takes by itself. Two arrays of equal length."""

    rows: Ints
    counts: Ints


class _Search:
    def __init__(self, table: HostTable, driver: SchedulerDriver, request: Request, asked: int, wanted: int) -> None:
        self._table, self._driver, self._request, self._asked, self._wanted = table, driver, request, asked, wanted
        self._spec = request.spec

    def all(self) -> tuple[Relaxation, ...]:
        as_asked = self._total(self._request, self._room(self._request).counts)
        if as_asked >= self._wanted:
            return ()
        found = [*self._fewer(as_asked), *self._amounts(), *self._places(), *self._conditions()]
        return tuple(sorted(found, key=lambda one: one.share))  # sorted() keeps equals in their order

    # -- kinds of changes ------------------------------------------------------------------------------------------------------

    def _fewer(self, as_asked: int) -> Iterator[Relaxation]:
        if as_asked:
            less = self._asked - as_asked
            yield Relaxation(asked=Asked.SERVERS, less=less, share=less / self._asked)

    def _amounts(self) -> Iterator[Relaxation]:
        for asked, (what, least) in AMOUNTS.items():
            amount: int = getattr(self._request, what)
            enough = self._enough(what, least, amount) if amount > least else None
            if enough is not None and self._fits(self._sized(what, enough)) is not None:
                name = _override(what) if _override(what) in self._spec.flavor.extra_specs else ""
                yield Relaxation(asked=asked, name=name, less=amount - enough, share=(amount - enough) / amount)

    def _places(self) -> Iterator[Relaxation]:
        table, request = self._table, self._request
        if request.zone is not None:
            anywhere = self._changed(availability_zone=None)
            anywhere.zone = None
            yield from self._somewhere(Asked.ZONE, anywhere, table.zone, lambda number: table.zones[number])
        if request.excluded_cells or any(cell.state is not CellState.ENABLED for cell in table.cells):
            in_any_cell = self._changed(excluded_cells=())
            in_any_cell.excluded_cells, in_any_cell.any_cell = frozenset(), True
            yield from self._somewhere(Asked.CELL, in_any_cell, table.cell, lambda number: table.cells[number].name)

    def _conditions(self) -> Iterator[Relaxation]:
        for relaxation, change in _conditions(self._spec):
            if self._fits(self._changed(**change)) is not None:
                yield relaxation

    # -- looking ---------------------------------------------------------------------------------------------------------------

    def _changed(self, **change: object) -> Request:
        """A fresh request with these fields of its spec replaced."""
        spec: RequestSpec = msgspec.structs.replace(self._spec, **change)
        request = dataclasses.replace(
            self._request,
            spec=spec,
            members=self._request.members.copy(),
            in_cells={},
            draws=0,
            **msgspec.structs.asdict(spec.flavor.takes),
            _memory={},
        )
        if spec.group is None:
            request.members = Members()
        return request

    def _sized(self, what: str, amount: int) -> Request:
        request = self._changed(flavor=_flavor(self._spec.flavor, what, amount))
        setattr(request, what, amount)
        return request

    def _fits(self, request: Request) -> _Room | None:
        """The rows and counts if all wanted instances find room, otherwise None."""
        room = self._room(request)
        if self._total(request, room.counts) < self._wanted:
            return None
        if self._wanted > 1 and request.group is not None and request.group.policy.strict:
            with self._table.tentative():  # members restrict each other, so they must be placed to know
                found = engine.survey(self._table, self._driver, request)
                if request.founding:
                    found = together(self._table, self._driver, request, found, self._wanted)
                if len(self._driver.place(self._table, request, found, self._wanted)) < self._wanted:
                    return None
        return room

    def _room(self, request: Request) -> _Room:
        """Find the counts by bisection, because a host that takes n instances also takes fewer."""
        rows = engine.survey(self._table, self._driver, request).rows
        low, high = np.ones(rows.size, dtype=np.int64), np.full(rows.size, self._wanted, dtype=np.int64)
        while (low < high).any():
            half = (low + high + 1) // 2
            takes = engine.fits(self._driver, self._table, request, rows, half - 1)
            low, high = np.where(takes, half, low), np.where(takes, high, half - 1)
        return _Room(rows, low)

    def _total(self, request: Request, counts: Ints) -> int:
        """How many of the wanted instances find room on these hosts together; an affinity group must fit on one row."""
        if not counts.size:
            return 0
        return min(self._wanted, int(counts.max() if request.policy is GroupPolicy.AFFINITY else counts.sum()))

    def _enough(self, what: str, least: int, amount: int) -> int | None:
        """The largest amount below ``amount`` with which all fit; None if they do not fit even with ``least``."""
        nothing = self._sized(what, 0)
        rows, counts = self._room(nothing)
        free: Floats = np.maximum(Hosts(self._table, nothing, rows).room(what), 0.0)

        def fit(each: int) -> bool:
            limits = np.minimum(counts, np.floor(free / each).astype(np.int64)) if each else counts
            return self._total(nothing, limits) == self._wanted

        if not fit(least):
            return None
        low, high = least, amount - 1
        while low < high:
            half = (low + high + 1) // 2
            low, high = (half, high) if fit(half) else (low, half - 1)
        return low

    def _somewhere(self, asked: Asked, request: Request, column: Ints, name: Callable[[int], str]) -> Iterator[Relaxation]:
        """Yield a relaxation if all fit when the place is free, with the places that could take all of them."""
        room = self._fits(request)
        if room is None:
            return
        places = column[room.rows]
        numbers = np.unique(places).tolist()
        whole = [number for number in numbers if self._total(request, room.counts[places == number]) == self._wanted]
        yield Relaxation(asked=asked, places=tuple(sorted(map(name, whole))[:PLACES_LIMIT]))


def _conditions(spec: RequestSpec) -> Iterator[tuple[Relaxation, dict[str, object]]]:
    """Each optional condition of the spec, with the changed fields of the spec that drop it."""
    if spec.group is not None and spec.group.policy.strict:
        yield Relaxation(asked=Asked.GROUP, name=spec.group.policy.value), {"group": None}
    if spec.ignore_hosts:
        yield Relaxation(asked=Asked.IGNORED_HOSTS), {"ignore_hosts": ()}
    if spec.force_hosts or spec.force_nodes:
        yield Relaxation(asked=Asked.FORCED_HOST), {"force_hosts": (), "force_nodes": ()}
    for name in _first(name for name in spec.scheduler_hints if name not in NO_HINTS):
        yield Relaxation(asked=Asked.HINT, name=name), {"scheduler_hints": _without(spec.scheduler_hints, name)}
    for name in _first(spec.flavor.extra_specs):
        flavor = msgspec.structs.replace(spec.flavor, extra_specs=_without(spec.flavor.extra_specs, name))
        yield Relaxation(asked=Asked.EXTRA_SPEC, name=name), {"flavor": flavor}
    if spec.image is None:
        return
    for name in _first(spec.image.properties):
        image = msgspec.structs.replace(spec.image, properties=_without(spec.image.properties, name))
        yield Relaxation(asked=Asked.IMAGE_PROPERTY, name=name), {"image": image}


def _flavor(flavor: Flavor, what: str, amount: int) -> Flavor:
    override = _override(what)
    if override in flavor.extra_specs:
        flavor = msgspec.structs.replace(flavor, extra_specs=_without(flavor.extra_specs, override))
    if what == "disk_gb":
        return msgspec.structs.replace(flavor, root_gb=amount, ephemeral_gb=0, swap_mb=0)
    return msgspec.structs.replace(flavor, **{what: amount})


def _override(what: str) -> str:
    """The extra spec that overrides the flavor's amount."""
    return f"resources:{what.upper().removesuffix('S')}"


def _without(given: Mapping[str, object], name: str) -> dict[str, object]:
    """``given`` without ``name``, and without the hint ``cidr`` if ``name`` is the hint that it belongs to."""
    leaving = {name, hints.CIDR} if name == hints.NEAR else {name}
    return {key: value for key, value in given.items() if key not in leaving}


def _first(names: Iterable[str]) -> list[str]:
    return sorted(names)[:CHANGES_PER_KIND]
