"""Each kind of fault: made in the databases, found, and named with the command that mends it."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from beside_nova.audit import NovaFault, audit_cloud
from tests.support.nova_cloud import NovaCloud, now, request_spec, uuid_of

SERVER = uuid_of(0xA1)
OTHER = uuid_of(0xA2)
MIGRATION = uuid_of(0xB1)


@pytest.fixture
def cloud(tmp_path: Path) -> NovaCloud:
    made = NovaCloud(tmp_path)
    made.add_cell("cell1", uuid_of(0xC1))
    return made


def faults_of(cloud: NovaCloud) -> list[tuple[str, str, str]]:
    def brief(fault: NovaFault) -> tuple[str, str, str]:
        return fault.kind, fault.subject, fault.mend

    return [brief(fault) for fault in audit_cloud(cloud.open_state()).faults]


def uuid_of_provider(cloud: NovaCloud, number: int) -> str:
    return cloud.open_state().providers[number].uuid


def test_a_sound_cloud_has_no_faults(cloud: NovaCloud) -> None:
    hosts = {name: cloud.add_host(name) for name in ("h1", "h2")}
    cloud.add_aggregate("east", hosts, availability_zone="east")
    cloud.add_group("anti-affinity", [SERVER, OTHER])
    for uuid, host in ((SERVER, "h1"), (OTHER, "h2")):
        cloud.add_server(uuid, host, spec=request_spec(uuid, availability_zone="east"))
        cloud.claim(uuid, hosts[host])
    cloud.add_server(uuid_of(1), None, vm_state="shelved_offloaded")
    cloud.insert("nova_api", "build_requests", instance_uuid=uuid_of(2), project_id="p")
    cloud.claim(uuid_of(2), hosts["h1"])

    assert faults_of(cloud) == []


def test_a_move_under_way_is_no_fault(cloud: NovaCloud) -> None:
    hosts = {name: cloud.add_host(name) for name in ("h1", "h2")}
    cloud.add_server(SERVER, "h1", task_state="resize_migrating")
    cloud.claim(SERVER, hosts["h2"])
    cloud.claim(MIGRATION, hosts["h1"])
    cloud.insert("cell1", "migrations", uuid=MIGRATION, instance_uuid=SERVER, status="migrating", deleted=0)

    assert faults_of(cloud) == []


def test_a_claim_without_a_server(cloud: NovaCloud) -> None:
    provider = cloud.add_host("h1")
    cloud.claim(OTHER, provider)

    mend = f"nova-manage placement audit --resource_provider {uuid_of_provider(cloud, provider)} --delete"
    assert faults_of(cloud) == [("claim without a server", OTHER, mend)]


def test_a_claim_of_a_finished_migration(cloud: NovaCloud) -> None:
    hosts = {name: cloud.add_host(name) for name in ("h1", "h2")}
    cloud.add_server(SERVER, "h2")
    cloud.claim(SERVER, hosts["h2"])
    cloud.claim(MIGRATION, hosts["h1"])
    cloud.insert("cell1", "migrations", uuid=MIGRATION, instance_uuid=SERVER, status="confirmed", deleted=0)

    mend = f"nova-manage placement audit --resource_provider {uuid_of_provider(cloud, hosts['h1'])} --delete"
    assert faults_of(cloud) == [("claim of a finished migration", MIGRATION, mend)]


def test_a_server_without_a_claim(cloud: NovaCloud) -> None:
    cloud.add_host("h1")
    cloud.add_server(SERVER, "h1")

    mend = f"nova-manage placement heal_allocations --instance {SERVER}"
    assert faults_of(cloud) == [("server without a claim", SERVER, mend)]


def test_a_claim_on_two_hosts(cloud: NovaCloud) -> None:
    hosts = {name: cloud.add_host(name) for name in ("h1", "h2")}
    cloud.add_server(SERVER, "h2")
    for provider in hosts.values():
        cloud.claim(SERVER, provider)

    mend = f"openstack resource provider allocation unset --provider {uuid_of_provider(cloud, hosts['h1'])} {SERVER}"
    assert faults_of(cloud) == [("doubled claim", SERVER, mend)]


def test_hosts_and_mappings(cloud: NovaCloud) -> None:
    cloud.add_host("h1", mapped=False)
    cloud.add_host("h2")
    cloud.execute("cell1", "DELETE FROM compute_nodes WHERE host = 'h2'")
    cloud.execute("cell1", "DELETE FROM services WHERE host = 'h2'")
    cloud.execute("placement", "DELETE FROM resource_providers WHERE name = 'h2'")

    cell = uuid_of(0xC1)
    assert faults_of(cloud) == [
        ("host without a mapping", "h1", f"nova-manage cell_v2 discover_hosts --by-service --cell_uuid {cell}"),
        ("mapping without a host", "h2", f"nova-manage cell_v2 delete_host --cell_uuid {cell} --host h2"),
    ]


def test_inventories_unlike_their_nodes(cloud: NovaCloud) -> None:
    cloud.add_host("h1")
    lost = cloud.add_host("h2")
    cloud.execute(
        "placement", "UPDATE inventories SET total = 7 WHERE resource_class_id = 0 AND resource_provider_id <> :id", id=lost
    )
    cloud.execute("placement", "DELETE FROM resource_providers WHERE id = :id", id=lost)
    alone = cloud.add_provider("h3")
    cloud.add_inventory(alone, "VCPU", 8)

    assert faults_of(cloud) == [
        ("inventory unlike its node", "h1", "systemctl restart nova-compute  # on h1"),
        ("node without a provider", "h2", "systemctl restart nova-compute  # on h2"),
        ("provider without a node", uuid_of(alone), f"openstack resource provider delete {uuid_of(alone)}"),
    ]


def test_dedicated_cpus_are_cpus_of_the_node(cloud: NovaCloud) -> None:
    provider = cloud.add_host("h1", vcpus=8)
    cloud.execute("placement", "UPDATE inventories SET total = 6 WHERE resource_class_id = 0")
    cloud.add_inventory(provider, "PCPU", 2)

    assert faults_of(cloud) == []


def test_an_aggregate_unlike_its_copy(cloud: NovaCloud) -> None:
    cloud.add_aggregate("ssd", {"h1": cloud.add_host("h1")}, mirrored=False)

    assert faults_of(cloud) == [("aggregate unlike its copy", "ssd", "nova-manage placement sync_aggregates")]


def test_stuck_build_requests(cloud: NovaCloud) -> None:
    cloud.add_host("h1")
    cloud.insert("nova_api", "instance_mappings", instance_uuid=SERVER, cell_id=None, project_id="p")
    cloud.insert("nova_api", "build_requests", instance_uuid=SERVER, project_id="p", created_at=now() - timedelta(hours=2))

    assert faults_of(cloud) == [("stuck build request", SERVER, f"openstack server delete {SERVER}")]


def test_a_server_outside_its_zone(cloud: NovaCloud) -> None:
    hosts = {name: cloud.add_host(name) for name in ("h1", "h2")}
    cloud.add_aggregate("east", {"h2": hosts["h2"]}, availability_zone="east")
    cloud.add_server(SERVER, "h1", spec=request_spec(SERVER, availability_zone="east"))
    cloud.claim(SERVER, hosts["h1"])

    assert faults_of(cloud) == [("server outside its zone", SERVER, f"openstack server migrate {SERVER}")]


@pytest.mark.parametrize(("policy", "hosts"), [("anti-affinity", ("h1", "h1")), ("affinity", ("h1", "h2"))])
def test_broken_groups(cloud: NovaCloud, policy: str, hosts: tuple[str, str]) -> None:
    providers = {name: cloud.add_host(name) for name in ("h1", "h2")}
    cloud.add_group(policy, [SERVER, OTHER])
    for uuid, host in zip((SERVER, OTHER), hosts, strict=True):
        cloud.add_server(uuid, host)
        cloud.claim(uuid, providers[host])

    assert faults_of(cloud) == [("broken server group", OTHER, f"openstack server migrate {OTHER}")]


def test_a_cell_that_cannot_be_read(cloud: NovaCloud) -> None:
    cloud.claim(SERVER, cloud.add_host("h1"))
    cloud.add_cell("cell2", database_connection="mysql://u:secret@127.0.0.1:1/x")

    audit = audit_cloud(cloud.open_state())

    assert (audit.faults, audit.skipped) == ((), ("servers and their claims: cell cell2 could not be read",))
