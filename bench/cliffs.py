"""What stands beside the plain decision: it costs CPU under the table's lock, which every decision needs.

``python bench/cliffs.py [--hosts 100000] [--only NAME ...]``. Milliseconds of CPU of this thread, the median of some rounds.
``--smoke`` counts rows instead (``bench/_cliff_counts.py``), and fails where there are too many.
"""

from __future__ import annotations

import gc
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

sys.path.append(str(Path(__file__).parent.parent))  # last, so that what is installed comes first

from bench._cliff_counts import all_counts
from bench._fleet import FLAVORS, Fleet
from bench._script import parser_of
from bench.decisions import CONTEXT, FILTERS, group_of, make_decision, members_on, plain_request, spec_of
from db.cell import services
from objects import stored
from objects.aggregate import Aggregate
from objects.flavor import Flavor
from objects.group import GroupPolicy
from objects.inventory import Slot, Standing
from objects.process import AGENT_BINARY
from objects.spec import RequestSpec
from scheduler.claim.claim_planner import ClaimPlanner
from scheduler.claim.cursor import Cursor
from scheduler.engine.driver import SchedulerDriver
from scheduler.engine.job import Job, PlanContext
from scheduler.explain.largest_flavor import by_size
from scheduler.filters.adapter import Adapter
from scheduler.framework.hosts import HostState
from scheduler.framework.settings import DEFAULT_WEIGHERS, SchedulerSettings
from scheduler.plugins import load_driver
from tests.support.databases import cell_database

RACKS = 10_000
"""Aggregates of the fleet with many, ten to a host."""
MANY_CELLS = 1000
BATCH = 1000
GROUP_SIZE = 1000
REPORT_INTERVAL_S = 10.0
SETTINGS = SchedulerSettings(enabled_filters=FILTERS, enabled_weighers=DEFAULT_WEIGHERS)


class Figure(NamedTuple):
    """One row: milliseconds of CPU, or another number with its unit."""

    name: str
    value: float
    unit: str = "ms"


class Fleets:
    """The fleets of one size, made when they are needed. Only the last is kept."""

    def __init__(self, hosts: int) -> None:
        self.hosts = hosts
        self._last: tuple[tuple[int, int], Fleet] | None = None

    def get(self, cells: int = 8, racks: int = 0) -> Fleet:
        if self._last is None or self._last[0] != (cells, racks):
            self._last = None
            gc.collect()
            self._last = ((cells, racks), Fleet(self.hosts, cells, racks))
            gc.collect()
        return self._last[1]


def cpu_ms(act: Callable[[], object]) -> float:
    began = time.thread_time()
    act()
    return (time.thread_time() - began) * 1e3


def median_ms(act: Callable[[], object], rounds: int = 5) -> float:
    return statistics.median(cpu_ms(act) for _ in range(rounds))


def decided_ms(fleet: Fleet, driver: SchedulerDriver, ask: Callable[[], tuple[RequestSpec, list[Slot]]], rounds: int = 7) -> float:
    """A decision and its claim, whose servers are deleted again."""
    return statistics.median(make_decision(fleet, driver, *ask())[1] for _ in range(rounds)) * 1e3


def plain_ms(fleet: Fleet, driver: SchedulerDriver) -> float:
    return decided_ms(fleet, driver, lambda: (plain_request(fleet)[0], []), rounds=50)


