"""``superconductor guest``: guests that run on hosts and that their cells' records do not account for."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING

from cells import administration
from cli.shared.base import Admin, AdminLister, Row, Table
from objects import errors

if TYPE_CHECKING:  # a usage error or a help text should not wait for it
    from conductor.audit.places import Places

OVERDUE_S = 180.0
"""Seconds after which what a sweep should have done counts as left behind; nothing here asks for that."""


class _OfGuests(Admin):
    """A command on all databases."""

    def read_places(self) -> Places:
        """Where guests are looked for. A cell that does not answer is told of, and the exit status is 1."""
        from conductor.audit.places import Places
        from db.api.claims.claims import Ledger

        database = self.deployment.api_database
        places = Places(database, Ledger(database, "guest"), self.deployment.cell_registry, overdue=OVERDUE_S)
        places.begin_check()
        return places

    def say_unknown(self, places: Places) -> None:
        """Cells that could not be asked."""
        for reason in places.unknown.values():
            self.status = 1
            self.warn_user(f"{reason}; the guests there are unknown")


class GuestList(_OfGuests, AdminLister):
    """List guests that run on hosts but have no matching record in their cells, as their agents last reported.

    Such a guest is never destroyed. "On Record" shows what its cell has recorded instead. The record may be lost or out of date
    after a restore or a failover, or the host was renamed. Its power, its project and its user are as its host says. 'guest adopt'
    attaches the guest to its server again. Remove a guest that nobody needs on its host.

    Exit status: 1 if a cell did not answer.

    Example: superconductor guest list --cell east
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--cell", metavar="CELL", help="only those of this cell (name or UUID)")

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        places = self.read_places()
        cell_uuid = administration.find_cell(places.api, parsed_args.cell).uuid if parsed_args.cell else None
        sizes, whose = ("VCPUs", "Memory MB", "Disk GB"), ("Power", "Project", "User")
        columns = ("UUID", "Name", "Cell", "Host", "Attempt", *sizes, "On Record", "Reported", *whose)
        rows = list(self._guest_rows(places, cell_uuid))
        self.say_unknown(places)
        return columns, rows

    def _guest_rows(self, places: Places, only_cell: str | None) -> Iterator[Row]:
        from conductor.adopt_guest import list_unknown

        for cell_uuid, guests in sorted(list_unknown(places).items(), key=lambda item: places.name_of(item[0])):
            for reported in guests if only_cell in (None, cell_uuid) else ():
                guest = reported.guest
                at = datetime.fromtimestamp(reported.reported_at, UTC).isoformat(timespec="seconds")
                size = (guest.vcpus, guest.memory_mb, guest.disk_gb)
                whose = (guest.power, guest.project_id, guest.user_id)
                yield (
                    guest.uuid,
                    guest.name,
                    places.name_of(cell_uuid),
                    reported.host,
                    guest.attempt,
                    *size,
                    guest.reason,
                    at,
                    *whose,
                )


class GuestAdopt(_OfGuests):
    """Make guests that 'guest list' shows the guests of their servers again.

    The cell gets a record of the server where the guest is, with the guest's power and interfaces. The API level gets what it lost
    of the server: mapping, request spec, claim, quota and addresses. What no database knows is taken from the guest's host, and
    named: size, image, addresses, project and user. --project and --user name another owner. Refused are servers that were
    deleted, are in another cell, or are ACTIVE with another guest.

    Exit status: 1 some could not be adopted; the others were.

    Example: superconductor guest adopt 6f70656e-7374-4163-8b21-0123456789ab
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("uuids", metavar="UUID", nargs="+", help="UUIDs of the instances")
        parser.add_argument("--host", metavar="HOST", help="host of the guest, if several hosts have a guest of the instance")
        parser.add_argument(
            "--project", metavar="ID", help="project that owns the server, if no database has it (default: as its host says)"
        )
        parser.add_argument("--user", metavar="ID", help="user who requested it (default: as its host says; with --project none)")

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        places = self.read_places()
        self.do_each(parsed_args.uuids, partial(self._adopt_guest, places, parsed_args))

    def _adopt_guest(self, places: Places, parsed_args: argparse.Namespace, uuid: str) -> None:
        from conductor.adopt_guest import Owner, adopt_guest

        if parsed_args.user and not parsed_args.project:
            raise errors.Invalid("--user needs --project")
        project = parsed_args.project
        owner = Owner(project_id=project, user_id=parsed_args.user or "") if project else None
        done = adopt_guest(places, uuid, parsed_args.host, owner)
        host = done.reported.host
        if not self.is_quiet:
            print(f"Adopted {uuid} on host {host} in cell {places.name_of(done.cell_uuid)}", file=self.app.stdout)
        if done.from_host:
            self.warn_user(f"{uuid}: no database knew it, so host {host} was believed: {', '.join(done.from_host)}")
