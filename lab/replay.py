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

    def as_arrival(self) -> Arrival:
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
        self._reasons = {(saved.filter, saved.reason): saved for saved in begun.reasons}
        self._samples = list(begun.samples)
        self._times = np.linspace(demand.begins, demand.ends, SAMPLES + 1)[1:].tolist()[len(begun.samples) :]
        for saved in begun.running:
            placed = _Placed(math.inf if saved.end is None else saved.end, saved.number, saved.row, saved.nodes, saved.as_arrival())
            self._world.claim_room(placed.row, placed.nodes, placed.arrival, 0.0)
            self._keep_placed(placed)
        self._began = time.process_time()

    def run(self, save: Callable[[Checkpoint], None], progress: Callable[[int], None]) -> PolicyOutcome:
        """Replay what is left. ``save`` gets each checkpoint, ``progress`` the number of servers so far."""
        with self._table.lock:
            for arrival in self._trace.list_arrivals(self._servers):
                self._advance_until(arrival.start)
                self._place_arrival(arrival)
                self._servers += 1
                if self._servers % PROGRESS_SERVERS == 0:
                    progress(self._servers)
                if self._servers % CHECKPOINT_SERVERS == 0:
                    save(self.make_checkpoint())
                    self._driver = load_driver(self._settings)
            self._sample_until(math.inf)
        progress(self._servers)
        return self._make_outcome()

    def _advance_until(self, now: float) -> None:
        """Let servers end until then, and look at the fleet at the times of samples before."""
        if self._times and self._times[0] < now:
            self._sample_until(now)
        self._end_until(now)

    def _sample_until(self, now: float) -> None:
        while self._times and self._times[0] < now:
            at = self._times.pop(0)
            self._end_until(at)
            self._samples.append(sample_fleet(self._world, at, len(self._ends) + len(self._staying), self._rejected))

    def _end_until(self, now: float) -> None:
        while self._ends and self._ends[0].end <= now:
            ended = heapq.heappop(self._ends)
            self._world.release_room(ended.row, ended.nodes, ended.arrival, ended.end)

    def _place_arrival(self, arrival: Arrival) -> None:
        place, survey = self._world.decide_host(self._driver, arrival, self._servers, self._seed)
        if place is None:
            self._reject_arrival(arrival, survey)
            return
        self._world.claim_room(*place, arrival, arrival.start)
        self._keep_placed(_Placed(arrival.end, self._servers, *place, arrival))

    def _keep_placed(self, placed: _Placed) -> None:
        if placed.end < math.inf:
            heapq.heappush(self._ends, placed)
        else:
            self._staying.append(placed)

    def _reject_arrival(self, arrival: Arrival, survey: Survey) -> None:
        seconds = max(min(arrival.end, self._demand.ends) - max(arrival.start, self._demand.begins), 0.0)
        self._rejected += 1
        self._lost_vcpu_seconds += arrival.vcpus * seconds
        self._lost_memory_seconds += arrival.memory_mb * seconds
        key = reason_of(survey, self._driver)
        before = self._reasons.get(key, Reason(filter=key[0], reason=key[1], servers=0, vcpu_days=0.0))
        self._reasons[key] = Reason(
            filter=key[0],
            reason=key[1],
            servers=before.servers + 1,
            vcpu_days=before.vcpu_days + arrival.vcpus * seconds / DAY_S,
        )

    def make_checkpoint(self) -> Checkpoint:
        """The state now."""
        return Checkpoint(
            servers=self._servers,
            running=tuple(
                Running(
                    number=placed.number,
                    row=placed.row,
                    end=placed.end if placed.end < math.inf else None,
                    name=placed.arrival.name,
                    vcpus=placed.arrival.vcpus,
                    memory_mb=placed.arrival.memory_mb,
                    disk_gb=placed.arrival.disk_gb,
                    group=placed.arrival.group,
                    policy=placed.arrival.policy,
                    fault_domain=placed.arrival.fault_domain,
                    nodes=placed.nodes,
                )
                for placed in (*self._ends, *self._staying)
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

    def _make_outcome(self) -> PolicyOutcome:
        def mean_of(name: str) -> float:
            return float(np.mean([getattr(entry, name) for entry in self._samples]))

        timed, demand = self._trace.timed, self._demand
        return PolicyOutcome(
            policy="",
            settings={},
            servers=self._servers,
            rejected=self._rejected,
            vcpu_days_lost=per_cent(self._lost_vcpu_seconds / DAY_S, demand.vcpu_days) if timed else None,
            memory_days_lost=per_cent(self._lost_memory_seconds / DAY_S, demand.memory_days) if timed else None,
            empty_hosts=mean_of("empty_hosts"),
            fewest_empty_hosts=min(entry.empty_hosts for entry in self._samples),
            stranded_vcpus=mean_of("stranded_vcpus"),
            stranded_memory=mean_of("stranded_memory"),
            imbalance=mean_of("imbalance"),
            cell_imbalance=mean_of("cell_imbalance"),
            cpu_us=self._cpu_s() / max(self._servers, 1) * 1e6,
            reasons=tuple(sorted(self._reasons.values(), key=lambda entry: (-entry.servers, entry.filter))),
            samples=tuple(self._samples),
        )


def reason_of(survey: Survey, driver: SchedulerDriver) -> tuple[str, str]:
    """The filter that left no host, and what it says."""
    survey.ask_all()
    last = next((count for count in reversed(survey.filter_counts) if not count.after), None)
    return (last.name, last.reason or "") if last is not None else (driver.name, "chose no host")


def heat_width(hosts: int) -> int:
    """The number of hosts in a group of which samples tell the use."""
    return -(-hosts // HEAT_LINES)


def sample_fleet(world: World, at: float, running: int, rejected: int) -> FleetSample:
    """The fleet as it is now. See ``FleetSample``."""
    table = world.table
    size = slice(table.size)
    caps = table.cap_vcpus[size], table.cap_memory_mb[size]
    used = caps[0] - table.free_vcpus[size], caps[1] - table.free_memory_mb[size]
    vcpus, memory = (share_by_host(part, cap) for part, cap in zip(used, caps, strict=True))
    larger = np.maximum(vcpus, memory)
    cells = table.cell[size]
    of_cells = np.bincount(cells, larger) / np.maximum(np.bincount(cells), 1)
    width = heat_width(table.size)
    groups = np.add.reduceat(larger, np.arange(0, table.size, width)) / np.bincount(np.arange(table.size) // width)
    return FleetSample(
        time=at,
        running=running,
        vcpus=total_share(used[0], caps[0]),
        memory=total_share(used[1], caps[1]),
        empty_hosts=int(np.count_nonzero(table.instances[size] == 0)),
        stranded_vcpus=total_share(np.maximum(memory - vcpus, 0.0) * caps[0], caps[0]),
        stranded_memory=total_share(np.maximum(vcpus - memory, 0.0) * caps[1], caps[1]),
        imbalance=float(larger.std()),
        cell_imbalance=float(of_cells.std()),
        rejected=rejected,
        hosts=tuple(np.rint(groups * 100.0).astype(int).tolist()),
    )


def share_by_host(part: Floats, total: Floats) -> Floats:
    """Of each host, from 0 to 1; 0 of nothing."""
    shares: Floats = np.clip(part / np.maximum(total, 1e-9), 0.0, 1.0)
    return np.where(total > 0, shares, 0.0)


def total_share(part: Floats, total: Floats) -> float:
    """Of all hosts together."""
    return float(part.sum() / max(total.sum(), 1e-9))
