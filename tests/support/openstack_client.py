"""The real ``openstack`` command against one endpoint, without keystone, and what must be true of it on any deployment."""

from __future__ import annotations

import atexit
import functools
import json
import os
import subprocess
import sys
import uuid
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from service.periodic import wait_until
from tests.support.openstack_forks import Forks

COMMAND = Path(sys.executable).parent / "openstack"
IMAGE = "70a599e0-31e7-49b7-b260-868f441e862b"
BOOT = ("--nic", "none", "--block-device", f"uuid={IMAGE},source_type=image,destination_type=local,boot_index=0")
"""What an ``openstack server create`` needs that asks no image and no network service."""

needs_client = pytest.mark.skipif(not COMMAND.exists(), reason="needs the openstack command: pip install -e '.[clients]'")


@functools.cache
def _forks() -> Forks:
    forks = Forks()
    atexit.register(forks.close)
    return forks


class OpenStack:
    """Runs ``openstack`` against ``endpoint``, such as ``http://127.0.0.1:8774`` (with or without ``/v2.1``)."""

    def __init__(self, endpoint: str, project: str | None = None, *, knows_images: bool = False) -> None:
        """``project``: in the path of the endpoint, as a keystone's catalog has it; None is the API's default project.

        ``knows_images``: the client is told where the Image API is.
        """
        self.endpoint = root = endpoint.rstrip("/").removesuffix("/v2.1")
        clean = {name: value for name, value in os.environ.items() if not name.startswith("OS_")}
        self._environment = clean | {
            "OS_AUTH_TYPE": "none",
            "OS_ENDPOINT": f"{root}/v2.1/{project}" if project else f"{root}/v2.1",
            "OS_IDENTITY_API_VERSION": "3",
            "OS_IDENTITY_ENDPOINT_OVERRIDE": f"{root}/identity/v3",
            "NO_PROXY": "127.0.0.1,localhost",
        }
        if knows_images:
            self._environment["OS_IMAGE_ENDPOINT_OVERRIDE"] = f"{root}/image"

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command to its end, whatever that is."""
        return _forks().run(words, self._environment)

    def done(self, *words: str) -> str:
        """The output of a command that must succeed."""
        ran = self.run(*words)
        assert ran.returncode == 0, f"openstack {' '.join(words)}: {ran.stdout}{ran.stderr}"
        return ran.stdout

    def json(self, *words: str) -> Any:
        """The result of a command that must succeed."""
        return json.loads(self.done(*words, "-f", "json"))

    def refused(self, *words: str) -> str:
        """What a command says that must fail: one line, with no trace."""
        ran = self.run(*words)
        assert ran.returncode == 1, f"openstack {' '.join(words)}: {ran.returncode} {ran.stdout}{ran.stderr}"
        assert "Traceback" not in ran.stderr, ran.stderr
        return ran.stderr.strip()


def check_everything(client: OpenStack, flavor: str = "m1.small", group: str | None = None) -> None:
    """All that is promised to users of the client, on a deployment that has this flavor and two hosts or more with room for it.

    ``group``: uuid of an empty anti-affinity group of the project ``admin``. Servers are called by a name of their own and are gone
    at the end, so that it may run beside other work. About 30 runs of the client.
    """
    name = f"osc-{uuid.uuid4().hex[:8]}"
    _check_flavors(client, flavor)
    first = _check_boot_and_show(client, name, flavor)
    several = _check_several(client, name, flavor, group)
    _check_lists(client, name, [first, *several])
    _check_refusals(client, name, flavor)
    _check_power(client, name)
    _check_services(client, name)
    _check_no_valid_host(client, name)
    _check_delete(client, name, first, several)


def check_boots(client: OpenStack, flavor: str = "m1.small") -> None:
    """Of these, what needs all processes of a deployment: boots with all that can be given to them, and deletes. About 10 runs."""
    name = f"osc-{uuid.uuid4().hex[:8]}"
    first = _check_boot_and_show(client, name, flavor)
    several = _check_several(client, name, flavor, None)
    assert client.done("server", "delete", "--wait", first, *several) == ""


def _check_flavors(client: OpenStack, flavor: str) -> None:
    listed = {found["Name"]: found for found in client.json("flavor", "list")}
    assert flavor in listed
    shown = client.json("flavor", "show", flavor)
    assert (shown["id"], shown["ram"], shown["vcpus"]) == tuple(listed[flavor][key] for key in ("ID", "RAM", "VCPUs"))
    assert client.refused("flavor", "show", "no-such-flavor") == "No Flavor found for no-such-flavor"


def _check_boot_and_show(client: OpenStack, name: str, flavor: str) -> str:
    """The command of the manual, word for word, without --wait; then by id and by name. Returns the server's id."""
    created = client.json("server", "create", *BOOT, "--flavor", flavor, name)
    assert created["name"] == name
    assert created["status"] in ("BUILD", "ACTIVE")

    states: list[str] = []

    def settled() -> bool:
        states.append(client.done("server", "show", created["id"], "-f", "value", "-c", "status").strip())
        return states[-1] != "BUILD"

    assert wait_until(settled, 120)
    assert states[-1] == "ACTIVE"
    # a show asks the cell, and tells what the API database knows if a busy machine's cell does not answer in time
    listed = ("server", "list", "--name", f"^{name}$", "-f", "value", "-c", "Status")
    assert wait_until(lambda: client.done(*listed).strip() == "ACTIVE", 60)

    shown = client.json("server", "show", name)
    assert shown["id"] == created["id"]
    expected = {"name": name, "image": IMAGE, "project_id": "admin", "addresses": {}, "host_status": "UP", "properties": {}}
    assert {key: shown[key] for key in expected} == expected
    assert shown["flavor"]["name"] == flavor
    assert shown["OS-EXT-STS:vm_state"] == "active"
    assert shown["OS-EXT-STS:power_state"] == 1
    assert shown["OS-EXT-SRV-ATTR:host"]
    assert shown["OS-EXT-AZ:availability_zone"]
    assert shown["OS-SRV-USG:launched_at"]
    return str(created["id"])


