"""``rebalance --dry-run``: which moves would free the most. Nothing is moved."""

from __future__ import annotations

import argparse
from typing import Any
from urllib.parse import urlencode

from cliff.lister import Lister
from rich.console import Console

from cli.shared.base import Table
from cli.shared.console import console_on
from cli.shared.http import HttpCommand
from objects import errors

COLUMNS = ("Server", "Name", "From", "To", "Flavor", "vCPUs", "RAM", "Live", "Gain")
REFUSED = (
    "add --dry-run, which shows the moves. Nothing is moved by this command: "
    "'server migrate SERVER --to HOST' or 'host drain HOST' does that"
)


class PlanRebalance(HttpCommand, Lister):
    """Show which moves would empty the most hosts (administrators). Nothing is moved: --dry-run must be given.

    Hosts with the fewest servers are emptied first, and their servers go to the fullest hosts that the filters allow. 'Gain' is the
    share of the host that a move helps to empty. Each move is possible when those before it have ended. To carry them out, in this
    order:
      superconductor server migrate SERVER --to HOST --wait      (with --live if Live is True)

    Examples:
      superconductor rebalance --dry-run --at-most 5%
      superconductor rebalance --dry-run --flavor m1.large -f json
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--dry-run", action="store_true", help="only show the moves")
        text = "servers that may be moved, of all servers (default: 5%%)"
        parser.add_argument("--at-most", metavar="PERCENT", type=per_cent, default=5.0, help=text)
        text = "show how many more of it fit before and after; may be repeated (default: the project's largest flavor)"
        parser.add_argument("--flavor", dest="flavors", metavar="FLAVOR", action="append", default=[], help=text)

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        if not parsed_args.dry_run:
            raise errors.Invalid(REFUSED)
        query = [("at_most", f"{parsed_args.at_most:g}"), *(("flavor", flavor) for flavor in parsed_args.flavors)]
        plan = self.api_client(parsed_args).get(f"superconductor/rebalance?{urlencode(query)}")["rebalance"]
        if parsed_args.formatter == "table" and not self.is_quiet:
            describe_plan(console_on(self.app.stdout), plan)
        return COLUMNS, [
            (
                move["server"],
                move["name"],
                move["source"],
                move["destination"],
                move["flavor"],
                move["vcpus"],
                move["memory_mb"],
                move["live"],
                move["gain"],
            )
            for move in plan["moves"]
        ]


def describe_plan(console: Console, plan: dict[str, Any]) -> None:
    """The hosts before and after the moves, and what could not be moved."""
    before, after = plan["before"], plan["after"]
    lines = [
        f"Dry run: nothing was moved. {len(plan['moves'])} moves empty {len(plan['hosts'])} hosts; {plan['bound']} at most by any"
        f" {plan['allowed']} moves, of {plan['servers']} servers.",
        f"Empty hosts: {before['empty_hosts']} before, {after['empty_hosts']} after.",
        f"Stranded vCPUs: {before['stranded_vcpus']:.0f} before, {after['stranded_vcpus']:.0f} after.",
        f"Stranded memory: {before['stranded_memory_mb']:.0f} MiB before, {after['stranded_memory_mb']:.0f} MiB after.",
    ]
    lines += [f"{name}: {count} more fit before, {after['fits'][name]} after." for name, count in before["fits"].items()]
    if plan["hosts"]:
        lines.append(f"Emptied: {', '.join(plan['hosts'])}.")
    if plan["kept"]:
        lines.append(f"Kept where they are: {', '.join(f'{count} ({reason})' for reason, count in plan['kept'].items())}.")
    if plan["early"]:
        lines.append("The scheduler has just started: hosts that it has not heard of yet are missing.")
    for line in lines:
        console.print(line, markup=False)


def per_cent(text: str) -> float:
    """``5%`` or ``5``: above 0, and at most 100."""
    try:
        number = float(text.removesuffix("%"))
    except ValueError:
        number = 0.0
    if not 0 < number <= 100:
        raise argparse.ArgumentTypeError(f"{text!r} is not a percentage above 0 and up to 100")
    return number
