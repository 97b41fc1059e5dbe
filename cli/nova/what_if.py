"""``nova what-if``: where new servers would go."""

from __future__ import annotations

import argparse
from functools import partial
from typing import TYPE_CHECKING

from cli.nova.base import NovaCommand
from cli.nova.outcome import describe_outcome
from cli.shared.base import at_least, key_value

if TYPE_CHECKING:
    from rich.console import Console

    from beside_nova.decide import NovaOutcome
    from beside_nova.site import NovaSite
    from beside_nova.state import NovaState


class NovaWhatIf(NovaCommand):
    """Show where new servers would go, and why; or what would be enough for them. Nothing is booted.

    Exit status 1: not all would find a host.

    Example: superconductor nova what-if --flavor m1.small --count 3 --zone east
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--flavor", metavar="FLAVOR", required=True, help="id or name")
        parser.add_argument("--count", metavar="N", type=partial(at_least, 1), default=1, help="number of servers (default: 1)")
        parser.add_argument("--zone", metavar="ZONE", help="availability zone")
        parser.add_argument("--project", metavar="ID", default="", help="project of the servers")
        parser.add_argument("--group", metavar="UUID", default="", help="server group")
        text = "scheduler hint; may be repeated"
        parser.add_argument("--hint", dest="hints", metavar="KEY=VALUE", type=key_value, action="append", default=[], help=text)

    def answer_question(self, site: NovaSite, state: NovaState, parsed_args: argparse.Namespace) -> NovaOutcome:
        from beside_nova.room import try_request

        state.load_all()
        self.warn_of_cells(state)
        hints: dict[str, list[str]] = {}
        for key, value in parsed_args.hints:
            hints.setdefault(key, []).append(value)
        outcome = try_request(
            site,
            state,
            parsed_args.flavor,
            parsed_args.count,
            parsed_args.group,
            availability_zone=parsed_args.zone,
            project_id=parsed_args.project,
            scheduler_hints=hints,
        )
        self.status = self.status or int(bool(outcome.message))
        return outcome

    def describe_answer(self, console: Console, answer: NovaOutcome) -> None:
        describe_outcome(console, answer)
