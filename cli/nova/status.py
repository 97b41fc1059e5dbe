"""``nova status``: what is read of an existing Nova."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from cli.nova.base import NovaCommand
from cli.shared.console import table_of

if TYPE_CHECKING:
    from rich.console import Console

    from beside_nova.overview import CloudOverview
    from beside_nova.site import NovaSite
    from beside_nova.state import NovaState


class NovaStatus(NovaCommand):
    """Show the hosts of an existing OpenStack Nova by cell, their room, and the hosts that cannot be judged, with the reason.

    The databases are named in [nova] of a --config-file, or in the environment. Exit status 1: a cell could not be read.

    Example: OS_NOVA__CONFIG_FILE=/etc/nova/nova.conf superconductor nova status
    """

    def answer_question(self, site: NovaSite, state: NovaState, parsed_args: argparse.Namespace) -> CloudOverview:
        from beside_nova.overview import overview_of

        state.load_all()
        self.warn_of_cells(state)
        return overview_of(state)

    def describe_answer(self, console: Console, answer: CloudOverview) -> None:
        rows = [
            (
                cell.name + (" (disabled)" if cell.disabled else ""),
                cell.hosts,
                cell.judged,
                cell.up,
                cell.servers,
                _share_text(cell.vcpus_used, cell.vcpus),
                _share_text(cell.memory_mb_used, cell.memory_mb),
                _share_text(cell.disk_gb_used, cell.disk_gb),
            )
            for cell in answer.cells
        ]
        console.print(table_of("Cells", ("Cell", "Hosts", "Judged", "Up", "Claims", "vCPUs", "RAM", "Disk"), rows))
        console.print(f"{answer.aggregates} aggregates, {len(answer.zones)} zones.", markup=False)
        if answer.left_out:
            console.print(table_of("Hosts on which no request is judged", ("Host", "Reason"), list(answer.left_out.items())))
        schemas = ", ".join(f"{name} {revision}" for name, revision in answer.revisions.items())
        console.print(f"Schemas: {schemas}.", markup=False)


def _share_text(used: float, total: float) -> str:
    return f"{100 * used / total:.1f} %" if total else "-"
