"""``explain SERVER``: why it is where it is, or nowhere."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from cliff.show import ShowOne
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from cli.http import HttpCommand

WIDTH = 160
"""Columns of a table where the output is no terminal."""


class Explain(HttpCommand, ShowOne):
    """Say why a server went where it is, or nowhere: filter by filter, with the scores and every attempt.

    Example: superconductor explain web-1
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("server", metavar="SERVER", help="id or name of the server")

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Sequence[Any]]:
        client = self.client(parsed_args)
        explanation = client.get(f"servers/{client.find_server(parsed_args.server)}/explanation")["explanation"]
        return tuple(explanation), tuple(explanation.values())

    def produce_output(self, parsed_args: argparse.Namespace, column_names: Any, data: Any) -> int:
        """Text for people; the other formats are for programs and get everything."""
        if parsed_args.formatter != "table":
            return super().produce_output(parsed_args, column_names, data)
        describe(console_on(self.app.stdout), dict(zip(column_names, data, strict=True)))
        return 0


def console_on(out: Any) -> Console:
    """A console that writes plain text where ``out`` is no terminal."""
    if out.isatty():
        return Console(file=out, highlight=False)
    return Console(file=out, width=WIDTH, height=1, highlight=False)  # a width alone would not count on a dumb terminal


def table_of(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> Table:
    """Numbers to the right, as written; everything else to the left."""
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, title_style="bold")
    for number, column in enumerate(columns):
        numeric = any(isinstance(row[number], int | float) for row in rows)
        table.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text("" if value is None else str(value)) for value in row))  # not markup: [this] must stay
    return table


def describe(console: Console, explanation: dict[str, Any]) -> None:
    """The explanation as text and tables."""
    console.print(f"{explanation['name']} ({explanation['server_id']}): {explanation['status']}", style="bold", markup=False)
    console.print(explanation["message"], markup=False)
    decision = explanation.get("decision")
    if decision:
        _describe_decision(console, decision)
    if explanation.get("choice"):
        _describe_choice(console, explanation["choice"])
    if "attempts" in explanation:
        _describe_attempts(console, explanation["attempts"])


def _describe_decision(console: Console, decision: dict[str, Any]) -> None:
    console.print(
        f"\nDecision {decision['id']} by the {decision['driver']} driver: {decision['hosts']} hosts known, "
        f"{decision['elapsed_ms']:.1f} ms, seed {decision['seed']}.",
        markup=False,
    )
    ages = ", ".join(f"{cell} {'unknown' if age is None else f'{age:.1f} s'}" for cell, age in sorted(decision["cells"].items()))
    if ages:
        console.print(f"Age of what was known of each cell: {ages}.", markup=False)
    if decision["filters"]:
        rows = [
            (f["name"], f["before"], f["after"], f["before"] - f["after"], f["reason"] if f["before"] > f["after"] else "")
            for f in decision["filters"]
        ]
        console.print(table_of("Filters, in order", ("Filter", "Shown", "Left", "Dropped", "Reason"), rows))
    if decision["candidates"]:
        names = sorted({part for candidate in decision["candidates"] for part in candidate["parts"]})
        rows = [
            (c["cell"], c["host"], c["node"], round(c["score"], 4), *(round(c["parts"].get(name, 0.0), 4) for name in names))
            for c in decision["candidates"]
        ]
        console.print(table_of("Best hosts, and what each weigher added", ("Cell", "Host", "Node", "Score", *names), rows))


def _describe_choice(console: Console, choice: dict[str, Any]) -> None:
    if choice["host"] is None:
        console.print("Choice: none, no host was left.", markup=False)
        return
    alternates = ", ".join(choice["alternates"]) or "none"
    console.print(f"Choice: {choice['host']} in cell {choice['cell']}; alternates: {alternates}.", markup=False)


def _describe_attempts(console: Console, attempts: list[dict[str, Any]] | None) -> None:
    if attempts is None:
        console.print("\nAttempts: not known, the cell does not answer.", markup=False)
        return
    if not attempts:
        console.print("\nAttempts: none, no host was asked to build it.", markup=False)
        return
    rows = [(a["number"], a["host"], a["outcome"], a.get("class"), a.get("error"), a.get("message"), a.get("at")) for a in attempts]
    console.print(table_of("Attempts", ("#", "Host", "Outcome", "Class", "Error", "Message", "At"), rows))
