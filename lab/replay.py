"""Replay a trace under one policy, in virtual time.

The scheduler's own table, filters, weighers and driver decide. A server that ends gives its room back before servers of the same
moment come. Every CHECKPOINT_SERVERS the driver is made anew, as after the restart of a scheduler, and the state is handed out, so
that a replay that goes on from there decides as one that was not interrupted.
"""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from lab.demand import per_cent
from lab.figures import Demand, FleetSample, PolicyOutcome, Reason
from lab.fleet import FleetHost
from lab.fleet_state import World
from lab.trace import DAY_S, Arrival, Trace
from objects.base import Object
from objects.group import GroupPolicy
from scheduler.engine.driver import SchedulerDriver
from scheduler.engine.survey import Survey
from scheduler.framework.settings import SchedulerSettings
from scheduler.plugins import load_driver
from scheduler.table.arrays import Floats

CHECKPOINT_SERVERS = 10_000
"""Servers between two checkpoints."""
SAMPLES = 200
"""Times at which the fleet is looked at, evenly over the window, the last at its end."""
HEAT_LINES = 100
"""Maximum number of groups of hosts of which samples tell the use."""
PROGRESS_SERVERS = 500
"""Servers between two reports of progress."""


class Running(Object, frozen=True, kw_only=True, array_like=True):
    """A server on the host of a row. ``end`` None: it outlives the trace. ``number``: which server of the trace it is.

    ``nodes``: the NUMA nodes of the host that it is on.
    """

    number: int
    row: int
    end: float | None
    name: str
    vcpus: int
    memory_mb: int
    disk_gb: int
    group: str
    policy: GroupPolicy | None
    fault_domain: str | None
    nodes: tuple[int, ...]

    def arrival(self) -> Arrival:
        """What of its coming is needed at its end."""
        return Arrival(
            line=0,
            name=self.name,
            start=0.0,
            end=math.inf if self.end is None else self.end,
            vcpus=self.vcpus,
            memory_mb=self.memory_mb,
            disk_gb=self.disk_gb,
            group=self.group,
            policy=self.policy,
            fault_domain=self.fault_domain,
        )


class Checkpoint(Object, frozen=True, kw_only=True):
    """The state after so many servers of the trace. Amounts of time are seconds."""

    servers: int = 0
    running: tuple[Running, ...] = ()
    rejected: int = 0
    lost_vcpu_seconds: float = 0.0
    lost_memory_seconds: float = 0.0
    reasons: tuple[Reason, ...] = ()
    samples: tuple[FleetSample, ...] = ()
    cpu_s: float = 0.0


class _Placed(NamedTuple):
    """A server on a host, in the order of ends."""

    end: float
    number: int
    row: int
    nodes: tuple[int, ...]
    arrival: Arrival


