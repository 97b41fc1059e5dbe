"""Read traces: which servers came when, how large they were, and how long they stayed. A trace is read line by line, never whole.

Times are seconds. A reader raises errors.Invalid, with the line, for what it cannot read, and refuses what it cannot honour.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from lab.table_file import check_columns, header_of, place_of, rows_of
from objects import errors
from objects.base import INT32_MAX
from objects.group import GroupPolicy
from objects.hints import FAULT_DOMAIN

DAY_S = 86400.0
PLAIN_NEEDED = ("id", "start", "end", "vcpus", "memory_mb")
PLAIN_OPTIONAL = ("disk_gb", "project", "zone", "group", "policy", "fault_domain", "numa_nodes")
AZURE = ("vmId", "tenantId", "cores", "ram", "vmTypeId", "starttime", "endtime")
HUAWEI = ("flavor_vcpus", "flavor_ram", "numa", "strategy", "group", "domain")
NUMA, FAULT_DOMAINS = "numa", "fault-domains"
IGNORABLE = (NUMA, FAULT_DOMAINS)
"""What of a trace and a fleet may be left out."""
MIB_PER_GIB = 1024
NUMBERS_KEPT = 4096
"""Numbers that are not read again: most servers of a trace are of a few sizes."""


class Arrival(NamedTuple):
    """A server that comes. ``end`` is infinite if it outlives the trace. ``policy`` None: it is in no group.

    ``fault_domain``: of its group; None: of none. ``numa_nodes``: the number of NUMA nodes that it is divided over.
    """

    line: int
    name: str
    start: float
    end: float
    vcpus: int
    memory_mb: int
    disk_gb: int = 0
    project: str = ""
    zone: str | None = None
    group: str = ""
    policy: GroupPolicy | None = None
    fault_domain: str | None = None
    numa_nodes: int = 1


@dataclass(frozen=True)
class Trace:
    """A trace in a file. ``begins``: when the measured window begins, in seconds; None: with the first server.

    ``timed``: servers have times. Otherwise they come one a second, in the order of the file, and stay.
    """

    path: Path
    kind: str
    begins: float | None
    timed: bool
    _read: Callable[[Sequence[str], int], Arrival]
    _columns: tuple[str, ...]

    def list_arrivals(self, skipped: int = 0) -> Iterator[Arrival]:
        """The servers in the order of their coming, without the first ``skipped``.

        Raises Invalid for a line that cannot be read, and for times that are out of order.
        """
        before = -math.inf
        for number, (line, values) in enumerate(rows_of(self.path, self._columns)):
            if number < skipped:
                continue
            try:
                arrival = self._read(values, line)
            except ValueError as error:
                raise errors.Invalid(f"{place_of(self.path, line)}: {error}") from None
            if arrival.start < before:
                raise errors.Invalid(
                    f"{place_of(self.path, line)}: begins before the server before it; sort the trace by its start"
                )
            before = arrival.start
            yield arrival


def open_trace(path: Path, ignored: Collection[str] = ()) -> Trace:
    """Tell the format of a trace by its first line. ``ignored``: of IGNORABLE, what is to be left out.

    Raises Invalid for a file that cannot be read or has other columns.
    """
    columns = header_of(path)
    if columns == AZURE:
        return Trace(path, "Azure packing 2020", 0.0, True, _parse_azure, columns)
    if columns == HUAWEI:
        return Trace(path, "Huawei topology", None, False, _HuaweiLine(frozenset(ignored)), columns)
    plain = check_columns(path, columns, PLAIN_NEEDED, PLAIN_OPTIONAL)
    return Trace(path, "plain", None, True, _PlainLine(plain, without_numa=NUMA in ignored), columns)


# -- values -----------------------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=NUMBERS_KEPT)
def whole_number(text: str, name: str, least: int = 0) -> int:
    """A whole number, also if written ``8.0``. Raises ValueError for any other."""
    try:
        number = int(text) if text.isdecimal() else float(text)
    except ValueError:
        number = math.nan
    if not least <= number <= INT32_MAX or number != int(number):
        raise ValueError(f"{name}: {text!r} is not a whole number from {least} to {INT32_MAX}")
    return int(number)


def _parse_nodes(text: str, name: str, vcpus: int, memory_mb: int) -> int:
    """The NUMA nodes that a server is divided over. Raises ValueError if it cannot be divided equally."""
    nodes = whole_number(text, name, 1)
    if vcpus % nodes or memory_mb % nodes:
        raise ValueError(f"{name}: {vcpus} vCPUs and {memory_mb} MiB cannot be divided equally among {nodes} nodes")
    return nodes


def _parse_time(text: str, name: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if math.isnan(number) or number == -math.inf:
        raise ValueError(f"{name}: {text!r} is not a time")
    return number


def _parse_times(start: str, end: str, names: tuple[str, str], unit: float) -> tuple[float, float]:
    began, ended = _parse_time(start, names[0]) * unit, _parse_time(end, names[1]) * unit if end else math.inf
    if began == math.inf:
        raise ValueError(f"{names[0]}: {start!r} is not a time")
    if ended < began:
        raise ValueError(f"{names[1]}: {end} is before {names[0]}, {start}")
    return began, ended


# -- the formats -------------------------------------------------------------------------------------------------------------


class _PlainLine:
    """A line of the plain format, with columns in any order."""

    def __init__(self, places: dict[str, int], *, without_numa: bool) -> None:
        self._places, self._without_numa = places, without_numa
        self._policies: dict[str, GroupPolicy] = {}

    def __call__(self, values: Sequence[str], line: int) -> Arrival:
        at = self._places
        start, end = _parse_times(values[at["start"]], values[at["end"]], ("start", "end"), 1.0)
        group, policy = self._parse_group(values)
        domain = self._optional_value(values, "fault_domain") or None
        if domain is not None and policy in (None, GroupPolicy.AFFINITY):
            raise ValueError("fault_domain: is of a server in a group that may be on several hosts")
        vcpus, memory_mb = (whole_number(values[at[name]], name) for name in ("vcpus", "memory_mb"))
        return Arrival(
            line=line,
            name=values[at["id"]],
            start=start,
            end=end,
            vcpus=vcpus,
            memory_mb=memory_mb,
            disk_gb=whole_number(self._optional_value(values, "disk_gb") or "0", "disk_gb"),
            project=self._optional_value(values, "project"),
            zone=self._optional_value(values, "zone") or None,
            group=group,
            policy=policy,
            fault_domain=domain,
            numa_nodes=1
            if self._without_numa
            else _parse_nodes(self._optional_value(values, "numa_nodes") or "1", "numa_nodes", vcpus, memory_mb),
        )

    def _optional_value(self, values: Sequence[str], name: str) -> str:
        place = self._places.get(name)
        return "" if place is None else values[place]

    def _parse_group(self, values: Sequence[str]) -> tuple[str, GroupPolicy | None]:
        group, policy = self._optional_value(values, "group"), self._optional_value(values, "policy")
        if bool(group) != bool(policy):
            raise ValueError("a server has both a group and a policy, or neither")
        if not group:
            return "", None
        if policy not in list(GroupPolicy):
            raise ValueError(f"policy: {policy!r} is not one of {', '.join(GroupPolicy)}")
        group_policy = GroupPolicy(policy)
        if self._policies.setdefault(group, group_policy) is not group_policy:
            raise ValueError(f"policy: group {group!r} has the policy {self._policies[group]} in a server before")
        return group, group_policy


def _parse_azure(values: Sequence[str], line: int) -> Arrival:
    """Amounts are on the trace's own scale: a fleet file has to use it, too."""
    name, tenant, cores, ram, _, began, ended = values
    start, end = _parse_times(began, ended, ("starttime", "endtime"), DAY_S)
    return Arrival(line, name, start, end, whole_number(cores, "cores"), whole_number(ram, "ram"), 0, tenant)


