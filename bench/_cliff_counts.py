"""What ``bench/cliffs.py`` measures as counts, which no other work on the machine changes.

Rows are looked at by filters and weighers. A *pass* looks at as many as the fleet has, so that the limits hold for fleets of any
size.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import FrameType
from typing import NamedTuple

import msgspec

from bench._fleet import Fleet
from bench.decisions import CONTEXT, FILTERS, group_of, make_decision, members_on, moment_of, spec_of
from db.cell import services, tables
from objects import stored
from objects.aggregate import Aggregate
from objects.flavor import Flavor
from objects.group import GroupPolicy, ServerGroup
from objects.inventory import Slot, Standing
from objects.process import AGENT_BINARY
from objects.spec import RequestSpec
from scheduler.claim.claim_planner import ClaimPlanner
from scheduler.claim.cursor import Cursor
from scheduler.engine.driver import SchedulerDriver
from scheduler.engine.job import Job
from scheduler.engine.request_classes import Shapes
from scheduler.filters.adapter import Adapter
from scheduler.framework.hosts import Hosts, HostState
from scheduler.framework.settings import DEFAULT_WEIGHERS, SPREADING_WEIGHERS, SchedulerSettings
from scheduler.plugins import load_driver
from scheduler.table.named_rows import NamedRows
from tests.support.databases import cell_database

HOSTS = 2000
BATCH = 200
MEMBERS = 100
RACKS = 500
MANY_CELLS = 200


class Count(NamedTuple):
    """One row: how many, of what, and how many there may be."""

    name: str
    value: float
    limit: float
    unit: str = "passes"


def passes(fleet: Fleet, act: Callable[[], object]) -> float:
    """How many passes over the fleet that takes: what filters and weighers are given, they are given as ``Hosts``."""
    rows = 0

    def count_rows(frame: FrameType, event: str, _: object) -> None:
        nonlocal rows
        if event == "return" and frame.f_code is Hosts.__init__.__code__:
            rows += len(frame.f_locals["self"])

    sys.setprofile(count_rows)
    try:
        act()
    finally:
        sys.setprofile(None)
    return rows / len(fleet.table)


class RackFilter:
    """Lets three of four hosts pass."""

    calls = 0

    def host_passes(self, host: HostState, spec: RequestSpec) -> bool:
        del spec
        self.calls += 1
        return not host.host.endswith(("0", "4", "8"))


def refuse_request(fleet: Fleet, driver: SchedulerDriver, spec: RequestSpec, flavors: Sequence[Flavor] = ()) -> None:
    """Decide on a request that fits nowhere. ``flavors``: those of which the refusal may name the largest that fits."""
    job = Job(CONTEXT, spec, tuple(spec.fences))
    attempt = ClaimPlanner(fleet.table, driver, Cursor(), [job], moment_of(fleet)._replace(flavors=lambda _: flavors))
    attempt.plan_jobs([], [Standing(needed=tuple(spec.fences))], [])
    attempt.finish_plan()
    if job.placements:
        raise AssertionError("a request that should fit nowhere was placed")


def driver_with(*, filters: tuple[str, ...] = FILTERS, weighers: tuple[str, ...] = DEFAULT_WEIGHERS) -> SchedulerDriver:
    """A driver that keeps surveys of small fleets, too."""
    driver = load_driver(SchedulerSettings(enabled_filters=filters, enabled_weighers=weighers))
    driver.shapes = Shapes(kept_from=0)
    return driver


def usual_passes(fleet: Fleet, driver: SchedulerDriver, ask: Callable[[], tuple[RequestSpec, list[Slot]]]) -> float:
    """Passes of a decision whose survey is kept."""
    for _ in range(3):
        make_decision(fleet, driver, *ask())
    return passes(fleet, lambda: make_decision(fleet, driver, *ask()))


def topology_counts(racks: int) -> Iterator[Count]:
    fleet = Fleet(HOSTS, racks=racks)
    driver = driver_with()
    size_note = f"{len(fleet.aggregates)} aggregates"
    usual_passes(fleet, driver, lambda: (spec_of(fleet, flavor=fleet.small_flavor), []))
    last = fleet.aggregates[-1]
    new = next(node.host for node in fleet.nodes if node.host not in last.hosts)
    wider = Aggregate(id=last.id, name=last.name, hosts=(*last.hosts, new), metadata=last.metadata)
    before = fleet.table.change_count
    fleet.table.set_topology(fleet.mappings, fleet.homes, fleet.zones, [*fleet.aggregates[:-1], wider])
    yield Count(f"one more host in an aggregate, {size_note}", fleet.table.change_count - before, 2, "rows touched")
    after = passes(fleet, lambda: make_decision(fleet, driver, spec_of(fleet, flavor=fleet.small_flavor), []))
    yield Count("the next decision", after, 0.1)
    before = fleet.table.change_count
    homes = fleet.homes | {"new": fleet.cells[0]}
    fleet.table.set_topology(fleet.mappings, homes, fleet.zones, [*fleet.aggregates[:-1], wider])
    yield Count(f"one more host mapping, {size_note}", fleet.table.change_count - before, 0, "rows touched")
    newcomer = msgspec.structs.replace(fleet.nodes[0], host="new", node="new")
    fleet.table.set_nodes(fleet.cells[0], [newcomer])
    row = msgspec.structs.replace(fleet.ledger[1], id=HOSTS + 1, host="new", node="new", cell_uuid=fleet.cells[0])
    fleet.table.set_inventories([row], 0.0)
    after = passes(fleet, lambda: make_decision(fleet, driver, spec_of(fleet, flavor=fleet.small_flavor), []))
    yield Count("the next decision after a new host has reported", after, 0.1)


def heartbeat_counts(cells: int) -> Iterator[Count]:
    fleet = Fleet(HOSTS, cells)
    before = fleet.table.change_count
    for cell in fleet.cells:
        fleet.report_hosts(cell)
    yield Count(f"a heartbeat of each host, {cells} cells", fleet.table.change_count - before, 0, "rows touched")


def reading_counts() -> Iterator[Count]:
    with tempfile.TemporaryDirectory() as folder:
        database = cell_database(Path(folder))
        beats = [services.Beat(host=f"host-{n:06}", binary=AGENT_BINARY) for n in range(HOSTS)]
        database.write(services.record_heartbeats, beats)
        database.write(lambda tx: tx.execute(tables.services.update().values(last_seen=0.0)))
        database.write(services.record_heartbeats, beats[: HOSTS // 10])
        yield Count("heartbeats read", len(database.read(services.read_signs, AGENT_BINARY, 60.0).hosts), HOSTS // 10, "rows")


def group_counts() -> Iterator[Count]:
    fleet, driver, plain = Fleet(HOSTS), driver_with(), 0.0
    for policy in (None, GroupPolicy.ANTI_AFFINITY, GroupPolicy.SOFT_ANTI_AFFINITY, GroupPolicy.SOFT_AFFINITY):
        name = f"batch of {BATCH}" + (f", {policy.value}, empty group" if policy else "")

        def batch_request(policy: GroupPolicy | None = policy) -> tuple[RequestSpec, list[Slot]]:
            return spec_of(fleet, BATCH, flavor=fleet.small_flavor, group=group_of(policy) if policy else None), []

        took = usual_passes(fleet, driver, batch_request)
        plain = took if policy is None else plain
        yield Count(name, took, 4 if policy is None else 2 * plain)
    for policy in (GroupPolicy.ANTI_AFFINITY, GroupPolicy.SOFT_ANTI_AFFINITY, GroupPolicy.SOFT_AFFINITY):
        group = group_of(policy)
        members = members_on(group, [node.host for node in fleet.chance.sample(fleet.nodes, MEMBERS)])

        def one_more(group: ServerGroup = group, members: list[Slot] = members) -> tuple[RequestSpec, list[Slot]]:
            return spec_of(fleet, flavor=fleet.small_flavor, group=group), members

        yield Count(f"one more member of {MEMBERS}, {policy.value}", usual_passes(fleet, driver, one_more), 0.3)
        index = _CountingIndex(fleet.table.rows_of)
        fleet.table.named_rows = NamedRows(index, fleet.table.hosts)
        for _ in range(2):
            index.lookups = 0
            make_decision(fleet, driver, *one_more())
        yield Count("names looked up in the index of all hosts", index.lookups, 2, "names")


class _CountingIndex(Mapping[str, Sequence[int]]):
    """An index of hosts that counts how many it is asked for."""

    def __init__(self, index: Mapping[str, Sequence[int]]) -> None:
        self._index = index
        self.lookups = 0

    def __getitem__(self, name: str) -> Sequence[int]:
        self.lookups += 1
        return self._index[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._index)

    def __len__(self) -> int:
        return len(self._index)


def aggregate_counts() -> Iterator[Count]:
    fleet = Fleet(HOSTS, racks=RACKS)
    driver = driver_with(filters=(*FILTERS, "AggregateInstanceExtraSpecsFilter"))
    flavor = msgspec.structs.replace(fleet.small_flavor, extra_specs={"aggregate_instance_extra_specs:rack3": "s!= 13"})
    yield Count(
        f"one extra spec, {RACKS} aggregates", usual_passes(fleet, driver, lambda: (spec_of(fleet, flavor=flavor), [])), 0.1
    )


def filter_counts() -> Iterator[Count]:
    fleet, driver = Fleet(HOSTS), driver_with()
    driver.filters = (*driver.filters, Adapter(driver.filters[0].settings, "RackFilter", RackFilter()))
    yield Count("a site's own filter", usual_passes(fleet, driver, lambda: (spec_of(fleet, flavor=fleet.small_flavor), [])), 0.1)


def cell_counts() -> Iterator[Count]:
    for name, weighers, limit in (("cell weighers", SPREADING_WEIGHERS, 8), ("cell weighers, packed", DEFAULT_WEIGHERS, 12)):
        fleet, driver = Fleet(HOSTS, MANY_CELLS), driver_with(weighers=(*weighers, "CellSpreadWeigher", "CellCapacityWeigher"))
        batch = passes(fleet, partial(make_decision, fleet, driver, spec_of(fleet, BATCH, flavor=fleet.small_flavor), []))
        yield Count(f"batch of {BATCH}, {MANY_CELLS} cells, {name}", batch, limit)
    decision = make_decision(fleet, driver, spec_of(fleet), [])[2].decision
    yield Count(f"record of a decision, {MANY_CELLS} cells", len(stored.dump_value(decision)), 3150, "bytes")


def refusal_counts() -> Iterator[Count]:
    fleet, driver = Fleet(HOSTS), driver_with()
    fleet.table.set_topology(fleet.mappings, fleet.homes | {"new": fleet.cells[0]}, fleet.zones, fleet.aggregates)
    huge = msgspec.structs.replace(fleet.small_flavor, vcpus=1000)
    first = passes(fleet, lambda: refuse_request(fleet, driver, spec_of(fleet, flavor=huge)))
    yield Count("the first refusal after a host was mapped", first, 4)
    wide = msgspec.structs.replace(fleet.small_flavor, vcpus=24)
    ask = spec_of(fleet, 10, flavor=wide, group=group_of(GroupPolicy.AFFINITY))
    yield Count("affinity batch of 10 that fits nowhere", passes(fleet, lambda: refuse_request(fleet, driver, ask)), 6)


def all_counts() -> Iterator[Count]:
    """All rows."""
    yield from topology_counts(0)
    yield from topology_counts(RACKS)
    yield from heartbeat_counts(8)
    yield from heartbeat_counts(MANY_CELLS)
    yield from reading_counts()
    yield from group_counts()
    yield from aggregate_counts()
    yield from filter_counts()
    yield from cell_counts()
    yield from refusal_counts()
