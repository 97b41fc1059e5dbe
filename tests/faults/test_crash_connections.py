"""Databases that do not answer, or whose answer is lost.

Each test ends with everything running until nothing is on its way any more; then claims, guests and rows must agree.
"""

from __future__ import annotations

import pytest

from objects import errors
from objects.context import RequestContext
from objects.instance import State
from objects.spec import RequestSpec
from service.periodic import wait_until
from tests.support import fleet
from tests.support.conductor_process import Conductor
from tests.support.world import PATIENCE, World, states

HOSTS = {"cell1": ["a1", "a2"], "cell2": ["b1", "b2"]}
CONTEXT = RequestContext(request_id="req-test")


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
        conductor.build(spec)
        [uuid] = cloud.uuids(spec)
        mapped = cloud.mapped(uuid)
        assert mapped.cell_uuid == conductor.cell(other(home)).uuid
        assert mapped.fence == 3  # the first look, the lease, the change of mind
        assert cloud.evidence().claims[uuid] in HOSTS[other(home)]
        cloud.start()
        assert states(cloud, [uuid]) == ["active"]
        assert set(cloud.rows(uuid)) == {other(home)}

    def test_unanswered_staging_never_builds_and_is_removed(self, cloud: World) -> None:
        conductor, spec = cloud.conductor("one"), cloud.accept()
        home = self.first_choice(cloud, conductor, spec)
        conductor.databases[home].lose_answer_to = 1
        conductor.build(spec)
        [uuid] = cloud.uuids(spec)
        assert set(cloud.rows(uuid)) == {"cell1", "cell2"}
        assert cloud.rows(uuid)[home].state is State.STAGED
        _, sweep = cloud.cell_conductor(home, down_time=0.0, age=-1.0)
        sweep.sweep_cell()
        assert cloud.rows(uuid)[home].state is State.STAGED
        cloud.start()
        assert states(cloud, [uuid]) == ["active"]
        assert set(cloud.rows(uuid)) == {other(home)}
        assert not any(cloud.spawned(host) for host in HOSTS[home])

    def test_a_batch_loses_only_the_absent_cells_part(self, cloud: World) -> None:
        conductor, spec = cloud.conductor("one"), cloud.accept(8)
        first = conductor.drive(spec, upto="claimed")
        assert {p.cell.name for p in first.placed} == {"cell1", "cell2"}
        conductor.databases["cell1"].away = True
        conductor.build(spec)
        stayed = {p.request.instance_uuid for p in first.placed if p.cell.name == "cell2"}
        assert {uuid: cloud.mapped(uuid).fence for uuid in first.uuids} == {
            uuid: 2 if uuid in stayed else 3 for uuid in first.uuids
        }
        assert {cloud.mapped(uuid).cell_uuid for uuid in first.uuids} == {conductor.cell("cell2").uuid}
        cloud.start()
        assert states(cloud, first.uuids) == ["active"] * 8

    def test_a_batch_without_alternatives_waits_for_the_cell(self, cloud: World) -> None:
        conductor, spec = cloud.conductor("one"), cloud.accept(force_hosts=("a1",))
        conductor.registry.refresh_cells()
        conductor.cell("cell1")
        conductor.databases["cell1"].away = True
        for _ in range(2):
            conductor.build(spec)
            assert wait_until(lambda: cloud.waits(spec), PATIENCE)
        [uuid] = cloud.uuids(spec)
        assert cloud.requests().keys() == {uuid}
        assert cloud.evidence().claims == {uuid: "a1"}
        conductor.databases["cell1"].away = False
        conductor.build(spec)
        cloud.start()
        assert states(cloud, [uuid]) == ["active"]
        assert cloud.evidence().claims == {uuid: "a1"}

    def test_its_deadline_ends_the_wait(self, cloud: World) -> None:
        conductor, spec = cloud.conductor("one"), cloud.accept(force_hosts=("a1",), timeout=0.3)
        conductor.cell("cell1")
        conductor.databases["cell1"].away = True
        [uuid] = cloud.uuids(spec)

        def decided() -> bool:
            conductor.build(spec)
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
        conductor.deleter.run_round()
        assert cloud.row(uuid).state is State.STAGED
        cloud.start()
        assert states(cloud, [uuid]) == ["deleted"]
        assert cloud.evidence().claims == {}

    def test_without_cell0_a_refusal_waits(self, cloud: World) -> None:
        conductor, spec = cloud.conductor("one"), cloud.accept(size=fleet.flavor(vcpus=1000))
        _ = conductor.registry.cell0
        conductor.databases["cell0"].away = True
        conductor.build(spec)
        [uuid] = cloud.uuids(spec)
        assert cloud.requests().keys() == {uuid}
        cloud.start()
        assert states(cloud, [uuid]) == ["error"]

    def test_past_its_deadline_a_request_ends_without_cell0(self, cloud: World) -> None:
        conductor, spec = cloud.conductor("one"), cloud.accept(timeout=-1.0)
        _ = conductor.registry.cell0
        conductor.databases["cell0"].away = True
        conductor.build(spec)
        [uuid] = cloud.uuids(spec)
        assert (cloud.requests(), cloud.mapped(uuid).state) == ({}, "error")


class TestApiDatabase:
    @pytest.mark.parametrize("lost", [1, 2, 3, 4], ids=["lease", "hand_over", "refence", "hand_over elsewhere"])
    def test_an_unanswered_step_counts_as_lost(self, cloud: World, lost: int) -> None:
        """The conductor gives up, whatever became of its write, and others finish."""
        conductor, spec = cloud.conductor("one"), cloud.accept(8)
        _ = conductor.cell("cell1")
        conductor.databases["cell1"].away = True
        conductor.database.lose_answer_to = lost
        with pytest.raises(errors.DatabaseUnavailable):
            conductor.build(spec)
        cloud.start()
        assert states(cloud, cloud.uuids(spec)) == ["active"] * 8

    def test_the_settler_finishes_an_unanswered_hand_over(self, cloud: World) -> None:
        driven = cloud.conductor("one").drive(cloud.accept(2), upto="staged")
        driven.conductor.database.lose_answer_to = 1
        with pytest.raises(errors.DatabaseUnavailable):
            driven.finish()
        assert driven.conductor.sent.count_messages() == 0
        assert cloud.requests() == {}
        assert [cloud.row(uuid).state for uuid in driven.uuids] == [State.STAGED] * 2
        cloud.start()
        assert states(cloud, driven.uuids) == ["active"] * 2
