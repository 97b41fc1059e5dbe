"""What benchmark scripts share: their parser, and their tables and percentiles."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

EVERY = "all"
"""The first cell of a row of sums, which is printed bold."""


def parser_of(doc: str | None, smoke: str) -> argparse.ArgumentParser:
    """A parser with ``--smoke``, the short form that ``make test STAGES=bench-smoke`` runs; ``smoke`` says what it leaves out."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help=smoke)
    return parser


def print_table(console: Console, title: str, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table, its first column flush left and all others flush right."""
    table = Table(title=title, title_justify="left")
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="right" if number else "left")
    for row in rows:
        table.add_row(*row, style="bold" if row[0] == EVERY else None)
    console.print(table)


def take_quantile(values: Sequence[float], share: float) -> float:
    """The value that this share of all is below."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def describe_percentiles(seconds: Sequence[float]) -> str:
    return f"p50 {1e3 * take_quantile(seconds, 0.5):.1f} ms, p99 {1e3 * take_quantile(seconds, 0.99):.1f} ms"
