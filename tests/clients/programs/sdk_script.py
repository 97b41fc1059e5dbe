"""A day with openstacksdk. Run by ``test_client_programs.py`` in the environment of the clients, as an administrator."""

from __future__ import annotations

import sys
from typing import Any

import openstack

IMAGE, FLAVOR = sys.argv[1:3]


def main() -> None:
    cloud: Any = openstack.connect()
    compute = cloud.compute

    assert FLAVOR in [flavor.name for flavor in compute.flavors()]
    key = cloud.create_keypair("sdk-key")
    assert "PRIVATE KEY" in key.private_key
    assert "sdk-key" in [found.name for found in cloud.list_keypairs()]

    uploaded = cloud.create_image("sdk-image", data=b"x" * 1024, disk_format="raw", container_format="bare", wait=True)
    assert uploaded.status == "active"
    assert cloud.get_image("sdk-image").size == 1024
    assert cloud.delete_image("sdk-image")
    assert cloud.get_image("sdk-image") is None

    server = cloud.create_server(
        "sdk", image=IMAGE, flavor=FLAVOR, key_name="sdk-key", meta={"a": "b"}, wait=True, auto_ip=False, timeout=120
    )
    assert server.status == "ACTIVE"
    assert list(server.addresses) == ["private"]
    assert cloud.get_server("sdk").id == server.id
    assert server.id in [found.id for found in cloud.list_servers()]
    assert [found.id for found in compute.servers(name="^sdk$")] == [server.id]
    assert compute.get_server(server).metadata == {"a": "b"}

    compute.set_server_metadata(server, c="d")
    compute.add_tag_to_server(server, "red")
    assert compute.get_server(server).tags == ["red"]
    compute.lock_server(server)
    compute.unlock_server(server)
    for act, status in ((compute.stop_server, "SHUTOFF"), (compute.start_server, "ACTIVE"), (compute.pause_server, "PAUSED")):
        act(server)
        server = compute.wait_for_server(server, status=status, wait=120)
    compute.unpause_server(server)
    server = compute.wait_for_server(server, wait=120)
    compute.rebuild_server(server, image=cloud.image.find_image(IMAGE))
    server = compute.wait_for_server(server, wait=120)
    compute.live_migrate_server(server, block_migration="auto")
    server = compute.wait_for_server(server, wait=120)
    done = {action.action for action in compute.server_actions(server)}
    assert done >= {"create", "stop", "start", "pause", "unpause", "rebuild", "live-migration"}, done

    assert {service.binary for service in compute.services()} >= {"nova-compute"}
    assert compute.get_limits().absolute.instances_used == 1
    assert compute.get_quota_set(cloud.current_project_id).instances == -1

    cloud.delete_server("sdk", wait=True, timeout=120)
    assert cloud.get_server("sdk") is None
    cloud.delete_keypair("sdk-key")


main()
