"""``GET /superconductor/status``: an overview of the deployment for administrators. Our own extension of the Compute API."""

from __future__ import annotations

import os
import socket
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import falcon

from api.http import health
from api.http.call import send_json
from api.http.health import CellAnswer, Reached
from api.lookup.hosts import CellView, HostWatch
from api.opts import ApiSettings
from cells.cell import Cell
from cells.registry import CellRegistry
from db import dead_letters, processes
from db.api.operations import thaw
from db.api.rows import incarnation, metering
from db.api.rows.incarnation import Incarnation
from db.api.servers import mappings
from db.api.servers.mappings import Queue, StateCount
from db.audit import servers as audit_servers
from db.sql import clock
from db.sql.connection import ApiTransaction
from db.sql.engine import ApiDatabase
from objects.cell import CELL0_UUID
from objects.process import API_BINARY, CONDUCTOR_BINARY, SCHEDULER_BINARY, Process
from objects.utc import to_utc
from objects.waiting import WaitingCount
from service import metrics


class ApiLevelCounts(NamedTuple):
    """The contents of the API_BINARY database; ``now`` is its clock."""

    counts: list[StateCount]
    queue: Queue
    processes: list[Process]
    cursors: dict[str, int]
    now: float
    dead_letters: dict[str, int]
    incarnation: Incarnation | None
    operations: list[WaitingCount]
    frozen: tuple[int, str]


class Status:
    """Counts come from the API_BINARY database. Cells are asked only for data that they alone have, each within its time-out."""

    def __init__(self, settings: ApiSettings, database: ApiDatabase, registry: CellRegistry, watch: HostWatch) -> None:
        self._settings = settings
        self._database = database
        self._registry = registry
        self._watch = watch

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        level = self._database.read(_count_api_level)
        servers: defaultdict[str | None, dict[str, int]] = defaultdict(dict)
        for count in level.counts:
            servers[count.cell_uuid][count.state] = count.count
        known = self._registry.list_cells()
        healths = health.of_cells(known, level.cursors, self._settings.cell_timeout)
        views = {view.cell_uuid: view for view in self._watch.list_views()}
        cells = [
            self._cell_entry(cell, views.get(cell.uuid), healths[cell.uuid])
            | {"servers": servers[cell.uuid], "silent_since": cell.silent_since}
            for cell in known
        ]
        broken = [
            {"uuid": uuid, "view": reason, "servers": servers[uuid]} for uuid, reason in self._registry.reasons_by_uuid().items()
        ]
        document = {
            "processes": self._tally_processes(level.processes, (API_BINARY, SCHEDULER_BINARY, CONDUCTOR_BINARY)),
            "cells": cells,
            "broken_cells": broken,
            "hosts_in_two_cells": self._duplicate_hosts({cell.uuid: cell.name for cell in known}),
            "hosts_elsewhere": self._misplaced_hosts({cell.uuid: cell.name for cell in known}),
            "buried": servers[CELL0_UUID],
            "dead_letters": level.dead_letters,
            "leasing": _leasing_entry(level.incarnation),
            "frozen_operations": {"count": level.frozen[0], "reason": level.frozen[1]},
            "operations": {
                operation_count.name: {
                    "count": operation_count.count,
                    "oldest_seconds": round(max(0.0, level.now - operation_count.oldest), 3),
                }
                for operation_count in level.operations
            },
            "shelved": servers[None].pop("shelved", 0),
            "process": {"id": f"{socket.gethostname()}:{os.getpid()}", "counters": metrics.read_overview()},
            "queue": {
                "depth": level.queue.depth,
                "oldest_seconds": None if level.queue.oldest is None else round(max(0.0, level.now - level.queue.oldest), 3),
                "servers": servers[None],
            },
        }
        send_json(resp, {"status": document})

    def _cell_entry(self, cell: Cell, view: CellView | None, state: CellAnswer) -> dict[str, Any]:
        entry = {
            "uuid": cell.uuid,
            "name": cell.name,
            "state": str(cell.current_mapping.state),
            "view": "not asked yet" if view is None else view.silent or "answers",
            "database": _reachability_entry(state.database),
            "bus": _reachability_entry(state.bus),
            "unmapped_hosts": 0 if view is None else sum(self._registry.home_of(host) is None for host in view.agents),
            "hosts": {} if view is None else self._watch.count_by_status(view),
            "shared_user_hosts": 0 if view is None else sum(agent.service.is_shared for agent in view.agents.values()),
            "refused_machines": [] if view is None else _refused_machines(view),
            "disabled_hosts": 0 if view is None else sum(agent.service.disabled for agent in view.agents.values()),
        }
        if state.report is None:
            return entry | {"processes": None, "feed": None, "dead_letters": None, "waiting_sizes": None}
        lag = state.report.lag
        feed = {"behind": lag.events, "seconds": None if lag.seconds is None else round(lag.seconds, 3)}
        conductors = self._tally_processes(state.report.conductors, (CONDUCTOR_BINARY,))
        letters, waiting = state.report.dead_letters, state.report.waiting_sizes
        return entry | {"processes": conductors, "feed": feed, "dead_letters": letters, "waiting_sizes": waiting}

    def _tally_processes(self, records: Iterable[Process], binaries: Iterable[str]) -> dict[str, dict[str, int]]:
        tally = {binary: {"up": 0, "down": 0} for binary in binaries}
        for process in records:
            up = process.age <= self._settings.service_down_time
            tally.setdefault(process.binary, {"up": 0, "down": 0})["up" if up else "down"] += 1
        return tally

    def _duplicate_hosts(self, names: Mapping[str, str]) -> list[dict[str, Any]]:
        twins = self._watch.in_two_cells().items()
        return [{"host": host, "cells": [names.get(uuid, uuid) for uuid in uuids]} for host, uuids in twins]

    def _misplaced_hosts(self, names: Mapping[str, str]) -> list[dict[str, str]]:
        """Hosts whose only agents report in another cell than they are mapped to."""
        misplaced = self._watch.misplaced_hosts().items()
        return [
            {"host": host, "cell": names.get(cell, cell), "mapped_to": names.get(home, home)} for host, (cell, home) in misplaced
        ]


def _refused_machines(view: CellView) -> list[dict[str, str]]:
    """Two machines with the name of one host, for each such host: the one that runs as it, and the one that is refused."""
    pairs = ((host, agent.service.machine_name, agent.refused) for host, agent in sorted(view.agents.items()))
    return [{"host": host, "machine": admitted or "", "refused": refused.name} for host, admitted, refused in pairs if refused]


def _count_api_level(tx: ApiTransaction) -> ApiLevelCounts:
    known = processes.list_all(tx, "api")
    counted, letters = mappings.count_by_state(tx), dead_letters.count_by_step(tx, "api")
    return ApiLevelCounts(
        counts=counted,
        queue=mappings.measure_queue(tx),
        processes=known,
        cursors=audit_servers.cursors_by_cell(tx),
        now=clock.read(tx),
        dead_letters=letters,
        incarnation=incarnation.read(tx),
        operations=metering.open_operations(tx),
        frozen=thaw.count_frozen(tx),
    )


def _leasing_entry(latest: Incarnation | None) -> dict[str, Any]:
    """Whether requests may be leased, and if not, why. None: no super conductor has run yet."""
    return {"allowed": latest is None or not latest.comparing, "reason": latest.reason if latest is not None else ""}


def _reachability_entry(reached: Reached) -> dict[str, Any]:
    since = None if reached.since is None else to_utc(reached.since).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {"reachable": reached.reason is None, "since": since, "reason": reached.reason}
