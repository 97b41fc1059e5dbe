"""Boots over HTTP: what is accepted becomes rows in one transaction, what is not is refused by name and leaves none."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from api.opts import ApiSettings
from db.api.claims import claims, server_groups
from db.api.deployment import aggregates, host_mappings
from db.api.projects import flavors
from db.api.reconcile import purge
from db.api.servers import mappings
from objects.cell import HostMapping
from objects.destination import Destination
from objects.flavor import Flavor
from objects.group import GroupPolicy, ServerGroup
from objects.spec import RequestSpec
from tests.support.api import CELL1_UUID, IMAGE, NEWEST, OTHER_TENANT, TENANT, Front, front_on, with_status
from tests.support.fleet import node
from tests.support.ground import USUAL
from tests.support.keys import ED25519, add_key

GROUP = ServerGroup(uuid="22222222-2222-4222-8222-222222222222", name="apart", project_id="p1", policy=GroupPolicy.ANTI_AFFINITY)
GOOD: dict[str, Any] = {"name": "web", "flavorRef": "1", "imageRef": IMAGE, "networks": "none"}
DEVICE = {"uuid": IMAGE, "source_type": "image", "destination_type": "local", "boot_index": 0, "delete_on_termination": True}


@pytest.fixture(params=USUAL)
def front(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Front]:
    with front_on(request.param, tmp_path, ApiSettings(max_servers_per_request=50, max_attempts=5, build_timeout=100.0)) as front:
        front.database.write(aggregates.create, "zone-north", {"availability_zone": "north"})
        front.database.write(server_groups.create, GROUP)
        yield front


def add_host(front: Front) -> None:
    """Host h1 with node n1, in cell1."""
    front.database.write(host_mappings.add_mappings, [HostMapping(host="h1", cell_uuid=CELL1_UUID)], 1.0)
    front.ledger.write(claims.set_inventory, [node("h1", node="n1")], CELL1_UUID)


def spec_of(front: Front, server: str) -> RequestSpec:
    found = front.database.read(mappings.get, server)
    assert found is not None
    return front.database.read(mappings.specs_by_batch, [found.batch_id])[found.batch_id]


def test_a_boot_is_answered_like_the_compute_api(front: Front) -> None:
    """202 with id, links and little else; the row is there, and the doorbell names its batch."""
    answer = with_status(front.post({"server": GOOD}, NEWEST | TENANT), 202)
    server = answer.json["server"]
    assert set(server) == {"id", "links", "OS-DCF:diskConfig", "security_groups"}
    assert answer.headers["location"] == server["links"][0]["href"] == f"http://falconframework.org/v2.1/servers/{server['id']}"
    stored = front.database.read(mappings.get, server["id"])
    assert stored is not None
    assert (stored.name, stored.project_id, stored.user_id, stored.state, stored.cell_uuid) == ("web", "p1", "u1", "building", None)
    assert front.doorbells.next() == ("build", stored.batch_id)


def test_everything_asked_for_reaches_the_request_spec(front: Front) -> None:
    """The spec is all that conductor, scheduler and cell will know."""
    server = GOOD | {
        "availability_zone": "north",
        "metadata": {"a": "b"},
        "tags": ["t"],
        "description": "d",
        "key_name": "k",
        "config_drive": True,
        "block_device_mapping_v2": [DEVICE],
        "min_count": 2,
        "max_count": 3,
    }
    hints = {"group": GROUP.uuid, "ignore_hosts": ["h9"], "custom": "x"}
    add_key(front, "k", user="p1")
    answer = front.post({"server": server, "os:scheduler_hints": hints}, NEWEST | {"X-Project-Id": "p1"})
    spec = spec_of(front, answer.json["server"]["id"])
    assert (spec.project_id, spec.user_id, spec.num_instances, spec.min_count, spec.max_attempts) == ("p1", "p1", 3, 2, 5)
    assert spec.flavor == front.database.read(flavors.get, "1")
    assert spec.image is not None
    assert spec.image.id == IMAGE
    assert (spec.availability_zone, spec.group, spec.ignore_hosts) == ("north", GROUP, ("h9",))
    assert spec.scheduler_hints == {"group": (GROUP.uuid,), "ignore_hosts": ("h9",), "custom": ("x",)}
    assert (spec.properties.key_name, spec.properties.public_key) == ("k", ED25519)
    assert spec.properties.block_devices == (DEVICE,)
    assert (spec.properties.tags, spec.properties.networks, spec.has_secrets) == (("t",), "none", False)
    assert spec.request_id == answer.headers["x-openstack-request-id"]


def test_several_servers_are_one_batch_with_numbered_names(front: Front) -> None:
    """The answer names the first; a reservation id is given where it was asked for."""
    first = front.boot("web", max_count=3)
    uuids = front.uuids()
    assert uuids[0] == first
    servers = [front.database.read(mappings.get, uuid) for uuid in uuids]
    assert [(s.name, s.launch_index) for s in servers if s] == [("web-1", 0), ("web-2", 1), ("web-3", 2)]
    assert len({s.batch_id for s in servers if s}) == 1
    answer = front.post({"server": GOOD | {"max_count": 2, "return_reservation_id": True}}, NEWEST)
    assert set(answer.json) == {"reservation_id"}
    newest = front.database.read(mappings.get, front.uuids()[-1])
    assert newest is not None
    assert answer.json["reservation_id"] == f"r-{newest.batch_id.replace('-', '')}"


@pytest.mark.parametrize(
    ("counts", "hints", "least"),
    [
        ({"max_count": 3}, {}, 1),
        ({"min_count": 2, "max_count": 3}, {}, 2),
        ({"min_count": 3, "max_count": 3}, {}, None),
        ({"min_count": 2, "max_count": 3}, {"all_or_nothing": True}, None),
        ({}, {}, None),
    ],
)
def test_fewer_servers_suffice_only_if_the_request_allows(
    front: Front, counts: dict[str, int], hints: dict[str, bool], least: int | None
) -> None:
    answer = front.post({"server": GOOD | counts, "os:scheduler_hints": hints}, NEWEST)
    assert spec_of(front, answer.json["server"]["id"]).min_count == least


def test_the_same_idempotency_key_gives_the_same_servers(front: Front) -> None:
    """Whatever was lost between the answers; another key, or another project, makes new ones."""
    key = {"Idempotency-Key": "k1"}
    first = front.boot(headers=TENANT | key, max_count=2)
    assert front.boot(headers=TENANT | key, max_count=2) == first
    assert len(front.uuids()) == 2
    other = front.boot(headers=OTHER_TENANT | key)
    another = front.boot(headers=TENANT | {"Idempotency-Key": "k2"})
    assert len({first, other, another}) == 3
    assert len(front.uuids()) == 4


@pytest.mark.parametrize("differs", [{"name": "other"}, {"max_count": 3}, {"metadata": {"a": "b"}}, {"tags": ["a"]}])
def test_an_idempotency_key_belongs_to_one_request(front: Front, differs: dict[str, Any]) -> None:
    """Another body, or another user of the project, gets neither the servers of the first time nor new ones."""
    key = {"Idempotency-Key": "k1", "OpenStack-API-Version": "compute 2.52"}
    server = GOOD | {"metadata": {"a": "a"}}
    assert front.post({"server": server}, TENANT | key).status_code == 202
    for body, headers in (({"server": server | differs}, TENANT), ({"server": server}, TENANT | {"X-User-Id": "u2"})):
        refused = with_status(front.post(body, headers | key), 422)
        assert refused.json["computeFault"]["message"].startswith("Idempotency-Key: was used for another request")
    assert len(front.uuids()) == 1
    raw = json.dumps({"server": dict(reversed(server.items()))}, indent=3)
    same = front.client.simulate_post("/v2.1/servers", headers=TENANT | key | {"Content-Type": "application/json"}, body=raw)
    assert same.status_code == 202, "the order of its fields and blanks do not make another request"
    assert [same.json["server"]["id"]] == front.uuids()


@pytest.mark.parametrize("asked", [{}, {"return_reservation_id": True}])
def test_a_key_whose_servers_are_purged_is_refused(front: Front, asked: dict[str, Any]) -> None:
    """It can name none of them, and must not boot them again."""
    key = NEWEST | {"Idempotency-Key": "k1"}
    body = {"server": GOOD | asked}
    assert front.post(body, TENANT | key).status_code == 202
    front.delete(front.uuids()[0], TENANT)
    front.database.write(purge.purge_servers, time.time() + 60, [])
    answer = with_status(front.post(body, TENANT | key), 409)
    assert "use a new key" in answer.json["conflictingRequest"]["message"]
    assert front.uuids() == []


def test_a_new_flavor_zone_or_group_is_known(front: Front) -> None:
    """Caches look again before they refuse a name."""
    front.boot()
    front.database.write(flavors.create, Flavor(flavor_id="9", name="new", vcpus=1, memory_mb=1))
    front.database.write(aggregates.create, "zone-south", {"availability_zone": "south"})
    group = ServerGroup(uuid="33333333-3333-4333-8333-333333333333", name="new", project_id="admin", policy=GroupPolicy.AFFINITY)
    front.database.write(server_groups.create, group)
    body = {"server": GOOD | {"flavorRef": "9", "availability_zone": "south"}, "OS-SCH-HNT:scheduler_hints": {"group": group.uuid}}
    spec = spec_of(front, front.post(body, NEWEST).json["server"]["id"])
    assert (spec.flavor.name, spec.availability_zone, spec.group) == ("new", "south", group)


def test_flavors_go_by_name_too(front: Front) -> None:
    """Who types them knows their names. A group's name is no reference: several groups may have it."""
    body: dict[str, Any] = {"server": GOOD | {"flavorRef": "m1.small"}}
    spec = spec_of(front, front.post(body, NEWEST | TENANT).json["server"]["id"])
    assert spec.flavor.flavor_id == "1"
    refused = front.post(body | {"os:scheduler_hints": {"group": "apart"}}, NEWEST | TENANT)
    assert (refused.status_code, "give its UUID" in refused.text) == (400, True)


