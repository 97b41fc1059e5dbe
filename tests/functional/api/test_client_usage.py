"""The real ``openstack`` command asks how long servers ran."""

from __future__ import annotations

import pytest

from tests.support.api import Front
from tests.support.openstack_client import OpenStack, needs_client


@needs_client
@pytest.mark.timeout(600)
def test_the_openstack_client_lists_usages(front: Front, client: OpenStack) -> None:
    uuid = front.boot()
    front.hand_over()
    front.activate(uuid)
    front.follow_feed()
    (listed,) = client.json("usage", "list")
    assert (listed["Project"], [each["instance_id"] for each in listed["Servers"]]) == ("admin", [uuid])
