"""What one boot costs a whole region of separate processes on RabbitMQ and MariaDB: statements, messages, CPU, memory, time.

    python bench/region.py               the figures of docs/performance.md, in less than ten minutes (make bench-region)
    python bench/region.py --json FILE   the same, and everything that was measured in FILE
    python bench/region.py --smoke       the same paths in a moment, in a small region, once; figures not to be quoted

The region is one of deploy.local with servers of its own: 2 APIs, 2 super conductors, 2 schedulers, and in each of 2 cells 2
conductors and 10 agents whose guests spawn in no time; heartbeats, sweeps and audits come as often as they do by default (a local
region that is not measured is in more of a hurry). It runs twice: with the classic durable queues it is configured with, and
with quorum queues. The clients are this process, whose time is told apart.

Statements are counted by the database server, for each database by its user: what it is sent, without BEGIN, COMMIT, ROLLBACK and
SET. One executemany that the driver sends as several statements counts as several, so these are more than bench/boots.py counts.
Messages are counted by the broker: what is put into queues, an answer being one more. What an idle region does on the clock is
measured alone and taken off the counts per boot; reports of a host's room, which follow from a boot, are in them. CPU time is that
of all processes and both servers while the load ran, with nothing taken off.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import msgspec
from rich.console import Console

from bench._counters import Meter
from bench._load import Load, Measured, Sizes
from bench._place import Client, prepared_region, start_processes
from bench._report import print_report
from bench._script import needs_region, parser_of
from deploy.local.shape import Shape

SMALL = Shape(apis=1, supers=1, schedulers=1, conductors=1, agents=2)
SHORT = Sizes(idle=2.0, alone=3, singles=24, crowds=1, crowd=10, large=60)


def measure_region(shape: Shape, sizes: Sizes, *, quorum: bool, console: Console) -> Measured:
    """Start a region, run everything on it, stop it."""
    began = time.monotonic()

    def print_stage(stage: str) -> None:
        kind = "quorum" if quorum else "classic"
        console.print(f"[{time.monotonic() - began:4.0f} s] {kind} queues: {stage}", markup=False, highlight=False)

    print_stage("making a region")
    with prepared_region(shape, quorum=quorum) as region:
        meter = Meter(region)
        try:
            print_stage("starting its processes")
            start_processes(region)
            return Load(meter, Client(region)).run_all(sizes, print_stage)
        finally:
            meter.close()


def main() -> None:
    parser = parser_of(__doc__, "a moment; the figures mean nothing")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all that was measured here")
    options = parser.parse_args()
    console = Console(width=160)
    shape, sizes = (SMALL, SHORT) if options.smoke else (Shape(), Sizes())
    measured_by_queue: Mapping[str, Measured]
    with needs_region(smoke=options.smoke):
        kinds = ("quorum",) if options.smoke else ("classic", "quorum")
        measured_by_queue = {kind: measure_region(shape, sizes, quorum=kind == "quorum", console=console) for kind in kinds}
    print_report(measured_by_queue[kinds[0]], measured_by_queue[kinds[-1]], console)
    if options.json:
        options.json.write_bytes(msgspec.json.format(msgspec.json.encode(measured_by_queue)))


if __name__ == "__main__":
    main()