def topology_figures(fleets: Fleets) -> Iterator[Figure]:
    """One more host in an aggregate, one more host mapping."""
    for racks in (0, min(RACKS, fleets.hosts // 2)):
        yield from _change_figures(fleets.get(racks=racks))


def _change_figures(fleet: Fleet) -> Iterator[Figure]:
    size_note = f"{len(fleet.aggregates):,} aggregates"
    homes, aggregates, number = fleet.homes, list(fleet.aggregates), 0

    def one_more_host() -> None:
        nonlocal number
        number += 1
        one = aggregates[-1]
        hosts = (*one.hosts, fleet.nodes[number].host)
        aggregates[-1] = Aggregate(id=one.id, name=one.name, hosts=hosts, metadata=one.metadata)
        fleet.table.set_topology(fleet.mappings, homes, fleet.zones, aggregates)

    def one_more_mapping() -> None:
        nonlocal number, homes
        number += 1
        homes = homes | {f"new-{number}": fleet.cells[0]}
        fleet.table.set_topology(fleet.mappings, homes, fleet.zones, aggregates)

    with holds(fleet) as held:
        for name, change in (("changed aggregate", one_more_host), ("new mapping", one_more_mapping)):
            longest = []
            for _ in range(5):
                change()
                longest.append(held.take_longest())
            yield Figure(f"one {name}, {size_note}, longest hold of the lock", statistics.median(longest))
            yield Figure(f"one {name}, {size_note}, in all", median_ms(change))


class Held:
    """Milliseconds of CPU during which the table's lock was held, by hold."""

    def __init__(self, lock: object) -> None:
        self._lock, self._depth, self._began = lock, 0, 0.0
        self.hold_times: list[float] = []

    def __enter__(self) -> bool:
        entered: bool = self._lock.__enter__()  # type: ignore[attr-defined]  # an RLock, whose class threading does not name
        self._depth += 1
        if self._depth == 1:
            self._began = time.thread_time()
        return entered

    def __exit__(self, *error: object) -> None:
        self._depth -= 1
        if not self._depth:
            self.hold_times.append((time.thread_time() - self._began) * 1e3)
        self._lock.__exit__(*error)  # type: ignore[attr-defined]  # as above

    def take_longest(self) -> float:
        """The longest hold since the last call."""
        longest, self.hold_times = max(self.hold_times, default=0.0), []
        return longest


class holds:  # noqa: N801 - a context manager that reads as a verb
    def __init__(self, fleet: Fleet) -> None:
        self._table = fleet.table

    def __enter__(self) -> Held:
        self._lock = self._table.lock
        held = Held(self._lock)
        self._table.lock = held  # type: ignore[assignment]  # it is used as a context manager only
        return held

    def __exit__(self, *_: object) -> None:
        self._table.lock = self._lock


def heartbeat_figures(fleets: Fleets) -> Iterator[Figure]:
    """Share of a core for one heartbeat of each host in ten seconds."""
    for cells in (8, min(MANY_CELLS, fleets.hosts // 10)):
        fleet = fleets.get(cells=cells)
        share = median_ms(partial(_report_all, fleet)) / 1e3 / REPORT_INTERVAL_S
        yield Figure(f"heartbeats of {fleets.hosts:,} hosts, {cells:,} cells", share * 100, "% of a core")


def _report_all(fleet: Fleet) -> None:
    for cell in fleet.cells:
        fleet.report_hosts(cell)


def reading_figures(fleets: Fleets) -> Iterator[Figure]:
    """Share of a core for reading the heartbeats of a cell with an eighth of the hosts, times eight. SQLite."""
    count = fleets.hosts // 8
    with tempfile.TemporaryDirectory() as folder:
        database = cell_database(Path(folder))
        beats = [services.Beat(host=f"host-{n:06}", binary=AGENT_BINARY) for n in range(count)]
        for start in range(0, count, 1000):
            database.write(services.record_heartbeats, beats[start : start + 1000])
        poll = SETTINGS.service_poll_interval
        fifth = int(count * poll / REPORT_INTERVAL_S)
        database.write(services.record_heartbeats, beats[:1], time.time())

        def read_all() -> None:
            database.read(services.read_signs, AGENT_BINARY)

        def read_recent() -> None:
            database.read(services.read_signs, AGENT_BINARY, 0.5)

        every = median_ms(read_all)
        time.sleep(0.6)
        for start in range(0, fifth, 1000):
            database.write(services.record_heartbeats, beats[start : min(fifth, start + 1000)])
        recent = median_ms(read_recent)
        yield Figure("reading heartbeats, if all rows were read each time", every * 8 / 1e3 / poll * 100, "% of a core")
        yield Figure("reading heartbeats since the last look", recent * 8 / 1e3 / poll * 100, "% of a core")


def group_figures(fleets: Fleets) -> Iterator[Figure]:
    fleet, driver = fleets.get(), load_driver(SETTINGS)
    size = min(BATCH, fleets.hosts // 10)

    def member_batch(policy: GroupPolicy) -> tuple[RequestSpec, list[Slot]]:
        return spec_of(fleet, size, flavor=fleet.small_flavor, group=group_of(policy)), []

    yield Figure(f"batch of {size}", decided_ms(fleet, driver, partial(_small_ones, fleet, size), 3))
    for policy in (GroupPolicy.ANTI_AFFINITY, GroupPolicy.SOFT_ANTI_AFFINITY, GroupPolicy.SOFT_AFFINITY):
        yield Figure(f"batch of {size}, {policy.value}, empty group", decided_ms(fleet, driver, partial(member_batch, policy), 3))
    yield Figure("a plain server", plain_ms(fleet, driver))
    group = group_of(GroupPolicy.ANTI_AFFINITY)
    members = members_on(group, [node.host for node in fleet.chance.sample(fleet.nodes, min(GROUP_SIZE, fleets.hosts // 2))])
    one_more = decided_ms(fleet, driver, lambda: (spec_of(fleet, group=group), members), 20)
    yield Figure(f"one more member of a group of {len(members)}", one_more)


def aggregate_figures(fleets: Fleets) -> Iterator[Figure]:
    fleet = fleets.get(racks=min(RACKS, fleets.hosts // 2))
    filters = (*FILTERS, "AggregateInstanceExtraSpecsFilter")
    driver = load_driver(SchedulerSettings(enabled_filters=filters, enabled_weighers=DEFAULT_WEIGHERS))
    yield Figure("a plain server, many aggregates", plain_ms(fleet, driver))
    flavor = msgspec.structs.replace(fleet.small_flavor, extra_specs={"aggregate_instance_extra_specs:rack3": "s!= 13"})
    fleet.table.set_topology(fleet.mappings, fleet.homes, fleet.zones, list(fleet.aggregates)[:-1])
    yield Figure(
        "the same with one extra spec, the first time", decided_ms(fleet, driver, lambda: (spec_of(fleet, flavor=flavor), []), 1)
    )
    yield Figure("the same with one extra spec", decided_ms(fleet, driver, lambda: (spec_of(fleet, flavor=flavor), []), 20))


class _RackFilter:
    """Lets three of four hosts pass."""

    calls = 0

    def host_passes(self, host: HostState, spec: RequestSpec) -> bool:
        del spec
        self.calls += 1
        return not host.host.endswith(("0", "4", "8"))


def numa_nodes(fleets: Fleets) -> Iterator[Figure]:
    """By turns on the same fleet without nodes and with two on each host, with racks, fault domains and AffinityRoomWeigher.

    The 5th percentile of 240 decisions of each kind. Of each turn of nine, three are not counted.
    """
    flat, divided = _fleet_with_racks(fleets.hosts), _fleet_with_racks(fleets.hosts)
    divided.divide_hosts()
    plainly = load_driver(SETTINGS)
    room = load_driver(SchedulerSettings(enabled_filters=FILTERS, enabled_weighers=(*DEFAULT_WEIGHERS, "AffinityRoomWeigher")))
    one, two = FLAVORS[2], msgspec.structs.replace(FLAVORS[2], extra_specs={"hw:numa_nodes": "2"})
    first, group = group_of(GroupPolicy.AFFINITY), group_of(GroupPolicy.SOFT_ANTI_AFFINITY)
    members = [
        msgspec.structs.replace(slot, fault_domain=domain)
        for slot, domain in zip(members_on(group, [node.host for node in flat.chance.sample(flat.nodes, 6)]), "aaabbb", strict=True)
    ]
    of_domain: dict[str, Any] = {"group": group, "scheduler_hints": {"group": (group.uuid,), "fault_domain": ("a",)}}
    kinds: dict[str, tuple[Fleet, SchedulerDriver, Callable[[Fleet], tuple[RequestSpec, list[Slot]]]]] = {
        "a plain server, no host has nodes": (flat, plainly, lambda fleet: (plain_request(fleet)[0], [])),
        "a plain server, each host has two nodes": (divided, plainly, lambda fleet: (plain_request(fleet)[0], [])),
        "a server on two nodes": (divided, plainly, lambda fleet: (spec_of(fleet, flavor=two), [])),
        "the first of an affinity group": (flat, room, lambda fleet: (spec_of(fleet, flavor=one, group=first), [])),
        "the first of an affinity group, on two nodes": (
            divided,
            room,
            lambda fleet: (spec_of(fleet, flavor=two, group=first), []),
        ),
        "a member of a fault domain": (flat, room, lambda fleet: (spec_of(fleet, flavor=one, **of_domain), members)),
        "a member of a fault domain, on two nodes": (
            divided,
            room,
            lambda fleet: (spec_of(fleet, flavor=two, **of_domain), members),
        ),
    }
    took: dict[str, list[float]] = {name: [] for name in kinds}
    for _ in range(40):
        for name, (fleet, driver, ask) in kinds.items():
            for cell in fleet.cells:
                fleet.report_hosts(cell)
            took[name] += [make_decision(fleet, driver, *ask(fleet))[1] * 1e6 for _ in range(9)][3:]
    for name, durations in took.items():
        yield Figure(name, sorted(durations)[len(durations) // 20], "us")


def _fleet_with_racks(hosts: int) -> Fleet:
    fleet = Fleet(hosts)
    fleet.table.set_topology(fleet.mappings, fleet.homes, fleet.zones, [*fleet.aggregates, *_physical_racks(fleet)])
    return fleet


def _physical_racks(fleet: Fleet) -> list[Aggregate]:
    names = [node.host for node in fleet.nodes]
    return [
        Aggregate(id=10**6 + n, name=f"physical {n}", hosts=tuple(names[n::100]), metadata={"rack": str(n)}) for n in range(100)
    ]


def site_filter(fleets: Fleets) -> Iterator[Figure]:
    fleet, driver = fleets.get(), load_driver(SETTINGS)
    rack_filter = _RackFilter()
    driver.filters = (*driver.filters, Adapter(SETTINGS, "RackFilter", rack_filter))
    took = decided_ms(fleet, driver, lambda: (spec_of(fleet), []), 5)
    yield Figure("a server, with a site's own filter", took)
    yield Figure("hosts that it is asked of, for each", rack_filter.calls / 5, "hosts")


def cell_figures(fleets: Fleets) -> Iterator[Figure]:
    weighers = (*DEFAULT_WEIGHERS, "CellSpreadWeigher", "CellCapacityWeigher")
    for count in (8, min(MANY_CELLS, fleets.hosts // 10)):
        fleet, size = fleets.get(cells=count), min(BATCH, fleets.hosts // 10)
        ask = partial(_small_ones, fleet, size)
        for name, enabled in (("", DEFAULT_WEIGHERS), (", cell weighers", weighers)):
            driver = load_driver(SchedulerSettings(enabled_filters=FILTERS, enabled_weighers=enabled))
            yield Figure(f"batch of {size}, {count:,} cells{name}", decided_ms(fleet, driver, ask, 3))
            decision = make_decision(fleet, driver, spec_of(fleet), [])[2].decision
            yield Figure(f"record of a decision, {count:,} cells{name}", len(stored.dump_value(decision)) / 1e3, "kB")


def _small_ones(fleet: Fleet, count: int) -> tuple[RequestSpec, list[Slot]]:
    return spec_of(fleet, count, flavor=fleet.small_flavor), []


def refusal_figures(fleets: Fleets) -> Iterator[Figure]:
    fleet, driver = fleets.get(), load_driver(SETTINGS)
    huge = msgspec.structs.replace(fleet.small_flavor, vcpus=1000)
    fleet.table.set_topology(fleet.mappings, fleet.homes | {"new": fleet.cells[0]}, fleet.zones, fleet.aggregates)
    yield Figure(
        "the first refusal after a host was mapped", cpu_ms(lambda: refuse_request(fleet, driver, spec_of(fleet, flavor=huge)))
    )
    fleet.table.set_topology(fleet.mappings, fleet.homes, fleet.zones, fleet.aggregates)
    yield Figure(
        "a refusal that one change would mend", median_ms(lambda: refuse_request(fleet, driver, spec_of(fleet, flavor=huge)))
    )
    flavors = sorted(FLAVORS, key=by_size)
    larger = msgspec.structs.replace(huge, memory_mb=2**40)
    conditions = {f"trait:T{number}": "required" for number in range(8)}
    for name, flavor in (("two changes", larger), ("nothing", msgspec.structs.replace(larger, extra_specs=conditions))):
        again = partial(refuse_request, fleet, driver, spec_of(fleet, flavor=flavor), flavors)
        yield Figure(f"a refusal that {name} would mend, with the largest flavor", median_ms(again))
    wide = msgspec.structs.replace(fleet.small_flavor, vcpus=24)
    ask = spec_of(fleet, 10, flavor=wide, group=group_of(GroupPolicy.AFFINITY))
    yield Figure("affinity batch of 10 that fits nowhere", median_ms(lambda: refuse_request(fleet, driver, ask)))


def refuse_request(fleet: Fleet, driver: SchedulerDriver, spec: RequestSpec, flavors: Sequence[Flavor] = ()) -> None:
    mono = time.monotonic()
    job = Job(CONTEXT, spec, tuple(spec.fences))
    moment = PlanContext(mono, time.time(), mono - 60.0, young=False, mapped_since=mono - 15.0, ages=fleet.ages)
    moment = moment._replace(flavors=lambda _: flavors)
    attempt = ClaimPlanner(fleet.table, driver, Cursor(), [job], moment)
    attempt.plan_jobs([], [Standing(needed=tuple(spec.fences))], [])
    attempt.finish_plan()
    if job.placements:
        raise AssertionError("a request that should fit nowhere was placed")


PARTS: Mapping[str, Callable[[Fleets], Iterator[Figure]]] = {
    part.__name__.removesuffix("_figures"): part
    for part in (
        topology_figures,
        aggregate_figures,
        heartbeat_figures,
        cell_figures,
        group_figures,
        numa_nodes,
        site_filter,
        refusal_figures,
        reading_figures,
    )
}


def _check_counts() -> None:
    """Ends with an error if a count is above its limit."""
    beyond = 0
    for count in all_counts(_RackFilter(), refuse_request):
        is_beyond = count.value > count.limit
        beyond += is_beyond
        limit = f"of {count.limit:g} {count.unit}{', too many' if is_beyond else ''}"
        print(f"{count.name:60} {count.value:>10.3f} {limit}", flush=True)
    if beyond:
        raise SystemExit(f"{beyond} counts are above their limits")


def main() -> None:
    parser = parser_of(__doc__, "counts instead of seconds, on a small fleet, and their limits")
    parser.add_argument("--hosts", type=int, default=100_000)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    options = parser.parse_args()
    if options.smoke:
        _check_counts()
        return
    fleets = Fleets(options.hosts)
    print(f"{fleets.hosts:,} hosts")
    for name in options.only:
        for figure in PARTS[name](fleets):
            print(f"{figure.name:60} {figure.value:>10.2f} {figure.unit}", flush=True)


if __name__ == "__main__":
    main()
