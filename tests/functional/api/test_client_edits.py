"""The real ``openstack`` command changes, locks and unlocks a server."""

from __future__ import annotations

import pytest

from tests.support.api import Front
from tests.support.openstack_client import OpenStack, needs_client


@needs_client
@pytest.mark.timeout(600)
def test_the_openstack_client_changes_a_server(front: Front, client: OpenStack) -> None:
    server = front.boot("web", metadata={"role": "web"})
    given = ("--name", "db", "--description", "back end", "--property", "tier=1", "--tag", "blue", "--tag", "green")
    assert client.done("server", "set", *given, "web") == ""
    shown = client.json("server", "show", server)
    assert (shown["name"], shown["description"], shown["properties"]) == ("db", "back end", {"role": "web", "tier": "1"})
    assert sorted(shown["tags"]) == ["blue", "green"]
    assert client.done("server", "unset", "--property", "tier", "--tag", "blue", "--description", server) == ""
    assert client.done("server", "lock", "db") == ""
    shown = client.json("server", "show", server)
    assert (shown["properties"], shown["tags"], shown["locked"]) == ({"role": "web"}, ["green"], True)
    assert [found["Name"] for found in client.json("server", "list", "--tags", "green")] == ["db"]
    assert client.done("server", "unlock", server) == ""
    assert client.json("server", "show", server)["locked"] is False