@pytest.mark.parametrize(
    ("zone", "expected"),
    [
        ("north:h1:n1", ("north", ("h1",), ("n1",))),
        ("north:h1", ("north", ("h1",), ())),
        (":h1", (None, ("h1",), ())),
        ("north::n1", ("north", (), ("n1",))),
        ("nova:h1", ("nova", ("h1",), ())),
    ],
)
def test_an_administrator_may_force_a_host(front: Front, zone: str, expected: tuple[object, ...]) -> None:
    """zone:host:node, with parts left out; that host or none, so there is one attempt."""
    add_host(front)
    spec = spec_of(front, front.boot(availability_zone=zone))
    assert (spec.availability_zone, spec.force_hosts, spec.force_nodes) == expected
    assert spec.max_attempts == 1


@pytest.mark.parametrize("asked", [{"host": "h1"}, {"hypervisor_hostname": "n1"}, {"host": "h1", "hypervisor_hostname": "n1"}])
def test_an_administrator_may_request_a_suitable_host(front: Front, asked: dict[str, str]) -> None:
    """Since 2.74; nothing is forced, and a zone may be given too."""
    add_host(front)
    body = {"server": GOOD | asked | {"availability_zone": "north"}}
    spec = spec_of(front, front.post(body, NEWEST).json["server"]["id"])
    assert spec.requested_destination == Destination(host=asked.get("host"), node=asked.get("hypervisor_hostname"))
    assert (spec.force_hosts, spec.availability_zone) == ((), "north")
    assert front.post(body, NEWEST | TENANT).status_code == 403
    assert front.post(body, {"OpenStack-API-Version": "compute 2.73"}).status_code == 400


