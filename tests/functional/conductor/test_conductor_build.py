"""A leased batch becomes instances in their cells, or errors in cell0, by the conductor's own code and a real scheduler."""

from __future__ import annotations

import threading
import time
from typing import Any

import msgspec
import pytest

from conductor.super_conductor import SuperConductor
from conductor.sweep_queue import LEASE_PAGE_SIZE, QueueSweep
from db import dead_letters
from db.api.claims import server_groups
from db.api.deployment import host_mappings
from db.api.queue import leases
from db.api.servers import mappings
from db.sql.counting import StatementCounter
from objects.cell import CELL0_UUID, HostMapping
from objects.context import RequestContext
from objects.group import GroupPolicy
from objects.instance import Instance, State
from objects.spec import RequestSpec
from rpc.counting import MessageCounter, MessageKind
from service.periodic import wait_until
from tests.support import fleet
from tests.support.conductor_process import Conductor
from tests.support.direct_signals import DirectSignals
from tests.support.ground import USUAL
from tests.support.world import World, world_fixture

CONTEXT = RequestContext(request_id="req-test")
PATIENCE = 90.0


cloud = world_fixture({"cell1": ["a1", "a2", "a3"], "cell2": ["b1", "b2", "b3"]}, USUAL)


def rows(cloud: World, spec: RequestSpec) -> list[Instance]:
    return [cloud.row(uuid) for uuid in cloud.uuids(spec)]


def test_a_batch_is_staged_handed_over_and_ordered(cloud: World, conductor: Conductor) -> None:
    spec = cloud.accept(4)
    conductor.build(spec)
    assert cloud.requests() == {}
    claims = cloud.evidence().claims
    cells = {cell.name: cell.uuid for cell in conductor.registry.list_cells()}
    for row in rows(cloud, spec):
        mapped = cloud.mapped(row.uuid)
        home = cloud.homes[row.host or ""]
        assert (row.state, row.fence, row.attempt, row.version) == (State.STAGED, 1, 1, 0)
        assert (mapped.cell_uuid, mapped.host, mapped.fence, mapped.state) == (cells[home], row.host, 1, "building")
        assert claims[row.uuid] == row.host
        assert row.limits is not None
        assert {cloud.homes[other.host] for other in row.alternates} == {home}
        assert row.host not in {other.host for other in row.alternates}
        assert len(row.alternates) == row.max_attempts - 1 == 2


def test_it_costs_one_query_and_order_per_host(cloud: World, conductor: Conductor) -> None:
    asked = MessageCounter()
    conductor.bus.observer = asked
    spec = cloud.accept(12)
    conductor.build(spec)
    assert asked.counts_by_method() == {("scheduler", "select_destinations", MessageKind.CALL): 1}
    hosts = {row.host for row in rows(cloud, spec)}
    assert conductor.sent.counts_by_method() == {("compute", "build_instances", MessageKind.CAST): len(hosts)}


def test_a_leased_or_deleted_batch_is_nobodys_work(cloud: World, conductor: Conductor) -> None:
    spec = cloud.accept()
    cloud.api.write(leases.lease_batches, "another", [spec.batch_id], time.time(), 3600.0)
    conductor.build(spec)
    conductor.builder.schedule_and_build(["unknown"])
    conductor.builder.schedule_and_build([])
    assert [row.owner for row in cloud.requests().values()] == ["another"]
    assert conductor.sent.count_messages() == 0


def test_members_of_a_strict_group_are_marked_so(cloud: World, conductor: Conductor) -> None:
    """Their cell must tell when a build is over, so that hosts held for its retries become free."""
    marks = {}
    for policy in GroupPolicy:
        group = msgspec.structs.replace(fleet.group(policy), name=str(policy))
        cloud.api.write(server_groups.create, group)
        spec = cloud.accept(group=group)
        conductor.build(spec)
        [row] = rows(cloud, spec)
        marks[policy] = row.has_group
    assert marks == {policy: policy.is_strict for policy in GroupPolicy}


