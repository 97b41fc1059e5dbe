"""Read the hosts that a trace is replayed on."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import NamedTuple

from lab.table_file import check_columns, header_of, place_of, rows_of
from lab.trace import MIB_PER_GIB, NUMA, whole_number
from objects import errors
from objects.numa import HOST_NODES_LIMIT

NEEDED = ("vcpus", "memory_mb")
OPTIONAL = ("host", "count", "disk_gb", "cell", "zone", "rack", "numa_nodes")
HUAWEI = ("CPU1", "RAM1", "CPU2", "RAM2")
RACKS = ("host_id", "rack_id")
"""Columns of a file that says which rack each host is in."""
HOSTS_LIMIT = 1_000_000
"""Maximum number of hosts of a fleet."""


class FleetHost(NamedTuple):
    """A host, with what servers may claim of it: less what is reserved, with allocation ratios. ``rack`` None: in no rack.

    ``nodes``: vCPUs and MiB of its NUMA nodes, to which servers are tied; empty: they are tied to none.
    """

    name: str
    vcpus: int
    memory_mb: int
    disk_gb: int = 0
    cell: str = "cell"
    zone: str | None = None
    rack: str | None = None
    nodes: tuple[tuple[int, int], ...] = ()


def read_fleet(path: Path, ignored: Collection[str] = (), racks: Path | None = None) -> list[FleetHost]:
    """All hosts of a file. Raises Invalid, with the line, for a file of another shape, and if a host is named twice.

    ``racks``: a file with the racks of hosts. It may name other hosts, too.
    """
    hosts = _read_hosts(path, ignored)
    if racks is None:
        return hosts
    rack_of = _read_racks(racks)
    placed = [host._replace(rack=rack_of.get(host.name.lower(), host.rack)) for host in hosts]
    if not any(host.name.lower() in rack_of for host in hosts):
        raise errors.Invalid(f"{racks}: names no host of {path}")
    return placed


def _read_racks(path: Path) -> dict[str, str]:
    """The rack of each host, by its name in lower case."""
    columns = header_of(path)
    places = check_columns(path, columns, RACKS, ())
    racks: dict[str, str] = {}
    for line, values in rows_of(path, columns):
        host, rack = (values[places[name]].strip() for name in RACKS)
        if not host or not rack:
            raise errors.Invalid(f"{place_of(path, line)}: a host or its rack is missing")
        if racks.setdefault(host.lower(), rack) != rack:
            raise errors.Invalid(f"{place_of(path, line)}: host {host} is in rack {racks[host.lower()]}, too")
    return racks


def _read_hosts(path: Path, ignored: Collection[str]) -> list[FleetHost]:
    columns = header_of(path)
    huawei = columns == HUAWEI
    places = {} if huawei else check_columns(path, columns, NEEDED, OPTIONAL)
    hosts: list[FleetHost] = []
    lines: dict[str, int] = {}
    for line, values in rows_of(path, columns):
        try:
            parsed_host = (
                _parse_huawei(values, len(hosts), ignored) if huawei else _parse_plain(values, places, len(hosts), ignored)
            )
        except ValueError as error:
            raise errors.Invalid(f"{place_of(path, line)}: {error}") from None
        for host in parsed_host:
            if lines.setdefault(host.name.lower(), line) != line:
                raise errors.Invalid(f"{place_of(path, line)}: host {host.name} is in line {lines[host.name.lower()]}, too")
        hosts += parsed_host
        if len(hosts) > HOSTS_LIMIT:
            raise errors.Invalid(f"{place_of(path, line)}: a fleet has at most {HOSTS_LIMIT} hosts")
    if not hosts:
        raise errors.Invalid(f"{path}: has no hosts; one line for each host, or one with its count for hosts that are alike")
    return hosts


def _parse_plain(values: Sequence[str], places: dict[str, int], before: int, ignored: Collection[str]) -> list[FleetHost]:
    texts = {name: values[place].strip() for name, place in places.items()}
    name, count = texts.get("host") or "", whole_number(texts.get("count") or "1", "count", 1)
    if count > HOSTS_LIMIT:
        raise ValueError(f"count: a fleet has at most {HOSTS_LIMIT} hosts")
    sizes = {column: whole_number(texts.get(column) or "0", column) for column in ("vcpus", "memory_mb", "disk_gb")}
    host = FleetHost(
        name,
        sizes["vcpus"],
        sizes["memory_mb"],
        sizes["disk_gb"],
        cell=texts.get("cell") or "cell",
        zone=texts.get("zone") or None,
        rack=texts.get("rack") or None,
    )
    nodes = _parse_nodes(texts.get("numa_nodes") or "0", sizes["vcpus"], sizes["memory_mb"])
    if NUMA not in ignored:
        host = host._replace(nodes=nodes)
    if count == 1:
        return [host._replace(name=name or f"host-{before}")]
    return [host._replace(name=f"{name or 'host'}-{before + number}") for number in range(count)]


def text_of_nodes(nodes: Sequence[tuple[int, int]]) -> str:
    """NUMA nodes as ``numa_nodes`` of a fleet has them; empty if there are none."""
    return " ".join(f"{vcpus}:{memory_mb}" for vcpus, memory_mb in nodes)


def _parse_nodes(text: str, vcpus: int, memory_mb: int) -> tuple[tuple[int, int], ...]:
    """The NUMA nodes of a host: so many equal ones, or those whose sizes are given."""
    if ":" not in text:
        count = whole_number(text, "numa_nodes")
        if count > HOST_NODES_LIMIT or (count and (vcpus % count or memory_mb % count)):
            raise ValueError(
                f"numa_nodes: vcpus and memory_mb cannot be divided equally among {count} nodes, {HOST_NODES_LIMIT} at most"
            )
        return ((vcpus // count, memory_mb // count),) * count if count else ()
    sizes = [part.split(":") for part in text.split()]
    if len(sizes) > HOST_NODES_LIMIT or any(len(size) != 2 for size in sizes):
        raise ValueError(f"numa_nodes: {text} is no list of vcpus:memory_mb, {HOST_NODES_LIMIT} at most")
    parsed_nodes = tuple((whole_number(cpus, "numa_nodes"), whole_number(memory, "numa_nodes")) for cpus, memory in sizes)
    if sum(cpus for cpus, _ in parsed_nodes) > vcpus or sum(memory for _, memory in parsed_nodes) > memory_mb:
        raise ValueError("numa_nodes: the nodes have more than the host's vcpus or memory_mb")
    return parsed_nodes


def _parse_huawei(values: Sequence[str], before: int, ignored: Collection[str]) -> list[FleetHost]:
    cpu1, ram1, cpu2, ram2 = (whole_number(value, name) for value, name in zip(values, HUAWEI, strict=True))
    nodes = tuple((cpus, ram * MIB_PER_GIB) for cpus, ram in ((cpu1, ram1), (cpu2, ram2)) if cpus or ram)
    host = FleetHost(f"host-{before}", cpu1 + cpu2, (ram1 + ram2) * MIB_PER_GIB)
    return [host if NUMA in ignored else host._replace(nodes=nodes)]
