"""What tests of conductors stand on: one cell, or two cells with their hosts and a scheduler."""

from __future__ import annotations

import pytest

from tests.support.cell_site import site_fixture
from tests.support.conductor_process import Conductor
from tests.support.ground import USUAL
from tests.support.world import World, world_fixture


@pytest.fixture
def conductor(cloud: World) -> Conductor:
    """One process of the API level, for the test to run."""
    return cloud.conductor("one")


site = site_fixture(USUAL)


cloud = world_fixture(grounds=USUAL)
