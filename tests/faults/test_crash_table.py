"""A conductor dies after each of its steps, or sleeps and wakes up too late: whatever it left, others bring to its end.

Each test ends with everything running until nothing is on its way any more; then claims, guests and rows must agree.
"""

from __future__ import annotations

import time

import pytest

from db.api.queue import builds
from objects.cell import CELL0_UUID
from objects.instance import State
from tests.support import fleet
from tests.support.conductor_process import STEPS, Drive
from tests.support.world import World, states

pytestmark = pytest.mark.one_in(2)

HOSTS = {"cell1": ["a1", "a2"], "cell2": ["b1", "b2"]}


def written(cloud: World, uuids: list[str]) -> object:
    """All that a loser might touch: requests, mappings, rows and claims. Its own copy in cell0 is inert, and nobody else's."""
    rows = [{name: row for name, row in cloud.rows(uuid).items() if name != "cell0"} for uuid in uuids]
    return cloud.requests(), [cloud.mapped(uuid) for uuid in uuids], rows, cloud.evidence().claims


class TestKilled:
    @pytest.mark.parametrize("step", STEPS)
    def test_after_each_step_others_finish(self, cloud: World, step: str) -> None:
        driven = cloud.conductor("killed").drive(cloud.accept(3), upto=step)
        cloud.start()
        assert states(cloud, driven.uuids) == ["active"] * 3
        decided = STEPS.index(step) >= STEPS.index("handed over")
        assert {cloud.mapped(uuid).fence for uuid in driven.uuids} == {1 if decided else 2}

    @pytest.mark.parametrize("step", STEPS)
    def test_after_each_step_and_then_the_user_deletes(self, cloud: World, step: str) -> None:
        driven = cloud.conductor("killed").drive(cloud.accept(3), upto=step)
        kept, *deleted = driven.uuids
        for uuid in deleted:
            assert cloud.delete(uuid) is not None
        cloud.start()
        staged = {"leased": "no row", "claimed": "no row", "staged": "no row"}.get(step, "deleted")
        assert states(cloud, driven.uuids) == ["active", staged, staged]
        assert cloud.evidence().claims.keys() == {kept}

    @pytest.mark.parametrize("step", ["staged", "buried"])
    @pytest.mark.parametrize("deleted", [False, True])
    def test_while_burying(self, cloud: World, step: str, deleted: bool) -> None:
        """The claim is gone with the burial, and the row in cell0 follows the mapping."""
        driven = cloud.conductor("killed").drive(cloud.accept(timeout=-1.0), upto="claimed")
        [uuid] = driven.uuids
        driven.stage_in_cell0("Nobody came.")
        if step == "buried":
            burial = builds.Burial(instance_uuid=uuid, fence=1, fault="Nobody came.")
            assert driven.conductor.ledger.write(builds.bury_requests, [burial], time.time()) == [uuid]
            assert cloud.evidence().claims == {}
        if deleted:
            buried = builds.Deleted(cell_uuid=CELL0_UUID, bodies=(uuid,))
            assert cloud.delete(uuid) == (buried if step == "buried" else builds.Deleted(cell_uuid=None))
        cloud.start()
        if not deleted:
            assert states(cloud, [uuid]) == ["error"]
            reason = "Nobody came." if step == "buried" else "Build timed out in scheduling."
            assert cloud.row(uuid).fault == reason
        else:
            assert states(cloud, [uuid]) == ["deleted" if step == "buried" else "no row"]

    def test_its_claim_is_adopted_under_the_new_fence(self, cloud: World) -> None:
        spec = cloud.accept(4)
        first = cloud.conductor("killed").drive(spec, upto="claimed")
        before = cloud.evidence()
        second = cloud.conductor("successor").lease(spec.batch_id)
        answers = second.claim()
        assert [p.selection.host for p in second.placed] == [p.selection.host for p in first.placed]
        assert {selection.fence for answer in answers for selection in answer} == {2}
        assert (cloud.evidence().claims, cloud.evidence().charged) == (before.claims, before.charged)
        second.stage()
        assert second.hand_over() == second.uuids
        cloud.start()
        assert states(cloud, second.uuids) == ["active"] * 4
        assert cloud.evidence().claims == before.claims

    def test_staged_rows_are_not_built_before_hand_over(self, cloud: World) -> None:
        """Every sweep of the cell runs, and its agents; only conductors are missing."""
        driven = cloud.conductor("killed").drive(cloud.accept(2), upto="staged")
        cloud.start_agents()
        for name in cloud.cells:
            _, sweep = cloud.cell_conductor(name, down_time=0.0, age=-1.0)
            for _ in range(3):
                sweep.sweep_cell()
        assert [row.state for uuid in driven.uuids for row in cloud.rows(uuid).values()] == [State.STAGED] * 2
        assert not any(cloud.spawned(host) for host in cloud.homes)
        cloud.start()
        assert states(cloud, driven.uuids) == ["active"] * 2


