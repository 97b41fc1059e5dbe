"""``lab record``: a deployment's own past as a trace, and its hosts as a fleet."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cli.databases.purge import date_of
from cli.shared.base import ActionShow
from objects import errors

if TYPE_CHECKING:  # a usage error or a help text should not wait for these
    from db.api.reconcile.history import PastBody
    from lab.fleet import FleetHost
    from lab.record import HistoryRecord, Names, Recorder
    from objects.spec import RequestSpec

BEHIND_S = 60.0
"""Age in seconds of events from which on a cell's servers are said to be out of date."""


class LabRecord(ActionShow):
    """Write this deployment's past as a trace, and its hosts as a fleet, for 'lab replay'. Nothing is changed in it.

    A server is a line from when its cell got it to its end. A resize ends a line and begins another one; a migration does not. What
    was purged is not known any more; --archive adds what 'db archive' wrote. Pseudonyms stand for all names and ids, the same ones
    in each record, unless --with-names is given. The files appear when both are whole.

    Every cell's database must answer: --without-cell leaves out one that does not, with its servers and hosts.

    Examples:
      superconductor lab record trace.csv --fleet fleet.csv --since 2026-01-01
      superconductor lab record year.csv --fleet fleet.csv --archive /var/lib/superconductor/archive
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("trace", metavar="TRACE", type=Path, help="file for the servers")
        parser.add_argument("--fleet", metavar="FILE", type=Path, required=True, help="file for the hosts as they are now")
        text = "leave out what ended before, and let what ran then begin then: 2026-03-31, or 2026-03-31T12:00:00+02:00"
        parser.add_argument("--since", metavar="DATE", type=date_of, help=text)
        text = "api.jsonl of 'db archive', or its folder; may be repeated"
        parser.add_argument("--archive", dest="archives", metavar="FILE", type=Path, action="append", default=[], help=text)
        text = "leave out this cell; may be repeated"
        parser.add_argument("--without-cell", dest="without", metavar="CELL", action="append", default=[], help=text)
        parser.add_argument("--with-names", action="store_true", help="write names and ids as they are, not pseudonyms")
        text = "zone of hosts that are in no other, which has no pseudonym (default: nova)"
        parser.add_argument("--default-zone", metavar="ZONE", default="nova", help=text)

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Sequence[Any]]:
        from lab.record import Recorder

        archives = _files_of(parsed_args.archives)
        if parsed_args.trace.absolute() == parsed_args.fleet.absolute():
            raise errors.Invalid("--fleet: names the same file as the trace")
        without = self._excluded_cells(parsed_args.without)
        self._check_cells(without)
        moment = self.deployment.api_database.current_time()
        if parsed_args.since is not None and parsed_args.since >= moment:
            raise errors.Invalid("--since: is in the future")
        names = self._make_names(parsed_args.with_names)
        hosts, zone = self._list_hosts(without), parsed_args.default_zone
        recorder = Recorder(moment, parsed_args.since, without, names, zone, with_nodes=any(host.nodes for host in hosts))
        recorded = self._write(recorder, parsed_args.trace, parsed_args.fleet, archives, hosts)
        for count, text in (
            (recorded.never_ran, "servers never became ACTIVE and are left out"),
            (recorded.unreadable, "servers are left out, because their requests are not known"),
        ):
            if count:
                self.warn_user(f"{count} {text}")
        columns = ("Servers", "Hosts", "Begins", "Ends", "Never ran", "Without a request")
        return columns, (recorded.servers, recorded.hosts, recorded.begins, recorded.ends, recorded.never_ran, recorded.unreadable)

    def _write(
        self, recorder: Recorder, trace: Path, fleet: Path, archives: Sequence[Path], hosts: Sequence[FleetHost]
    ) -> HistoryRecord:
        """Raises Conflict if there is nothing to record."""
        from lab.record import FLEET_COLUMNS, TRACE_COLUMNS, HistoryRecord
        from lab.table_file import NewTable

        with NewTable(trace, TRACE_COLUMNS) as servers, NewTable(fleet, FLEET_COLUMNS) as places:
            count = servers.add_rows(recorder.trace_lines(self._read_bodies(archives)))
            if not count or not hosts:
                raise errors.Conflict("There is nothing to record: no server has run, or there are no hosts.")
            places.add_rows(map(recorder.fleet_line, hosts))
            for table in (servers, places):
                table.finish_file()
            for table in (servers, places):
                table.keep_file()
        return HistoryRecord(
            servers=count,
            hosts=len(hosts),
            begins=recorder.begins,
            ends=recorder.moment,
            never_ran=recorder.never_ran,
            unreadable=recorder.unreadable,
        )

    def _read_bodies(self, archives: Sequence[Path]) -> Iterator[tuple[PastBody, RequestSpec | None]]:
        """The database comes first: what is archived meanwhile is in its file then."""
        from lab.record import archived_bodies, stored_bodies

        yield from stored_bodies(self.deployment.api_database)
        for path in archives:
            yield from archived_bodies(path)

    def _excluded_cells(self, names: Sequence[str]) -> frozenset[str]:
        """The uuids of these cells. Raises NoSuchCell."""
        from cells import administration

        return frozenset(administration.find_cell(self.deployment.api_database, name).uuid for name in names)

    def _check_cells(self, without: frozenset[str]) -> None:
        """Raise CellUnavailable, with its name, for a cell that does not answer: its servers may have ended since."""
        from db.api.reconcile import events
        from db.cell import feed

        registry, database = self.deployment.cell_registry, self.deployment.api_database
        advice = "give --without-cell {} to leave its servers and hosts out. Nothing was written"
        for name, reason in sorted(registry.broken_by_name().items()):
            if self._excluded_cells([name]).isdisjoint(without):
                raise errors.CellUnavailable(f"{reason}; {advice.format(name)}")
        cells = [cell for cell in registry.list_cells() if cell.uuid not in without]
        answers = [cell.begin_read(feed.lag_after, database.read(events.read_cursor, cell.uuid)) for cell in cells]
        for cell, answer in zip(cells, answers, strict=True):
            try:
                lag = answer()
            except errors.CellUnavailable as silent:
                raise errors.CellUnavailable(f"{silent}; {advice.format(cell.name)}") from silent
            if lag.seconds is not None and lag.seconds > BEHIND_S:
                self.warn_user(f"cell {cell.name}: {lag.events} changes are not applied yet; its servers are as they were before")

    def _make_names(self, as_they_are: bool) -> Names:
        """Raises Conflict for a deployment without the row that pseudonyms are made with."""
        from db.api.rows import incarnation
        from lab.record import Names

        if as_they_are:
            return Names(None)
        latest = self.deployment.api_database.read(incarnation.read)
        if latest is None:
            raise errors.Conflict("There is nothing to record: no conductor has ever run here.")
        return Names(latest.uuid)

    def _list_hosts(self, without: frozenset[str]) -> list[FleetHost]:
        """The hosts that are mapped, with the capacity that claims go by."""
        from db.api.claims import inventories
        from db.api.deployment import aggregates, cell_mappings, host_mappings
        from lab.record import fleet_of

        database = self.deployment.api_database
        cells = {mapping.uuid: mapping.name for mapping in database.read(cell_mappings.list_all)}
        homes = database.read(host_mappings.cell_uuid_by_host)
        sets = database.read(aggregates.list_all)
        zones = {host: aggregate.availability_zone for aggregate in sets if aggregate.availability_zone for host in aggregate.hosts}
        racks = {host: aggregate.rack_name for aggregate in sets if aggregate.rack_name for host in aggregate.hosts}
        offered = [
            (
                aggregate.host,
                aggregate.node,
                {"vcpus": aggregate.cap_vcpus, "memory_mb": aggregate.cap_memory_mb, "disk_gb": aggregate.cap_disk_gb},
                cells[aggregate.cell_uuid],
                aggregate.cap_resources,
            )
            for aggregate in database.read(inventories.read_all)
            if homes.get(aggregate.host) == aggregate.cell_uuid in cells and aggregate.cell_uuid not in without
        ]
        return fleet_of(offered, zones, racks)


def _files_of(archives: Sequence[Path]) -> list[Path]:
    """The files of the API database in these folders. Raises Invalid for a path that is not there."""
    files = [path / "api.jsonl" if path.is_dir() else path for path in archives]
    for path in files:
        if not path.is_file():
            raise errors.Invalid(f"--archive: there is no file {path}")
    return files
