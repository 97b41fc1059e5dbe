"""What is on the hosts while faults come: at no moment may two bodies of a server run, and what a guest has written must stay."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping

from chaos.judge import CAUSE_WINDOW_S, MIN_OUTAGE_S
from chaos.watcher import Watcher
from chaos.weather import Weather
from cli.standalone.demo.evidence import Evidence
from cli.standalone.demo.hosts import HostFindings
from cli.standalone.demo.verdict import Violation
from objects.base import Object
from objects.operation import Operation, OperationKind, Outcome

WATCH_INTERVAL_S = 1.0
"""Seconds between two looks at all hosts."""
COPYING = frozenset({OperationKind.MIGRATE, OperationKind.RESIZE, OperationKind.LIVE_MIGRATE, OperationKind.UNSHELVE})
"""Moves that take the disk along. The others make a new one from the image."""


class Double(Object, frozen=True, kw_only=True):
    """Guests of two bodies of a server that ran at the same moment. ``at``: seconds since the epoch."""

    guests: frozenset[tuple[str, str]]  # body, host
    at: float


class GuestWatch(Watcher):
    """Looks at the guests and disks of all hosts again and again, from ``start`` to ``stop``."""

    def __init__(self, hosts: HostFindings) -> None:
        super().__init__("guest watch", WATCH_INTERVAL_S)
        self._hosts = hosts
        self._running: Mapping[str, frozenset[tuple[str, str]]] = {}
        self.writes: dict[tuple[str, str | None], int] = {}
        """The most writes that were ever seen on the disk of a body that was made from an image."""
        self.doubles: dict[str, Double] = {}
        """The first of each server."""

    def watch_once(self) -> None:
        """Look once. Two guests that run in this look and ran in the one before it have run at the same moment."""
        running = self._read_running()
        for server in running.keys() & self._running.keys():
            running_twice = running[server] & self._running[server]
            if len({body for body, _ in running_twice}) > 1:
                self.doubles.setdefault(server, Double(guests=running_twice, at=time.time()))
        self._running = running
        for disk in self._hosts.sample_written():
            key = disk.uuid, disk.image_id
            self.writes[key] = max(disk.writes, self.writes.get(key, 0))

    def list_doubles(self, weather: Weather) -> Iterator[Violation]:
        """Servers of which two bodies ran. A host that was silent for long is taken for dead, and its guest does not count."""
        for server, double in self.doubles.items():
            reachable = {
                body for body, host in double.guests if weather.host_outage(host, double.at, CAUSE_WINDOW_S) < MIN_OUTAGE_S
            }
            if len(reachable) > 1:
                yield Violation(message=f"{server}: ran twice at {double.at:.1f}: {sorted(double.guests)}")

    def list_lost_disks(self, evidence: Evidence) -> Iterator[Violation]:
        """Servers whose disk has lost what was once written to it. ``evidence``: at rest."""
        moves = {
            operation.twin_uuid: operation
            for operation in (*evidence.history, *evidence.operations)
            if operation.twin_uuid and _has_switched(operation)
        }
        hosts = {row.instance.uuid: row.instance.host or "" for row in evidence.rows}
        for server in evidence.servers:
            disk = None if server.deleted else self._hosts.written_disk(hosts.get(server.body_uuid, ""), server.body_uuid)
            if disk is None:
                continue
            came_from = [server.body_uuid]
            while (move := moves.get(came_from[-1])) is not None and move.kind in COPYING and move.source_uuid is not None:
                came_from.append(move.source_uuid)
            most = max(self.writes.get((body, disk.image_id), 0) for body in came_from)
            if most > disk.writes:
                yield Violation(message=f"{server.uuid}: {most} writes were on its disk, {disk.writes} are left: {came_from}")

    def _read_running(self) -> dict[str, frozenset[tuple[str, str]]]:
        bodies_by_server: dict[str, set[tuple[str, str]]] = defaultdict(set)
        for host, guests in self._hosts.guests_by_host().items():
            for guest in guests:
                if guest.power.uses_disk:
                    bodies_by_server[guest.server_uuid or guest.uuid].add((guest.uuid, host))
        return {server: frozenset(guests) for server, guests in bodies_by_server.items()}


def _has_switched(operation: Operation) -> bool:
    """Whether the twin became the server, and still is as far as this operation goes."""
    return operation.outcome is Outcome.DONE or operation.outcome is None
