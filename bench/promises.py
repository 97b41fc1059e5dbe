"""What a region of separate processes promises whatever its speed: even hosts, exact slots, and restarts that nobody notices.

    python bench/promises.py            100 boots on 20 equal hosts; 120 for 100 slots, ten times; all restarted under load
    python bench/promises.py --smoke    in small, without the race

The race: 120 servers asked for in one moment, each by itself, where there is room for 100: exactly 100 become ACTIVE, and each of
the others ends in ERROR with the scheduler's reason. The restarts: every process of the region is stopped by SIGTERM and started
again, one after the other, while boots come by the clock. A client that an API does not answer asks the other one with the same
Idempotency-Key, as behind a load balancer. Fails where a promise does not hold.
"""

from __future__ import annotations

import http.client
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from rich.console import Console

from bench._place import Bench, Client, running_region
from bench._script import parser_of
from deploy.local.shape import Role, Shape
from deploy.local.start import Start
from objects.base import Object
from service.periodic import wait_until

SETTLE_TIMEOUT_S = 180.0
CLIENT_THREADS = 8
TRIES = 4
"""Of one boot, at two APIs by turns."""
SMALL = Shape(cells=2, apis=2, supers=1, schedulers=1, conductors=1, agents=2)
REASON = "No valid host was found"


class Sizes(Object, frozen=True, kw_only=True):
    """Slots of each host in the race, servers beyond all slots, races; boots per second during the restarts, and of whom."""

    even: int = 100
    slots: int = 5
    surplus: int = 20
    races: int = 10
    rate: float = 10.0
    restarted: tuple[Role, ...] = tuple(Role)


SHORT = Sizes(even=8, races=0, rate=4.0, restarted=(Role.API, Role.SUPER))
"""Without the race, for which it would take another region."""


class Promises:
    """Loads on one region, and what must hold after them."""

    def __init__(self, bench: Bench, sizes: Sizes, console: Console) -> None:
        self._region, self._meter, self._client = bench
        self._sizes = sizes
        self._console = console
        self._hosts = len(self._region.notes.shape.list_hosts())

    def check_even(self) -> None:
        """Concurrent boots on equal hosts, none of which is full."""
        self._boot_at_once("even", self._sizes.even)
        count_by_host = dict(
            self._meter.query_rows(
                "SELECT host, COUNT(*) FROM api.instance_mappings WHERE name LIKE 'even%%' AND NOT deleted GROUP BY host"
            )
        )
        counts = sorted([*count_by_host.values(), *[0] * (self._hosts - len(count_by_host))])
        self._print_line(f"{self._sizes.even} boots on {self._hosts} equal hosts: {counts[0]} to {counts[-1]} on each: {counts}")

    def run_race(self, number: int) -> None:
        """More servers than slots, all at the same moment."""
        slots = self._sizes.slots * self._hosts
        name = f"race{number}x"
        begun = time.monotonic()
        states = self._boot_at_once(name, slots + self._sizes.surplus)
        self._print_line(f"race {number + 1}: {dict(states)} for {slots} slots, {time.monotonic() - begun:.1f} s")
        assert states == {"active": slots, "error": self._sizes.surplus}, f"{dict(states)} for {slots} slots"
        reasons = self._meter.query_rows(
            "SELECT fault FROM api.instance_mappings WHERE name LIKE %s AND state = 'error'", f"{name}%"
        )
        assert all(REASON in str(reason) for (reason,) in reasons), reasons

    def delete_all(self) -> None:
        """Delete all servers, and wait until nothing of them is left."""
        uuids = [str(row[0]) for row in self._meter.query_rows("SELECT instance_uuid FROM api.instance_mappings WHERE NOT deleted")]
        with ThreadPoolExecutor(CLIENT_THREADS) as pool:
            list(pool.map(self._client.delete, uuids))
        query = "SELECT COUNT(*) FROM api.allocations"
        assert wait_until(lambda: not self._meter.query_rows(query)[0][0], SETTLE_TIMEOUT_S, pause=0.1), "claims are left"

    def check_restarts(self) -> None:
        """Every process stopped and started again while boots come."""
        load = Steady(self._client, self._sizes.rate)
        names = [member.name for member in self._region.notes.shape.list_members() if member.role in self._sizes.restarted]
        began = time.monotonic()
        Start(self._region, patience=240.0).restart_members(names)
        took = time.monotonic() - began
        sent, failed = load.stop()
        states = self._meter.wait_settled("steady", sent)
        done = f"{len(names)} processes restarted one after the other in {took:.0f} s"
        self._print_line(f"{done}: {sent} boots meanwhile, {len(failed)} requests failed, {dict(states)}")
        assert not failed, failed[:3]
        assert states == {"active": sent}, dict(states)

    def _boot_at_once(self, name: str, count: int) -> Counter[str]:
        with ThreadPoolExecutor(CLIENT_THREADS) as pool:
            list(pool.map(lambda n: self._client.boot_servers(f"{name}{n}-"), range(count)))
        return self._meter.wait_settled(name, count)

    def _print_line(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False)


class Steady:
    """Single boots by the clock, each tried at one API and then at the others until one answers."""

    def __init__(self, client: Client, rate: float) -> None:
        self._client = client
        self._pause = 1 / rate
        self._stopping = threading.Event()
        self._sent = 0
        self._failed: list[str] = []
        self._pool = ThreadPoolExecutor(4 * CLIENT_THREADS)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> tuple[int, list[str]]:
        """How many were asked for, and what went wrong with some."""
        self._stopping.set()
        self._thread.join()
        self._pool.shutdown(wait=True)
        return self._sent, self._failed

    def _run(self) -> None:
        while not self._stopping.wait(self._pause):
            self._pool.submit(self._boot_one, self._sent)
            self._sent += 1

    def _boot_one(self, number: int) -> None:
        trouble = ""
        for turn in range(TRIES):
            try:
                self._client.boot_by_turns(f"steady{number}", number + turn)
            except AssertionError as refusal:
                trouble = str(refusal)
                break
            except (OSError, http.client.HTTPException) as error:
                trouble = f"{type(error).__name__}: {error}"
                time.sleep(0.05 * turn)  # all may be restarting: the longer, the more have refused
            else:
                return
        self._failed.append(trouble)


def check_promises(shape: Shape, sizes: Sizes, console: Console, *, smoke: bool) -> None:
    """On large hosts first; then on hosts with few slots."""
    with running_region(shape, smoke=smoke, messages=False) as bench:
        promises = Promises(bench, sizes, console)
        promises.check_even()
        promises.check_restarts()
    if not sizes.races:
        return
    with running_region(shape, smoke=smoke, messages=False, slots=sizes.slots) as bench:
        promises = Promises(bench, sizes, console)
        for number in range(sizes.races):
            promises.run_race(number)
            promises.delete_all()


def main() -> None:
    smoke = parser_of(__doc__, "in small, once").parse_args().smoke
    shape, sizes = (SMALL, SHORT) if smoke else (Shape(), Sizes())
    check_promises(shape, sizes, Console(width=160), smoke=smoke)


if __name__ == "__main__":
    main()
