"""Record the past of a deployment as a trace, and its hosts as a fleet.

A body of a server (docs/moves.md) took room on one host from its hand-over to its end. Bodies of one server that are alike and
overlap are one stay, so that a migration does not show. A resize makes a body of another size: the old one leaves, the new one
comes. Bodies are sorted twice on disk, by server and by time, so that none but the running stays of one server are in memory.
"""

from __future__ import annotations

import hashlib
import hmac
import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

from db import archive
from db.api.reconcile import history
from db.api.reconcile.history import PastBody
from db.sql.engine import ApiDatabase
from lab.fleet import FleetHost, text_of_nodes
from lab.table_file import Value
from objects import errors, numa
from objects.base import Object
from objects.group import GroupPolicy
from objects.spec import RequestSpec

PAGE_BODIES = 2_000
"""Bodies read in one transaction."""
ARCHIVE_BODIES_LIMIT = 1_000_000
"""Bodies of an archive that wait for the request specs of their batches, which follow them."""
PSEUDONYM_DIGITS = 12

TRACE_COLUMNS = {
    "id": str,
    "start": float,
    "end": float,
    "vcpus": int,
    "memory_mb": int,
    "disk_gb": int,
    "project": str,
    "zone": str,
    "group": str,
    "policy": str,
    "fault_domain": str,
    "numa_nodes": int,
}
FLEET_COLUMNS = {
    "host": str,
    "vcpus": int,
    "memory_mb": int,
    "disk_gb": int,
    "cell": str,
    "zone": str,
    "rack": str,
    "numa_nodes": str,
}


class HistoryRecord(Object, frozen=True, kw_only=True):
    """What a record holds. Times are seconds since the epoch.

    ``servers``: lines of the trace. ``never_ran``: servers that never became ACTIVE. ``unreadable``: bodies whose request is not
    known any more.
    """

    servers: int
    hosts: int
    begins: float
    ends: float
    never_ran: int
    unreadable: int


class Names:
    """Names as they are written. ``key`` None: as they are; else a pseudonym that is always the same for a key, kind and name."""

    def __init__(self, key: str | None) -> None:
        self._key = None if key is None else key.encode()

    def name_of(self, kind: str, name: str) -> str:
        """The name of nothing is empty."""
        if self._key is None or not name:
            return name
        digest = hmac.new(self._key, f"{kind} {name}".encode(), hashlib.sha256).hexdigest()
        return f"{kind}-{digest[:PSEUDONYM_DIGITS]}"


class _Stay(NamedTuple):
    """A server of one size on hosts. ``end`` None: it has not ended."""

    server: str
    turn: int
    body: str
    start: float
    end: float | None
    vcpus: int
    memory_mb: int
    disk_gb: int
    project: str
    zone: str
    group: str
    policy: str
    fault_domain: str
    numa_nodes: int

    def join_stay(self, other: _Stay) -> _Stay | None:
        """Both as one; None if they differ, or one begins after the other's end."""
        if self[5:] != other[5:] or (self.end is not None and self.end < other.start):
            return None
        end = None if self.end is None or other.end is None else max(self.end, other.end)
        return self._replace(start=min(self.start, other.start), end=end)


class Recorder:
    """Reads bodies, and counts those that are left out.

    ``moment``: what happened later is not recorded, in seconds since the epoch. ``since``: what ended before is left out, and what
    began before begins then. ``without``: uuids of cells that are left out. ``default_zone`` has no pseudonym. ``with_nodes``: some
    host has NUMA nodes that are counted.
    """

    def __init__(
        self, moment: float, since: float | None, without: Collection[str], names: Names, default_zone: str, *, with_nodes: bool
    ) -> None:
        self.moment = moment
        self._since = since
        self._without = frozenset(without)
        self._names = names
        self._default_zone = default_zone
        self._with_nodes = with_nodes
        self.begins, self.never_ran, self.unreadable = moment, 0, 0

    def trace_lines(self, bodies: Iterable[tuple[PastBody, RequestSpec | None]]) -> Iterator[list[Value]]:
        """The lines of the trace, sorted in memory."""
        by_server = sorted(self._stays_of_bodies(bodies), key=itemgetter(0, 1, 2))
        for stay in sorted(_join_stays(by_server), key=itemgetter(3, 0, 1)):
            self.begins = min(self.begins, stay.start)
            yield self._trace_line(stay)

    def _stays_of_bodies(self, bodies: Iterable[tuple[PastBody, RequestSpec | None]]) -> Iterator[_Stay]:
        for body, spec in bodies:
            if body.cell_uuid in self._without:
                continue
            if body.start is None:
                self.never_ran += body.turn == 0
            elif spec is None:
                self.unreadable += 1
            elif body.start <= self.moment and (self._since is None or body.end is None or body.end > self._since):
                yield self._stay_values(body, body.start, spec)

    def _stay_values(self, body: PastBody, start: float, spec: RequestSpec) -> _Stay:
        takes, group = spec.taken_amounts, spec.group
        apart = group is not None and group.policy is not GroupPolicy.AFFINITY
        start = start if self._since is None else max(start, self._since)
        end = None if body.end is None or body.end > self.moment else max(body.end, start)
        return _Stay(
            body.server_uuid,
            body.turn,
            body.uuid,
            round(start, 3),
            None if end is None else round(end, 3),
            takes.vcpus,
            takes.memory_mb,
            takes.disk_gb,
            body.project_id,
            spec.availability_zone or "",
            "" if group is None else group.uuid,
            "" if group is None else str(group.policy),
            (spec.fault_domain or "") if apart else "",
            _nodes_of(spec) if self._with_nodes else 1,
        )

    def _trace_line(self, stay: _Stay) -> list[Value]:
        of = self._names.name_of
        number = f".{stay.turn}" if stay.turn else ""
        return [
            of("server", stay.server) + number,
            stay.start,
            stay.end,
            stay.vcpus,
            stay.memory_mb,
            stay.disk_gb,
            of("project", stay.project),
            self.zone_name(stay.zone),
            of("group", stay.group),
            stay.policy,
            of("domain", stay.fault_domain),
            stay.numa_nodes,
        ]

    def zone_name(self, name: str) -> str:
        return name if name == self._default_zone else self._names.name_of("zone", name)

    def fleet_line(self, host: FleetHost) -> list[Value]:
        """A line of the fleet."""
        of = self._names.name_of
        name, cell, rack = of("host", host.name), of("cell", host.cell), of("rack", host.rack or "")
        return [
            name,
            host.vcpus,
            host.memory_mb,
            host.disk_gb,
            cell,
            self.zone_name(host.zone or ""),
            rack,
            text_of_nodes(host.nodes),
        ]