def _check_several(client: OpenStack, name: str, flavor: str, group: str | None) -> list[str]:
    """Two at once, with all that can be given to them. Returns their ids."""
    hint = ("--hint", "all_or_nothing=true", *(("--hint", f"group={group}") if group else ()))
    zone = client.done("server", "show", name, "-f", "value", "-c", "OS-EXT-AZ:availability_zone").strip()
    with TemporaryDirectory() as folder:
        script = Path(folder) / "user-data"
        script.write_text("#!/bin/sh\necho hello\n")
        options = ("--user-data", str(script), "--property", "a=1", "--property", "b=two words", "--tag", "osc", *hint)
        counted = ("--description", "two of them", "--availability-zone", zone, "--min", "2", "--max", "2", "--wait")
        created = client.json("server", "create", *BOOT, "--flavor", flavor, *options, *counted, f"{name}-many")
    assert created["status"] == "ACTIVE"  # of the first one, which is the one the client waits for
    assert created["properties"] == {"a": "1", "b": "two words"}
    assert created["tags"] == ["osc"]
    assert created["description"] == "two of them"

    listed: dict[str, dict[str, Any]] = {}

    def all_active() -> bool:
        found = client.json("server", "list", "-n", "--long", "--name", f"^{name}-many-")
        listed.update({server["Name"]: server for server in found})
        return all(server["Status"] == "ACTIVE" for server in listed.values())

    assert wait_until(all_active, 120)
    assert sorted(listed) == [f"{name}-many-1", f"{name}-many-2"]
    for server in listed.values():
        wanted = {"Flavor": flavor, "Availability Zone": zone, "Image ID": IMAGE, "Host Status": "UP", "Power State": 1}
        assert {key: server[key] for key in wanted} == wanted
        assert server["Properties"] == {"a": "1", "b": "two words"}
    if group:
        assert len({server["Host"] for server in listed.values()}) == 2, "its group keeps them apart"
    return [str(listed[each]["ID"]) for each in sorted(listed)]


