"""Output formats that cliff does not bring along."""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Iterable, Sequence
from typing import Any, TextIO

from cliff.columns import FormattableColumn
from cliff.formatters.base import SingleFormatter
from cliff.formatters.commaseparated import CSVLister


class CsvOne(SingleFormatter):
    """One object as CSV: a line of names and a line of values. cliff has the format for lists only."""

    def add_argument_group(self, parser: argparse.ArgumentParser) -> None:
        """No options of its own."""

    def emit_one(self, column_names: Sequence[str], data: Iterable[Any], stdout: TextIO, parsed_args: argparse.Namespace) -> None:
        writer = csv.writer(stdout, lineterminator="\n")
        writer.writerow(column_names)
        writer.writerow([str(csv_cell(value)) for value in data])


class CsvMany(CSVLister):
    """A table as CSV. cliff's own writes values that have parts as Python would."""

    def emit_list(
        self, column_names: Sequence[str], data: Iterable[Sequence[Any]], stdout: TextIO, parsed_args: argparse.Namespace
    ) -> None:
        super().emit_list(column_names, ([csv_cell(value) for value in row] for row in data), stdout, parsed_args)


def csv_cell(value: Any) -> Any:
    """A value as one cell: what has parts as JSON, all else as it is."""
    plain = value.machine_readable() if isinstance(value, FormattableColumn) else value
    return json.dumps(plain, ensure_ascii=False) if isinstance(plain, dict | list | tuple) else plain