def _nodes_of(spec: RequestSpec) -> int:
    """The number of NUMA nodes that a server is divided over. One that cannot be divided equally counts as on one."""
    return max(spec.numa_nodes, 1)


def _join_stays(bodies_by_server: Iterable[_Stay]) -> Iterator[_Stay]:
    """The stays of each server. A body that comes twice, as from a database and an archive, counts once."""
    for _, bodies in itertools.groupby(bodies_by_server, itemgetter(0)):
        stays: list[_Stay] = []
        for stay in bodies:
            for number, other in enumerate(stays):
                if (both := other.join_stay(stay)) is not None:
                    stays[number] = both
                    break
            else:
                stays.append(stay)
        yield from stays


def stored_bodies(database: ApiDatabase) -> Iterator[tuple[PastBody, RequestSpec | None]]:
    """All bodies that the API database has, a page in memory at a time."""
    after = ""
    while (page := database.read(history.page_after, after, PAGE_BODIES)).bodies:
        for body in page.bodies:
            yield body, page.specs.get(body.batch_id)
        after = page.bodies[-1].uuid


def archived_bodies(path: Path) -> Iterator[tuple[PastBody, RequestSpec | None]]:
    """All bodies of a file that ``db archive`` wrote. Their request specs follow them in the file.

    Raises Invalid, with the line, for a file that is none, or in which too many bodies lack their requests.
    """
    waiting: dict[str, list[PastBody]] = {}
    count = 0
    for line, table, row in archive.read(path):
        try:
            body, spec = history.archived_body(table, row), history.archived_spec(table, row)
        except (LookupError, TypeError):
            raise errors.Invalid(f"{path}, line {line}: is not a row of this release or an earlier one") from None
        if body is not None and body.start is None:
            yield body, None
        elif body is not None:
            waiting.setdefault(body.batch_id, []).append(body)
            count += 1
            if count > ARCHIVE_BODIES_LIMIT:
                raise errors.Invalid(f"{path}, line {line}: the requests of {count} servers before this line are missing")
        if spec is not None:
            bodies = waiting.pop(spec[0], [])
            count -= len(bodies)
            yield from ((waiting_body, spec[1]) for waiting_body in bodies)
    for waiting_body in itertools.chain.from_iterable(waiting.values()):
        yield waiting_body, None


def fleet_of(
    nodes: Iterable[tuple[str, str, Mapping[str, float], str, Mapping[str, int]]],
    zones: Mapping[str, str],
    racks: Mapping[str, str],
) -> list[FleetHost]:
    """``nodes``: host, node, capacity by column, the name of the cell, and capacities of resource classes, those of NUMA nodes too.

    A host with several nodes is several hosts.
    """
    nodes_by_host: dict[str, list[tuple[str, FleetHost]]] = {}
    for host, node, capacity, cell, resources in nodes:
        vcpus, memory_mb, disk_gb = (max(int(capacity[name]), 0) for name in ("vcpus", "memory_mb", "disk_gb"))
        fleet_host = FleetHost(host, vcpus, memory_mb, disk_gb, cell=cell, zone=zones.get(host), rack=racks.get(host))
        numbers = sorted({number for name in resources if (number := numa.node_of_class(name)) is not None})
        parts = [tuple(resources.get(name, 0) for name in numa.class_names(number)) for number in numbers]
        fleet_host = fleet_host._replace(nodes=tuple((cpus, memory) for cpus, memory in parts))
        nodes_by_host.setdefault(host, []).append((node, fleet_host))
    hosts: list[FleetHost] = []
    for named_hosts in nodes_by_host.values():
        hosts += [host if len(named_hosts) == 1 else host._replace(name=f"{host.name} {node}") for node, host in named_hosts]
    return sorted(hosts)
