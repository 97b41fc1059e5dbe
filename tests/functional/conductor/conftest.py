"""What tests of conductors stand on: one cell, or two cells with their hosts and a scheduler."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cell_site import Site
from tests.support.conductor_process import Conductor
from tests.support.ground import USUAL, Ground
from tests.support.world import World, world


@pytest.fixture
def conductor(cloud: World) -> Conductor:
    """One process of the API level, for the test to run."""
    return cloud.conductor("one")


@pytest.fixture(params=USUAL)
def site(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Site]:
    place = Ground(request.param, tmp_path)
    made = Site(place)
    yield made
    place.end(made.close, place.release)


@pytest.fixture(params=USUAL)
def cloud(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[World]:
    with world(tmp_path, {"cell1": ["a1", "a2"], "cell2": ["b1"]}, request.param) as made:
        yield made
