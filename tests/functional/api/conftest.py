"""What tests of the API stand on: an API over SQLite files and embedded buses, and the client of OpenStack."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from api.main import ApiService
from tests.support.api import Front
from tests.support.openstack_client import OpenStack


@pytest.fixture
def front(tmp_path: Path) -> Iterator[Front]:
    front = Front(tmp_path)
    yield front
    front.close()


@pytest.fixture
def client(front: Front) -> Iterator[OpenStack]:
    """On a real HTTP server."""
    service = ApiService(front.settings.__replace__(port=0), front.registry, front.database, front.bus)
    service.start()
    yield OpenStack(f"http://127.0.0.1:{service.listen_port}/v2.1")
    service.stop()
