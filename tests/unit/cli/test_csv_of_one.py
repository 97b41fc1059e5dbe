"""Objects and tables as CSV."""

from __future__ import annotations

import argparse
import csv
import io
import json
from typing import Any

from cliff.columns import FormattableColumn

from cli.shared.formats import CsvMany, CsvOne


def test_one_item_makes_a_header_and_a_row() -> None:
    out = io.StringIO()
    CsvOne().emit_one(("Name", "Note"), ("web", 'says "hi", twice'), out, argparse.Namespace())
    assert out.getvalue() == 'Name,Note\nweb,"says ""hi"", twice"\n'


class Nested(FormattableColumn[Any]):
    def human_readable(self) -> str:
        return "for people"


PARTS = {"links": ["a", 'b "c"'], "none": None}
"""What Python and JSON write differently."""


def test_values_with_parts_are_json() -> None:
    """So that what reads the file can read the cell."""
    out = io.StringIO()
    CsvOne().emit_one(("Plain", "Nested"), (PARTS, Nested(PARTS)), out, argparse.Namespace())
    (_, cells) = csv.reader(out.getvalue().splitlines())
    assert [json.loads(cell) for cell in cells] == [PARTS, PARTS]


def test_nested_values_are_json_in_a_table_too() -> None:
    """And numbers stay numbers, texts stay texts."""
    out = io.StringIO()
    CsvMany().emit_list(("A", "B", "C"), [(Nested(["x", True]), 1, "t")], out, argparse.Namespace(quote_mode="nonnumeric"))
    assert out.getvalue() == '"A","B","C"\n"[""x"", true]",1,"t"\n'
