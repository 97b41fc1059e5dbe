"""The settler and the reaper: what nobody finished is settled by reading what was decided, and by nothing else."""

from __future__ import annotations

import time

import sqlalchemy as sa

from conductor import settle as settling
from conductor.settle import settle_staged
from conductor.tidy import reap_claims
from db.api.claims import claims
from db.api.queue import builds
from db.api.rows.tables import build_requests, instance_mappings
from db.cell import feed, staging
from db.sql.connection import Connection
from objects.instance import Instance, State
from tests.support import fleet
from tests.support.conductor_process import Conductor, Drive
from tests.support.world import World

NOW = -1.0
"""An age at which everything is due."""


def settle_all(conductor: Conductor, age: float = NOW) -> None:
    for name in ("cell0", "cell1", "cell2"):
        settle_staged(conductor.database, conductor.cell(name), age)


def states(cloud: World, uuid: str) -> dict[str, str]:
    """Of its rows, by cell."""
    return {cell: str(row.state) for cell, row in cloud.rows(uuid).items()}


def home(driven: Drive, uuid: str) -> str:
    """The cell that the scheduler chose for it."""
    return next(p.cell.name for p in driven.placed if p.request.instance_uuid == uuid)


class TestSettle:
    def test_what_was_handed_over_is_activated(self, cloud: World, conductor: Conductor) -> None:
        driven = conductor.drive(cloud.accept(3), upto="handed over")
        heads = {name: cloud.databases[name].read(feed.read_head) for name in cloud.cells}
        settle_all(conductor)
        for uuid in driven.uuids:
            assert states(cloud, uuid) == {home(driven, uuid): "scheduled"}
            assert (cloud.row(uuid).fence, cloud.row(uuid).attempt, cloud.row(uuid).version) == (1, 1, 1)
        assert {name: cloud.databases[name].read(feed.read_head) for name in cloud.cells} == heads, "nobody outside need know"

    def test_what_was_buried_becomes_an_error_in_cell0(self, cloud: World, conductor: Conductor) -> None:
        driven = conductor.lease(cloud.accept().batch_id)
        [uuid] = driven.uuids
        driven.stage_in_cell0("no room")
        settle_all(conductor)
        assert states(cloud, uuid) == {"cell0": "staged"}
        conductor.ledger.write(builds.bury_requests, [builds.Burial(instance_uuid=uuid, fence=1, fault="no room")], time.time())
        settle_all(conductor)
        assert states(cloud, uuid) == {"cell0": "error"}
        assert cloud.row(uuid).fault == "no room"

    def test_what_is_not_decided_is_left_alone(self, cloud: World, conductor: Conductor) -> None:
        """Leased or with a lease that ran out: somebody may hand it over yet."""
        driven = conductor.drive(cloud.accept(2), upto="staged")
        for _ in range(2):
            settle_all(conductor)
        assert [states(cloud, uuid) for uuid in driven.uuids] == [{home(driven, uuid): "staged"} for uuid in driven.uuids]
        assert driven.hand_over() == driven.uuids

    def test_what_was_decided_for_another_cell_is_removed(self, cloud: World, conductor: Conductor) -> None:
        first = conductor.drive(cloud.accept(force_hosts=("a1",)), upto="staged")
        [uuid] = first.uuids
        second = conductor.lease(first.spec.batch_id)
        second.bury("changed its mind")
        assert states(cloud, uuid) == {"cell1": "staged", "cell0": "error"}
        settle_all(conductor)
        assert states(cloud, uuid) == {"cell0": "error"}

    def test_an_instance_deleted_before_hand_over_is_removed(self, cloud: World, conductor: Conductor) -> None:
        driven = conductor.drive(cloud.accept(2), upto="staged")
        for uuid in driven.uuids:
            cloud.delete(uuid)
        settle_all(conductor)
        assert [states(cloud, uuid) for uuid in driven.uuids] == [{}, {}]

    def test_what_has_no_mapping_at_all_is_removed(self, cloud: World, conductor: Conductor) -> None:
        driven = conductor.drive(cloud.accept(), upto="staged")
        cloud.api.write(_forget, driven.uuids[0])
        settle_all(conductor)
        assert states(cloud, driven.uuids[0]) == {}

    def test_an_instance_deleted_after_hand_over_awaits_delete(self, cloud: World, conductor: Conductor) -> None:
        driven = conductor.drive(cloud.accept(), upto="handed over")
        [uuid] = driven.uuids
        cloud.delete(uuid)
        settle_all(conductor)
        assert states(cloud, uuid) == {home(driven, uuid): "staged"}
        conductor.deleter.run_round()
        assert states(cloud, uuid) == {home(driven, uuid): "deleted"}

    def test_a_row_under_another_fence_is_not_activated(self, cloud: World, conductor: Conductor) -> None:
        """It cannot come to that while tombstones are kept; the fence is the second line."""
        driven = conductor.drive(cloud.accept(force_hosts=("a1",)), upto="handed over")
        [uuid] = driven.uuids
        row = Instance(uuid=uuid, state=State.STAGED, fence=7, host="a2", node="a2")
        new = staging.NewInstance(instance=row, name="late", launch_index=0, created_at=1.0)
        assert cloud.databases["cell1"].write(staging.stage_instances, driven.spec, [new], 2.0) == [uuid]
        settle_all(conductor)
        assert states(cloud, uuid) == {"cell1": "staged"}

    def test_what_is_young_is_left_to_its_conductor(self, cloud: World, conductor: Conductor) -> None:
        driven = conductor.drive(cloud.accept(), upto="handed over")
        [uuid] = driven.uuids
        settle_all(conductor, age=3600.0)
        assert states(cloud, uuid) == {home(driven, uuid): "staged"}

    def test_a_row_accepted_meanwhile_is_not_reset(self, cloud: World, conductor: Conductor) -> None:
        driven = conductor.drive(cloud.accept(2), upto="ordered")
        cloud.start()
        cloud.settle()
        settle_all(conductor)
        assert [states(cloud, uuid) for uuid in driven.uuids] == [{home(driven, uuid): "active"} for uuid in driven.uuids]

    def test_many_undecided_rows_do_not_hide_decided_ones(self, cloud: World, conductor: Conductor) -> None:
        """A page full of rows that wait for their conductors must not keep the settler from the rows behind it."""
        small = fleet.flavor(vcpus=0, memory_mb=1, root_gb=0)
        waiting = conductor.drive(cloud.accept(settling.SETTLE_PAGE_SIZE + 5, size=small, force_hosts=("a1",)), upto="staged")
        decided = conductor.drive(cloud.accept(3, force_hosts=("a1",)), upto="handed over")
        deleted = conductor.drive(cloud.accept(2, force_hosts=("a1",)), upto="staged")
        for uuid in deleted.uuids:
            cloud.delete(uuid)
        settle_all(conductor)
        assert [states(cloud, uuid) for uuid in decided.uuids] == [{"cell1": "scheduled"}] * 3
        assert [states(cloud, uuid) for uuid in deleted.uuids] == [{}, {}]
        assert states(cloud, waiting.uuids[0]) == {"cell1": "staged"}