class TestBuried:
    def reasons(self, cloud: World, spec: RequestSpec) -> set[str]:
        """Of its servers that ended in cell0, where row and mapping must say the same."""
        found = set()
        for uuid in cloud.uuids(spec):
            if cloud.mapped(uuid).cell_uuid == CELL0_UUID:
                server = cloud.api.read(mappings.get, uuid)
                row = cloud.row(uuid)
                assert server is not None
                assert (server.state, server.fault, row.state) == ("error", row.fault, State.ERROR)
                found.add(row.fault or "")
        return found

    def test_an_unplaceable_server_is_buried_with_schedulers_reason(self, cloud: World, conductor: Conductor) -> None:
        spec = cloud.accept(2, size=fleet.flavor(vcpus=1000))
        conductor.build(spec)
        [reason] = self.reasons(cloud, spec)
        assert reason.startswith("No valid host was found")
        assert cloud.requests() == {}
        assert cloud.evidence().claims == {}
        assert conductor.sent.count_messages() == 0

    def test_a_host_without_mapping_buries_only_its_servers(self, cloud: World, conductor: Conductor) -> None:
        lost, kept = cloud.accept(force_hosts=("a1",)), cloud.accept(force_hosts=("a2",))
        for spec in (lost, kept):
            conductor.drive(spec, upto="claimed")
        cloud.api.write(host_mappings.delete, "a1")
        conductor.registry.refresh_cells()
        conductor.build(lost, kept)
        [reason] = self.reasons(cloud, lost)
        assert "not mapped to a cell" in reason
        assert [row.host for row in rows(cloud, kept)] == ["a2"]
        assert set(cloud.evidence().claims.values()) == {"a2"}

    def test_of_one_batch_too(self, cloud: World, conductor: Conductor) -> None:
        spec = cloud.accept(6)
        driven = conductor.drive(spec, upto="claimed")
        dead = driven.placed[0].selection.host
        meant = {p.request.instance_uuid for p in driven.placed if p.selection.host == dead}
        cloud.api.write(host_mappings.delete, dead)
        conductor.registry.refresh_cells()
        conductor.build(spec)
        buried = {uuid for uuid in driven.uuids if cloud.mapped(uuid).cell_uuid == CELL0_UUID}
        assert buried == meant
        assert cloud.evidence().claims.keys() == set(driven.uuids) - meant
        assert cloud.requests() == {}

    def test_a_selection_contradicting_the_mapping_is_repeated(self, cloud: World, conductor: Conductor) -> None:
        """The host was mapped anew after it had been chosen: nothing is staged in either cell, and nothing is buried."""
        spec = cloud.accept(force_hosts=("a1",))
        conductor.drive(spec, upto="claimed")
        cloud.api.write(host_mappings.delete, "a1")
        moved = HostMapping(host="a1", cell_uuid=conductor.cell("cell2").uuid)
        cloud.api.write(host_mappings.add_mappings, [moved], time.time())
        conductor.registry.refresh_cells()
        conductor.build(spec)
        [uuid] = cloud.uuids(spec)
        assert cloud.rows(uuid) == {}
        assert cloud.requests().keys() == {uuid}

    def test_what_is_late_is_buried_without_asking_anybody(self, cloud: World, conductor: Conductor) -> None:
        asked = MessageCounter()
        conductor.bus.observer = asked
        late = cloud.accept(3, timeout=-1.0)
        conductor.build(late)
        assert self.reasons(cloud, late) == {"Build timed out in scheduling."}
        assert asked.count_messages() == 0

    def test_a_burial_under_a_later_fence_updates_reason(self, cloud: World, conductor: Conductor) -> None:
        spec = cloud.accept()
        conductor.lease(spec.batch_id).stage_in_cell0("an earlier reason")
        conductor.lease(spec.batch_id).bury("the reason")
        assert self.reasons(cloud, spec) == {"the reason"}


