"""What tests of commands on cells begin with."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.cell_databases import Cells, east_and_west


@pytest.fixture
def cells(tmp_path: Path) -> Cells:
    """cell0 and two cells."""
    return east_and_west(tmp_path)
