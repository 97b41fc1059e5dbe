"""What lies between the processes fails: databases that do not answer or whose answer is lost, messages that are lost or doubled.

Each test ends with everything running until nothing is on its way any more; then claims, guests and rows must agree.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from conductor.orders import send_orders
from db import leases
from db.instances import Order
from objects import errors
from objects.context import RequestContext
from objects.instance import State
from objects.spec import RequestSpec
from service.periodic import wait_until
from tests.support.conductor_process import Conductor
from tests.support.world import PATIENCE, QUICK, World, world

HOSTS = {"cell1": ["a1", "a2"], "cell2": ["b1", "b2"]}
CONTEXT = RequestContext(request_id="req-test")


@pytest.fixture
def cloud(tmp_path: Path) -> Iterator[World]:
    with world(tmp_path, HOSTS) as made:
        yield made


def states(cloud: World, uuids: list[str]) -> list[str]:
    """Of their rows, at rest."""
    rows = {row.instance.uuid: row.instance.state for row in cloud.settle().rows}
    return [str(rows.get(uuid, "no row")) for uuid in uuids]


def build(conductor: Conductor, spec: RequestSpec) -> None:
    """All that a conductor does when the doorbell rings."""
    conductor.builder.schedule_and_build([spec.batch_id])


def instance_of(cloud: World, spec: RequestSpec) -> str:
    """The uuid of a batch of one."""
    [uuid] = [server.uuid for server in cloud.evidence().servers if server.batch_id == spec.batch_id]
    return uuid


def other(cell: str) -> str:
    return "cell2" if cell == "cell1" else "cell1"


class TestCellAway:
    def first_choice(self, cloud: World, conductor: Conductor, spec: RequestSpec) -> str:
        """The cell that the scheduler has chosen for the batch, and will again until told otherwise."""
        return conductor.drive(spec, upto="claimed").placed[0].cell.name

    def test_a_build_goes_elsewhere_under_a_new_fence(self, cloud: World) -> None:
        conductor, spec = cloud.conductor("one"), cloud.accept()
        home = self.first_choice(cloud, conductor, spec)
        conductor.databases[home].away = True
        build(conductor, spec)
        uuid = instance_of(cloud, spec)
        mapped = cloud.mapped(uuid)
        assert mapped.cell_uuid == conductor.cell(other(home)).uuid
        assert mapped.fence == 3  # the first look, the lease, the change of mind
        assert cloud.evidence().claims[uuid] in HOSTS[other(home)]
        cloud.start()
        assert states(cloud, [uuid]) == ["active"]
        assert set(cloud.rows(uuid)) == {other(home)}

    def test_what_was_staged_there_though_the_answer_was_lost_never_builds_and_is_removed(self, cloud: World) -> None:
        conductor, spec = cloud.conductor("one"), cloud.accept()
        home = self.first_choice(cloud, conductor, spec)
        conductor.databases[home].lost_answers = 1
        build(conductor, spec)
        uuid = instance_of(cloud, spec)
        assert set(cloud.rows(uuid)) == {"cell1", "cell2"}
        assert cloud.rows(uuid)[home].state is State.STAGED
        _, sweep = cloud.cell_conductor(home, down_time=0.0, age=-1.0)
        sweep.sweep()
        assert cloud.rows(uuid)[home].state is State.STAGED
        cloud.start()
        assert states(cloud, [uuid]) == ["active"]
        assert set(cloud.rows(uuid)) == {other(home)}
        assert not any(cloud.spawned(host) for host in HOSTS[home])

    def test_a_batch_loses_only_the_part_that_was_meant_for_that_cell(self, cloud: World) -> None:
        conductor, spec = cloud.conductor("one"), cloud.accept(8)
        first = conductor.drive(spec, upto="claimed")
        assert {p.cell.name for p in first.placed} == {"cell1", "cell2"}
        conductor.databases["cell1"].away = True
        build(conductor, spec)
        stayed = {p.request.instance_uuid for p in first.placed if p.cell.name == "cell2"}
        assert {uuid: cloud.mapped(uuid).fence for uuid in first.uuids} == {uuid: 2 if uuid in stayed else 3 for uuid in first.uuids}
        assert {cloud.mapped(uuid).cell_uuid for uuid in first.uuids} == {conductor.cell("cell2").uuid}
        cloud.start()
        assert states(cloud, first.uuids) == ["active"] * 8

    def test_with_nowhere_else_to_go_it_waits_and_goes_there_when_the_cell_is_back(self, cloud: World) -> None:
        conductor, spec = cloud.conductor("one"), cloud.accept(force_hosts=("a1",))
        conductor.registry.refresh()
        conductor.cell("cell1")
        conductor.databases["cell1"].away = True
        for _ in range(2):
            build(conductor, spec)
            assert wait_until(lambda: cloud.waits(spec), PATIENCE)
        uuid = instance_of(cloud, spec)
        assert cloud.requests().keys() == {uuid}
        assert cloud.evidence().claims == {uuid: "a1"}
        conductor.databases["cell1"].away = False
        build(conductor, spec)
        cloud.start()
        assert states(cloud, [uuid]) == ["active"]
        assert cloud.evidence().claims == {uuid: "a1"}

    def test_its_deadline_ends_the_wait(self, cloud: World) -> None:
        conductor, spec = cloud.conductor("one"), cloud.accept(force_hosts=("a1",), timeout=0.3)
        conductor.cell("cell1")
        conductor.databases["cell1"].away = True
        uuid = instance_of(cloud, spec)

        def decided() -> bool:
            build(conductor, spec)
            return not cloud.requests()

        assert wait_until(decided, PATIENCE)
        cloud.start()
        assert states(cloud, [uuid]) == ["error"]
        assert cloud.row(uuid).fault == "Build timed out in scheduling."
        assert cloud.evidence().claims == {}

    def test_a_delete_waits_for_its_cell(self, cloud: World) -> None:
        conductor = cloud.conductor("one")
        driven = conductor.drive(cloud.accept(), upto="ordered")
        [uuid] = driven.uuids
        conductor.databases[driven.placed[0].cell.name].away = True
        assert cloud.delete(uuid) is not None
        conductor.deleter.carry_out([uuid])
        conductor.deleter.sweep()
        assert cloud.row(uuid).state is State.STAGED
        cloud.start()
        assert states(cloud, [uuid]) == ["deleted"]
        assert cloud.evidence().claims == {}

    def test_without_cell0_a_refusal_waits(self, cloud: World) -> None:
        conductor, spec = cloud.conductor("one"), cloud.accept(timeout=-1.0)
        _ = conductor.registry.cell0
        conductor.databases["cell0"].away = True
        build(conductor, spec)
        uuid = instance_of(cloud, spec)
        assert cloud.requests().keys() == {uuid}
        cloud.start()
        assert states(cloud, [uuid]) == ["error"]


class TestApiDatabase:
    @pytest.mark.parametrize("lost", [0, 1, 2, 3])
    def test_a_step_whose_answer_is_lost_is_a_step_lost(self, cloud: World, lost: int) -> None:
        """The conductor gives up, whatever became of its write: lease, refence or hand_over."""
        conductor, spec = cloud.conductor("one"), cloud.accept(2)
        conductor.database.lost_answers = lost
        for _ in range(lost):
            with pytest.raises(errors.DatabaseUnavailable):
                build(conductor, spec)
        cloud.start()
        uuids = [server.uuid for server in cloud.settle().servers]
        assert states(cloud, uuids) == ["active"] * 2

    def test_a_hand_over_whose_answer_is_lost_sends_nothing_and_is_finished_by_the_settler(self, cloud: World) -> None:
        driven = cloud.conductor("one").drive(cloud.accept(2), upto="staged")
        driven.conductor.database.lost_answers = 1
        with pytest.raises(errors.DatabaseUnavailable):
            driven.finish()
        assert driven.conductor.sent.messages() == 0
        assert cloud.requests() == {}
        assert [cloud.row(uuid).state for uuid in driven.uuids] == [State.STAGED] * 2
        cloud.start()
        assert states(cloud, driven.uuids) == ["active"] * 2


class TestOrders:
    def test_lost_by_the_conductor_they_are_sent_by_the_cell(self, cloud: World) -> None:
        conductor, spec = cloud.conductor("one"), cloud.accept(4)
        for name in cloud.cells:
            conductor.cell(name)
            conductor.buses[name].losing = True
        build(conductor, spec)
        assert sum(bus.lost for bus in conductor.buses.values()) > 0
        uuids = [server.uuid for server in cloud.evidence().servers]
        cloud.start()
        assert states(cloud, uuids) == ["active"] * 4

    def test_lost_by_the_cell_they_are_sent_again_until_they_arrive(self, cloud: World) -> None:
        """Build orders first, then the orders to delete."""
        driven = cloud.conductor("one").drive(cloud.accept(4), upto="handed over")
        self.lose(cloud, True)
        cloud.start()
        assert wait_until(lambda: self.lost(cloud) >= 8, PATIENCE)
        assert {cloud.row(uuid).state for uuid in driven.uuids} == {State.SCHEDULED}
        self.lose(cloud, False)
        assert states(cloud, driven.uuids) == ["active"] * 4
        self.lose(cloud, True)
        for conductor in cloud.conductors:
            for bus in conductor.buses.values():
                bus.losing = True
        for uuid in driven.uuids:
            cloud.delete(uuid)
        before = self.lost(cloud)
        assert wait_until(lambda: self.lost(cloud) >= before + 8, PATIENCE)
        assert {cloud.row(uuid).state for uuid in driven.uuids} == {State.DELETING}
        self.lose(cloud, False)
        assert states(cloud, driven.uuids) == ["deleted"] * 4
        assert cloud.evidence().claims == {}

    def lose(self, cloud: World, losing: bool) -> None:
        for bus in cloud.buses.values():
            bus.losing = losing

    def lost(self, cloud: World) -> int:
        return sum(bus.lost for bus in cloud.buses.values())

    def test_doubled_they_make_one_guest(self, cloud: World) -> None:
        driven = cloud.conductor("one").drive(cloud.accept(4), upto="handed over")
        for host in cloud.homes:
            cloud.start_agent(host)
        for _ in range(3):
            driven.send()
        cloud.start()
        assert states(cloud, driven.uuids) == ["active"] * 4
        for _ in range(3):
            driven.send()
        guests = [guest.uuid for host in cloud.homes for guest in cloud.spawned(host)]
        assert sorted(guests) == sorted(driven.uuids)

    @pytest.mark.parametrize("stale", [{"fence": 1}, {"attempt": 0}, {"attempt": 2}, {"fence": 9}])
    def test_stale_or_wrong_they_make_no_guest(self, cloud: World, stale: dict[str, int]) -> None:
        """An order of an earlier fence, or of an attempt that is not in force, reaches the very host."""
        spec = cloud.accept()
        conductor = cloud.conductor("one")
        conductor.lease(spec.batch_id)
        driven = conductor.drive(spec, upto="handed over")
        [(cell, [order])] = driven.orders()
        cloud.start_cells(msgspec.structs.replace(QUICK, resend_age=3600.0))
        for host in cloud.homes:
            cloud.start_agent(host)
        wrong = Order(instance=msgspec.structs.replace(order.instance, **stale), name=order.name, spec=order.spec)
        send_orders(cell, CONTEXT, [wrong, wrong])
        assert not wait_until(lambda: any(cloud.spawned(host) for host in cloud.homes), 0.3)
        assert cloud.row(order.instance.uuid).state is State.STAGED
        cloud.start()
        assert states(cloud, driven.uuids) == ["active"]

    def test_of_what_was_deleted_meanwhile_they_make_no_guest(self, cloud: World) -> None:
        driven = cloud.conductor("one").drive(cloud.accept(2), upto="handed over")
        orders = driven.orders()
        for uuid in driven.uuids:
            cloud.delete(uuid)
        cloud.conductor("two").deleter.sweep()
        cloud.start()
        for cell, sent in orders:
            send_orders(cell, CONTEXT, sent)
        assert states(cloud, driven.uuids) == ["deleted"] * 2
        assert not any(cloud.spawned(host) for host in cloud.homes)


class TestFeed:
    def test_applied_again_from_the_beginning_it_changes_nothing(self, cloud: World) -> None:
        """A cursor that was set back, as by a restored backup of the API database: all events come once more."""
        conductor = cloud.conductor("one")
        gone, failed, stays = (conductor.drive(cloud.accept(), upto="ordered").uuids[0] for _ in range(3))
        cloud.start()
        cloud.settle()
        cloud.delete(gone)
        before = cloud.settle()
        mapped = {uuid: cloud.mapped(uuid) for uuid in (gone, failed, stays)}
        for cell in conductor.registry.cells():
            cloud.set_back(cell.uuid)
        assert wait_until(lambda: all(cloud.cursor(c.uuid) > 0 for c in conductor.registry.cells()), PATIENCE)
        after = cloud.settle()
        assert (after.claims, after.charged) == (before.claims, before.charged)
        assert {uuid: cloud.mapped(uuid) for uuid in mapped} == mapped

    def test_two_appliers_of_one_feed_apply_each_event_once(self, cloud: World) -> None:
        cloud.start()
        cloud.start_conductor()
        cloud.start_conductor()
        specs = [cloud.accept(3) for _ in range(5)]
        uuids = [server.uuid for server in cloud.settle().servers]
        assert len(uuids) == 3 * len(specs)
        assert states(cloud, uuids) == ["active"] * 15
        for uuid in uuids[::2]:
            cloud.delete(uuid)
        assert sorted(states(cloud, uuids)) == ["active"] * 7 + ["deleted"] * 8

    def test_trimmed_before_it_was_read_it_is_rebuilt_from_the_rows(self, cloud: World) -> None:
        """The API level slept for longer than a cell keeps its feed; builds, moves, ends and deletes are all told by the rows."""
        conductor = cloud.conductor("one")
        driven = [conductor.drive(cloud.accept(2), upto="ordered") for _ in range(3)]
        uuids = [uuid for one in driven for uuid in one.uuids]
        cloud.start_cells()
        for host in cloud.homes:
            cloud.start_agent(host)
        assert wait_until(lambda: all(cloud.row(uuid).state is State.ACTIVE for uuid in uuids), PATIENCE)
        for uuid in uuids[::2]:
            cloud.delete(uuid)
        conductor.deleter.sweep()
        assert wait_until(lambda: all(cloud.row(uuid).state is State.DELETED for uuid in uuids[::2]), PATIENCE)
        cloud.trim_feeds()
        assert {cloud.mapped(uuid).seen for uuid in uuids} == {0}
        cloud.start_conductor()
        assert states(cloud, uuids) == ["deleted", "active"] * 3
        assert cloud.evidence().claims.keys() == set(uuids[1::2])
        assert {cloud.mapped(uuid).state for uuid in uuids[1::2]} == {"active"}


def test_a_lease_of_unknown_outcome_is_waited_for(cloud: World) -> None:
    """The row is leased, and nobody knows: it is taken over when that lease runs out."""
    spec = cloud.accept()
    conductor = cloud.conductor("one")
    conductor.database.lost_answers = 1
    with pytest.raises(errors.DatabaseUnavailable):
        conductor.database.write(leases.lease, "one", [spec.batch_id], 0.0, 0.0)
    cloud.start()
    assert states(cloud, [server.uuid for server in cloud.settle().servers]) == ["active"]
