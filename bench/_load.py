"""Loads on a region, and what each of them took."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

import psutil

from bench._counters import Counts, Memory, Meter, subtract_values
from bench._place import Client
from bench._script import take_quantile
from objects.base import Object

T = TypeVar("T")
SETTLE_S = 3.0
"""Seconds after the last boot in which what it set off - reports of room, feeds - comes to an end."""
CLIENT_THREADS = 8


class Took(Object, frozen=True, kw_only=True):
    """One load: boots, seconds from the first accept to the last ACTIVE as recorded, ms from accept to ACTIVE of single servers;
    CPU ms per boot by role, of the clients, and of everything else on the machine. ``load``: the machine's when it ended."""

    boots: int
    seconds: float
    p50: float
    p99: float
    cpu: Mapping[str, float]
    clients: float
    others: float
    load: float

    @property
    def boots_per_second(self) -> float:
        return self.boots / self.seconds

    @property
    def cpu_all(self) -> float:
        return sum(self.cpu.values())


class Idle(Object, frozen=True, kw_only=True):
    """Per second, while nobody asks for anything: what is counted, and CPU ms by role."""

    counts: Counts
    cpu: Mapping[str, float]


class Measured(Object, frozen=True, kw_only=True):
    """All there is about one region. ``alone_each``, ``crowd_each`` and ``opened_each``: counts per boot, less those of an idle
    one.
    """

    idle: Idle
    alone: Took
    alone_each: Counts
    crowds: tuple[Took, ...]
    crowd_each: Counts
    large: Took
    opened: Took
    opened_each: Counts
    closed: Took
    memory: Mapping[str, Memory]


class Sizes(Object, frozen=True, kw_only=True):
    """How much is run: seconds of idleness, servers one at a time, single boots, multi-creates and the servers of each."""

    idle: float = 12.0
    alone: int = 40
    singles: int = 400
    crowds: int = 5
    crowd: int = 50
    large: int = 1000