class TestReap:
    def test_only_what_can_have_no_guest_is_freed(self, cloud: World, conductor: Conductor) -> None:
        """Queued, handed over, deleted in its cell but not confirmed: all of them keep their claims."""
        driven = conductor.drive(cloud.accept(6, size=fleet.flavor()), upto="claimed")
        queued, live, going, gone, unmapped, again = driven.uuids
        driven.stage()
        driven.keep_only(live, going)
        assert driven.hand_over() == [live, going]
        cloud.delete(going)
        for uuid in (gone, unmapped):
            cloud.api.write(_forget, uuid)
        cloud.api.write(_renew, again)
        reap_claims(cloud.api, conductor.ledger)
        assert cloud.evidence().claims.keys() == {queued, live, going, again}
        assert cloud.api.read(claims.list_orphans) == []

    def test_once_freed_nothing_is_claimed_again(self, cloud: World, conductor: Conductor) -> None:
        """A scheduler call that comes late finds no request."""
        driven = conductor.drive(cloud.accept(2), upto="claimed")
        for uuid in driven.uuids:
            cloud.api.write(_forget, uuid)
        reap_claims(cloud.api, conductor.ledger)
        assert cloud.evidence().claims == {}
        assert driven.claim() == [[], []]
        assert cloud.evidence().claims == {}

    def test_an_instance_ended_without_event_is_freed(self, cloud: World, conductor: Conductor) -> None:
        driven = conductor.drive(cloud.accept(3), upto="handed over")
        error, deleted, active = driven.uuids
        for uuid, state in ((error, "error"), (deleted, "deleted"), (active, "active")):
            cloud.api.write(_set_state, uuid, state)
        reap_claims(cloud.api, conductor.ledger)
        assert cloud.evidence().claims.keys() == {active}

    def test_nothing_to_do_is_nothing_written(self, cloud: World, conductor: Conductor) -> None:
        conductor.drive(cloud.accept(2), upto="handed over")
        before = cloud.api.read(claims.read_all)
        reap_claims(cloud.api, conductor.ledger)
        assert cloud.api.read(claims.read_all) == before


def _forget(tx: Connection, uuid: str) -> None:
    tx.execute(sa.delete(build_requests).where(build_requests.c.instance_uuid == uuid))
    tx.execute(sa.delete(instance_mappings).where(instance_mappings.c.instance_uuid == uuid))


def _renew(tx: Connection, uuid: str) -> None:
    """As a successor's lease would."""
    tx.execute(sa.update(build_requests).where(build_requests.c.instance_uuid == uuid).values(fence=9, lease_until=1e12))


def _set_state(tx: Connection, uuid: str, state: str) -> None:
    tx.execute(sa.update(instance_mappings).where(instance_mappings.c.instance_uuid == uuid).values(state=state))