class TraceReplay:
    """One replay of a trace on a fleet. ``settings``: those of the scheduler that decides."""

    def __init__(
        self, trace: Trace, fleet: Sequence[FleetHost], demand: Demand, settings: SchedulerSettings, seed: int, begun: Checkpoint
    ) -> None:
        self._trace = trace
        self._demand = demand
        self._settings = settings
        self._seed = seed
        self._begun = begun
        self._world = World(fleet, settings.default_availability_zone)
        self._table = self._world.table
        self._driver = load_driver(settings)
        self._ends: list[_Placed] = []
        self._staying: list[_Placed] = []
        self._servers = begun.servers
        self._rejected = begun.rejected
        self._lost_vcpu_seconds, self._lost_memory_seconds = begun.lost_vcpu_seconds, begun.lost_memory_seconds
        self._reasons = {(each.filter, each.reason): each for each in begun.reasons}
        self._samples = list(begun.samples)
        self._times = np.linspace(demand.begins, demand.ends, SAMPLES + 1)[1:].tolist()[len(begun.samples) :]
        for each in begun.running:
            placed = _Placed(math.inf if each.end is None else each.end, each.number, each.row, each.nodes, each.arrival())
            self._world.claim(placed.row, placed.nodes, placed.arrival, 0.0)
            self._keep(placed)
        self._began = time.process_time()

    def run(self, save: Callable[[Checkpoint], None], progress: Callable[[int], None]) -> PolicyOutcome:
        """Replay what is left. ``save`` gets each checkpoint, ``progress`` the number of servers so far."""
        with self._table.lock:
            for arrival in self._trace.arrivals(self._servers):
                self._advance(arrival.start)
                self._place(arrival)
                self._servers += 1
                if self._servers % PROGRESS_SERVERS == 0:
                    progress(self._servers)
                if self._servers % CHECKPOINT_SERVERS == 0:
                    save(self.checkpoint())
                    self._driver = load_driver(self._settings)
            self._sample_until(math.inf)
        progress(self._servers)
        return self._outcome()

    def _advance(self, now: float) -> None:
        """Let servers end until then, and look at the fleet at the times of samples before."""
        if self._times and self._times[0] < now:
            self._sample_until(now)
        self._end_until(now)

    def _sample_until(self, now: float) -> None:
        while self._times and self._times[0] < now:
            at = self._times.pop(0)
            self._end_until(at)
            self._samples.append(sample(self._world, at, len(self._ends) + len(self._staying), self._rejected))

    def _end_until(self, now: float) -> None:
        while self._ends and self._ends[0].end <= now:
            ended = heapq.heappop(self._ends)
            self._world.release(ended.row, ended.nodes, ended.arrival, ended.end)

    def _place(self, arrival: Arrival) -> None:
        place, found = self._world.decide(self._driver, arrival, self._servers, self._seed)
        if place is None:
            self._reject(arrival, found)
            return
        self._world.claim(*place, arrival, arrival.start)
        self._keep(_Placed(arrival.end, self._servers, *place, arrival))

    def _keep(self, placed: _Placed) -> None:
        if placed.end < math.inf:
            heapq.heappush(self._ends, placed)
        else:
            self._staying.append(placed)

    def _reject(self, arrival: Arrival, found: Survey) -> None:
        seconds = max(min(arrival.end, self._demand.ends) - max(arrival.start, self._demand.begins), 0.0)
        self._rejected += 1
        self._lost_vcpu_seconds += arrival.vcpus * seconds
        self._lost_memory_seconds += arrival.memory_mb * seconds
        key = reason_of(found, self._driver)
        before = self._reasons.get(key, Reason(filter=key[0], reason=key[1], servers=0, vcpu_days=0.0))
        self._reasons[key] = Reason(
            filter=key[0],
            reason=key[1],
            servers=before.servers + 1,
            vcpu_days=before.vcpu_days + arrival.vcpus * seconds / DAY_S,
        )

    def checkpoint(self) -> Checkpoint:
        """The state now."""
        return Checkpoint(
            servers=self._servers,
            running=tuple(
                Running(
                    number=each.number,
                    row=each.row,
                    end=each.end if each.end < math.inf else None,
                    name=each.arrival.name,
                    vcpus=each.arrival.vcpus,
                    memory_mb=each.arrival.memory_mb,
                    disk_gb=each.arrival.disk_gb,
                    group=each.arrival.group,
                    policy=each.arrival.policy,
                    fault_domain=each.arrival.fault_domain,
                    nodes=each.nodes,
                )
                for each in (*self._ends, *self._staying)
            ),
            rejected=self._rejected,
            lost_vcpu_seconds=self._lost_vcpu_seconds,
            lost_memory_seconds=self._lost_memory_seconds,
            reasons=tuple(self._reasons.values()),
            samples=tuple(self._samples),
            cpu_s=self._cpu_s(),
        )

    def _cpu_s(self) -> float:
        return self._begun.cpu_s + time.process_time() - self._began

    def _outcome(self) -> PolicyOutcome:
        def mean(name: str) -> float:
            return float(np.mean([getattr(each, name) for each in self._samples]))

        timed, demand = self._trace.timed, self._demand
        return PolicyOutcome(
            policy="",
            settings={},
            servers=self._servers,
            rejected=self._rejected,
            vcpu_days_lost=per_cent(self._lost_vcpu_seconds / DAY_S, demand.vcpu_days) if timed else None,
            memory_days_lost=per_cent(self._lost_memory_seconds / DAY_S, demand.memory_days) if timed else None,
            empty_hosts=mean("empty_hosts"),
            fewest_empty_hosts=min(each.empty_hosts for each in self._samples),
            stranded_vcpus=mean("stranded_vcpus"),
            stranded_memory=mean("stranded_memory"),
            imbalance=mean("imbalance"),
            cell_imbalance=mean("cell_imbalance"),
            cpu_us=self._cpu_s() / max(self._servers, 1) * 1e6,
            reasons=tuple(sorted(self._reasons.values(), key=lambda each: (-each.servers, each.filter))),
            samples=tuple(self._samples),
        )


def reason_of(found: Survey, driver: SchedulerDriver) -> tuple[str, str]:
    """The filter that left no host, and what it says."""
    found.ask_all()
    last = next((count for count in reversed(found.counts) if not count.after), None)
    return (last.name, last.reason or "") if last is not None else (driver.name, "chose no host")


def heat_width(hosts: int) -> int:
    """The number of hosts in a group of which samples tell the use."""
    return -(-hosts // HEAT_LINES)


def sample(world: World, at: float, running: int, rejected: int) -> FleetSample:
    """The fleet as it is now. See ``FleetSample``."""
    table = world.table
    size = slice(table.size)
    caps = table.cap_vcpus[size], table.cap_memory_mb[size]
    used = caps[0] - table.free_vcpus[size], caps[1] - table.free_memory_mb[size]
    vcpus, memory = (share(part, cap) for part, cap in zip(used, caps, strict=True))
    larger = np.maximum(vcpus, memory)
    cells = table.cell[size]
    of_cells = np.bincount(cells, larger) / np.maximum(np.bincount(cells), 1)
    width = heat_width(table.size)
    groups = np.add.reduceat(larger, np.arange(0, table.size, width)) / np.bincount(np.arange(table.size) // width)
    return FleetSample(
        time=at,
        running=running,
        vcpus=ratio(used[0], caps[0]),
        memory=ratio(used[1], caps[1]),
        empty_hosts=int(np.count_nonzero(table.instances[size] == 0)),
        stranded_vcpus=ratio(np.maximum(memory - vcpus, 0.0) * caps[0], caps[0]),
        stranded_memory=ratio(np.maximum(vcpus - memory, 0.0) * caps[1], caps[1]),
        imbalance=float(larger.std()),
        cell_imbalance=float(of_cells.std()),
        rejected=rejected,
        hosts=tuple(np.rint(groups * 100.0).astype(int).tolist()),
    )


def share(part: Floats, whole: Floats) -> Floats:
    """Of each host, from 0 to 1; 0 of nothing."""
    shares: Floats = np.clip(part / np.maximum(whole, 1e-9), 0.0, 1.0)
    return np.where(whole > 0, shares, 0.0)


def ratio(part: Floats, whole: Floats) -> float:
    """Of all hosts together."""
    return float(part.sum() / max(whole.sum(), 1e-9))
