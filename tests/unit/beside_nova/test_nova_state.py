"""The table of a Nova cloud: what it holds after a load, and after each change that Nova or Placement can make."""

from __future__ import annotations

from pathlib import Path

import pytest
import sqlalchemy as sa

from beside_nova.database import NovaDatabase, cell_url
from beside_nova.schema import NOVA_API
from beside_nova.state import NovaState
from objects import errors
from tests.support.nova_cloud import NovaCloud, now


@pytest.fixture
def cloud(tmp_path: Path) -> NovaCloud:
    made = NovaCloud(tmp_path)
    made.add_cell("cell1")
    made.add_cell("cell2")
    return made


def free_of(state: NovaState, host: str) -> tuple[float, float, float]:
    row = state.table.find_row(host, host)
    assert row is not None
    return state.table.free_vcpus.item(row), state.table.free_memory_mb.item(row), state.table.free_disk_gb.item(row)


def hosts_up(state: NovaState) -> set[str]:
    mask = state.table.hosts_up(state.plan_context().alive_since) & state.table.eligible[: state.table.size]
    return {state.table.hosts[row] for row in mask.nonzero()[0].tolist()}


def test_capacity_is_that_of_placement(cloud: NovaCloud) -> None:
    provider = cloud.add_host("h1", vcpus=8, memory_mb=16384, disk_gb=100, ratio=4.0)
    cloud.execute("placement", "UPDATE inventories SET reserved = 512 WHERE resource_class_id = 1")
    cloud.claim("server", provider, vcpus=2, memory_mb=2048, disk_gb=20)

    state = cloud.open_state()

    assert free_of(state, "h1") == (30.0, 16384 - 512 - 2048, 80.0)
    assert hosts_up(state) == {"h1"}


def test_hosts_of_all_cells_are_in_one_table(cloud: NovaCloud) -> None:
    cloud.add_host("h1", "cell1")
    cloud.add_host("h2", "cell2")

    assert hosts_up(cloud.open_state()) == {"h1", "h2"}


def test_hosts_that_are_down_or_disabled(cloud: NovaCloud) -> None:
    cloud.add_host("silent", seen_s_ago=100.0)
    for name in ("disabled", "forced_down"):
        cloud.add_host(name)
        cloud.execute("cell1", f"UPDATE services SET {name} = 1 WHERE host = :host", host=name)
    cloud.add_host("marked", traits=["COMPUTE_STATUS_DISABLED"])
    cloud.add_host("up")

    assert hosts_up(cloud.open_state()) == {"up"}


def test_hosts_that_cannot_be_judged_are_named(cloud: NovaCloud) -> None:
    cloud.add_host("unmapped", mapped=False)
    nested = cloud.add_host("nested")
    cloud.add_inventory(cloud.add_provider("nested_numa0", parent=nested), "MEMORY_MB", 1024)
    with_gpu = cloud.add_host("with-gpu")
    cloud.add_inventory(cloud.add_provider("with-gpu_pci", parent=with_gpu), "CUSTOM_GPU", 1)
    sharing = cloud.add_provider("nfs")
    cloud.add_inventory(sharing, "DISK_GB", 1000)
    cloud.add_trait(sharing, "MISC_SHARES_VIA_AGGREGATE")
    shared = cloud.add_host("with-nfs")
    cloud.add_aggregate("storage", {"with-nfs": shared, "nfs": sharing})
    cloud.execute("placement", "DELETE FROM resource_providers WHERE id = :id", id=cloud.add_host("unknown"))

    state = cloud.open_state()

    assert state.left_out == {
        "unmapped": "it is not mapped to cell cell1, where it reports",
        "nested": "MEMORY_MB is in a nested resource provider",
        "with-nfs": "DISK_GB is shared by the resource provider nfs",
        "unknown": "its node has no resource provider in Placement",
    }
    assert hosts_up(state) == {"with-gpu"}


