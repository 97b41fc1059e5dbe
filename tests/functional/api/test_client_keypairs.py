"""The real ``openstack`` command makes, lists, shows and deletes key pairs, and boots with one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.api import Front
from tests.support.keys import ED25519, ED25519_FINGERPRINT
from tests.support.openstack_client import BOOT, OpenStack, needs_client


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
