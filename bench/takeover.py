"""How long the work of a killed conductor lies, with the default options: a region of separate processes on RabbitMQ and MariaDB.

    python bench/takeover.py            ten kills of a super conductor and ten of a cell's (about five minutes)
    python bench/takeover.py --smoke    one of each; figures not to be quoted

A super conductor is stopped in the middle of what it holds leases for, its rows are read, and all of its processes get SIGKILL.
Told is how long after that the last of those rows had another owner or was decided, and how long until its servers were ACTIVE. Of
a cell, one of two conductors is killed while boots are under way; told is when the last of these was ACTIVE. Killed processes are
started again only for the next round.
"""

from __future__ import annotations

import contextlib
import os
import signal
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import sqlalchemy as sa

from bench._place import Bench, running_region, start_processes
from bench._script import parser_of
from db.api.rows.tables import build_requests
from db.api.servers import mappings
from db.sql.engine import Database
from deploy.local.processes import is_master
from deploy.local.shape import Shape
from service.periodic import wait_until

SHAPE = Shape(cells=1, apis=1, supers=2, schedulers=1, conductors=2, agents=2)
BOOTS_PER_REQUEST = 40
TAKEOVER_TIMEOUT_S = 120.0


class Kills:
    """Kills in a region that serves, whose API database it looks into."""

    def __init__(self, bench: Bench) -> None:
        self.region = bench.region
        self.client = bench.client
        self.database = Database(bench.region.folder.database_url("api"), name="api")
        self._posts = 0

    def boot_batch(self) -> str:
        """Ask for a batch; the name its servers begin with."""
        self._posts += 1
        name = f"take{self._posts}-"
        self.client.boot_servers(name, BOOTS_PER_REQUEST)
        return name

    def super_conductor(self) -> tuple[float, float]:
        """Seconds until everything that a killed super conductor held was taken over, and until it was ACTIVE."""
        while True:
            name = self.boot_batch()
            held, pid = self._stopped_holder()
            if held:
                break
            if pid:
                os.kill(pid, signal.SIGCONT)
            self._all_active(name)
        owner = held[0][1]
        member = next(candidate for candidate, pids in self.region.table.pids_by_member().items() if pid in pids)
        killed = self._kill_member(member)
        uuids = {uuid for uuid, _ in held}
        self._wait(lambda: not uuids & {uuid for uuid, by in self._list_owners() if by == owner})
        taken = time.monotonic() - killed
        self._all_active(name)
        done = time.monotonic() - killed
        start_processes(self.region)
        return taken, done

    def cell_conductor(self, number: int) -> tuple[float, float]:
        """The same of a cell's conductor, which holds nothing but what was on its way to it: both times are until ACTIVE."""
        names = [self.boot_batch() for _ in range(3)]
        killed = self._kill_member(f"cell1-conductor-{number % 2 + 1}")
        self._all_active(*names)
        done = time.monotonic() - killed
        start_processes(self.region)
        return done, done

    def _stopped_holder(self) -> tuple[list[tuple[str, str]], int]:
        """Stop the first conductor that is seen with a lease. What it holds then, as (instance, owner), and its process."""
        give_up = time.monotonic() + 2.0
        while not (owners := self._list_owners()):
            if time.monotonic() > give_up:
                return [], 0
        _, owner = owners[0]
        pid = int(owner.split(":")[1])
        os.kill(pid, signal.SIGSTOP)
        time.sleep(0.3)  # what it has sent is carried out
        return [pair for pair in self._list_owners() if pair[1] == owner], pid

    def _list_owners(self) -> list[tuple[str, str]]:
        query = sa.select(build_requests.c.instance_uuid, build_requests.c.owner).where(build_requests.c.owner.is_not(None))
        return self.database.read(lambda tx: [(row.instance_uuid, row.owner) for row in tx.execute(query)])

    def _kill_member(self, member: str) -> float:
        # the master first: it would replace a worker
        pids = sorted(self.region.table.pids_by_member()[member], key=is_master, reverse=True)
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return time.monotonic()

    def _all_active(self, *names: str) -> None:
        """Wait until every server of these batches is ACTIVE."""

        def are_active(name: str) -> bool:
            query = mappings.ServerQuery(name=f"^{name}", phases=("active",), limit=1000)
            return len(self.database.read(mappings.list_, query)) == BOOTS_PER_REQUEST

        self._wait(lambda: all(are_active(name) for name in names))

    def _wait(self, condition: Callable[[], bool]) -> None:
        if not wait_until(condition, TAKEOVER_TIMEOUT_S, pause=0.05):
            raise TimeoutError(f"not after {TAKEOVER_TIMEOUT_S:g} s")


def print_times(label: str, seconds: Sequence[float]) -> None:
    print(f"{label:<75} median {statistics.median(seconds):5.1f} s, longest {max(seconds):5.1f} s, of {len(seconds)}", flush=True)


def main() -> None:
    parser = parser_of(__doc__, "one kill of each; the figures mean nothing")
    smoke = parser.parse_args().smoke
    rounds = 1 if smoke else 10
    with running_region(SHAPE, smoke=smoke, messages=False) as bench:
        kills = Kills(bench)
        takeovers = [kills.super_conductor() for _ in range(rounds)]
        print_times("super conductor killed: until its leases were taken over or decided", [taken for taken, _ in takeovers])
        print_times("super conductor killed: until its servers were ACTIVE", [done for _, done in takeovers])
        cell = [kills.cell_conductor(number) for number in range(rounds)]
        print_times("cell's conductor killed: until all that was under way was ACTIVE", [done for done, _ in cell])
        kills.database.dispose_connections()


if __name__ == "__main__":
    main()