def test_a_zone_is_what_placement_knows_of_it(cloud: NovaCloud) -> None:
    hosts = {name: cloud.add_host(name) for name in ("h1", "h2", "h3")}
    cloud.add_aggregate("east", {"h1": hosts["h1"]}, availability_zone="east")
    cloud.add_aggregate("west", {"h2": hosts["h2"]}, mirrored=False, availability_zone="west")

    table = cloud.open_state().table

    zones = {table.hosts[row]: table.zones[table.zone.item(row)] for row in range(table.size)}
    assert zones == {"h1": "east", "h2": "nova", "h3": "nova"}


def test_ratios_in_aggregates_are_not_read(cloud: NovaCloud) -> None:
    cloud.add_aggregate("dense", {"h1": cloud.add_host("h1")}, cpu_allocation_ratio="1.0", ssd="true")

    [aggregate] = cloud.open_state()._host_aggregates()

    assert aggregate.metadata == {"ssd": "true"}


def test_a_poll_without_news_is_cheap(cloud: NovaCloud) -> None:
    cloud.add_host("h1", "cell1")
    cloud.add_host("h2", "cell2")
    state = cloud.open_state()
    state.poll_changes()
    before = state.statement_count

    assert state.poll_changes() == 0
    assert state.statement_count - before == 1 + 2 * 3 + 1


def test_a_poll_reads_claims_and_releases(cloud: NovaCloud) -> None:
    provider = cloud.add_host("h1", vcpus=8, ratio=1.0)
    state = cloud.open_state()
    cloud.claim("a", provider, vcpus=3)
    cloud.claim("b", provider, vcpus=2)
    state.poll_changes()
    claimed = free_of(state, "h1")[0], int(state.table.instances[0])
    cloud.release("a", provider)
    state.poll_changes()

    assert claimed == (3.0, 2)
    assert (free_of(state, "h1")[0], int(state.table.instances[0])) == (6.0, 1)


def test_a_poll_reads_inventories_and_traits(cloud: NovaCloud) -> None:
    provider = cloud.add_host("h1", vcpus=8, ratio=1.0)
    state = cloud.open_state()
    cloud.execute("placement", "UPDATE inventories SET total = 10 WHERE resource_class_id = 0")
    cloud.add_trait(provider, "HW_CPU_X86_AVX2")
    state.poll_changes()

    assert free_of(state, "h1")[0] == 10.0
    assert state.table.facets.attributes_at(0)["traits"] == ["HW_CPU_X86_AVX2"]


def test_a_poll_notices_hosts_that_come_and_go(cloud: NovaCloud) -> None:
    cloud.add_host("h1")
    state = cloud.open_state()
    cloud.add_host("h2", "cell2")
    state.poll_changes()
    with_both = hosts_up(state)
    cloud.execute("cell1", "UPDATE compute_nodes SET deleted = id WHERE host = 'h1'")
    cloud.execute("nova_api", "DELETE FROM host_mappings WHERE host = 'h1'")
    state.poll_changes()

    assert with_both == {"h1", "h2"}
    assert hosts_up(state) == {"h2"}


def test_a_poll_notices_services(cloud: NovaCloud) -> None:
    cloud.add_host("h1")
    state = cloud.open_state()
    cloud.execute("cell1", "UPDATE services SET disabled = 1, updated_at = :now", now=str(now()))
    state.poll_changes()

    assert hosts_up(state) == set()


def test_a_poll_notices_zones(cloud: NovaCloud) -> None:
    provider = cloud.add_host("h1")
    state = cloud.open_state()
    cloud.add_aggregate("east", {"h1": provider}, availability_zone="east")
    state.poll_changes()

    assert state.table.zones[state.table.zone.item(0)] == "east"


def test_a_poll_notices_copies_of_aggregates(cloud: NovaCloud) -> None:
    provider = cloud.add_host("h1")
    aggregate = cloud.add_aggregate("east", {"h1": provider}, mirrored=False, availability_zone="east")
    state = cloud.open_state()
    before = state.table.zones[state.table.zone.item(0)]
    cloud.mirror_aggregate(aggregate, provider)
    state.poll_changes()

    assert (before, state.table.zones[state.table.zone.item(0)]) == ("nova", "east")