def _check_lists(client: OpenStack, name: str, ids: Sequence[str]) -> None:
    """Filters, and pages of two; -n and the image lookups of the form without it."""
    named = ("--name", f"^{name}")
    active = client.json("server", "list", "-n", "--all-projects", "--status", "ACTIVE", *named)
    assert {server["ID"] for server in active} == set(ids)
    assert client.json("server", "list", *named, "--status", "ERROR") == []

    page = [server["ID"] for server in client.json("server", "list", "-n", *named, "--limit", "2")]
    assert len(page) == 2
    rest = client.json("server", "list", "-n", *named, "--limit", "2", "--marker", page[-1])
    assert sorted([*page, *(server["ID"] for server in rest)]) == sorted(ids)
    assert OpenStack(client.endpoint, project=f"{name}-empty").json("server", "list", "-n") == []


def _check_refusals(client: OpenStack, name: str, flavor: str) -> None:
    """Mistakes that users make: the client's own words, or the API's with the field and the reason."""
    create = ("server", "create", *BOOT)
    assert client.refused(*create, "--flavor", "no-such-flavor", name) == "No Flavor found for no-such-flavor"
    zone = client.refused(*create, "--flavor", flavor, "--availability-zone", "no-such-zone", name)
    assert "server.availability_zone: zone 'no-such-zone' could not be found" in zone
    forced = client.refused(*create, "--flavor", flavor, "--availability-zone", "nova:no-such-host", name)
    assert "no-such-host" in forced
    group = client.refused(*create, "--flavor", flavor, "--hint", "group=no-such-group", name)
    assert "scheduler_hints.group: server group 'no-such-group' could not be found" in group
    assert client.refused("server", "create", "--nic", "none", "--image", IMAGE, "--flavor", flavor, name) == (
        f"No Image found for {IMAGE}"
    )
    assert client.refused("server", "show", "no-such-server") == "No Server found for no-such-server"
    assert "Cannot 'restore' instance" in client.refused("server", "restore", name)
    assert "Cannot 'start' instance" in client.refused("server", "start", name)


def _check_power(client: OpenStack, name: str) -> None:
    """A server is stopped and started, shelved and unshelved, and all this is among its events."""
    steps = (("stop", "SHUTOFF"), ("start", "ACTIVE"), ("shelve", "SHELVED_OFFLOADED"), ("unshelve", "ACTIVE"))
    for command, status in steps:
        assert client.done("server", command, name) == ""
        assert wait_until(lambda: client.json("server", "show", name)["status"] == status, 120)  # noqa: B023 - waited for in the loop
    events = client.json("server", "event", "list", name)
    assert [event["Action"] for event in events] == ["unshelve", "shelve", "start", "stop", "create"]


def _check_services(client: OpenStack, name: str) -> None:
    """The console of a server, and the service of its host; saying that it is up changes nothing."""
    assert name in client.done("console", "log", "show", "--lines", "2", name)
    host = client.done("server", "show", name, "-f", "value", "-c", "OS-EXT-SRV-ATTR:host").strip()
    assert client.done("compute", "service", "set", "--up", host, "nova-compute") == ""
    [service] = client.json("compute", "service", "list", "--service", "nova-compute", "--host", host)
    assert (service["Host"], service["Status"], service["State"]) == (host, "enabled", "up")


def _check_no_valid_host(client: OpenStack, name: str) -> None:
    """A build that cannot go anywhere fails the client that waits for it, and the server says why."""
    huge = f"{name}-huge"
    client.done("flavor", "create", "--vcpus", "100000", "--ram", "64", "--disk", "1", huge)
    asked = ("server", "create", *BOOT, "--flavor", huge, "--wait", f"{name}-nowhere")
    assert f"Error creating server: {name}-nowhere" in client.refused(*asked)
    client.done("flavor", "delete", huge)
    shown = client.json("server", "show", f"{name}-nowhere")
    assert shown["status"] == "ERROR"
    assert "No valid host was found" in shown["fault"]["message"]


def _check_delete(client: OpenStack, name: str, first: str, several: Sequence[str]) -> None:
    """By name and by id, several at once, waiting; of a list with a stranger in it the others go all the same."""
    refusal = client.refused("server", "delete", f"{name}-nowhere", "no-such-server")
    assert "No Server found for no-such-server" in refusal
    assert "1 of 2 servers failed to delete" in refusal
    assert client.done("server", "delete", "--wait", name, *several) == ""
    assert client.refused("server", "show", first) == f"No Server found for {first}"
    assert client.json("server", "list", "-n", "--name", f"^{name}") == []
