"""``nova audit``: what the databases of a Nova do not agree on, and the commands that mend it."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from cli.nova.base import NovaCommand

if TYPE_CHECKING:
    from rich.console import Console

    from beside_nova.audit import NovaAudit as Audit
    from beside_nova.site import NovaSite
    from beside_nova.state import NovaState


class NovaAuditShow(NovaCommand):
    """Compare servers, claims, hosts, mappings, zones and groups of a Nova, and print a command that mends each fault.

    Nothing is changed. Exit status 1: something does not agree. 3: nothing was found, but a cell could not be read.

    Example: superconductor nova audit
    """

    def answer_question(self, site: NovaSite, state: NovaState, parsed_args: argparse.Namespace) -> Audit:
        from beside_nova.audit import audit_cloud

        audit = audit_cloud(state)
        self.warn_of_cells(state)
        self.status = 1 if audit.faults else 3 if audit.skipped else 0
        return audit

    def describe_answer(self, console: Console, answer: Audit) -> None:
        for fault in answer.faults:
            console.print(f"{fault.kind}: {fault.text}", markup=False)
            console.print(f"  {fault.mend or 'No command of Nova mends this.'}", markup=False, soft_wrap=True)
        for text in answer.skipped:
            console.print(f"Not compared: {text}.", markup=False)
        console.print(f"{len(answer.faults)} faults.", markup=False)