class TestWakesTooLate:
    """A conductor sleeps after a step, its successor does the work, and then it goes on as if nothing had happened."""

    @pytest.fixture(params=["leased", "claimed", "staged"])
    def sleeper(self, cloud: World, request: pytest.FixtureRequest) -> Drive:
        return cloud.conductor("sleeper").drive(cloud.accept(2), upto=request.param)

    def wake(self, sleeper: Drive) -> None:
        """Every step it could still take, whatever the one before said."""
        if not sleeper.placed:
            assert sleeper.claim() == [[]] * len(sleeper.uuids)
        assert sleeper.stage() == []
        sleeper.finish()
        assert sleeper.hand_over() == []
        sleeper.bury()
        sleeper.refence()
        sleeper.renew(until=0.0)
        assert sleeper.conductor.sent.count_messages() == 0

    def test_its_successor_has_finished(self, cloud: World, sleeper: Drive) -> None:
        cloud.start()
        cloud.settle()
        before = written(cloud, sleeper.uuids)
        self.wake(sleeper)
        assert written(cloud, sleeper.uuids) == before
        assert states(cloud, sleeper.uuids) == ["active"] * 2
        assert {cloud.mapped(uuid).fence for uuid in sleeper.uuids} == {2}

    def test_its_successor_has_just_handed_over(self, cloud: World, sleeper: Drive) -> None:
        second = cloud.conductor("successor").drive(sleeper.spec, upto="handed over")
        assert second.won == sleeper.uuids
        before = written(cloud, sleeper.uuids)
        self.wake(sleeper)
        assert written(cloud, sleeper.uuids) == before
        cloud.start()
        assert states(cloud, sleeper.uuids) == ["active"] * 2

    def test_its_successor_has_just_staged(self, cloud: World, sleeper: Drive) -> None:
        second = cloud.conductor("successor").drive(sleeper.spec, upto="staged")
        before = written(cloud, sleeper.uuids)
        self.wake(sleeper)
        assert written(cloud, sleeper.uuids) == before
        assert second.hand_over() == second.uuids
        cloud.start()
        assert states(cloud, sleeper.uuids) == ["active"] * 2

    def test_its_successor_has_found_another_cell(self, cloud: World) -> None:
        """The sleeper's row is in one cell, the claim and the successor's row in the other."""
        sleeper = cloud.conductor("sleeper").drive(cloud.accept(), upto="staged")
        [uuid] = sleeper.uuids
        home = sleeper.placed[0].cell
        second = cloud.conductor("successor").lease(sleeper.spec.batch_id)
        second.claim(excluded_cells=(home.uuid,))
        assert second.stage() == [uuid]
        assert sleeper.stage() == [uuid], "it finds its own row, which nobody else will ever hand over"
        assert sleeper.hand_over() == []
        assert second.hand_over() == [uuid]
        assert sleeper.hand_over() == []
        second.send()
        cloud.start()
        assert states(cloud, [uuid]) == ["active"]
        assert cloud.mapped(uuid).cell_uuid not in (None, home.uuid)
        assert not any(cloud.spawned(host) for host in HOSTS[home.name])

    def test_the_user_has_deleted(self, cloud: World, sleeper: Drive) -> None:
        for uuid in sleeper.uuids:
            assert cloud.delete(uuid) == builds.Deleted(cell_uuid=None)
        if not sleeper.placed:
            assert sleeper.claim() == [[], []]
        sleeper.stage()  # nothing forbids it: it stays inert, and is removed
        sleeper.finish()
        assert sleeper.hand_over() == []
        sleeper.bury()
        assert sleeper.conductor.sent.count_messages() == 0
        assert cloud.evidence().claims == {}
        cloud.start()
        assert states(cloud, sleeper.uuids) == ["no row"] * 2
        assert cloud.evidence().claims == {}

    def test_a_deleted_server_staged_again_is_refused(self, cloud: World) -> None:
        """The tombstone refuses."""
        sleeper = cloud.conductor("sleeper").drive(cloud.accept(), upto="claimed")
        [uuid] = sleeper.uuids
        cloud.start()
        cloud.settle()
        assert cloud.delete(uuid) is not None
        assert states(cloud, [uuid]) == ["deleted"]
        assert sleeper.stage() == []
        sleeper.finish()
        assert states(cloud, [uuid]) == ["deleted"]
        assert cloud.evidence().claims == {}


def test_three_conductors_with_expiring_leases_build_once(cloud: World) -> None:
    """They take each other's work over all the time; whoever hands over first wins."""
    cloud.start_cells_and_agents()
    for _ in range(3):
        cloud.hasty_conductor()
    specs = [cloud.accept(4) for _ in range(8)]
    specs += [cloud.accept(number) for number in (1, 2)]
    evidence = cloud.settle()
    assert len(evidence.servers) == 4 * 8 + 3
    assert {server.batch_id for server in evidence.servers} == {spec.batch_id for spec in specs}
    assert {row.instance.state for row in evidence.rows} == {State.ACTIVE}
    assert sum(len(cloud.spawned(host)) for host in cloud.homes) == len(evidence.rows), "no guest was ever made twice"


def test_a_server_that_fits_nowhere_is_buried_once(cloud: World) -> None:
    spec = cloud.accept(2, size=fleet.flavor(vcpus=1000))
    first, second = cloud.conductor("first").lease(spec.batch_id), cloud.conductor("second").lease(spec.batch_id)
    second.bury("no room, says the second")
    first.bury("no room, says the first")
    cloud.start()
    assert states(cloud, first.uuids) == ["error", "error"]
    for uuid in first.uuids:
        assert cloud.row(uuid).fault == "no room, says the second"
    assert cloud.evidence().claims == {}
