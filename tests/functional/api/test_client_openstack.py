"""The real ``openstack`` command, as its users type it: against ``superconductor standalone``, and an API alone."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.api import Front
from tests.support.keys import ED25519, ED25519_FINGERPRINT
from tests.support.openstack_client import BOOT, OpenStack, check_everything, needs_client

ROOT = Path(__file__).parents[3]
SERVING = re.compile(r"serving at (http://[^ ,]+)")


@contextmanager
def standalone(state: Path) -> Iterator[str]:
    """A deployment in a process of its own, two cells with a host each; yields its endpoint."""
    command = [sys.executable, "-m", "cli", "standalone", "--state", str(state), "--port", "0", "--hosts", "1"]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr
        try:
            said = []
            for line in process.stderr:
                said.append(line)
                if found := SERVING.search(line):
                    yield found[1]
                    break
            else:
                raise AssertionError("".join(said))
        finally:
            process.send_signal(signal.SIGTERM)
            process.stderr.read()


@needs_client
@pytest.mark.timeout(900)
def test_the_openstack_client_boots_lists_shows_and_deletes(tmp_path: Path) -> None:
    with standalone(tmp_path) as endpoint:
        client = OpenStack(endpoint)
        group = client.json("server", "group", "create", "--policy", "anti-affinity", "apart")
        check_everything(client, group=group["id"])


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


@needs_client
@pytest.mark.timeout(600)
def test_the_openstack_client_uses_key_pairs(front: Front, client: OpenStack, tmp_path: Path) -> None:
    (tmp_path / "key.pub").write_text(f"{ED25519}\n")
    made = client.json("keypair", "create", "--public-key", str(tmp_path / "key.pub"), "mine")
    assert (made["name"], made["fingerprint"], made["type"], made["user_id"]) == ("mine", ED25519_FINGERPRINT, "ssh", "admin")
    assert "PRIVATE KEY" in client.done("keypair", "create", "made")
    listed = {pair["Name"]: pair["Fingerprint"] for pair in client.json("keypair", "list")}
    assert listed["mine"] == ED25519_FINGERPRINT
    assert sorted(listed) == ["made", "mine"]
    assert client.done("keypair", "show", "--public-key", "mine").strip() == ED25519
    assert "already exists" in client.refused("keypair", "create", "--public-key", str(tmp_path / "key.pub"), "mine")
    booted = client.json("server", "create", "--flavor", "m1.small", "--key-name", "mine", *BOOT, "web")
    assert booted["key_name"] == "mine"
    unknown = client.refused("server", "create", "--flavor", "m1.small", "--key-name", "none", *BOOT, "web")
    assert "Invalid key_name provided." in unknown
    assert client.done("keypair", "delete", "mine", "made") == ""
    assert client.json("keypair", "list") == []
    assert client.json("server", "show", booted["id"])["key_name"] == "mine"


@needs_client
@pytest.mark.timeout(600)
def test_the_openstack_client_lists_usages(front: Front, client: OpenStack) -> None:
    uuid = front.boot()
    front.bring_up(uuid)
    (listed,) = client.json("usage", "list")
    assert (listed["Project"], [each["instance_id"] for each in listed["Servers"]]) == ("admin", [uuid])