def test_a_poll_notices_hosts_marked_as_disabled(cloud: NovaCloud) -> None:
    provider = cloud.add_host("h1")
    state = cloud.open_state()
    cloud.add_trait(provider, "COMPUTE_STATUS_DISABLED")
    state.poll_changes()

    assert hosts_up(state) == set()


def test_a_poll_notices_nested_amounts(cloud: NovaCloud) -> None:
    provider = cloud.add_host("h1")
    child = cloud.add_provider("h1_child", parent=provider)
    cloud.add_inventory(child, "CUSTOM_GPU", 1)
    state = cloud.open_state()
    cloud.claim("server", child, 1, 0, 0)
    state.poll_changes()
    with_gpu = hosts_up(state)
    cloud.add_inventory(child, "VCPU", 1)
    state.poll_changes()

    assert with_gpu == {"h1"}
    assert hosts_up(state) == set()
    assert state.left_out == {"h1": "VCPU is in a nested resource provider"}


def test_a_cell_that_cannot_be_read_is_named(cloud: NovaCloud) -> None:
    cloud.add_host("h1", "cell1")
    cloud.execute(
        "nova_api", "UPDATE cell_mappings SET database_connection = 'mysql://u:secret@127.0.0.1:1/x' WHERE name = 'cell2'"
    )

    state = cloud.open_state()

    [failed] = [view for view in state.cells.values() if view.error]
    assert failed.cell.name == "cell2"
    assert "secret" not in failed.error
    assert hosts_up(state) == {"h1"}


@pytest.mark.parametrize("database", ["nova_api", "placement", "cell1"])
def test_an_unknown_schema_is_refused_by_name(cloud: NovaCloud, database: str) -> None:
    cloud.execute(database, "UPDATE alembic_version SET version_num = 'f00d'")

    if database == "cell1":
        [failed] = [view.error for view in cloud.open_state().cells.values() if view.error]
    else:
        with pytest.raises(errors.Misconfigured) as caught:
            cloud.open_state()
        failed = str(caught.value)
    assert "f00d, which is of no release that is known; those of 2024.1 to 2026.2 are" in failed


def test_a_database_of_another_kind_is_refused(cloud: NovaCloud) -> None:
    with pytest.raises(errors.Misconfigured, match="is not Nova's API database: it has no table aggregate_hosts"):
        NovaDatabase("nova_api", cloud.url_of("placement"), NOVA_API).read(lambda connection: None)


def test_a_missing_file_is_named_and_not_made(tmp_path: Path) -> None:
    missing = tmp_path / "nova_api.db"
    with pytest.raises(errors.DatabaseUnavailable, match=r"nova_api .* cannot be read: there is no such file"):
        NovaDatabase("nova_api", f"sqlite:///{missing}", NOVA_API).read(lambda connection: None)
    assert not missing.exists()


def test_connections_refuse_to_write(cloud: NovaCloud) -> None:
    database = NovaDatabase("nova_api", cloud.url_of("nova_api"), NOVA_API)

    with pytest.raises(errors.DatabaseUnavailable, match="readonly"):
        database.read(lambda connection: connection.execute(sa.text("DELETE FROM flavors")))


def test_url_templates_and_other_logins() -> None:
    source = "mysql+pymysql://nova:word@db.example:3306/nova_cell0?charset=utf8"
    template = "{scheme}://{username}:{password}@{hostname}:{port}/nova_cell1?{query}"

    assert cell_url(template, source) == "mysql+pymysql://nova:word@db.example:3306/nova_cell1?charset=utf8"
    assert cell_url(template, source, "reader", "pa@ss").startswith("mysql+pymysql://reader:pa%40ss@db.example:3306/nova_cell1?")
    with pytest.raises(errors.Misconfigured, match=r"needs \{scheme\}"):
        cell_url(template, "")
