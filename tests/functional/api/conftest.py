"""What tests of the API stand on: an API over SQLite files and embedded buses, and the client of OpenStack."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.api import Front, endpoint_of, serve_http
from tests.support.fronts import front_fixture
from tests.support.openstack_client import OpenStack

front = front_fixture()


@pytest.fixture
def client(front: Front) -> Iterator[OpenStack]:
    """On a real HTTP server."""
    with serve_http(front) as service:
        yield OpenStack(endpoint_of(service))
