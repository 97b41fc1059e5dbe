"""What stands beside the plain decision: it costs CPU under the table's lock, which every decision needs.

``python bench/cliffs.py [--hosts 100000] [--only NAME ...]``. Milliseconds of CPU of this thread, the median of some rounds.
``--smoke`` counts rows (``bench/_cliff_counts.py``), fails where there are too many, and takes a small fleet.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

sys.path.append(str(Path(__file__).parent.parent))  # last, so that what is installed comes first

from bench._cliff_counts import RackFilter, all_counts, refuse_request
from bench._fleet import FLAVORS, Fleet
from bench._script import parser_of
from bench.decisions import CONTEXT, FILTERS, group_of, make_decision, members_on, moment_of, plain_request, spec_of
from objects.aggregate import Aggregate
from objects.group import GroupPolicy
from objects.inventory import Slot
from objects.spec import RequestSpec
from scheduler.engine import capacity
from scheduler.engine.driver import SchedulerDriver
from scheduler.engine.job import Job
from scheduler.explain.largest_flavor import by_size
from scheduler.filters.adapter import Adapter
from scheduler.framework.batch_request import Request
from scheduler.framework.settings import DEFAULT_WEIGHERS, SPREADING_WEIGHERS, SchedulerSettings
from scheduler.plugins import load_driver

BATCH = 1000
GROUP_SIZE = 1000
SMOKE_HOSTS = 300
SETTINGS = SchedulerSettings(enabled_filters=FILTERS, enabled_weighers=DEFAULT_WEIGHERS)

Ask = Callable[[Fleet], tuple[RequestSpec, list[Slot]]]


class Figure(NamedTuple):
    """One row: milliseconds of CPU, or another number with its unit."""

    name: str
    value: float
    unit: str = "ms"


def cpu_ms(act: Callable[[], object]) -> float:
    began = time.thread_time()
    act()
    return (time.thread_time() - began) * 1e3


def median_ms(act: Callable[[], object], rounds: int = 5) -> float:
    return statistics.median(cpu_ms(act) for _ in range(rounds))


def decided_ms(fleet: Fleet, driver: SchedulerDriver, ask: Ask, rounds: int) -> float:
    """A decision and its claim, whose servers are deleted again."""
    return statistics.median(make_decision(fleet, driver, *ask(fleet))[1] for _ in range(rounds)) * 1e3


def ask_plain(fleet: Fleet) -> tuple[RequestSpec, list[Slot]]:
    return plain_request(fleet)[0], []


def ask_alike(fleet: Fleet, members: Sequence[Slot] = (), count: int = 1, **changes: object) -> tuple[RequestSpec, list[Slot]]:
    """The same request again, of other servers."""
    return spec_of(fleet, count, **changes), list(members)


def ask_of_new_group(policy: GroupPolicy, count: int, fleet: Fleet) -> tuple[RequestSpec, list[Slot]]:
    return ask_alike(fleet, count=count, flavor=fleet.small_flavor, group=group_of(policy))


def group_figures(fleet: Fleet) -> Iterator[Figure]:
    driver, size = load_driver(SETTINGS), min(BATCH, len(fleet.nodes) // 10)
    yield Figure(f"batch of {size}", decided_ms(fleet, driver, partial(ask_alike, count=size, flavor=fleet.small_flavor), 3))
    for policy in (GroupPolicy.ANTI_AFFINITY, GroupPolicy.SOFT_ANTI_AFFINITY, GroupPolicy.SOFT_AFFINITY):
        took = decided_ms(fleet, driver, partial(ask_of_new_group, policy, size), 3)
        yield Figure(f"batch of {size}, {policy.value}, empty group", took)
    yield Figure("a plain server", decided_ms(fleet, driver, ask_plain, 50))
    group = group_of(GroupPolicy.ANTI_AFFINITY)
    hosts = [node.host for node in fleet.chance.sample(fleet.nodes, min(GROUP_SIZE, len(fleet.nodes) // 2))]
    one_more = partial(ask_alike, members=members_on(group, hosts), group=group)
    yield Figure(f"one more member of a group of {len(hosts)}", decided_ms(fleet, driver, one_more, 20))


def by_turns(kinds: Mapping[str, tuple[Fleet, SchedulerDriver, Ask]]) -> Iterator[Figure]:
    """The 5th percentile of 240 decisions of each kind. Of each turn of nine, three are not counted."""
    took: dict[str, list[float]] = {name: [] for name in kinds}
    for _ in range(40):
        for name, (fleet, driver, ask) in kinds.items():
            for cell in fleet.cells:
                fleet.report_hosts(cell)
            took[name] += [make_decision(fleet, driver, *ask(fleet))[1] * 1e6 for _ in range(9)][3:]
    for name, durations in took.items():
        yield Figure(name, sorted(durations)[len(durations) // 20], "us")


def packing_figures(fleet: Fleet) -> Iterator[Figure]:
    """The weighers that spread; the defaults, which pack once the fleet is used enough; and packed from the first server on."""
    kinds: dict[str, dict[str, Any]] = {
        "spread": {"enabled_weighers": SPREADING_WEIGHERS},
        "the defaults": {},
        "always packed": {"leftover_from": 0.0},
    }
    drivers = {name: load_driver(SchedulerSettings(enabled_filters=FILTERS, **chosen)) for name, chosen in kinds.items()}
    yield from by_turns({f"a server, {name}": (fleet, driver, ask_plain) for name, driver in drivers.items()})


def numa_nodes(flat: Fleet) -> Iterator[Figure]:
    """By turns on the same fleet without nodes and with two on each host, with racks, fault domains and AffinityRoomWeigher."""
    divided = Fleet(len(flat.nodes))
    for fleet in (flat, divided):
        fleet.table.set_topology(fleet.mappings, fleet.homes, fleet.zones, [*fleet.aggregates, *_physical_racks(fleet)])
    divided.divide_hosts()
    plainly = load_driver(SETTINGS)
    room = load_driver(SchedulerSettings(enabled_filters=FILTERS, enabled_weighers=(*DEFAULT_WEIGHERS, "AffinityRoomWeigher")))
    one, two = FLAVORS[2], msgspec.structs.replace(FLAVORS[2], extra_specs={"hw:numa_nodes": "2"})
    first, group = group_of(GroupPolicy.AFFINITY), group_of(GroupPolicy.SOFT_ANTI_AFFINITY)
    members = [
        msgspec.structs.replace(slot, fault_domain=domain)
        for slot, domain in zip(members_on(group, [node.host for node in flat.chance.sample(flat.nodes, 6)]), "aaabbb", strict=True)
    ]
    hints = {"group": (group.uuid,), "fault_domain": ("a",)}
    in_domain = partial(ask_alike, members=members, group=group, scheduler_hints=hints)
    yield from by_turns(
        {
            "a plain server, no host has nodes": (flat, plainly, ask_plain),
            "a plain server, each host has two nodes": (divided, plainly, ask_plain),
            "a server on two nodes": (divided, plainly, partial(ask_alike, flavor=two)),
            "the first of an affinity group": (flat, room, partial(ask_alike, flavor=one, group=first)),
            "the first of an affinity group, on two nodes": (divided, room, partial(ask_alike, flavor=two, group=first)),
            "a member of a fault domain": (flat, room, partial(in_domain, flavor=one)),
            "a member of a fault domain, on two nodes": (divided, room, partial(in_domain, flavor=two)),
        }
    )


def _physical_racks(fleet: Fleet) -> list[Aggregate]:
    names = [node.host for node in fleet.nodes]
    return [
        Aggregate(id=10**6 + n, name=f"physical {n}", hosts=tuple(names[n::100]), metadata={"rack": str(n)}) for n in range(100)
    ]


def site_filter(fleet: Fleet) -> Iterator[Figure]:
    """A site's own filter, which looks at hosts one by one."""
    driver, rack_filter = load_driver(SETTINGS), RackFilter()
    driver.filters = (*driver.filters, Adapter(SETTINGS, "RackFilter", rack_filter))
    yield Figure("a server, with a site's own filter", decided_ms(fleet, driver, ask_alike, 5))
    yield Figure("hosts that it is asked of, for each", rack_filter.calls / 5, "hosts")


