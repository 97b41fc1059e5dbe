"""Show: the mapping says where a server is, its cell how it is, and the summary helps out where the cell does not answer."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from db.api.claims import server_groups
from db.cell import services
from db.sql.counting import StatementCounter
from objects.group import GroupPolicy, ServerGroup
from objects.instance import FailureClass
from tests.support.api import IMAGE, NEWEST, OTHER_TENANT, TENANT, Front, with_status
from tests.support.keys import add_key

BASE = {
    "id", "name", "links", "status", "tenant_id", "user_id", "metadata", "hostId", "image", "flavor", "created", "updated",
    "addresses", "accessIPv4", "accessIPv6", "OS-DCF:diskConfig", "OS-EXT-AZ:availability_zone", "OS-EXT-STS:vm_state",
    "OS-EXT-STS:task_state", "OS-EXT-STS:power_state", "OS-SRV-USG:launched_at", "OS-SRV-USG:terminated_at",
    "os-extended-volumes:volumes_attached", "key_name", "config_drive", "progress",
}  # fmt: skip
ADMIN = {"OS-EXT-SRV-ATTR:host", "OS-EXT-SRV-ATTR:hypervisor_hostname", "OS-EXT-SRV-ATTR:instance_name"}
NEWER = {
    "OS-EXT-SRV-ATTR:hostname",
    "pinned_availability_zone",
    "locked",
    "locked_reason",
    "description",
    "tags",
    "trusted_image_certificates",
    "server_groups",
}
NEWER_ADMIN = {"host_status"} | {
    f"OS-EXT-SRV-ATTR:{name}"
    for name in ("hostname", "reservation_id", "launch_index", "kernel_id", "ramdisk_id", "root_device_name", "user_data")
}


@pytest.mark.parametrize(("bus", "device"), [(None, "/dev/vda"), ("scsi", "/dev/sda"), ("ide", "/dev/hda")])
def test_root_device_name_follows_its_bus(front: Front, bus: str | None, device: str) -> None:
    boot = {"uuid": IMAGE, "source_type": "image", "destination_type": "local", "boot_index": 0} | (
        {"disk_bus": bus} if bus else {}
    )
    uuid = front.boot(block_device_mapping_v2=[boot])
    assert front.get(f"/v2.1/servers/{uuid}", NEWEST).json["server"]["OS-EXT-SRV-ATTR:root_device_name"] == device


def test_a_server_has_only_fields_of_its_version(front: Front) -> None:
    """For administrators and tenants, at both ends of what is served."""
    uuid = front.boot(headers=TENANT)
    front.hand_over()
    front.activate(uuid)
    path = f"/v2.1/servers/{uuid}"
    assert set(front.get(path).json["server"]) == BASE | ADMIN
    assert set(front.get(path, NEWEST).json["server"]) == BASE | ADMIN | NEWER | NEWER_ADMIN
    assert set(front.get(path, TENANT).json["server"]) == BASE
    assert set(front.get(path, TENANT | NEWEST).json["server"]) == BASE | NEWER


def test_what_was_asked_for_is_shown(front: Front) -> None:
    """Flavor and image as links at 2.1; the rest as given."""
    server = {"name": "web", "flavorRef": "1", "imageRef": IMAGE, "networks": "none", "metadata": {"a": "b"}, "tags": ["t"]}
    server |= {"description": "d", "key_name": "k", "config_drive": "True"}
    add_key(front, "k", user="admin")
    uuid = front.post({"server": server}, NEWEST).json["server"]["id"]
    shown = front.get(f"/v2.1/servers/{uuid}", NEWEST).json["server"]
    assert (shown["metadata"], shown["tags"], shown["description"], shown["key_name"]) == ({"a": "b"}, ["t"], "d", "k")
    assert (shown["config_drive"], shown["OS-EXT-SRV-ATTR:user_data"]) == ("True", None)
    assert shown["image"] == {"id": IMAGE, "links": [{"rel": "bookmark", "href": f"http://falconframework.org/images/{IMAGE}"}]}
    assert shown["flavor"]["original_name"] == "m1.small"
    assert front.get(f"/v2.1/servers/{uuid}").json["server"]["flavor"]["id"] == "1"


def test_a_boot_is_build_until_its_guest_runs(front: Front) -> None:
    """Queued, STAGED, BUILDING and ACTIVE, read from the cell before any feed was."""
    uuid = front.boot()

    def look() -> tuple[str, str | None, str | None]:
        shown = front.get(f"/v2.1/servers/{uuid}").json["server"]
        return shown["status"], shown["OS-EXT-STS:task_state"], shown["OS-EXT-SRV-ATTR:host"]

    assert look() == ("BUILD", "scheduling", None)
    front.hand_over("h1", zone="north")
    assert look() == ("BUILD", "spawning", "h1")
    front.accept(uuid)
    assert look() == ("BUILD", "spawning", "h1")
    front.activate_accepted(uuid)
    assert look() == ("ACTIVE", None, "h1")
    shown = front.get(f"/v2.1/servers/{uuid}").json["server"]
    assert shown["OS-EXT-AZ:availability_zone"] == "north"
    assert shown["OS-EXT-SRV-ATTR:hypervisor_hostname"] == "h1-node"
    assert shown["OS-SRV-USG:launched_at"] is not None


def test_a_build_fault_is_shown_according_to_role(front: Front) -> None:
    """The attempts name hosts, so a tenant gets the sentence alone."""
    uuid = front.boot(headers=TENANT)
    front.hand_over("secret-host")
    front.accept(uuid)
    front.fail(uuid, "no bootable disk", FailureClass.REQUEST)
    path = f"/v2.1/servers/{uuid}"
    everything = front.get(path).json["server"]
    assert everything["status"] == "ERROR"
    assert "secret-host" in everything["fault"]["message"]
    tenant = front.get(path, TENANT)
    assert "secret-host" not in tenant.text
    assert "no bootable disk" in tenant.json["server"]["fault"]["message"]


def test_what_never_got_a_host_shows_why(front: Front) -> None:
    """Buried in cell0, which need not be asked for that."""
    uuid = front.boot()
    front.bury("No valid host was found. There are not enough hosts available.")
    shown = front.get(f"/v2.1/servers/{uuid}", NEWEST).json["server"]
    assert shown["status"] == "ERROR"
    assert shown["fault"]["message"].startswith("No valid host")
    assert (shown["OS-EXT-SRV-ATTR:host"], shown["host_status"]) == (None, "")


def test_a_silent_cell_leaves_its_servers_visible(front: Front, tmp_path: Path) -> None:
    """As far as the summary knows them; servers elsewhere are as they were."""
    uuid = front.boot()
    front.bring_up(uuid)
    front.cell.close()
    os.rename(tmp_path / "cell1.db", tmp_path / "moved.db")
    for wal in tmp_path.glob("cell1.db-*"):
        wal.unlink()
    before = {"OpenStack-API-Version": "compute 2.68"}
    shown = with_status(front.get(f"/v2.1/servers/{uuid}", before), 200)
    assert (shown.json["server"]["status"], shown.json["server"]["host_status"]) == ("ACTIVE", "UNKNOWN")
    assert front.get("/v2.1/servers/detail", before).json["servers"][0]["status"] == "ACTIVE"
    unknown = front.get(f"/v2.1/servers/{uuid}", NEWEST).json["server"]
    assert (unknown["status"], unknown["server_groups"], "name" in unknown) == ("UNKNOWN", [], False)


def test_a_server_shows_its_group_while_it_exists(front: Front) -> None:
    """Since 2.71, alone and not in lists."""
    group = ServerGroup(uuid=IMAGE, name="apart", project_id="p1", policy=GroupPolicy.AFFINITY)
    front.database.write(server_groups.create, group)
    body = {"server": {"name": "web", "flavorRef": "1", "imageRef": IMAGE, "networks": "none"}}
    uuid = front.post(body | {"os:scheduler_hints": {"group": IMAGE}}, TENANT | NEWEST).json["server"]["id"]
    path = f"/v2.1/servers/{uuid}"
    assert front.get(path, TENANT | NEWEST).json["server"]["server_groups"] == [IMAGE]
    assert "server_groups" not in front.get(path, TENANT | {"OpenStack-API-Version": "compute 2.70"}).json["server"]
    assert "server_groups" not in front.get("/v2.1/servers/detail", TENANT | NEWEST).json["servers"][0]
    front.database.write(server_groups.delete, IMAGE)
    assert front.get(path, TENANT | NEWEST).json["server"]["server_groups"] == []


def test_no_topology_is_recorded(front: Front) -> None:
    """Since 2.78, for who may see the server."""
    path = f"/v2.1/servers/{front.boot(headers=TENANT)}/topology"
    assert front.get(path, TENANT | NEWEST).json == {"nodes": [], "pagesize_kb": None}
    assert front.get(path, OTHER_TENANT | NEWEST).status_code == 404
    assert front.get(path, TENANT | {"OpenStack-API-Version": "compute 2.77"}).status_code == 404


@pytest.mark.parametrize("server", ["web", "00000000-0000-4000-8000-000000000000", "../flavors", "a" * 300])
def test_an_unknown_server_is_not_found(front: Front, server: str) -> None:
    """Names too: clients look one up by asking for it first."""
    answer = with_status(front.get(f"/v2.1/servers/{server}"), 404)
    assert answer.json["itemNotFound"]["code"] == 404


def test_a_path_with_a_control_character_is_refused(front: Front) -> None:
    assert front.get("/v2.1/servers/%00").status_code == 400


def test_a_tenant_sees_the_own_project_only(front: Front) -> None:
    """A server of another project does not exist, whatever is done to it; an administrator sees every one."""
    uuid = front.boot(headers=TENANT)
    path = f"/v2.1/servers/{uuid}"
    assert front.get(path, OTHER_TENANT).status_code == 404
    assert front.get(f"{path}/explanation", OTHER_TENANT).status_code == 404
    assert front.delete(uuid, OTHER_TENANT).status_code == 404
    assert front.get(path, TENANT).status_code == 200
    assert front.get(path).status_code == 200


def test_the_host_status_follows_its_service(front: Front) -> None:
    """Up, forced down, disabled, silent, unknown."""
    hosts = {"h-up": "UP", "h-down": "DOWN", "h-off": "MAINTENANCE", "h-silent": "UNKNOWN", "h-new": "UNKNOWN"}
    for host in hosts:
        front.boot(host)
        front.hand_over(host)
    for host in ("h-up", "h-down", "h-off"):
        front.heartbeat(host)
    front.heartbeat("h-silent", at=0.0)
    front.cell.write(services.set_forced_down, "h-down", "superconductor-compute", True, 0.0)
    front.cell.write(services.set_disabled, "h-off", "superconductor-compute", True, "why", 0.0)
    listed = front.get("/v2.1/servers/detail", NEWEST).json["servers"]
    assert {server["name"]: server["host_status"] for server in listed} == hosts


def test_polling_a_building_server_costs_two_statements(front: Front) -> None:
    """Clients that wait for their servers ask for little else."""
    uuid = front.boot()
    front.hand_over("h1")
    front.get(f"/v2.1/servers/{uuid}")
    with StatementCounter() as counter:
        assert front.get(f"/v2.1/servers/{uuid}").json["server"]["status"] == "BUILD"
    asked = sorted(database for database, text in counter.count_by_statement() if "epochs" not in text)  # these go by the clock
    assert asked == ["api", "cell cell1"]
