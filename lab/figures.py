"""What a replay tells: the records of its results, which are also those of its JSON file."""

from __future__ import annotations

from objects.base import Object

VERSION = 1
"""Of the JSON file."""


class LowerBound(Object, frozen=True, kw_only=True):
    """What no policy can beat on this fleet, in per cent of what was asked for: see ``lab/demand.py``. None: servers without times.

    ``rejected``: servers. ``hosts``: hosts of the fleet's mean size that the demand needs at its peak, by volume.
    """

    rejected: int
    vcpu_days_lost: float | None
    memory_days_lost: float | None
    hosts: int


class Demand(Object, frozen=True, kw_only=True):
    """The whole trace. ``begins``, ``ends``: of the measured window, in seconds. vCPU-days and MiB-days are asked for in it."""

    servers: int
    begins: float
    ends: float
    vcpu_days: float
    memory_days: float
    peak_vcpus: int
    peak_memory_mb: int
    bound: LowerBound


class FleetSample(Object, frozen=True, kw_only=True):
    """The fleet at one time of the window. Shares are of the fleet's capacity, from 0 to 1.

    ``stranded_vcpus``: free vCPUs of hosts whose free share of memory is smaller, beyond that share. The same for memory.
    ``imbalance``: standard deviation between hosts of the larger of their used shares. ``cell_imbalance``: the same between cells.
    ``rejected``: servers so far. ``hosts``: the larger used share of each group of hosts, in per cent.
    """

    time: float
    running: int
    vcpus: float
    memory: float
    empty_hosts: int
    stranded_vcpus: float
    stranded_memory: float
    imbalance: float
    cell_imbalance: float
    rejected: int
    hosts: tuple[int, ...]


class Reason(Object, frozen=True, kw_only=True):
    """The filter that left no host, and for how many servers."""

    filter: str
    reason: str
    servers: int
    vcpu_days: float


class PolicyOutcome(Object, frozen=True, kw_only=True):
    """What one policy made of the trace. Days are of servers that were refused, in the window; per cent of the demand.

    Means are over the samples. ``cpu_us``: processor time for each server, with its coming, its decision, its claim and its end.
    """

    policy: str
    settings: dict[str, object]
    servers: int
    rejected: int
    vcpu_days_lost: float | None
    memory_days_lost: float | None
    empty_hosts: float
    fewest_empty_hosts: int
    stranded_vcpus: float
    stranded_memory: float
    imbalance: float
    cell_imbalance: float
    cpu_us: float
    reasons: tuple[Reason, ...]
    samples: tuple[FleetSample, ...]


class ReplayReport(Object, frozen=True, kw_only=True):
    """A whole replay. ``ignored``: what the trace asks for that was left out. ``fleet_*``: sums over all hosts."""

    version: int
    trace: str
    format: str
    ignored: tuple[str, ...]
    fleet: str
    fleet_hosts: int
    fleet_cells: int
    fleet_vcpus: int
    fleet_memory_mb: int
    hosts_per_line: int
    seed: int
    demand: Demand
    policies: tuple[PolicyOutcome, ...]
