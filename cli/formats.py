"""Output formats that cliff does not bring along."""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterable, Sequence
from typing import Any, TextIO

from cliff.formatters.base import SingleFormatter


class CsvOne(SingleFormatter):
    """One object as CSV: a line of names and a line of values. cliff has the format for lists only."""

    def add_argument_group(self, parser: argparse.ArgumentParser) -> None:
        """No options of its own."""

    def emit_one(self, column_names: Sequence[str], data: Iterable[Any], stdout: TextIO, parsed_args: argparse.Namespace) -> None:
        writer = csv.writer(stdout, lineterminator="\n")
        writer.writerow(column_names)
        writer.writerow([str(getattr(value, "machine_readable", lambda value=value: value)()) for value in data])
