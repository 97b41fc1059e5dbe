"""The real ``openstack`` command asks how long servers ran."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from api.main import ApiService
from tests.support.api import Front
from tests.support.openstack_client import OpenStack, needs_client


@pytest.fixture
def front(tmp_path: Path) -> Iterator[Front]:
    front = Front(tmp_path)
    yield front
    front.close()


@pytest.fixture
def client(front: Front) -> Iterator[OpenStack]:
    service = ApiService(front.settings.__replace__(port=0), front.registry, front.database, front.bus)
    service.start()
    yield OpenStack(f"http://127.0.0.1:{service.port}/v2.1")
    service.stop()


@needs_client
@pytest.mark.timeout(600)
def test_the_openstack_client_lists_usages(front: Front, client: OpenStack) -> None:
    uuid = front.boot()
    front.hand_over()
    front.activate(uuid)
    front.follow_feed()
    (listed,) = client.json("usage", "list")
    assert (listed["Project"], [each["instance_id"] for each in listed["Servers"]]) == ("admin", [uuid])
