"""The real ``openstack`` command makes, changes, lists, shows and deletes flavors."""

from __future__ import annotations

import pytest

from tests.support.openstack_client import BOOT, OpenStack, needs_client


@needs_client
@pytest.mark.timeout(600)
def test_the_openstack_client_uses_flavors(client: OpenStack) -> None:
    sizes = ("--ram", "512", "--disk", "5", "--ephemeral", "1", "--swap", "64", "--vcpus", "2")
    made = client.json("flavor", "create", *sizes, "--private", "--property", "trait:SSD=required", "m1.new")
    assert (made["ram"], made["disk"], made["swap"], made["vcpus"]) == (512, 5, 64, 2)
    assert made["properties"] == {"trait:SSD": "required"}
    assert "m1.new" not in [flavor["Name"] for flavor in client.json("flavor", "list")]
    assert "m1.new" in [flavor["Name"] for flavor in client.json("flavor", "list", "--all")]
    client.done("flavor", "set", "--property", "hw:cpu_policy=shared", "--property", "a=1", "m1.new")
    client.done("flavor", "unset", "--property", "a", "m1.new")
    assert client.json("flavor", "show", "m1.new")["properties"] == {"hw:cpu_policy": "shared", "trait:SSD": "required"}
    assert "is not required or forbidden" in client.refused("flavor", "set", "--property", "trait:SSD=1", "m1.new")
    booted = client.json("server", "create", "--flavor", "m1.new", *BOOT, "web")
    assert "m1.new" in str(client.json("server", "show", booted["id"])["flavor"])
    assert client.done("flavor", "delete", "m1.new") == ""
    assert "No Flavor found for m1.new" in client.refused("flavor", "show", "m1.new")
