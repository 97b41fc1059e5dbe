"""What it costs to count how many more servers fit: the time under the table's lock, and the processor's.

``python bench/capacity.py`` measures fleets of 1,000, 10,000 and 100,000 hosts as ``bench/_fleet.py`` makes them, 70 % full. It
counts each of ten flavors alone, and three of them together. It places 2,000 servers of a lost cell elsewhere, and plans moves of
5 % of the servers. ``--smoke`` takes a small fleet.

"loaded" adds the filters that limit the number of servers of a host: arithmetic does not know them, so that some hosts are tried
several times.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

sys.path.append(str(Path(__file__).parent.parent))  # last, so that what is installed comes first

from bench._fleet import FLAVORS, Fleet
from bench._script import parser_of
from bench.decisions import CONTEXT, FILTERS, spec_of
from db.api.claims.displaced import ClaimedBody, DisplacedServers
from db.api.operations.movable import MovableServers
from objects.capacity import FlavorRoom, Loss, LossKind, LossOutcome
from scheduler.engine import capacity
from scheduler.engine.driver import SchedulerDriver
from scheduler.engine.job import Job, PlanContext
from scheduler.framework.batch_request import Request
from scheduler.framework.settings import DEFAULT_FILTERS, SchedulerSettings
from scheduler.plugins import load_driver
from scheduler.what_if import failure_simulation, rebalance
from scheduler.what_if.rebalance import RebalancePlan, Rebalancer

T = TypeVar("T")


def flavor_requests(fleet: Fleet) -> list[Request]:
    """A request for a server of each flavor."""
    mono = time.monotonic()
    moment = PlanContext(mono, time.time(), mono - 600.0, young=False, mapped_since=mono - 15.0, ages=fleet.ages)
    return [Job(CONTEXT, spec_of(fleet, flavor=flavor), ()).make_request(fleet.table, moment) for flavor in FLAVORS]


def measure_cost(count: Callable[[], T], rounds: int) -> tuple[float, float, T]:
    """Median milliseconds, and those of the processor at best; and the result."""
    took, used = [], []
    for _ in range(rounds):
        began, cpu = time.perf_counter(), time.thread_time()
        result = count()
        used.append(time.thread_time() - cpu)
        took.append(time.perf_counter() - began)
    return statistics.median(took) * 1e3, min(used) * 1e3, result


def measure_room(fleet: Fleet, driver: SchedulerDriver, label: str, rounds: int) -> None:
    """A row for the cheapest and the dearest flavor, and one for three flavors together."""

    def count_room(request: Request) -> FlavorRoom:
        request._memory.clear()  # as a question of its own
        return capacity.flavor_room(fleet.table, request.spec.flavor.name, capacity.host_room(fleet.table, driver, request))

    all_requests, hosts = flavor_requests(fleet), len(fleet.nodes)
    costs = sorted((measure_cost(partial(count_room, request), rounds) for request in all_requests), key=lambda timing: timing[1])
    for took, used, room in (costs[0], costs[-1]):
        print(f"{hosts:>8}  {label:8} {room.flavor:12} {took:>8.1f} {used:>8.1f} {room.servers:>10,} servers")
    three = [all_requests[0], all_requests[3], all_requests[6]]
    alone = [capacity.host_room(fleet.table, driver, request) for request in three]
    took, used, sets = measure_cost(lambda: capacity.sets_room(fleet.table, driver, three, alone), rounds)
    print(
        f"{hosts:>8}  {label:8} {'three of them':12} {took:>7.1f} {used:>8.1f} {sets.least:>10,} to {sets.most:,} sets", flush=True
    )


def measure_loss(fleet: Fleet, driver: SchedulerDriver, servers: int, rounds: int) -> None:
    """A row for placing so many servers of a lost cell elsewhere, of ten flavors."""
    lost, mono = Loss(kind=LossKind.CELL, name=fleet.cells[0]), time.monotonic()
    moment = PlanContext(mono, time.time(), mono - 600.0, young=False, mapped_since=mono - 15.0, ages=fleet.ages)
    specs = {flavor.name: spec_of(fleet, flavor=flavor) for flavor in FLAVORS}
    bodies = tuple(
        ClaimedBody(uuid=f"b{n}", server_uuid=f"s{n}", name="server", batch_id=FLAVORS[n % len(FLAVORS)].name, inventory_id=1)
        for n in range(servers)
    )
    displaced = DisplacedServers(bodies=bodies, specs=specs, slots=())
    rows = failure_simulation.rows_of(fleet.table, lost)

    def place_servers() -> LossOutcome:
        with fleet.table.take_tentatively():
            return failure_simulation.place_bodies(
                fleet.table, driver, moment, failure_simulation.kinds_of(CONTEXT, displaced, lost, ()), (), rows
            )

    took, used, outcome = measure_cost(place_servers, rounds)
    summary = f"{outcome.placed:,} of {outcome.servers:,} servers of a lost cell"
    print(f"{len(fleet.nodes):>8}  {'default':8} {'a lost cell':12} {took:>9.1f} {used:>8.1f} {summary}", flush=True)


def measure_moves(fleet: Fleet, driver: SchedulerDriver, at_most: float, rounds: int) -> None:
    """A row for planning moves of so many per cent of the servers, each of the smallest flavor."""
    table, mono = fleet.table, time.monotonic()
    moment = PlanContext(mono, time.time(), mono - 600.0, young=False, mapped_since=mono - 15.0, ages=fleet.ages)
    allowed = min(int(table.instances[: table.size].sum() * at_most / 100), rebalance.server_limit(table))
    rows = rebalance.source_rows(table, moment, allowed)
    bodies = tuple(
        ClaimedBody(
            uuid=f"b{row}-{n}", server_uuid=f"s{row}-{n}", name="server", batch_id="b", inventory_id=table.inventory.item(row)
        )
        for row in rows.tolist()
        for n in range(table.instances.item(row))
    )
    spec = spec_of(fleet, flavor=FLAVORS[0])
    places = {table.inventory.item(row): (table.hosts[row], table.cells[table.cell.item(row)].uuid) for row in rows.tolist()}
    movable = MovableServers(
        claims=DisplacedServers(bodies=bodies, specs={"b": spec}, slots=()),
        specs=dict.fromkeys((body.uuid for body in bodies), spec),
        hosts={body.uuid: places[body.inventory_id] for body in bodies},
        live=frozenset(),
        kept={},
    )
    movers = rebalance.movers_of(CONTEXT, movable)

    def plan_moves() -> RebalancePlan:
        rebalancer = Rebalancer(table, driver, moment, (), table.inventory[rows].tolist(), movers, allowed)
        rebalancer.run()
        return rebalancer.plan_so_far

    took, used, plan = measure_cost(plan_moves, rounds)
    summary = f"{len(plan.moves):,} moves empty {len(plan.rows):,} hosts, {rebalance.emptied_bound(table, allowed):,} at most"
    print(f"{len(fleet.nodes):>8}  {'default':8} {'moves':12} {took:>9.1f} {used:>8.1f} {summary}", flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = parser_of(__doc__, "a small fleet for a moment: does it still work?")
    parser.add_argument("--rounds", type=int, default=20, help="of each flavor")
    parser.add_argument("--hosts", type=int, nargs="+", default=[1_000, 10_000, 100_000], help="the sizes of the fleets")
    options = parser.parse_args(arguments)
    print(f"{'':28} {'ms':>13} {'ms CPU':>8}")
    for hosts in [300] if options.smoke else options.hosts:
        fleet = Fleet(hosts)
        for label, filters in (("default", DEFAULT_FILTERS), ("loaded", FILTERS)):
            measure_room(
                fleet, load_driver(SchedulerSettings(enabled_filters=filters)), label, 2 if options.smoke else options.rounds
            )
        measure_loss(fleet, load_driver(SchedulerSettings()), 100 if options.smoke else 2000, 3)
        measure_moves(fleet, load_driver(SchedulerSettings()), 5.0, 3)


if __name__ == "__main__":
    main()
