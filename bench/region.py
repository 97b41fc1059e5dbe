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
from collections.abc import Iterable, Mapping
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import msgspec
from rich.console import Console

from bench._load import Load, Measured, Sizes
from bench._place import SMALL, running_region
from bench._report import print_report
from bench._script import parser_of
from deploy.local.backing import Backing
from deploy.local.shape import Shape

SHORT = Sizes(idle=2.0, alone=3, singles=24, crowds=1, crowd=10, large=60)
QUORUM = "?rabbit_quorum_queue=true"


class QuorumBacking(Backing):
    """Its broker's URLs ask for quorum queues: in the files of all processes and in the cell mappings."""

    def make_hosts(self, names: Iterable[str]) -> Mapping[str, str]:
        return {name: url + QUORUM for name, url in super().make_hosts(names).items()}


KINDS = {"classic": Backing, "quorum": QuorumBacking}


def measure_region(kind: str, console: Console, *, smoke: bool) -> Measured:
    """Start a region, run everything on it, stop it."""
    began = time.monotonic()

    def print_stage(stage: str) -> None:
        console.print(f"[{time.monotonic() - began:4.0f} s] {kind} queues: {stage}", markup=False, highlight=False)

    print_stage("making a region and starting its processes")
    with running_region(SMALL if smoke else Shape(), smoke=smoke, backing=KINDS[kind]) as bench:
        return Load(bench.meter, bench.client).run_all(SHORT if smoke else Sizes(), print_stage)


def main() -> None:
    parser = parser_of(__doc__, "a moment; the figures mean nothing")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all that was measured here")
    options = parser.parse_args()
    console = Console(width=160)
    kinds = ("quorum",) if options.smoke else tuple(KINDS)
    measured_by_queue = {kind: measure_region(kind, console, smoke=options.smoke) for kind in kinds}
    print_report(measured_by_queue[kinds[0]], measured_by_queue[kinds[-1]], console)
    if options.json:
        options.json.write_bytes(msgspec.json.format(msgspec.json.encode(measured_by_queue)))


if __name__ == "__main__":
    main()
