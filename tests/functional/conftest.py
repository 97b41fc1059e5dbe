"""What the tests of the agent stand on: a bus, a cell conductor in memory that answers on it, and agents. Commands have a shell."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rpc.transport import Bus
from tests.support.agents import Agents
from tests.support.cell_conductor import MemoryCell
from tests.support.cell_databases import Cells
from tests.support.commands import Shell
from tests.support.ground import USUAL, Ground


@pytest.fixture(params=USUAL)
def bus(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Bus]:
    place = Ground(request.param, tmp_path)
    bus = Bus(place.bus("cell1"))
    yield bus
    place.end(bus.close, place.release)


@pytest.fixture
def cell(bus: Bus) -> MemoryCell:
    return MemoryCell(bus)


@pytest.fixture
def agents(bus: Bus, tmp_path: Path, cell: MemoryCell) -> Iterator[Agents]:
    agents = Agents(bus, tmp_path)
    yield agents
    agents.stop()


@pytest.fixture
def shell(cells: Cells, capsys: pytest.CaptureFixture[str]) -> Shell:
    """On the deployment that the tests of a file call ``cells``."""
    return Shell(cells.folder, capsys)
