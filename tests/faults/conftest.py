"""What tests of crashes stand on: a deployment put together by hand."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.ground import CHOSEN
from tests.support.world import World, world


@pytest.fixture(params=CHOSEN)
def cloud(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[World]:
    """With the ``HOSTS`` of the test's file."""
    with world(tmp_path, request.module.HOSTS, request.param) as made:
        yield made