@pytest.mark.parametrize(
    "asked",
    [
        {"host": "h2"},
        {"host": "H1"},
        {"hypervisor_hostname": "N1"},
        {"host": "h1", "hypervisor_hostname": "n2"},
        {"availability_zone": "north:h2"},
        {"availability_zone": "::n2"},
        {"host": "h1", "availability_zone": "north:h1"},
        {"host": "no name"},
    ],
)
def test_a_host_that_does_not_exist_is_refused(front: Front, asked: dict[str, str]) -> None:
    """Asked for or forced, and both at once."""
    add_host(front)
    assert front.post({"server": GOOD | asked}, NEWEST).status_code == 400
    assert front.uuids() == []


def test_a_hostname_and_access_addresses_are_kept(front: Front) -> None:
    """For the guest, and as shown."""
    asked = {"hostname": "db.example", "accessIPv4": "192.0.2.1", "accessIPv6": ""}
    uuid = front.post({"server": GOOD | asked}, NEWEST).json["server"]["id"]
    properties = spec_of(front, uuid).properties
    assert (properties.hostname, properties.access_ip_v4, properties.access_ip_v6) == ("db.example", "192.0.2.1", "")
    for server in front.get("/v2.1/servers/detail", NEWEST).json["servers"]:
        assert (server["OS-EXT-SRV-ATTR:hostname"], server["accessIPv4"]) == ("db.example", "192.0.2.1")
    for hostname, version in (("a.b", "2.93"), ("a", "2.90"), ("-ab", "2.90"), ("a/b", "2.96"), ("ab", "2.89")):
        body = {"server": GOOD | {"hostname": hostname}}
        assert front.post(body, {"OpenStack-API-Version": f"compute {version}"}).status_code == 400


