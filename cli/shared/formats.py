"""The output formats of tables and objects. cliff would search all installed packages for them, at every start."""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Iterable, Sequence
from importlib.metadata import EntryPoint
from typing import Any, TextIO

from cliff.columns import FormattableColumn
from cliff.formatters.base import SingleFormatter
from cliff.formatters.commaseparated import CSVLister
from cliff.formatters.json_format import JSONFormatter
from cliff.formatters.shell import ShellFormatter
from cliff.formatters.table import TableFormatter
from cliff.formatters.value import ValueFormatter
from cliff.formatters.yaml_format import YAMLFormatter
from stevedore import ExtensionManager
from stevedore.extension import Extension


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


BOTH = {"json": JSONFormatter, "table": TableFormatter, "value": ValueFormatter, "yaml": YAMLFormatter}
FORMATS: dict[str, dict[str, type[Any]]] = {
    "cliff.formatter.list": {**BOTH, "csv": CsvMany},
    "cliff.formatter.show": {**BOTH, "csv": CsvOne, "shell": ShellFormatter},
}
"""The formats of each of cliff's kinds of output, by the names that users give to -f."""


def format_manager(kind: str) -> ExtensionManager[Any]:
    """The formats of one kind, as cliff wants them."""
    formatters = FORMATS[kind].items()
    extensions = [Extension(name, EntryPoint(name, f"{of.__module__}:{of.__name__}", kind), of, of()) for name, of in formatters]
    return ExtensionManager.make_test_instance(extensions, kind)
