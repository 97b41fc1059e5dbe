"""A day with novaclient. Run by ``test_client_programs.py`` in the environment of the clients, as an administrator."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

from keystoneauth1 import session
from keystoneauth1.identity import v3
from novaclient import client, exceptions

IMAGE, FLAVOR = sys.argv[1:3]


def main() -> None:
    names = ("auth_url", "username", "password", "project_name", "user_domain_id", "project_domain_id")
    given: dict[str, Any] = {name: os.environ[f"OS_{name.upper()}"] for name in names}
    login = v3.Password(**given)
    nova: Any = client.Client("2.53", session=session.Session(auth=login), region_name=os.environ["OS_REGION_NAME"])
    flavor = nova.flavors.find(name=FLAVOR)
    image = nova.glance.find_image(IMAGE)
    server = nova.servers.create("nova", image, flavor, nics="none", meta={"a": "b"})

    def settle(status: str) -> None:
        end = time.monotonic() + 120
        while (found := nova.servers.get(server).status) != status:
            assert found != "ERROR"
            assert time.monotonic() < end, found
            time.sleep(0.2)

    settle("ACTIVE")
    assert server.id in [found.id for found in nova.servers.list(search_opts={"all_tenants": True})]
    for act, status in (
        (server.suspend, "SUSPENDED"),
        (server.resume, "ACTIVE"),
        (server.stop, "SHUTOFF"),
        (server.start, "ACTIVE"),
    ):
        act()
        settle(status)
    nova.servers.live_migrate(server, None, "auto")
    settle("ACTIVE")
    assert nova.servers.get_console_output(server, 5)
    assert nova.instance_action.list(server)
    [service] = nova.services.list(host=nova.servers.get(server).to_dict()["OS-EXT-SRV-ATTR:host"], binary="nova-compute")
    assert service.state == "up"
    nova.services.disable_log_reason(service.id, "repair")
    nova.services.enable(service.id)
    limit_me(nova)
    assert nova.keypairs.create("nova-key").private_key
    nova.keypairs.delete("nova-key")
    server.delete()
    end = time.monotonic() + 120
    while time.monotonic() < end:
        try:
            nova.servers.get(server)
        except exceptions.NotFound:
            return
        time.sleep(0.2)
    raise AssertionError("it is still there")


def limit_me(nova: Any) -> None:
    """As ``nova quota-update --user`` does."""
    project, user = nova.client.get_project_id(), nova.client.get_user_id()
    before = nova.quotas.get(project)
    assert nova.quotas.update(project, user_id=user, instances=5).instances == 5
    shown = nova.quotas.get(project, user_id=user, detail=True)
    assert (shown.instances["limit"], shown.instances["in_use"]) == (5, 1)
    assert nova.quotas.get(project).instances == before.instances
    nova.quotas.delete(project, user_id=user)
    assert nova.quotas.get(project, user_id=user).instances == before.instances


main()