class Load:
    """Runs loads on one region."""

    def __init__(self, meter: Meter, client: Client) -> None:
        self._meter = meter
        self._client = client

    def run_all(self, sizes: Sizes, say: Callable[[str], None]) -> Measured:
        """Everything, in order."""
        singles = [1] * sizes.singles
        say("warming up")
        self._run_singles("warm", [1] * max(8, sizes.singles // 10))
        say(f"idle for {sizes.idle:g} s")
        idle = self._measure_idle(sizes.idle)
        say(f"{sizes.alone} boots, one at a time")
        alone, alone_each = self._run_counted(
            sizes.alone, idle, partial(self._run_timed, "alone", self._one_by_one, [1] * sizes.alone)
        )
        say(f"{sizes.crowds} multi-creates of {sizes.crowd}, one at a time")
        crowds, crowd_each = self._run_counted(sizes.crowds * sizes.crowd, idle, partial(self._run_crowds, sizes))
        say(f"a multi-create of {sizes.large}")
        large = self._run_timed("large", self._one_by_one, [sizes.large])
        time.sleep(SETTLE_S)
        say(f"{sizes.singles} single boots from {CLIENT_THREADS} clients that do not wait")
        opened, opened_each = self._run_counted(sizes.singles, idle, partial(self._run_timed, "open", self._run_singles, singles))
        say(f"{sizes.singles} single boots from {CLIENT_THREADS} clients that poll until ACTIVE")
        closed = self._run_timed("closed", self._run_polled, singles)
        return Measured(
            idle=idle,
            alone=alone,
            alone_each=alone_each,
            crowds=crowds,
            crowd_each=crowd_each,
            large=large,
            opened=opened,
            opened_each=opened_each,
            closed=closed,
            memory=self._meter.memory_by_role(),
        )

    def _measure_idle(self, seconds: float) -> Idle:
        time.sleep(SETTLE_S)
        counts, cpu, begun = self._meter.read_counts(), self._meter.cpu_by_role(), time.monotonic()
        time.sleep(seconds)  # what is counted meanwhile runs by the clock
        cpu_after, counts_after = self._meter.cpu_by_role(), self._meter.read_counts()
        taken = time.monotonic() - begun
        used = {role: n * 1000 / taken for role, n in subtract_values(cpu_after, cpu).items()}
        return Idle(counts=counts_after.subtract_counts(counts).scale_counts(1 / taken), cpu=used)

    def _run_counted(self, boots: int, idle: Idle, run: Callable[[], T]) -> tuple[T, Counts]:
        """A load, and counts per boot, of which there are so many."""
        before, begun = self._meter.read_counts(), time.monotonic()
        took = run()
        time.sleep(SETTLE_S)
        after, taken = self._meter.read_counts(), time.monotonic() - begun
        return took, after.subtract_counts(before).subtract_counts(idle.counts.scale_counts(taken)).scale_counts(1 / boots)

    def _run_crowds(self, sizes: Sizes) -> tuple[Took, ...]:
        return tuple(self._run_timed(f"crowd{number}x", self._one_by_one, [sizes.crowd]) for number in range(sizes.crowds))

    def _one_by_one(self, name: str, posts: Sequence[int]) -> None:
        """POSTs one after the other, each when all servers of the one before are ACTIVE."""
        for number, count in enumerate(posts):
            self._client.boot_servers(f"{name}{number}-", count)
            self._meter.wait_active(name, sum(posts[: number + 1]), pause=0.02)

    def _run_singles(self, name: str, posts: Sequence[int]) -> None:
        """From several clients that do not wait."""
        with ThreadPoolExecutor(CLIENT_THREADS) as pool:
            list(pool.map(lambda n: self._client.boot_servers(f"{name}{n}-"), range(len(posts))))
        self._meter.wait_active(name, len(posts))

    def _run_polled(self, name: str, posts: Sequence[int]) -> None:
        """From several clients, each of which asks for its server until it is ACTIVE."""

        def boot_and_poll(number: int) -> None:
            uuid = self._client.boot_servers(f"{name}{number}-")
            while self._client.get_status(uuid) == "BUILD":
                time.sleep(0.05)  # as clients do that wait for a server

        with ThreadPoolExecutor(CLIENT_THREADS) as pool:
            list(pool.map(boot_and_poll, range(len(posts))))
        self._meter.wait_active(name, len(posts))

    def _run_timed(self, name: str, run: Callable[[str, Sequence[int]], None], posts: Sequence[int]) -> Took:
        """``posts``: the number of servers of each."""
        boots = sum(posts)
        cpu, ours, machine = self._meter.cpu_by_role(), _client_cpu(), _machine_cpu()
        run(name, posts)
        used = subtract_values(self._meter.cpu_by_role(), cpu)
        client_cpu, machine_cpu = _client_cpu() - ours, _machine_cpu() - machine
        times = self._meter.query_rows(
            "SELECT created_at, launched_at FROM api.instance_mappings WHERE name LIKE %s AND state = 'active'", f"{name}%"
        )
        assert len(times) == boots, f"{len(times)} of {boots} are ACTIVE"
        waited = [1000 * (active - accepted) for accepted, active in times]
        return Took(
            boots=boots,
            seconds=max(active for _, active in times) - min(accepted for accepted, _ in times),
            p50=take_quantile(waited, 0.5),
            p99=take_quantile(waited, 0.99),
            cpu={role: n * 1000 / boots for role, n in used.items()},
            clients=client_cpu * 1000 / boots,
            others=max(0.0, machine_cpu - client_cpu - sum(used.values())) * 1000 / boots,
            load=os.getloadavg()[0],
        )


def _client_cpu() -> float:
    times = psutil.Process().cpu_times()
    return float(times.user + times.system)


def _machine_cpu() -> float:
    """CPU seconds that the whole machine has spent so far."""
    times = psutil.cpu_times()
    return float(times.user + times.system + times.nice + times.irq + times.softirq)