def refusal_figures(fleet: Fleet) -> Iterator[Figure]:
    driver = load_driver(SETTINGS)
    huge = msgspec.structs.replace(fleet.small_flavor, vcpus=1000)
    fleet.table.set_topology(fleet.mappings, fleet.homes | {"new": fleet.cells[0]}, fleet.zones, fleet.aggregates)
    refuse_huge = partial(refuse_request, fleet, driver, spec_of(fleet, flavor=huge))
    yield Figure("the first refusal after a host was mapped", cpu_ms(refuse_huge))
    fleet.table.set_topology(fleet.mappings, fleet.homes, fleet.zones, fleet.aggregates)
    yield Figure("a refusal that one change would mend", median_ms(refuse_huge))
    flavors = sorted(FLAVORS, key=by_size)
    larger = msgspec.structs.replace(huge, memory_mb=2**40)
    conditions = {f"trait:T{number}": "required" for number in range(8)}
    for name, flavor in (("two changes", larger), ("nothing", msgspec.structs.replace(larger, extra_specs=conditions))):
        again = partial(refuse_request, fleet, driver, spec_of(fleet, flavor=flavor), flavors)
        yield Figure(f"a refusal that {name} would mend, with the largest flavor", median_ms(again))
    wide = msgspec.structs.replace(fleet.small_flavor, vcpus=24)
    ask = spec_of(fleet, 10, flavor=wide, group=group_of(GroupPolicy.AFFINITY))
    yield Figure("affinity batch of 10 that fits nowhere", median_ms(partial(refuse_request, fleet, driver, ask)))