def test_a_tenant_may_name_no_host(front: Front) -> None:
    """403, naming the field."""
    for body in (
        {"server": GOOD | {"availability_zone": "north:h1"}},
        {"server": GOOD, "os:scheduler_hints": {"ignore_hosts": "h1"}},
    ):
        answer = with_status(front.post(body, NEWEST | TENANT), 403)
        assert "host" in answer.json["forbidden"]["message"]
    assert front.uuids() == []


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"server": GOOD | {"flavorRef": "nope"}}, "server.flavorRef: 'nope' could not be found"),
    ({"server": GOOD | {"flavorRef": "3"}}, "server.flavorRef: "),
    ({"server": GOOD | {"availability_zone": "nowhere"}}, "server.availability_zone: zone 'nowhere' could not be found"),
    ({"server": GOOD | {"availability_zone": "nowhere:h1"}}, "server.availability_zone: "),
    ({"server": GOOD | {"availability_zone": "north:a:b:c"}}, "server.availability_zone: "),
    ({"server": GOOD | {"availability_zone": ":"}}, "server.availability_zone: "),
    ({"server": GOOD | {"security_groups": [{"name": "web"}]}}, "server.security_groups: security group 'web' could not be found"),
    ({"server": GOOD | {"personality": {}}}, "server.personality: "),
    ({"server": GOOD | {"block_device_mapping": []}}, "server.block_device_mapping: volumes and snapshots are not served"),
    ({"server": GOOD, "os:scheduler_hints": {"mine": {"a": "x" * 5000}}}, "os:scheduler_hints: a hint has more than 4096"),
    ({"server": GOOD, "os:scheduler_hints": {"group": IMAGE}}, "os:scheduler_hints.group: "),
    ({"server": GOOD, "os:scheduler_hints": {"same_host": "web"}}, "os:scheduler_hints.same_host: 'web' is not the uuid"),
    ({"server": GOOD, "OS-SCH-HNT:scheduler_hints": {"group": "x"}}, "OS-SCH-HNT:scheduler_hints.group: "),
    ({"server": GOOD, "os:scheduler_hints": {"group": [GROUP.uuid, "x"]}}, "os:scheduler_hints.group: "),
    (
        {"server": GOOD, "os:scheduler_hints": {"all_or_nothing": "maybe"}},
        "os:scheduler_hints.all_or_nothing: 'maybe' is not",
    ),
    ({"server": GOOD, "os:scheduler_hints": {"all_or_nothing": 1}}, "os:scheduler_hints.all_or_nothing: 1 is not of type boolean"),
    ({"server": GOOD, "os:scheduler_hints": {"group": True}}, "os:scheduler_hints.group: "),
    ({"server": GOOD | {"min_count": 3, "max_count": 2}}, "server.min_count: "),
    ({"server": GOOD | {"max_count": 51}}, "server.max_count: "),
    ({"server": GOOD | {"imageRef": ""}}, "server.imageRef: "),
    ({"server": GOOD | {"imageRef": "cirros"}}, "server.imageRef: "),
    ({"server": GOOD | {"name": "x" * 254, "max_count": 2}}, "server.name: "),
    ({"server": {"name": "web"}}, "server.flavorRef: is required"),
    ({"server": GOOD | {"surprise": 1}}, "server.surprise: "),
    ({}, "server: is required"),
]


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("body", "sentence"), REFUSED)
def test_a_bad_request_is_refused_by_field_name(front: Front, body: dict[str, Any], sentence: str) -> None:
    """400 in the Compute API's form; nothing is stored and nobody is told."""
    answer = with_status(front.post(body, NEWEST), 400)
    fault = answer.json["badRequest"]
    assert fault["code"] == 400
    assert fault["message"].startswith(sentence)
    assert front.uuids() == []
    good = front.boot()
    assert front.doorbells.next() == ("build", front.batch_of(good))


