"""``superconductor db restored``: what an operator says after a database was put back from a backup."""

from __future__ import annotations

import argparse

from cells import administration, comparison
from cli.shared.base import ActionLister, Table
from db.api.claims.claims import Ledger
from db.api.reconcile import events
from db.api.rows import incarnation
from objects import errors

EXIT_INCOMPLETE = 3
"""Exit status: a cell did not answer, or a person has to decide something."""


class DbRestored(ActionLister):
    """Compare a database that was restored with the others, and adopt what runs. No guest is touched.

    Super conductors do this themselves once they notice a restore, and lease nothing meanwhile. Use this command if they wait for a
    lost cell, or have not noticed the restore. It may be repeated.

    Exit status: 0 done; 3 a cell did not answer (with --api nothing is leased until it does), or a server is in two cells.

    Examples:
      superconductor db restored --api
      superconductor db restored --api --without east
      superconductor db restored --cell west
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        group = parser.add_mutually_exclusive_group(required=True)
        group.add_argument("--api", action="store_true", help="the API database was restored")
        group.add_argument("--cell", metavar="CELL", help="this cell's database was restored")
        parser.add_argument(
            "--without",
            metavar="CELL",
            action="append",
            default=[],
            help="continue without this cell, because it is lost (may be repeated)",
        )

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        if parsed_args.without and parsed_args.cell:
            raise errors.Invalid("--without goes with --api: a restored cell is compared with the API database only")
        database = self.deployment.api_database
        ledger = Ledger(database, "db restored")
        if parsed_args.cell:
            try:
                return ("Cell", "Rows told again"), [self._reconcile_cell(ledger, parsed_args.cell)]
            except errors.CellUnavailable as silent:
                self.status = EXIT_INCOMPLETE
                self.warn_user(f"{silent}; repeat this when it answers")
                return ("Cell", "Rows told again"), []
        names = {administration.find_cell(database, name).name for name in parsed_args.without}
        now = database.read(incarnation.read) or database.write(incarnation.advance_mark)
        if not now.comparing:
            database.write(incarnation.close, now.uuid, "an operator says that the API database was restored")
        from conductor import restored_cell
        from conductor.audit.places import Places

        registry = self.deployment.cell_registry
        try:
            restored_cell.reconcile_all(registry, ledger, names)
            done = comparison.compare_cells(registry, ledger, now.uuid, names, self.deployment.image_store)
            restored_cell.hold_others(Places(database, ledger, registry, overdue=0.0))
        except comparison.ComparisonBlocked as missing:
            self.status = EXIT_INCOMPLETE
            self.warn_user(f"{missing}; nothing is leased until it answers, or until you repeat this with --without CELL")
            return ("Cell", "Servers adopted"), []
        if done.frozen:
            self.status = EXIT_INCOMPLETE
            self.warn_user(f"{done.frozen} operations cannot be decided yet, and take no step: see 'superconductor verify'")
        for refused in done.refused:
            self.status = EXIT_INCOMPLETE
            self.warn_user(f"{refused}: delete the copy that is wrong")
        return ("Cell", "Servers adopted"), sorted(done.adopted.items())

    def _reconcile_cell(self, ledger: Ledger, name: str) -> tuple[str, int]:
        from conductor import restored_cell

        cell = self.deployment.cell_registry.get(administration.find_cell(ledger.database, name).uuid)
        count = restored_cell.reconcile_cell(ledger, cell)
        ledger.database.write(events.rebuild_from_rows, cell.uuid)
        return cell.name, count
