"""``superconductor verify``: check all databases for consistency, and repair them with ``--repair``."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from cli.shared.base import AdminLister, Row, Table, at_least
from objects import errors

if TYPE_CHECKING:  # a usage error or a help text should not wait for these
    from conductor.audit.audit import FindingsByCheck
    from conductor.audit.finding import Finding
    from conductor.audit.places import Places

EXIT_INCONSISTENT = 1
EXIT_UNKNOWN = 3
"""Exit status where nothing was found, but not all could be looked at. 2 is wrong usage, as with every command."""

COLUMNS = ("Finding", "Object", "Cell", "Details", "Repair", "Outcome", "Advice")


class Verify(AdminLister):
    """Compare the API database with every cell: servers, rows, claims, groups, hosts, guests, secrets and overdue work.

    It can run at any time. Each difference is checked again after a pause and reported only if it is unchanged. A cell that does
    not answer is named, and its part is unknown. --repair repairs what it can, and then compares again. A repair gives way to any
    concurrent change.

    Exit status: 0 consistent or repaired, 1 inconsistent, 3 no difference found, but not all cells could be asked.

    Examples:
      superconductor verify
      superconductor verify --repair -f json
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--repair", action="store_true", help="repair what can be repaired")
        parser.add_argument(
            "--end-unproven",
            action="store_true",
            help="delete rows in other cells than mapped also where nothing shows that the server runs in its own cell: guests "
            "are destroyed",
        )
        parser.add_argument(
            "--settle",
            metavar="SECONDS",
            type=partial(at_least, 0),
            default=25,
            help="pause before differences are checked again, longer than the conductors' idle_interval (default: 25)",
        )
        parser.add_argument(
            "--overdue",
            metavar="SECONDS",
            type=partial(at_least, 0),
            default=180,
            help="age at which unfinished work counts as overdue: longer than the conductors' leases and sweeps (default: 180)",
        )

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        from conductor.audit.audit import Audit
        from conductor.audit.places import Places
        from db.api.claims.claims import Ledger

        database = self.deployment.api_database
        places = Places(
            database,
            Ledger(database, "verify"),
            self.deployment.cell_registry,
            overdue=parsed_args.overdue,
            images=self.deployment.image_store,
        )
        places.end_unproven = parsed_args.end_unproven
        audit = Audit(places)
        findings: FindingsByCheck = {}
        remaining: FindingsByCheck = {}
        try:
            findings = remaining = audit.confirm_findings(lambda: time.sleep(parsed_args.settle))
            if parsed_args.repair:
                self._say_guests(findings)
                remaining = audit.repair_findings(findings)
        except errors.DatabaseUnavailable as error:
            places.unknown[""] = str(error)
        self._set_status(places, remaining)
        return COLUMNS, list(_finding_rows(findings, remaining, repaired=parsed_args.repair))

    def _say_guests(self, all_findings: FindingsByCheck) -> None:
        """Before anything is repaired: which guests end with it."""
        for finding in (finding for findings in all_findings.values() for finding in findings):
            if finding.ends_guest and finding.repair:
                self.warn_user(f"{finding.what} ({finding.cell}) is now {finding.repair}: a guest that runs there is destroyed")

    def _set_status(self, places: Places, remaining: Mapping[Any, Sequence[Finding]]) -> None:
        for reason in places.unknown.values():
            self.warn_user(f"{reason}; its state is unknown")
        if any(remaining.values()):
            self.status = EXIT_INCONSISTENT
        elif places.unknown:
            self.status = EXIT_UNKNOWN

    def produce_output(self, parsed_args: argparse.Namespace, column_names: Sequence[str], data: Iterable[Sequence[Any]]) -> int:
        """A line for each finding for people; the other formats are for programs."""
        if parsed_args.formatter != "table":
            return super().produce_output(parsed_args, column_names, data)
        rows = list(data)
        for kind, _, cell, details, repair, outcome, advice in rows:
            cell_note = f" ({cell})" if cell else ""
            print(f"{kind}: {details}{cell_note}; {_outcome_sentence(repair, outcome, advice)}", file=self.app.stdout)
        if not rows and not self.is_quiet and not self.status:
            print("everything agrees", file=self.app.stdout)
        return 0


def _finding_rows(all_findings: FindingsByCheck, remaining: FindingsByCheck, *, repaired: bool) -> Iterable[Row]:
    for check, findings in all_findings.items():
        still = set(remaining[check])
        for finding in findings:
            outcome = "repaired" if finding not in still else "left" if repaired or finding.repair is None else "found"
            cell = finding.cell or None
            yield finding.kind, finding.key, cell, finding.what, finding.repair, outcome, finding.advice or None


def _outcome_sentence(repair: str | None, outcome: str, advice: str | None) -> str:
    if repair is None:
        return advice or "left as it is"
    if outcome == "found":
        return f"would be {repair}"
    return repair if outcome == "repaired" else f"could not be {repair}: it has changed, or waits for a running conductor"
