"""What users of each role may do, how programs log in, and which tokens are worth nothing."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from tests.support.keystone_cloud import IMAGE, Caller, KeystoneCloud

BOOT = ("server", "create", "--image", IMAGE, "--flavor", "m1.tiny", "--nic", "none", "--wait")


@pytest.fixture(scope="module")
def server(cloud: KeystoneCloud) -> Iterator[str]:
    """The name of a server of Alice, a member of alpha."""
    alice = cloud.caller("alice")
    alice.done(*BOOT, "hers")
    yield "hers"
    alice.done("server", "delete", "--wait", "hers")


def names(caller: Caller, *words: str) -> list[str]:
    return [found["Name"] for found in caller.json("server", "list", *words)]


def test_readers_see_a_members_view_and_change_nothing(cloud: KeystoneCloud, server: str) -> None:
    rita = cloud.caller("rita")
    assert server in names(rita)
    assert rita.json("server", "show", server)["image"].startswith(f"{IMAGE} (")
    assert "m1.tiny" in rita.done("flavor", "list")
    assert "os_compute_api:servers:create" in rita.refused(*BOOT, "x")
    for words in (("stop", server), ("delete", server), ("set", "--name", "x", server), ("lock", server)):
        assert "403" in rita.refused("server", *words)
    assert "403" in rita.refused("keypair", "create", "x")


def test_a_member_has_nothing_of_administrators(cloud: KeystoneCloud, server: str) -> None:
    alice = cloud.caller("alice")
    assert "OS-EXT-SRV-ATTR:host" not in {key for key, value in alice.json("server", "show", server).items() if value}
    for words in (("compute", "service", "list"), ("server", "list", "--all-projects"), ("server", "migrate", server)):
        assert "403" in alice.refused(*words), words


def test_another_project_does_not_find_the_server(cloud: KeystoneCloud, server: str) -> None:
    bob, uuid = cloud.caller("bob"), cloud.caller("alice").done("server", "show", server, "-f", "value", "-c", "id")
    assert names(bob) == []
    for words in (("show", uuid), ("stop", uuid), ("delete", uuid)):
        assert "No Server found" in bob.refused("server", *words)


def test_administrators_see_all_projects_by_default(cloud: KeystoneCloud, server: str) -> None:
    assert server not in names(cloud.admin)
    assert server in names(cloud.admin, "--all-projects")
    root = cloud.caller("root")
    assert root.json("server", "show", server)["OS-EXT-SRV-ATTR:host"]
    assert root.done("server", "stop", server) == ""
    assert cloud.settled(root, server, "SHUTOFF")
    assert root.done("server", "start", server) == ""
    assert cloud.settled(root, server, "ACTIVE")


def test_a_role_that_no_rule_names_may_nothing(cloud: KeystoneCloud, server: str) -> None:
    """A service user of another service, too: its role says nothing here."""
    assert "403" in cloud.caller("nora").refused("server", "list")
    assert "403" in cloud.caller("nora").refused("flavor", "list")


def test_an_application_credential_has_the_roles_it_names(cloud: KeystoneCloud, server: str) -> None:
    alice = cloud.caller("alice")
    create = ("application", "credential", "create")
    member = cloud.with_credential(alice.json(*create, "--role", "member", "ci"))
    assert server in names(member)
    member.done(*BOOT, "by-a-program")
    member.done("server", "delete", "--wait", "by-a-program")
    reader = cloud.with_credential(alice.json(*create, "--role", "reader", "monitoring"))
    assert server in names(reader)
    assert "403" in reader.refused("server", "stop", server)
    alice.done("application", "credential", "delete", "ci", "monitoring")
    assert "Could not find Application Credential" in reader.refused("server", "list")


def test_an_expired_application_credential_is_refused(cloud: KeystoneCloud) -> None:
    soon = (datetime.now(UTC) + timedelta(seconds=30)).strftime("%Y-%m-%dT%H:%M:%S")  # Keystone refuses a time that is past
    short = cloud.with_credential(cloud.caller("alice").json("application", "credential", "create", "--expiration", soon, "short"))
    while datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S") <= soon:
        time.sleep(0.2)
    assert "401" in short.refused("server", "list")


def test_a_token_ends_with_its_revocation(cloud: KeystoneCloud, server: str) -> None:
    token = cloud.caller("alice").done("token", "issue", "-f", "value", "-c", "id")
    bearer = cloud.with_token(token)
    assert server in names(bearer, "-n")
    cloud.keystone.revoke(token)
    assert "401" in bearer.refused("server", "list", "-n")


@pytest.mark.parametrize("token", ["", "made-up", "gAAAAAB" + "x" * 150])
def test_a_token_that_is_none_is_refused(cloud: KeystoneCloud, token: str) -> None:
    assert "401" in cloud.with_token(token or "-").refused("server", "list", "-n")


def test_an_administrator_sets_the_quota_of_a_project(cloud: KeystoneCloud) -> None:
    project = cloud.admin.done("project", "show", "beta", "-f", "value", "-c", "id")
    cloud.admin.done("quota", "set", "--instances", "0", project)
    bob = cloud.caller("bob")
    assert "Quota exceeded" in bob.refused(*BOOT, "too-many")
    limits = {found["Name"]: found["Value"] for found in bob.json("limits", "show", "--absolute")}
    assert limits["max_total_instances"] == 0
    cloud.admin.done("quota", "delete", project)
