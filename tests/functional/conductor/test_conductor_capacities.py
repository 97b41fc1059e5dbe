"""The API level follows what the hosts of a cell offer."""

from __future__ import annotations

import time

import pytest

from conductor.apply import Applier
from db.api.claims import claims
from db.api.deployment import host_mappings, host_removal
from db.cell import services
from objects import errors
from objects.cell import HostMapping
from tests.support.applying import (
    CELL,
    OTHER,
    catch_up,
    inventories,
    node,
    tell,
)
from tests.support.auditing import Auditor
from tests.support.conductor_process import Conductor
from tests.support.ground import USUAL
from tests.support.world import World, world_fixture

cloud = world_fixture({CELL: ["a1", "a2"], OTHER: ["b1"]}, USUAL, embedded=True)


@pytest.fixture
def applier(conductor: Conductor) -> Applier:
    """Of CELL, by a process that has just started."""
    made = Applier(conductor.ledger, conductor.cell(CELL))
    catch_up(made)
    return made


class TestCapacities:
    def test_they_follow_what_agents_say(self, cloud: World, applier: Applier) -> None:
        applier.map_hosts(frozenset({"a1", "a2"}))
        tell(cloud, CELL, node("a1", vcpus=32), node("a1", vcpus=48), node("a2", disk_gb=7))
        catch_up(applier)
        found = inventories(cloud)
        assert (found["a1"].cap_vcpus, found["a2"].cap_disk_gb, found["b1"].cap_vcpus) == (48 * 4.0, 7.0, 64.0)

    def test_every_change_counts_whatever_it_is_made_of(self, cloud: World, applier: Applier) -> None:
        applier.map_hosts(frozenset({"a1", "a2"}))
        tell(cloud, CELL, node("a1", memory_mb=2000, reserved_memory_mb=1000, ram_allocation_ratio=1.5))
        catch_up(applier)
        assert inventories(cloud)["a1"].cap_memory_mb == 1500.0
        tell(cloud, CELL, node("a1", memory_mb=1500))
        tell(cloud, CELL, node("a1", memory_mb=1501))
        catch_up(applier)
        assert inventories(cloud)["a1"].cap_memory_mb == 1501.0

    def test_usage_in_agent_reports_changes_no_capacity(self, cloud: World, applier: Applier) -> None:
        applier.map_hosts(frozenset({"a1", "a2"}))
        before = inventories(cloud)
        tell(cloud, CELL, node("a1", vcpus_used=5, memory_mb_used=100, running_vms=3))
        catch_up(applier)
        assert inventories(cloud) == before

    def test_an_unmapped_host_has_none_until_mapped(self, cloud: World, applier: Applier) -> None:
        applier.map_hosts(frozenset({"a1", "a2"}))
        tell(cloud, CELL, node("new"))
        catch_up(applier)
        assert "new" not in inventories(cloud)
        applier.map_hosts(frozenset({"a1", "a2", "new"}))
        assert inventories(cloud)["new"].cap_vcpus == 64.0

    def test_a_namesake_in_another_cell_is_kept_out(self, cloud: World, conductor: Conductor, applier: Applier) -> None:
        conductor.keep()
        tell(cloud, CELL, node("b1", vcpus=1))
        tell(cloud, OTHER, node("b1", vcpus=20))
        conductor.keep()
        row = inventories(cloud)["b1"]
        assert (row.cap_vcpus, row.cell_uuid) == (80.0, conductor.cell(OTHER).uuid)

    def test_a_node_belongs_to_its_first_reporting_host(
        self, cloud: World, conductor: Conductor, caplog: pytest.LogCaptureFixture
    ) -> None:
        conductor.keep()
        tell(cloud, CELL, node("a1", node="b1", vcpus=4000))
        conductor.keep()
        conductor.keep()
        assert [(row.host, row.node) for row in cloud.api.read(claims.read_all) if row.node == "b1"] == [("b1", "b1")]
        complaints = [text for text in caplog.messages if "reports node" in text]
        assert complaints[0].startswith("host a1 reports node b1, which host b1 of another cell reported first")
        [finding] = [each for each in Auditor(conductor).findings() if each.key == "a1"]
        assert str(finding) == "compute node named as another cell's: b1 of host a1 has the name of a node of host b1 (cell1)"
        cloud.api.write(host_removal.from_api, "b1")
        tell(cloud, CELL, node("a1", node="b1", vcpus=5))
        conductor.keep()
        assert ("a1", "b1") in {(row.host, row.node) for row in cloud.api.read(claims.read_all)}

    def test_a_returning_host_belongs_to_its_first_cell(self, cloud: World, conductor: Conductor) -> None:
        conductor.keep()
        for home in (OTHER, CELL):
            cloud.api.write(host_mappings.delete, "a1")
            conductor.registry.refresh_cells()
            conductor.keep()
            mapping = HostMapping(host="a1", cell_uuid=conductor.cell(home).uuid)
            cloud.api.write(host_mappings.add_mappings, [mapping], time.time())
            tell(cloud, home, node("a1"))
            conductor.registry.refresh_cells()
            conductor.keep()
            assert inventories(cloud)["a1"].cell_uuid == conductor.cell(home).uuid

    @pytest.mark.parametrize("trouble", ["lose_answer_to", "refuse_write"])
    @pytest.mark.parametrize("number", [1, 2, 3, 4, 5, 6])
    def test_a_write_that_fails_is_made_up_for(self, cloud: World, conductor: Conductor, trouble: str, number: int) -> None:
        """Whichever write it is: no capacity may be lost because cursor or mapping have moved on."""
        applier = Applier(conductor.ledger, conductor.cell(CELL))
        setattr(conductor.database, trouble, number)
        for vcpus in (32, 16, 48, 16):
            tell(cloud, CELL, node("a1", vcpus=vcpus))
            for _ in range(3):
                try:
                    applier.map_hosts(frozenset({"a1", "a2"}))
                    catch_up(applier)
                except errors.DatabaseUnavailable:
                    continue
            assert inventories(cloud)["a1"].cap_vcpus == vcpus * 4.0

    def test_a_lost_page_writes_none_of_its_capacities(self, cloud: World, conductor: Conductor, applier: Applier) -> None:
        """Or a conductor that was asleep would put an old capacity back."""
        applier.map_hosts(frozenset({"a1", "a2"}))
        slower = Applier(conductor.ledger, conductor.cell(CELL))
        slower.map_hosts(frozenset({"a1", "a2"}))
        catch_up(slower)
        tell(cloud, CELL, node("a1", vcpus=32))
        catch_up(applier)
        with pytest.raises(errors.Conflict):
            slower.apply_page()
        tell(cloud, CELL, node("a1", vcpus=48))
        catch_up(applier)
        assert inventories(cloud)["a1"].cap_vcpus == 48 * 4.0

    def test_what_another_applier_wrote_meanwhile_is_known(self, cloud: World, conductor: Conductor, applier: Applier) -> None:
        """A capacity that goes up and down again, told by one applier and then by the other."""
        other = Applier(conductor.ledger, conductor.cell(CELL))
        for each in (applier, other):
            catch_up(each)
            each.map_hosts(frozenset({"a1", "a2"}))
        tell(cloud, CELL, node("a1", vcpus=32))
        catch_up(other)
        with pytest.raises(errors.Conflict):
            applier.apply_page()
        tell(cloud, CELL, node("a1"))
        catch_up(applier)
        assert inventories(cloud)["a1"].cap_vcpus == 64.0

    def test_hosts_mapped_while_another_applier_reads_are_retried(
        self, cloud: World, conductor: Conductor, applier: Applier
    ) -> None:
        """What it read of their capacities may be old already."""
        applier.map_hosts(frozenset({"a1"}))
        other = Applier(conductor.ledger, conductor.cell(CELL))
        tell(cloud, CELL, node("a2", vcpus=32))
        catch_up(other)
        with pytest.raises(errors.Conflict):
            applier.map_hosts(frozenset({"a1", "a2"}))
        applier.map_hosts(frozenset({"a1", "a2"}))
        assert inventories(cloud)["a2"].cap_vcpus == 128.0

    def test_heartbeats_and_services_are_nobodys_capacity(self, cloud: World, applier: Applier) -> None:
        before = inventories(cloud)
        cloud.databases[CELL].write(services.set_disabled, "a1", "superconductor-compute", True, "why", time.time())
        catch_up(applier)
        assert inventories(cloud) == before
