"""``/os-availability-zone``: the zones that hosts are in, and whether they can take servers."""

from __future__ import annotations

import time
from collections import defaultdict
from typing import Any

import falcon

from api.hosts.services import BINARIES, COMPUTE, INTERNAL_ZONE
from api.http import call as calls
from api.http.call import send_json
from api.lookup.hosts import HostWatch
from api.lookup.server_view import format_micro
from api.lookup.silence import Silences
from api.opts import ApiSettings
from cells.fan_out import Answered, fan_out_within
from cells.registry import CellRegistry
from db import processes
from db.api.deployment import aggregates
from db.sql.connection import ApiTransaction
from db.sql.engine import ApiDatabase
from objects.process import Process

Zones = dict[str, str]
"""Host -> zone, of hosts that are not in the default one."""


class AvailabilityZones:
    """A zone is available while one of its hosts is enabled. Hosts of cells that do not answer are not."""

    def __init__(
        self, settings: ApiSettings, database: ApiDatabase, registry: CellRegistry, watch: HostWatch, silences: Silences
    ) -> None:
        self._settings = settings
        self._database = database
        self._registry = registry
        self._watch = watch
        self._silences = silences

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        zones = self._database.read(_zone_by_host)
        open_hosts, hosts = self._hosts_by_zone(zones)
        del req
        send_json(resp, {"availabilityZoneInfo": [_zone_entry(zone, bool(open_hosts.get(zone)), None) for zone in sorted(hosts)]})

    def on_get_detail(self, req: falcon.Request, resp: falcon.Response) -> None:
        """With the services of each host, and the zone of all services but agents."""
        call = calls.get_call(req)
        zones, level = self._database.read(_zones_and_processes)
        open_hosts, hosts = self._hosts_by_zone(zones)
        answers = fan_out_within(self._settings.cell_timeout, self._registry.list_cells(), processes.list_all, "cell")
        silent = {
            cell_answer.cell.uuid: cell_answer.cell.database_silent_since or time.time()
            for cell_answer in answers
            if not isinstance(cell_answer, Answered)
        }
        self._silences.name_silent_cells(resp, call, silent)
        others = [
            *level,
            *(process for cell_answer in answers if isinstance(cell_answer, Answered) for process in cell_answer.value),
        ]
        entries = [_zone_entry(zone, bool(open_hosts.get(zone)), hosts[zone]) for zone in sorted(hosts)]
        send_json(resp, {"availabilityZoneInfo": [_zone_entry(INTERNAL_ZONE, True, self._internal_services(others)), *entries]})

    def _hosts_by_zone(self, zones: Zones) -> tuple[dict[str, set[str]], dict[str, dict[str, Any]]]:
        """The hosts by zone that are enabled, and all hosts by zone with their agents."""
        open_hosts: defaultdict[str, set[str]] = defaultdict(set)
        hosts: defaultdict[str, dict[str, Any]] = defaultdict(dict)
        for view in self._watch.list_views():
            for host in sorted(self._registry.hosts_of(view.cell_uuid)):
                agent = view.agents.get(host)
                zone = zones.get(host, self._settings.default_availability_zone)
                if agent is None:
                    hosts[zone][host] = {COMPUTE: {"active": False, "available": False, "updated_at": None}}
                    continue
                is_up = self._watch.agent_status(agent) in ("UP", "MAINTENANCE")
                enabled = not agent.service.disabled
                hosts[zone][host] = {
                    COMPUTE: {"active": enabled, "available": is_up, "updated_at": format_micro(agent.service.last_seen)}
                }
                if enabled:
                    open_hosts[zone].add(host)
        return open_hosts, hosts

    def _internal_services(self, others: list[Process]) -> dict[str, dict[str, Any]]:
        hosts: defaultdict[str, dict[str, Any]] = defaultdict(dict)
        for process in others:
            if process.binary in BINARIES:
                is_up = process.age <= self._settings.service_down_time
                about = {"active": True, "available": is_up, "updated_at": format_micro(process.last_seen)}
                hosts[process.host][BINARIES[process.binary]] = about
        return hosts


def _zone_entry(zone: str, available: bool, hosts: dict[str, Any] | None) -> dict[str, Any]:
    return {"zoneName": zone, "zoneState": {"available": available}, "hosts": hosts}


def _zone_by_host(tx: ApiTransaction) -> Zones:
    return {
        host: zone for aggregate in aggregates.list_all(tx) if (zone := aggregate.availability_zone) for host in aggregate.hosts
    }


def _zones_and_processes(tx: ApiTransaction) -> tuple[Zones, list[Process]]:
    return _zone_by_host(tx), processes.list_all(tx, "api")
