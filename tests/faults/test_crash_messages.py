"""Messages are lost, doubled or late, and a cell's feed is read twice, or not in time.

Each test ends with everything running until nothing is on its way any more; then claims, guests and rows must agree.
"""

from __future__ import annotations

import msgspec

from conductor.orders import send_orders
from objects.build import Report, ReportKind
from objects.context import RequestContext
from objects.instance import Failure, FailureClass, State
from rpc.super_conductor import SuperConductorClient
from service.periodic import wait_until
from tests.support.world import PATIENCE, World, states

HOSTS = {"cell1": ["a1", "a2"], "cell2": ["b1", "b2"]}
CONTEXT = RequestContext(request_id="req-test")
INTERVAL = 1.0
"""Seconds between two looks at the queue."""
SLOW = 4.0
"""Seconds that a busy machine may take for one look and for the steps of a build up to hand-over."""


class TestDoorbells:
    def test_builds_without_doorbells_start_within_the_sweep_interval(self, cloud: World) -> None:
        cloud.start(msgspec.structs.replace(cloud.quick, sweep_interval=INTERVAL))
        bus = cloud.bus("api")
        bus.losing = True
        bell = SuperConductorClient(bus)
        for _ in range(3):
            spec = cloud.accept(2)
            bell.schedule_and_build_instances(CONTEXT, spec.batch_id)
            assert wait_until(lambda: not cloud.requests(), 1.1 * INTERVAL + SLOW), "nobody has begun"
        uuids = [server.uuid for server in cloud.settle().servers]
        assert states(cloud, uuids) == ["active"] * 6
        for uuid in uuids:
            cloud.delete(uuid)
        bell.delete_instances(CONTEXT, uuids)
        assert states(cloud, uuids) == ["deleted"] * 6
        assert bus.lost == 4


class TestOrders:
    def test_the_cell_sends_orders_the_conductor_lost(self, cloud: World) -> None:
        conductor, spec = cloud.conductor("one"), cloud.accept(4)
        for name in cloud.cells:
            conductor.cell(name)
            conductor.buses[name].losing = True
        conductor.build(spec)
        assert sum(bus.lost for bus in conductor.buses.values()) > 0
        uuids = [server.uuid for server in cloud.evidence().servers]
        cloud.start()
        assert states(cloud, uuids) == ["active"] * 4

    def test_orders_lost_by_the_cell_are_sent_again(self, cloud: World) -> None:
        """Build orders first, then the orders to delete."""
        driven = cloud.conductor("one").drive(cloud.accept(4), upto="handed over")
        self.lose(cloud, True)
        cloud.start_cells()  # first: the audit of an agent that waited for its cell would come later, and see what is to be deleted
        for host in cloud.homes:
            cloud.start_agent(host, audit_interval=3600.0)  # the same
        cloud.start_conductor()
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
        cloud.start_agents()
        for _ in range(3):
            driven.send()
        cloud.start()
        assert states(cloud, driven.uuids) == ["active"] * 4
        for _ in range(3):
            driven.send()
        guests = [guest.uuid for host in cloud.homes for guest in cloud.spawned(host)]
        assert sorted(guests) == sorted(driven.uuids)

    def test_of_an_earlier_attempt_they_make_no_guest(self, cloud: World) -> None:
        """The build went on to its alternate; then the first host gets its order at last."""
        driven = cloud.conductor("one").drive(cloud.accept(), upto="handed over")
        [(cell, [late])] = driven.orders()
        [uuid] = driven.uuids
        row = late.instance
        failure = Failure(kind=FailureClass.HOST, error="BuildFailed", message="no disk", at=0.0)
        said = Report(
            kind=ReportKind.FAILED, instance_uuid=uuid, host=row.host or "", fence=1, attempt=1, builder="gone", failure=failure
        )
        cloud.buses[cell.name].losing = True  # so that nobody has the order in force yet
        [verdict] = cloud.cell_conductor(cell.name)[0].build_instances(CONTEXT, [said])
        assert verdict.accepted
        cloud.buses[cell.name].losing = False
        cloud.start_agents()
        for _ in range(2):
            send_orders(cell, [late])
        cloud.start()
        assert states(cloud, [uuid]) == ["active"]
        assert (cloud.row(uuid).host, cloud.row(uuid).attempt) == (row.alternates[0].host, 2)
        assert cloud.spawned(row.host or "") == []

    def test_orders_for_deleted_servers_make_no_guest(self, cloud: World) -> None:
        driven = cloud.conductor("one").drive(cloud.accept(2), upto="handed over")
        orders = driven.orders()
        for uuid in driven.uuids:
            cloud.delete(uuid)
        cloud.conductor("two").deleter.run_round()
        cloud.start()
        for cell, sent in orders:
            send_orders(cell, sent)
        assert states(cloud, driven.uuids) == ["deleted"] * 2
        assert not any(cloud.spawned(host) for host in cloud.homes)


class TestFeed:
    def test_applied_again_from_the_beginning_it_changes_nothing(self, cloud: World) -> None:
        """A cursor that was set back, as by a restored backup of the API database: all events come once more."""
        conductor = cloud.conductor("one")
        gone, *others = conductor.drive(cloud.accept(3), upto="ordered").uuids
        cloud.start()
        cloud.settle()
        cloud.delete(gone)
        before = cloud.settle()
        mapped = {uuid: cloud.mapped(uuid) for uuid in (gone, *others)}
        for cell in conductor.registry.list_cells():
            cloud.set_back(cell.uuid)
        cloud.start_conductor()
        assert wait_until(lambda: all(cloud.cursor(c.uuid) > 0 for c in conductor.registry.list_cells()), PATIENCE)
        after = cloud.settle()
        assert (after.claims, after.charged) == (before.claims, before.charged)
        assert {uuid: cloud.mapped(uuid) for uuid in mapped} == mapped

    def test_two_appliers_of_a_feed_apply_events_once(self, cloud: World) -> None:
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

    def test_a_feed_trimmed_unread_is_rebuilt_from_rows(self, cloud: World) -> None:
        """The API level slept for longer than a cell keeps its feed; builds, moves, ends and deletes are all told by the rows."""
        cloud.start_cells()
        for host in cloud.homes:  # first: a real broker drops an order for a queue that nobody has made, and who resends it sleeps
            cloud.start_agent(host)
        conductor = cloud.conductor("one")
        driven = [conductor.drive(cloud.accept(2), upto="ordered") for _ in range(3)]
        uuids = [uuid for one in driven for uuid in one.uuids]
        assert wait_until(lambda: all(cloud.row(uuid).state is State.ACTIVE for uuid in uuids), PATIENCE)
        for uuid in uuids[::2]:
            cloud.delete(uuid)
        conductor.deleter.run_round()
        assert wait_until(lambda: all(cloud.row(uuid).state is State.DELETED for uuid in uuids[::2]), PATIENCE)
        cloud.trim_feeds()
        assert {cloud.mapped(uuid).seen for uuid in uuids} == {0}
        cloud.start_conductor()
        assert states(cloud, uuids) == ["deleted", "active"] * 3
        assert cloud.evidence().claims.keys() == set(uuids[1::2])
        assert {cloud.mapped(uuid).state for uuid in uuids[1::2]} == {"active"}
