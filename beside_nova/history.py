"""The past of a Nova cloud as a trace for the lab, and its hosts as a fleet."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from beside_nova import readers
from beside_nova.records import NovaGroup, NovaInstance
from beside_nova.request import plain_data
from beside_nova.state import NovaState
from lab.record import FLEET_COLUMNS, TRACE_COLUMNS, Names
from lab.table_file import NewTable, Value
from objects import errors
from objects.aggregate import RACK
from objects.base import Object
from objects.group import GroupPolicy

PAGE_SERVERS = 1_000


class NovaHistory(Object, frozen=True, kw_only=True):
    """``servers``: lines of the trace. ``never_ran``: servers that are left out because they never became ACTIVE."""

    servers: int
    hosts: int
    never_ran: int


class NovaRecorder:
    """Writes both files. ``since``: UTC; what ended before is left out, and what began before begins then."""

    def __init__(self, state: NovaState, names: Names, since: datetime | None = None) -> None:
        self._state, self._names, self._since = state, names, since
        self._never_ran = 0
        self._group_of: dict[str, NovaGroup] = {
            member: group for group in state.databases.api.read(readers.list_groups) for member in group.members
        }

    def write_files(self, trace: Path, fleet: Path) -> NovaHistory:
        """Both appear when they are whole. Raises Conflict if there is nothing to record, or a cell could not be read."""
        if failed := [view.error for view in self._state.cells.values() if view.error]:
            raise errors.Conflict(f"Not all cells can be read: {failed[0]}")
        lines = sorted(self._trace_lines(), key=lambda line: (line[1], line[0]))
        hosts = sorted(self._fleet_lines())
        if not lines or not hosts:
            raise errors.Conflict("There is nothing to record: no server has run, or there are no hosts.")
        with NewTable(trace, TRACE_COLUMNS) as servers, NewTable(fleet, FLEET_COLUMNS) as places:
            servers.add_rows(lines)
            places.add_rows(hosts)
            for table in (servers, places):
                table.finish_file()
            for table in (servers, places):
                table.keep_file()
        return NovaHistory(servers=len(lines), hosts=len(hosts), never_ran=self._never_ran)

    def _trace_lines(self) -> Iterator[list[Value]]:
        for view in self._state.cells.values():
            after = 0
            while True:
                page, after = self._state.database_of(view.cell).read(readers.past_instances, view.cell.name, after, PAGE_SERVERS)
                if not page:
                    break
                specs = self._state.databases.api.read(readers.list_request_specs, [one.uuid for one in page])
                for instance in page:
                    if instance.launched_at is None:
                        self._never_ran += 1
                    elif self._since is None or instance.ended_at is None or instance.ended_at > self._since:
                        yield self._trace_line(instance, instance.launched_at, specs.get(instance.uuid, ""))

    def _trace_line(self, instance: NovaInstance, launched_at: datetime, spec: str) -> list[Value]:
        of, group = self._names.name_of, self._group_of.get(instance.uuid)
        data = plain_data(readers.parse_object(spec))
        zone = data.get("availability_zone") or ""
        start = launched_at if self._since is None else max(launched_at, self._since)
        end = instance.ended_at
        return [
            of("server", instance.uuid),
            _seconds_of(start),
            None if end is None else max(_seconds_of(end), _seconds_of(start)),
            instance.vcpus,
            instance.memory_mb,
            0 if data.get("is_bfv") else instance.disk_gb,
            of("project", instance.project_id),
            of("zone", zone) if zone in self._state.zone_names else "",
            of("group", group.uuid) if group is not None and group.policy in list(GroupPolicy) else "",
            group.policy if group is not None and group.policy in list(GroupPolicy) else "",
            "",
            1,
        ]

    def _fleet_lines(self) -> Iterator[list[Value]]:
        table, of = self._state.table, self._names.name_of
        racks = {host: one.metadata[RACK] for one in self._state.facts.aggregates if one.metadata.get(RACK) for host in one.hosts}
        for row in range(table.size):
            if not table.eligible[row]:
                continue
            host = table.hosts[row]
            name = host if table.nodes[row] == host else f"{host} {table.nodes[row]}"
            zone = table.zones[table.zone.item(row)]
            yield [
                of("host", name),
                int(table.cap_vcpus.item(row)),
                int(table.cap_memory_mb.item(row)),
                max(int(table.cap_disk_gb.item(row)), 0),
                of("cell", table.cells[table.cell.item(row)].name),
                of("zone", zone) if zone in self._state.zone_names else zone,
                of("rack", racks.get(host, "")),
                "",
            ]


def _seconds_of(moment: datetime) -> float:
    return moment.replace(tzinfo=UTC).timestamp()
