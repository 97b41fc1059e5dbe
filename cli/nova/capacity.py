"""``nova capacity FLAVOR...``: how many more servers fit on the hosts of a Nova."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from cli.nova.base import NovaCommand
from cli.shared.console import table_of
from objects.capacity import Loss

if TYPE_CHECKING:
    from rich.console import Console

    from beside_nova.room import CloudRoom
    from beside_nova.site import NovaSite
    from beside_nova.state import NovaState
    from objects.capacity import FlavorRoom, LossOutcome


class NovaCapacity(NovaCommand):
    """Show how many more servers of each flavor fit on the hosts of a Nova, in all and by cell, zone and aggregate.

    Hosts that are left out ('nova status') take none. Exit status 1: a cell could not be read, or a server fits nowhere after the
    loss.

    Examples:
      superconductor nova capacity m1.large m1.small
      superconductor nova capacity m1.small --after-losing rack r17
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("flavors", nargs="+", metavar="FLAVOR", help="id or name")
        parser.add_argument(
            "--project", metavar="ID", default="", help="project of the servers, where aggregates are for some only"
        )
        text = "count as if this zone, rack, host or cell were lost and its servers placed elsewhere; say which of them fit nowhere"
        parser.add_argument("--after-losing", nargs=2, metavar=("zone|rack|host|cell", "NAME"), help=text)

    def answer_question(self, site: NovaSite, state: NovaState, parsed_args: argparse.Namespace) -> CloudRoom:
        from beside_nova.room import count_room, loss_of

        state.load_all()
        self.warn_of_cells(state)
        lost: Loss | None = None
        if parsed_args.after_losing:
            kind, name = parsed_args.after_losing
            lost = loss_of(kind, name, state)
        room = count_room(site, state, parsed_args.flavors, parsed_args.project, lost)
        if room.loss is not None and (room.loss.stranded or room.unjudged):
            self.status = 1
        return room

    def describe_answer(self, console: Console, answer: CloudRoom) -> None:
        if answer.loss is not None:
            _describe_loss(console, answer.loss, answer.unjudged)
        rows = [row for flavor in answer.flavors for row in _rows_of_flavor(flavor)]
        console.print(table_of("Room", ("Flavor", "Where", "Name", "Servers", "Hosts"), rows))
        for flavor in answer.flavors:
            if limits := ", ".join(f"{name} on {hosts}" for name, hosts in flavor.limits.items()):
                console.print(f"{flavor.flavor}: limited by {limits} hosts.", markup=False)
            if not flavor.servers:
                steps = ", ".join(f"{step.after} by {step.name}" for step in flavor.filters if step.after < step.before)
                console.print(f"{flavor.flavor}: none fits. Of {answer.hosts} hosts were left: {steps or 'none'}.", markup=False)
        for reason, count in answer.left_out.items():
            console.print(f"{count} hosts are left out: {reason}.", markup=False)


def _rows_of_flavor(flavor: FlavorRoom) -> list[tuple[object, ...]]:
    rows: list[tuple[object, ...]] = [(flavor.flavor, "all", "", flavor.servers, flavor.hosts)]
    for kind, places in (("cell", flavor.cells), ("zone", flavor.zones), ("aggregate", flavor.aggregates)):
        rows += [(flavor.flavor, kind, place.name, place.servers, place.hosts) for place in places]
    return rows


def _describe_loss(console: Console, loss: LossOutcome, unjudged: dict[str, int]) -> None:
    fate = f"Servers on them: {loss.servers}, of which {loss.placed} fit elsewhere, the largest placed first."
    console.print(f"Hosts lost: {loss.hosts}. {fate}", markup=False)
    for reason, count in unjudged.items():
        console.print(f"{count} more are not judged: {reason}.", markup=False)
    if loss.stranded:
        rows = [(server.name, server.id, server.flavor, server.reason) for server in loss.stranded]
        console.print(table_of("Servers that fit nowhere else", ("Name", "ID", "Flavor", "Reason"), rows))
