"""What a replay costs, and what LeftoverWeigher adds to a decision.

``python bench/lab.py`` makes a trace of 52,000 servers and replays it on as many hosts as are nearly full at its peak: with the
weighers that spread, with the defaults, which pack when 55 % of the fleet is used, and packed from the first server
on. ``--trace FILE --fleet FILE`` replays those instead. Then it decides for fleets of 1,000 and 10,000 hosts as
``bench/_fleet.py`` makes them, by turns with each of the three. ``--smoke`` takes a moment.

Seconds and microseconds are the processor's, of one process.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parent.parent))  # last, so that what is installed comes first
sys.path.remove(str(Path(__file__).parent))  # this file is no room of the product, and has the name of one

from bench._fleet import Fleet
from bench._script import parser_of
from bench.decisions import FILTERS, make_decision, plain_request
from lab.demand import demand_of
from lab.fleet import read_fleet
from lab.replay import Checkpoint, TraceReplay
from lab.trace import open_trace
from scheduler.framework.settings import SPREADING_WEIGHERS, SchedulerSettings
from scheduler.plugins import load_driver
from tests.support.traces import made_fleet, made_trace

SERVERS, HOSTS = 52_000, 270
"""Of the trace that is made."""
KINDS: dict[str, dict[str, Any]] = {
    "spread": {"enabled_weighers": SPREADING_WEIGHERS},
    "the defaults": {},
    "always packed": {"leftover_from": 0.0},
}


def show_replays(trace_path: Path, fleet_path: Path) -> None:
    """A line for each policy."""
    trace, fleet = open_trace(trace_path), read_fleet(fleet_path)
    demand = demand_of(trace, fleet)
    print(f"replay of {demand.servers:,} servers on {len(fleet):,} hosts; by volume the peak needs {demand.bound.hosts:,}")
    print(f"{'':22} {'CPU s':>8} {'us a server':>12} {'rejected':>9} {'core-days lost':>15}")
    for name, chosen in KINDS.items():
        replay = TraceReplay(trace, fleet, demand, SchedulerSettings(**chosen), 0, Checkpoint())
        outcome = replay.run(lambda checkpoint: None, lambda servers: None)
        lost = f"{outcome.vcpu_days_lost:.2f} %" if outcome.vcpu_days_lost is not None else "-"
        print(
            f"{name:22} {outcome.cpu_us * outcome.servers / 1e6:>8.2f} {outcome.cpu_us:>12.1f} {outcome.rejected:>9,} {lost:>15}",
            flush=True,
        )


def measure_decisions(hosts: int, count: int) -> None:
    """Medians of decisions with each kind of weighers, by turns on one fleet."""
    fleet = Fleet(hosts)
    drivers = {name: load_driver(SchedulerSettings(enabled_filters=FILTERS, **chosen)) for name, chosen in KINDS.items()}
    took: dict[str, list[float]] = {name: [] for name in drivers}
    for number in range(count):
        if number % 500 == 0:
            for cell in fleet.cells:
                fleet.report_hosts(cell)
        for name, driver in drivers.items():
            spec, slots = plain_request(fleet)
            took[name].append(make_decision(fleet, driver, spec, slots)[1])
    medians = {name: statistics.median(measured) * 1e6 for name, measured in took.items()}
    first = next(iter(medians.values()))
    print(
        f"a decision on {hosts:,} hosts:",
        "; ".join(f"{name} {measured:.0f} us, {measured / first:.2f}" for name, measured in medians.items()),
    )


def main() -> None:
    parser = parser_of(__doc__, "a small trace and fleet: does it still work?")
    parser.add_argument("--trace", type=Path, help="a trace of a format that the lab reads")
    parser.add_argument("--fleet", type=Path, help="its fleet")
    parser.add_argument("--decisions", type=int, default=2000, help="of each kind")
    options = parser.parse_args()
    if (options.trace is None) != (options.fleet is None):
        parser.error("--trace and --fleet go together")
    with tempfile.TemporaryDirectory() as folder:
        trace = options.trace or made_trace(Path(folder) / "trace.csv", 500 if options.smoke else SERVERS)
        show_replays(trace, options.fleet or made_fleet(Path(folder) / "fleet.csv", HOSTS))
    for hosts in (300,) if options.smoke else (1_000, 10_000):
        measure_decisions(hosts, 30 if options.smoke else options.decisions)


if __name__ == "__main__":
    main()
