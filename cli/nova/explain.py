"""``nova explain SERVER|REQUEST``: why servers of a Nova are where they are, or nowhere."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from cli.nova.base import NovaCommand
from cli.nova.outcome import describe_outcome

if TYPE_CHECKING:
    from rich.console import Console

    from beside_nova.explain import ServerExplanation
    from beside_nova.site import NovaSite
    from beside_nova.state import NovaState


class NovaExplain(NovaCommand):
    """Explain why a server of a Nova has no valid host, and what would have been enough; or what speaks for its host.

    The stored request is decided once more, on the cloud as it is now and as if the server had no claim. A request with conditions
    that this scheduler does not know is not judged, and the conditions are named.

    Example: superconductor nova explain 04b79dfb-cac6-4589-bfc6-eef50d509e0c
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        text = "uuid of a server, or id of a request for servers (req-...)"
        parser.add_argument("subject", metavar="SERVER|REQUEST", help=text)

    def answer_question(self, site: NovaSite, state: NovaState, parsed_args: argparse.Namespace) -> list[ServerExplanation]:
        from beside_nova.explain import explain_subject

        explanations = explain_subject(site, state, parsed_args.subject)
        self.warn_of_cells(state)
        return explanations

    def describe_answer(self, console: Console, answer: list[ServerExplanation]) -> None:
        for explanation in answer:
            console.print(f"{explanation.name or '-'} ({explanation.server}): {explanation.state}", style="bold", markup=False)
            if explanation.host or explanation.claimed:
                claimed = ", ".join(explanation.claimed) or "no host"
                console.print(f"On {explanation.host or 'no host'} in cell {explanation.cell}; claims on {claimed}.", markup=False)
            if explanation.fault:
                console.print(f"Nova said: {explanation.fault}", markup=False)
            if explanation.outcome is None:
                console.print(f"Not judged here: {', '.join(explanation.not_judged)}.", markup=False)
            else:
                console.print("Decided now, as if it had no claim:", markup=False)
                describe_outcome(console, explanation.outcome)