def test_tenants_cannot_see_private_flavors_or_foreign_groups(front: Front) -> None:
    """As if it did not exist; an administrator may use both."""
    private = {"server": GOOD | {"flavorRef": "2"}}
    foreign = {"server": GOOD, "os:scheduler_hints": {"group": GROUP.uuid}}
    for body, field in ((private, "flavorRef"), (foreign, "group")):
        refused = with_status(front.post(body, NEWEST | OTHER_TENANT), 400)
        assert field in refused.json["badRequest"]["message"]
        assert front.post(body, NEWEST).status_code == 202


def test_bodies_of_other_kinds_are_refused(front: Front) -> None:
    """Broken JSON, another media type, one byte too many."""
    post = front.client.simulate_post
    broken = post("/v2.1/servers", body=b"{", headers={"Content-Type": "application/json"})
    form = post("/v2.1/servers", body=b"a=b", headers={"Content-Type": "application/x-www-form-urlencoded"})
    large = post("/v2.1/servers", body=b" " * (front.settings.max_body_size + 1), headers={"Content-Type": "application/json"})
    assert (broken.status_code, "not JSON" in broken.json["badRequest"]["message"]) == (400, True)
    assert (form.status_code, form.json["badMediaType"]["code"]) == (415, 415)
    assert (large.status_code, large.json["overLimit"]["code"]) == (413, 413)


def test_a_key_that_is_too_long_is_refused(front: Front) -> None:
    """By the name of the header."""
    answer = with_status(front.post({"server": GOOD}, NEWEST | {"Idempotency-Key": "x" * 256}), 400)
    assert answer.json["badRequest"]["message"].startswith("Idempotency-Key: ")


def test_the_oldest_version_needs_no_networks(front: Front) -> None:
    """2.37 made them required."""
    body = {"server": {key: value for key, value in GOOD.items() if key != "networks"}}
    assert front.post(body).status_code == 202
    assert front.post(body, {"OpenStack-API-Version": "compute 2.36"}).status_code == 202
    assert front.post(body, {"OpenStack-API-Version": "compute 2.37"}).status_code == 400


@pytest.mark.parametrize(
    ("specs", "said"),
    [
        ({"resources:FOO": "1"}, "resources:FOO: there is no resource class 'FOO'; use VCPU, MEMORY_MB, DISK_GB, or a custom one"),
        ({"resources:CUSTOM_GPU": "some"}, "resources:CUSTOM_GPU: 'some' is not a whole number from 1 to 2147483647"),
        ({"trait:SSD": "maybe"}, "trait:SSD: 'maybe' is not required or forbidden"),
    ],
)
def test_a_flavor_with_unreadable_specs_boots_nothing(front: Front, specs: dict[str, str], said: str) -> None:
    """One that was made before such a thing was refused."""
    front.database.write(flavors.create, Flavor(flavor_id="bad", name="bad", vcpus=1, memory_mb=1, extra_specs=specs))
    answer = with_status(front.post({"server": {"name": "web", "flavorRef": "bad", "imageRef": IMAGE}}), 400)
    assert answer.json["badRequest"]["message"].startswith(f"server.flavorRef: extra spec {said}")
    assert front.uuids() == []


@pytest.mark.parametrize("counts", [{"max_count": 2}, {"min_count": 2}, {"min_count": 1, "max_count": 3}])
def test_one_hostname_is_for_one_server(front: Front, counts: dict[str, int]) -> None:
    answer = with_status(front.post({"server": GOOD | {"hostname": "db"} | counts}, NEWEST), 400)
    assert "server.hostname: " in answer.text
    assert front.post({"server": GOOD | {"hostname": "db", "max_count": 1}}, NEWEST).status_code == 202
