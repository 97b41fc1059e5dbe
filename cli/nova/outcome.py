"""A decision that claimed nothing, as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from cli.servers.explain import describe_candidates, describe_changes, describe_filters

if TYPE_CHECKING:
    from rich.console import Console

    from beside_nova.decide import NovaOutcome


def describe_outcome(console: Console, outcome: NovaOutcome) -> None:
    """Where the servers would go; or what each filter left, and what would have been enough."""
    document = msgspec.to_builtins(outcome)
    if outcome.message:
        console.print(outcome.message, markup=False)
        describe_changes(console, document)
    if outcome.hosts:
        console.print(f"Would go to: {', '.join(outcome.hosts)}.", markup=False)
    describe_filters(console, document["filters"])
    describe_candidates(console, document["candidates"])
