"""What it costs that a deployment counts what it does: facts per boot, the time they take, and a scrape.

    python bench/metering.py

An all-in-one with 24 simulated hosts in two cells boots servers one by one. Facts are counted by wrapping prometheus_client's own
functions, with what happens on the clock taken out; the time of one is that of many without the wrapping, the best of several runs.
"""

from __future__ import annotations

import sys
import threading
import time
import timeit
from collections import Counter as Tally
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from prometheus_client import Counter, Histogram, generate_latest

from bench.boots import deployment
from cli.standalone.all_in_one import DeploymentTimes
from db.sql.counting import StatementCounter
from service import metrics

BOOTS = 200
SCRAPES = 50
RUNS = 7


class Facts:
    """How many facts were counted, by the kind of metric."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.counts: Tally[str] = Tally()
        for kind, method in ((Counter, "inc"), (Histogram, "observe")):
            setattr(kind, method, self._wrapped(kind.__name__, getattr(kind, method)))

    def _wrapped(self, name: str, method: Callable[..., None]) -> Callable[..., None]:
        def counted(*arguments: Any, **named: Any) -> None:
            with self._lock:
                self.counts[name] += 1
            method(*arguments, **named)

        return counted

    def total(self) -> int:
        with self._lock:
            return sum(self.counts.values())


def best(function: Callable[[], object]) -> float:
    """Microseconds of CPU of one call."""
    return min(timeit.repeat(function, number=20_000, repeat=RUNS, timer=time.thread_time)) / 20_000 * 1e6


def main() -> None:
    metrics.RETRIES.labels("bench")
    counter = best(lambda: metrics.RETRIES.labels("bench").inc())
    histogram = best(lambda: metrics.STAGE["plan"].observe(0.02))
    facts = Facts()
    with deployment(24, 0, DeploymentTimes()) as bench:
        before, began = facts.total(), time.monotonic()
        time.sleep(10.0)  # what is counted meanwhile runs by the clock
        clock = (facts.total() - before) / (time.monotonic() - began)
        before, began, cpu = facts.total(), time.monotonic(), time.process_time()
        for number in range(BOOTS):
            bench.post(f"metered-{number}")
        bench.wait("metered-", BOOTS)
        cpu = time.process_time() - cpu
        per_boot = (facts.total() - before - clock * (time.monotonic() - began)) / BOOTS
        with StatementCounter() as statements:
            cpu_scrapes = time.process_time()
            for _ in range(SCRAPES):
                size = len(generate_latest(metrics.REGISTRY))
            cpu_scrapes = time.process_time() - cpu_scrapes
            looked = sum(n.executions for (_, text), n in statements.statements().items() if "oldest" in text)
    cost = per_boot * max(counter, histogram)
    print(f"one fact: {counter:.2f} us (counter with a label), {histogram:.2f} us (histogram)")
    print(f"facts on the clock: {clock:.0f}/s")
    print(f"facts per boot: {per_boot:.1f}, which take {cost:.0f} us of {cpu / BOOTS * 1000:.1f} ms CPU")
    each = f"{cpu_scrapes / SCRAPES * 1000:.1f} ms CPU and {size / 1024:.0f} KiB each"
    print(f"{SCRAPES} scrapes in a row: {each}, {looked} statements in all")


if __name__ == "__main__":
    main()
