"""``nova rebalance --dry-run``: which moves would free the most on the hosts of a Nova."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

import msgspec

from cli.nova.base import NovaCommand
from cli.servers.rebalance import describe_plan, per_cent
from cli.shared.console import table_of
from objects import errors

if TYPE_CHECKING:
    from rich.console import Console

    from beside_nova.site import NovaSite
    from beside_nova.state import NovaState
    from objects.rebalance import Rebalance


class NovaRebalance(NovaCommand):
    """Show which moves would empty the most hosts of a Nova. Nothing is moved: --dry-run must be given.

    Hosts with the fewest servers are emptied first, and their servers go to the fullest hosts that the filters allow. Hosts with a
    server that cannot be moved or judged are not emptied. To carry the moves out, in this order:
      openstack server migrate --live-migration --host HOST SERVER    (without --live-migration if Live is False)

    Example: superconductor nova rebalance --dry-run --at-most 5% --flavor m1.large
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--dry-run", action="store_true", help="only show the moves")
        text = "servers that may be moved, of all servers (default: 5%%)"
        parser.add_argument("--at-most", metavar="PERCENT", type=per_cent, default=5.0, help=text)
        text = "show how many more of it fit before and after; may be repeated"
        parser.add_argument("--flavor", dest="flavors", metavar="FLAVOR", action="append", default=[], help=text)

    def answer_question(self, site: NovaSite, state: NovaState, parsed_args: argparse.Namespace) -> Rebalance:
        from beside_nova.moves import plan_rebalance

        if not parsed_args.dry_run:
            raise errors.Invalid("add --dry-run, which shows the moves. Nothing is moved by this command")
        state.load_all()
        self.warn_of_cells(state)
        return plan_rebalance(site, state, parsed_args.flavors, parsed_args.at_most)

    def describe_answer(self, console: Console, answer: Rebalance) -> None:
        describe_plan(console, msgspec.to_builtins(answer))
        rows = [(move.server, move.source, move.destination, move.flavor, move.live) for move in answer.moves]
        if rows:
            console.print(table_of("Moves, in order", ("Server", "From", "To", "Flavor", "Live"), rows))
