"""Where tables and texts for people are written: safe for a terminal, plain where the output is none."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rich import box
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from cli.shared.streams import inner_stream
from objects import text

LINE_WIDTH = 160
"""Columns of a table where the output is no terminal."""


class EscapingConsole(Console):
    """A console that escapes control characters in what it prints; its own sequences, for colours, stay."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        for segment in super().render(renderable, options):
            words = segment.text if segment.control else text.escape_controls(segment.text)
            yield segment if words == segment.text else segment._replace(text=words)


def console_on(out: Any, width: int = LINE_WIDTH) -> Console:
    """A console that writes plain text, in lines of ``width``, where ``out`` is no terminal."""
    if out.isatty():
        return EscapingConsole(file=inner_stream(out), highlight=False)
    return EscapingConsole(file=inner_stream(out), width=width, height=1, highlight=False)  # a dumb terminal needs both


def table_of(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> Table:
    """Numbers to the right, as written; everything else to the left."""
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, title_style="bold")
    for number, column in enumerate(columns):
        numeric = any(isinstance(row[number], int | float) for row in rows)
        table.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text("" if value is None else str(value)) for value in row))  # not markup: [this] must stay
    return table
