"""What tests of the registry stand on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cells.registry import CellRegistry
from tests.support.cell_databases import Cells


@pytest.fixture
def registry(cells: Cells) -> Iterator[CellRegistry]:
    """Of the deployment that the tests of a file call ``cells``."""
    with cells.registry() as registry:
        yield registry
