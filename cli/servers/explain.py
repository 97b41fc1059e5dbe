"""``explain SERVER|REQUEST``: why servers are where they are, or nowhere."""

from __future__ import annotations

import argparse
import contextlib
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from cliff.show import ShowOne
from rich.console import Console

from cli.shared.console import console_on, table_of
from cli.shared.http import ApiClient, HttpCommand
from objects import errors, typed
from objects.relaxation import Asked, RelaxationPair

_REQUEST = re.compile(r"req-[0-9a-f-]{36}|r-[0-9a-f]{32}")


class Explain(HttpCommand, ShowOne):
    """Explain why a server was placed where it is, or not at all; or explain a request for servers, by its request ID.

    Administrators see how many hosts each filter left, the scores of the best, the alternates, claim conflicts, the age of each
    cell's snapshot, and every attempt. Tenants see sentences that name no host and no cell.

    Example: superconductor explain web-1
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        text = "id or name of a server; or a request for servers: its id (req-...), or its reservation id (r-...)"
        parser.add_argument("subject", metavar="SERVER|REQUEST", help=text)
        parser.add_argument("--tenant", action="store_true", help="show what a tenant of the project sees")

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Sequence[Any]]:
        client = self.api_client(parsed_args, roles="member" if parsed_args.tenant else None)
        explanation = _read_explanation(client, parsed_args.subject)
        return tuple(explanation), tuple(explanation.values())

    def produce_output(self, parsed_args: argparse.Namespace, column_names: Any, data: Any) -> int:
        """Text for people; the other formats are for programs and get everything."""
        if parsed_args.formatter != "table":
            return super().produce_output(parsed_args, column_names, data)
        describe_explanation(console_on(self.app.stdout), dict(zip(column_names, data, strict=True)))
        return 0


def _read_explanation(client: ApiClient, subject: str) -> dict[str, Any]:
    """What the API says of it. A bare uuid is a server's, or else a batch's."""
    if not _REQUEST.fullmatch(subject):
        server = client.find_server(subject)
        try:
            return dict(client.get(f"servers/{server}/explanation")["explanation"])
        except errors.NotFound as unknown:
            with contextlib.suppress(errors.NotFound):
                return _of_request(client, subject)
            raise unknown from None
    return _of_request(client, subject)


def _of_request(client: ApiClient, request: str) -> dict[str, Any]:
    return dict(client.get(f"superconductor/requests/{request}/explanation")["explanation"])


def describe_explanation(console: Console, explanation: dict[str, Any]) -> None:
    """The explanation as text and tables."""
    if "servers" in explanation:
        _describe_request(console, explanation)
    else:
        console.print(f"{explanation['name']} ({explanation['server_id']}): {explanation['status']}", style="bold", markup=False)
        console.print(explanation["message"], markup=False)
    describe_changes(console, explanation)
    describe_unread_hints(console, explanation)
    decisions = explanation.get("decisions", ())
    for number, decision in enumerate(decisions, start=1):
        console.print()
        console.print(f"Decision {number} of {len(decisions)}: {_outcome_text(decision, explanation)}", style="bold", markup=False)
        _describe_decision(console, decision)
    if "attempts" in explanation:
        _describe_attempts(console, explanation["attempts"])


def _describe_request(console: Console, explanation: dict[str, Any]) -> None:
    console.print(f"Request {explanation['request_id']} ({explanation['reservation_id']})", style="bold", markup=False)
    rows = [(server["name"], server["server_id"], server["status"], server["message"]) for server in explanation["servers"]]
    console.print(table_of("Servers", ("Name", "ID", "Status", "Message"), rows))


def describe_changes(console: Console, document: dict[str, Any]) -> None:
    """Which changes of a refused request would have been enough."""
    changes: list[str] | None = document["would_have_fitted"]
    if changes is None:  # not examined
        return
    if not changes:
        console.print("No single change of the request would have been enough.", markup=False)
    elif len(changes) == 1:
        console.print(f"It would have fitted {changes[0]}.", markup=False)
    else:
        console.print("Each of these alone would have been enough:", markup=False)
        for change in changes:
            console.print(f"  - {change}", markup=False)
    for pair in document.get("would_have_fitted_together", ()):  # an API of the release before does not tell
        console.print(f"It would have fitted {pair}.", markup=False)
    if flavor := document.get("largest_flavor"):
        console.print(f"The largest flavor that fits: {flavor}.", markup=False)


def describe_unread_hints(console: Console, document: dict[str, Any]) -> None:
    """Which hints of the request changed nothing."""
    if names := document.get("unread_hints"):  # an API of the release before does not tell
        console.print(f"No enabled filter reads these scheduler hints: {', '.join(names)}.", markup=False)


def _outcome_text(decision: dict[str, Any], explanation: dict[str, Any]) -> str:
    """What it came to; not what has just been said."""
    message = decision["message"]
    if waits := decision.get("waits"):  # an API of the release before does not tell
        return f"not now. {waits}."
    if not message:
        return "placed."
    return "refused." if message == explanation.get("message") else str(message)


def _describe_decision(console: Console, decision: dict[str, Any]) -> None:
    at = datetime.fromtimestamp(decision["at"], UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    console.print(
        f"{decision['id']} at {at} by the {decision['driver']} driver: {decision['hosts']} hosts known, "
        f"{decision['elapsed_ms']:.1f} ms, seed {decision['seed']}.",
        markup=False,
    )
    ages = ", ".join(f"{cell} {'unknown' if age is None else f'{age:.1f} s'}" for cell, age in sorted(decision["cells"].items()))
    if ages:
        console.print(f"Age of each cell's snapshot: {ages}.", markup=False)
    if decision["conflicts"]:
        taken = ", ".join(decision["taken"])
        console.print(f"Hosts that others took first: {decision['conflicts']} times ({taken}).", markup=False)
    describe_filters(console, decision["filters"])
    describe_candidates(console, decision["candidates"])
    _describe_choices(console, decision["choices"])
    _describe_for_administrators(console, decision)


def describe_filters(console: Console, filters: Sequence[dict[str, Any]]) -> None:
    """How many hosts each filter left."""
    if filters:
        rows = [
            (f["name"], f["before"], f["after"], f["before"] - f["after"], f["reason"] if f["before"] > f["after"] else "")
            for f in filters
        ]
        if any(f.get("partial") for f in filters):
            console.print("The last filters were asked of the best hosts only, until enough had passed.", markup=False)
        console.print(table_of("Filters, in order", ("Filter", "Shown", "Left", "Dropped", "Reason"), rows))


def describe_candidates(console: Console, candidates: Sequence[dict[str, Any]]) -> None:
    """The best hosts, and what each weigher added."""
    if candidates:
        names = sorted({part for candidate in candidates for part in candidate["parts"]})
        rows = [
            (c["cell"], c["host"], c["node"], round(c["score"], 4), *(round(c["parts"].get(name, 0.0), 4) for name in names))
            for c in candidates
        ]
        console.print(table_of("Best hosts, and what each weigher added", ("Cell", "Host", "Node", "Score", *names), rows))


def _describe_choices(console: Console, choices: Sequence[dict[str, Any]]) -> None:
    if not any(choice["host"] for choice in choices):
        console.print("Choice: none, no host was left.", markup=False)
    elif len(choices) == 1:
        [choice] = choices
        alternates = ", ".join(choice["alternates"]) or "none"
        console.print(f"Choice: {choice['host']} in cell {choice['cell']}; alternates: {alternates}.", markup=False)
    else:
        rows = [(c["instance_uuid"], c["cell"], c["host"], c["node"], ", ".join(c["alternates"])) for c in choices]
        console.print(table_of("Choices", ("Server", "Cell", "Host", "Node", "Alternates"), rows))


def _describe_for_administrators(console: Console, decision: dict[str, Any]) -> None:
    """What would have been enough as well, but is not told to tenants."""
    for relaxation in decision["relaxations"] or ():
        if relaxation["asked"] == Asked.CELL:
            place_names = " or ".join(relaxation["places"]) or "several together"
            console.print(f"Cells that were closed to it and have the room: {place_names}.", markup=False)
    for pair in decision.get("pairs", ()):
        changes = (pair["first"], pair["second"])
        if any(change["asked"] == Asked.CELL for change in changes):
            words = typed.convert_data(pair, RelaxationPair).as_text
            console.print(f"The smallest two changes that are enough together: {words}.", markup=False)


def _describe_attempts(console: Console, attempts: list[dict[str, Any]] | None) -> None:
    if attempts is None:
        console.print("\nAttempts: not known, the cell does not answer.", markup=False)
        return
    if not attempts:
        console.print("\nAttempts: none, no host was asked to build it.", markup=False)
        return
    rows = [(a["number"], a["host"], a["outcome"], a.get("class"), a.get("error"), a.get("message"), a.get("at")) for a in attempts]
    console.print(table_of("Attempts", ("#", "Host", "Outcome", "Class", "Error", "Message", "At"), rows))
