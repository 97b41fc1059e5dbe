"""``superconductor cell delete``: forget cells, also such as are lost for good."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from cells import administration
from cli.fleet.cell import STATUSES
from cli.shared.base import ActionLister, Row, Table
from objects import errors
from objects.cell import CellMapping


class CellDelete(ActionLister):
    """Delete cells that hold no servers. Their databases are not changed.

    --offline removes a cell whose database is lost, with everything that the API level knows of it, and shows what it removed.
    Servers are deleted, builds move to other cells or end in ERROR, hosts, claims and quota are released. Destroy guests that still
    run on its hosts yourself. If it was interrupted, run it again. The exit status says why a cell was refused.

    Examples:
      superconductor cell delete east --with-hosts
      superconductor cell delete east --offline --dry-run -f json
    """

    statuses = STATUSES

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("cells", metavar="CELL", nargs="+", help="name or UUID")
        parser.add_argument("--with-hosts", action="store_true", help="also delete the mappings of its hosts")
        parser.add_argument("--offline", action="store_true", help="remove a cell whose database is lost; refused if it answers")
        parser.add_argument("--dry-run", action="store_true", help="with --offline: only show what would be removed")
        parser.add_argument(
            "--endpoint", metavar="URL", help="URL of the API that must also find the cell silent (default: as for 'status')"
        )

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        if parsed_args.dry_run and not parsed_args.offline:
            raise errors.Invalid("--dry-run goes with --offline: without it, nothing is removed")
        rows: list[Row] = []

        def delete(cell: str) -> None:
            if parsed_args.offline:
                rows.extend(
                    self._remove_cell(cell, parsed_args.endpoint or self.deployment.api_endpoint, dry_run=parsed_args.dry_run)
                )
            else:
                administration.delete_cell(self.deployment.api_database, cell, with_hosts=parsed_args.with_hosts)

        self.do_each(parsed_args.cells, delete)
        return ("Cell", "Kind", "ID", "Name", "Project", "State", "Host", "Claim", "Outcome"), rows

    def produce_output(self, parsed_args: argparse.Namespace, column_names: Sequence[str], data: Iterable[Sequence[Any]]) -> int:
        """The account, unless all was refused."""
        rows = list(data)
        return super().produce_output(parsed_args, column_names, rows) if parsed_args.offline and (rows or not self.status) else 0

    def _refuse_if_heard(self, mapping: CellMapping, endpoint: str) -> None:
        """It may be the way from here that is cut. Where no API can be asked, there is no second opinion."""
        from cli.shared.http import read_views

        if read_views(endpoint).get(mapping.uuid, {}).get("view") == "answers":
            raise errors.Conflict(
                f"Cell {mapping.name!r} cannot be reached from here, but it answers the API: run this on the API's machine"
            )

    def _remove_cell(self, name: str, endpoint: str, *, dry_run: bool) -> Iterator[Row]:
        from cells import removal, template
        from db.api.claims.claims import Ledger

        database = self.deployment.api_database
        mapping = administration.find_deletable(database, name)
        template.expand_mapping(mapping, self.deployment.local_values)  # what cannot be asked from here may well be alive
        try:
            silence = removal.silence_of(self.deployment.cell_registry.get(mapping.uuid))
        except errors.CellUnavailable as error:  # its URL cannot be used at all
            silence = str(error)
        if silence is not None:
            self._refuse_if_heard(mapping, endpoint)
        account = removal.remove_cell(Ledger(database, "cell delete"), mapping, dead=silence is not None, dry_run=dry_run)
        if silence is not None:
            self.warn_user(f"{silence}; it {'would be' if dry_run else 'was'} removed as lost")
        for e in account:
            yield mapping.name, e.kind, e.id, e.name, e.project, e.state, e.host, e.amounts, e.outcome