def capacity_figures(fleet: Fleet) -> Iterator[Figure]:
    """How many more servers fit: the cheapest and the dearest of ten flavors, and three of them together.

    "loaded" adds the filters that limit the number of servers of a host: arithmetic does not know them.
    """
    moment = moment_of(fleet)
    for label, settings in (("default", SchedulerSettings()), ("loaded", SchedulerSettings(enabled_filters=FILTERS))):
        driver = load_driver(settings)
        specs = [spec_of(fleet, flavor=flavor) for flavor in FLAVORS]
        room_requests = [Job(CONTEXT, spec, ()).make_request(fleet.table, moment) for spec in specs]
        costs = [median_ms(partial(_count_room, fleet, driver, request)) for request in room_requests]
        took = sorted(zip(costs, (flavor.name for flavor in FLAVORS), strict=True))
        for milliseconds, flavor in (took[0], took[-1]):
            yield Figure(f"how many {flavor} fit, {label} filters", milliseconds)
        three = [room_requests[0], room_requests[3], room_requests[6]]
        alone = [capacity.host_room(fleet.table, driver, request) for request in three]
        together = median_ms(partial(capacity.sets_room, fleet.table, driver, three, alone))
        yield Figure(f"how many sets of three flavors fit, {label} filters", together)


def _count_room(fleet: Fleet, driver: SchedulerDriver, request: Request) -> object:
    request._memory.clear()  # as a question of its own
    return capacity.flavor_room(fleet.table, request.spec.flavor.name, capacity.host_room(fleet.table, driver, request))


PARTS: Mapping[str, Callable[[Fleet], Iterator[Figure]]] = {
    part.__name__.removesuffix("_figures"): part
    for part in (group_figures, packing_figures, numa_nodes, site_filter, refusal_figures, capacity_figures)
}


def _check_counts() -> None:
    """Ends with an error if a count is above its limit."""
    beyond = 0
    for count in all_counts():
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
    for name in options.only:
        for figure in PARTS[name](Fleet(SMOKE_HOSTS if options.smoke else options.hosts)):
            print(f"{figure.name:60} {figure.value:>10.2f} {figure.unit}", flush=True)


if __name__ == "__main__":
    main()
