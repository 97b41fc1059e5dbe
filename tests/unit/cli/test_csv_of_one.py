"""One object as CSV."""

from __future__ import annotations

import argparse
import io

from cli.formats import CsvOne


def test_a_line_of_names_and_a_line_of_values() -> None:
    out = io.StringIO()
    CsvOne().emit_one(("Name", "Note"), ("web", 'says "hi", twice'), out, argparse.Namespace())
    assert out.getvalue() == 'Name,Note\nweb,"says ""hi"", twice"\n'