_HUAWEI_POLICIES = {
    "": None,
    "affinity": GroupPolicy.AFFINITY,
    "anti-affinity": GroupPolicy.ANTI_AFFINITY,
    FAULT_DOMAIN: GroupPolicy.SOFT_ANTI_AFFINITY,
}
"""By strategy."""


class _HuaweiLine:
    """A request of the Huawei set, which has no times.

    Members of a fault domain may be on one host or rack.
    """

    def __init__(self, ignored: frozenset[str]) -> None:
        self._ignored = ignored

    def __call__(self, values: Sequence[str], line: int) -> Arrival:
        vcpus, ram, numa, strategy, group, domain = values
        if strategy not in _HUAWEI_POLICIES:
            raise ValueError(f"strategy: {strategy!r} is not one of affinity, anti-affinity, fault_domain")
        policy = _HUAWEI_POLICIES[strategy]
        in_domain = strategy == FAULT_DOMAIN
        if in_domain and FAULT_DOMAINS in self._ignored:
            in_domain, policy = False, None
        if in_domain and not domain:
            raise ValueError("domain: is missing")
        cpus, memory_mb = whole_number(vcpus, "flavor_vcpus"), whole_number(ram, "flavor_ram") * MIB_PER_GIB
        return Arrival(
            line=line,
            name=str(line),
            start=float(line),
            end=math.inf,
            vcpus=cpus,
            memory_mb=memory_mb,
            group=f"{strategy} {group}" if policy else "",
            policy=policy,
            fault_domain=domain if in_domain else None,
            numa_nodes=1 if NUMA in self._ignored else _parse_nodes(numa, "numa", cpus, memory_mb),
        )