class TestTogether:
    """Batches of one moment, which one process builds in one go."""

    def test_several_batches_share_one_query_and_step_transactions(self, cloud: World, conductor: Conductor) -> None:
        asked = MessageCounter()
        conductor.bus.observer = asked
        specs = [cloud.accept(3), cloud.accept(), cloud.accept()]
        conductor.build(*specs)
        assert asked.counts_by_method() == {("scheduler", "select_for_each", MessageKind.CALL): 1}
        for spec in specs:
            assert {row.state for row in rows(cloud, spec)} == {State.STAGED}
        placed = {(spec.batch_id, row.host) for spec in specs for row in rows(cloud, spec)}
        assert conductor.sent.counts_by_method() == {("compute", "build_instances", MessageKind.CAST): len(placed)}
        assert cloud.requests() == {}

    def test_small_batches_precede_large_ones_within_a_bound(
        self, cloud: World, conductor: Conductor, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("conductor.build.LARGE_BATCH_SIZE", 4)
        monkeypatch.setattr("conductor.build.GROUP_SIZE", 10)
        specs = [cloud.accept(count) for count in (5, 5, 2, 5, 5)]
        asked: list[str] = []
        conductor.bus.observer = lambda topic, method, kind: asked.append(method)
        conductor.build(*specs)
        alone, together = "select_destinations", "select_for_each"
        assert asked == [alone, together, together]
        assert {row.state for spec in specs for row in rows(cloud, spec)} == {State.STAGED}

    def test_a_group_scheduled_in_several_calls_builds_once(
        self, cloud: World, conductor: Conductor, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("conductor.build.LARGE_BATCH_SIZE", 4)
        monkeypatch.setattr("conductor.destinations.CALL_SIZE", 10)
        specs = [cloud.accept(5) for _ in range(5)]
        asked: list[str] = []
        conductor.bus.observer = lambda topic, method, kind: asked.append(method)
        with StatementCounter(conductor.database) as counter:
            conductor.build(*specs)
        assert asked == ["select_for_each", "select_for_each", "select_destinations"]
        assert {row.state for spec in specs for row in rows(cloud, spec)} == {State.STAGED}
        deletes = {
            text: n.executions
            for (_, text), n in counter.count_by_statement().items()
            if text.startswith("DELETE FROM build_requests")
        }
        assert list(deletes.values()) == [1], "one hand-over"

    def test_under_load_another_conductor_builds_the_batch(
        self, cloud: World, conductor: Conductor, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("conductor.build.BUSY_S", 600.0)
        first, second, elsewhere = cloud.accept(), cloud.accept(), cloud.accept()
        conductor.builder.build_notified([first.batch_id])
        assert set(cloud.requests()) == {*cloud.uuids(second), *cloud.uuids(elsewhere)}, "alone, each builds its own"
        conductor.builder.build_notified([second.batch_id])
        assert cloud.requests() == {}
        asked = MessageCounter()
        conductor.bus.observer = asked
        conductor.builder.build_notified([elsewhere.batch_id])
        assert asked.count_messages() == 0, "the doorbell comes late"

    def test_where_too_many_wait_each_builds_its_own(
        self, cloud: World, conductor: Conductor, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("conductor.build.ROUND_SIZE", 2)
        specs = [cloud.accept() for _ in range(4)]
        for spec in specs[:2]:
            conductor.builder.build_notified([spec.batch_id])
        assert set(cloud.requests()) == {uuid for spec in specs[2:] for uuid in cloud.uuids(spec)}

    def test_each_stands_or_falls_by_itself(self, cloud: World, conductor: Conductor) -> None:
        good, full, late = cloud.accept(2), cloud.accept(size=fleet.flavor(vcpus=999)), cloud.accept(timeout=-1.0)
        conductor.build(good, full, late)
        assert {row.state for row in rows(cloud, good)} == {State.STAGED}
        [reason] = TestBuried().reasons(cloud, full)
        assert reason.startswith("No valid host was found")
        assert TestBuried().reasons(cloud, late) == {"Build timed out in scheduling."}
        assert set(cloud.evidence().claims) == set(cloud.uuids(good))

    def test_one_that_was_staged_before_holds_up_nobody(self, cloud: World, conductor: Conductor) -> None:
        before, new = cloud.accept(2), cloud.accept()
        conductor.drive(before, upto="staged")
        conductor.build(before, new)
        for spec in (before, new):
            assert {row.state for row in rows(cloud, spec)} == {State.STAGED}
        assert cloud.requests() == {}

    def test_an_unreachable_cell_costs_only_its_first_choice(self, cloud: World, conductor: Conductor) -> None:
        specs = [cloud.accept(2), cloud.accept(2)]
        conductor.cell("cell1")
        conductor.databases["cell1"].away = True
        conductor.build(*specs)
        hosts = {row.host or "" for spec in specs for row in rows(cloud, spec)}
        assert {cloud.homes[host] for host in hosts} == {"cell2"}
        assert cloud.requests() == {}

    def test_a_slow_cell_delays_only_its_servers(self, cloud: World, conductor: Conductor) -> None:
        spec = cloud.accept(4)
        drive = conductor.drive(spec, upto="claimed")
        homes = {placed.request.instance_uuid: placed.cell.name for placed in drive.placed}
        assert set(homes.values()) == {"cell1", "cell2"}
        slow = {uuid for uuid, home in homes.items() if home == "cell1"}
        conductor.databases["cell1"].slow_until = answers = threading.Event()
        building = threading.Thread(target=conductor.build, args=(spec,))
        building.start()
        assert wait_until(lambda: set(cloud.requests()) == slow, PATIENCE), "the others are handed over"
        assert building.is_alive()
        answers.set()
        building.join(PATIENCE)
        assert cloud.requests() == {}
        assert {row.state for row in rows(cloud, spec)} == {State.STAGED}
        assert sum(conductor.sent.counts_by_method().values()) == len({row.host for row in rows(cloud, spec)})

    def test_an_unexpected_error_ends_only_its_batch(
        self, cloud: World, conductor: Conductor, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        good, bad = cloud.accept(2), cloud.accept()
        real = conductor.builder.destinations.spare_refused

        def spare(batch: leases.LeasedBatch, *arguments: Any) -> Any:
            if batch.batch_id == bad.batch_id:
                raise LookupError("a fault of the program")
            return real(batch, *arguments)

        monkeypatch.setattr(conductor.builder.destinations, "spare_refused", spare)
        conductor.build(bad, good)
        assert {row.state for row in rows(cloud, good)} == {State.STAGED}
        assert set(cloud.requests()) == set(cloud.uuids(bad))
        (letter,) = cloud.api.read(dead_letters.list_all, "api")
        assert (letter.step, [letter.key]) == ("build", cloud.uuids(bad))
        assert letter.reason == "LookupError: a fault of the program"


class TestFewerThanAskedFor:
    def test_hostless_servers_above_the_minimum_end_alone(self, cloud: World, conductor: Conductor) -> None:
        spec = cloud.accept(8, size=fleet.flavor(root_gb=900), num_instances=8, min_count=3)  # there are six hosts of that size
        conductor.build(spec)
        placed = {row.host for row in rows(cloud, spec) if row.state is State.STAGED}
        assert placed == set(cloud.homes)
        assert TestBuried().reasons(cloud, spec) == {"No valid host was found: 2 of the 8 servers of the request fit on no host."}
        assert set(cloud.evidence().claims.values()) == set(cloud.homes)
        assert cloud.requests() == {}

    def test_fewer_than_the_least_end_all_of_them(self, cloud: World, conductor: Conductor) -> None:
        spec = cloud.accept(8, size=fleet.flavor(root_gb=900), num_instances=8, min_count=7)
        conductor.build(spec)
        assert len(TestBuried().reasons(cloud, spec)) == 1
        assert cloud.evidence().claims == {}

    def test_a_server_deleted_meanwhile_is_not_ended_twice(self, cloud: World, conductor: Conductor) -> None:
        spec = cloud.accept(3, num_instances=3, min_count=1)
        driven = conductor.lease(spec.batch_id)
        gone, *others = driven.uuids
        cloud.delete(gone)
        conductor.builder.build_batches([driven.batch])
        conductor.keep()
        assert cloud.mapped(gone).cell_uuid is None
        assert cloud.rows(gone) == {}
        assert cloud.evidence().claims.keys() == set(others)


class TestQueueSweep:
    def test_it_builds_whatever_waits_page_by_page(self, cloud: World, conductor: Conductor) -> None:
        """Doorbells were lost: nobody was told of any of these."""
        small = fleet.flavor(vcpus=0, memory_mb=1, root_gb=0)
        specs = [cloud.accept(size=small) for _ in range(LEASE_PAGE_SIZE + 3)]
        sweep = QueueSweep(cloud.api, conductor.builder, workers=4)
        assert sweep.run_round() is True
        assert sweep.run_round() is False
        sweep.stop()
        assert cloud.requests() == {}
        assert len(cloud.evidence().claims) == len(specs)

    def test_a_doorbell_builds_that_batch_alone(self, cloud: World, conductor: Conductor) -> None:
        first, second = cloud.accept(), cloud.accept()
        endpoint = SuperConductor(DirectSignals(conductor.builder), conductor.deleter)
        endpoint.schedule_and_build_instances(CONTEXT, first.batch_id)
        assert cloud.requests().keys() == set(cloud.uuids(second))

    def test_a_stuck_batch_holds_up_no_other(self, cloud: World, conductor: Conductor) -> None:
        """Its cell is away, there is nowhere else, and so it waits: the others are built in the same round."""
        conductor.cell("cell1")
        conductor.databases["cell1"].away = True
        stuck = cloud.accept(force_hosts=("a1",))
        others = [cloud.accept(force_hosts=("b1",)) for _ in range(3)]
        sweep = QueueSweep(cloud.api, conductor.builder, workers=1)
        sweep.run_round()
        sweep.stop()
        assert cloud.requests().keys() == set(cloud.uuids(stuck))
        assert all(cloud.mapped(uuid).cell_uuid for spec in others for uuid in cloud.uuids(spec))
