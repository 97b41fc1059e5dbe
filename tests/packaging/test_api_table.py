"""docs/compute-api.md says what the application serves."""

from __future__ import annotations

from pathlib import Path

from tests.support.api import Front
from tests.support.api_table import DOCUMENT, rewritten


def test_the_tables_are_the_generated_ones(tmp_path: Path) -> None:
    front = Front(tmp_path)
    try:
        assert DOCUMENT.read_text() == rewritten(DOCUMENT.read_text(), front), "regenerate them: make sample"
    finally:
        front.close()
