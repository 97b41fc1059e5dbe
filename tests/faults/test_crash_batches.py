"""One server of an all-or-nothing batch fails, and whoever is to roll the others back dies, or cannot reach them.

Each test ends with everything running until nothing is on its way any more; then claims, guests and rows must agree.
"""

from __future__ import annotations

import random
import time
from collections import defaultdict

import pytest

from compute.simulated import METADATA_KEY
from conductor.roll_back import judge_batches, list_standing, roll_back
from db.api.queue import batches
from objects.instance import State
from objects.spec import ServerProperties
from tests.support import fleet
from tests.support.batches import (
    accepted,
    activated,
    assert_rolled_back,
    ends,
    fail,
    leave_guest,
    mixed,
    open_batches,
    wait_decided,
    whole,
)
from tests.support.conductor_process import Conductor, Drive
from tests.support.world import World

HOSTS = {"cell1": ["a1", "a2"], "cell2": ["b1", "b2"]}

STEPS = ("told", "judged", "rolled back", "ordered")
"""How far a conductor gets with a batch of which a server is in ERROR in its cell, in this order."""


@pytest.fixture
def conductor(cloud: World) -> Conductor:
    return cloud.conductor("killed")


def go(conductor: Conductor, upto: str) -> None:
    """Do what conductors do about a failed server, up to and including one of STEPS."""
    for name in HOSTS:
        conductor.cell(name)
        conductor.buses[name].losing = upto != "ordered"
    conductor.keep()
    if upto in ("rolled back", "ordered"):
        conductor.batches.decide_batches()
    elif upto == "judged":
        assert judge_batches(conductor.database, conductor.database.read(batches.list_after, 10))


class TestKilled:
    @pytest.mark.parametrize("step", ["failed", *STEPS])
    def test_others_roll_back_from_every_state(self, cloud: World, conductor: Conductor, step: str) -> None:
        driven = mixed(cloud, conductor)
        *others, culprit = driven.uuids
        fail(cloud, culprit)
        if step != "failed":
            go(conductor, step)
        cloud.start()
        assert_rolled_back(cloud, culprit, others)
        assert ends(cloud, driven.uuids) == dict.fromkeys(driven.uuids, 1)

    @pytest.mark.parametrize("step", STEPS)
    def test_a_user_delete_wins_after_every_step(self, cloud: World, conductor: Conductor, step: str) -> None:
        driven = mixed(cloud, conductor)
        staged, scheduled, building, active, culprit = driven.uuids
        fail(cloud, culprit)
        cloud.delete(staged)
        go(conductor, step)
        for uuid in (building, active):
            cloud.delete(uuid)
        cloud.start()
        assert_rolled_back(cloud, culprit, [scheduled])
        assert {cloud.row(uuid).state for uuid in (staged, building, active)} == {State.DELETED}

    def test_while_it_hands_them_over(self, cloud: World, conductor: Conductor) -> None:
        """One is in its cell and fails there; the others are still queued, and are buried with the reason."""
        driven = conductor.drive(whole(cloud), upto="claimed")
        culprit, *others = driven.uuids
        driven.keep_only(culprit)
        driven.stage()
        assert driven.hand_over() == [culprit]
        fail(cloud, culprit)
        go(conductor, "judged")
        cloud.start()
        assert_rolled_back(cloud, culprit, others)
        assert all(set(cloud.rows(uuid)) == {"cell0"} for uuid in others)
        assert not any(cloud.spawned(host) for host in cloud.homes)

    def test_with_one_buried_and_the_others_built(self, cloud: World, conductor: Conductor) -> None:
        """Its host lost its mapping, for instance."""
        driven = conductor.drive(whole(cloud), upto="claimed")
        culprit, *others = driven.uuids
        driven.keep_only(*others)
        driven.stage()
        driven.hand_over()
        first = next(request for request in driven.batch.requests if request.instance_uuid == culprit)
        conductor.undertaker.bury_requests(driven.spec, {first: "No valid host was found."})
        activated(cloud, others[0])
        cloud.start()
        assert_rolled_back(cloud, culprit, others)


class TestLate:
    """A process sleeps between what it reads and what it writes."""

    def test_a_failure_read_before_the_delete_is_late(self, cloud: World, conductor: Conductor) -> None:
        culprit, other = conductor.drive(whole(cloud, 2), upto="handed over").uuids
        fail(cloud, culprit)
        activated(cloud, other)
        conductor.keep()
        [batch] = open_batches(cloud)
        cloud.delete(culprit)
        cloud.conductor("other").batches.decide_batches()
        assert open_batches(cloud) == [], "all that are not deleted are ACTIVE: it is settled"
        assert conductor.database.write(batches.decide_batches, [], {batch.batch_id: "too late"}, time.time()) == []
        cloud.start()
        cloud.settle()
        assert (cloud.row(other).state, cloud.row(culprit).state) == (State.ACTIVE, State.DELETED)

    def test_a_roll_back_with_a_delete_ends_deleted(self, cloud: World, conductor: Conductor) -> None:
        driven = mixed(cloud, conductor)
        *others, culprit = driven.uuids
        fail(cloud, culprit)
        go(conductor, "judged")
        orders = list_standing(conductor.database, open_batches(cloud))
        for uuid in others:
            cloud.delete(uuid)
        for cell_uuid, reasons in orders.items():
            conductor.registry.get(cell_uuid).write(roll_back, reasons, time.time())
        conductor.deleter.run_round()
        for cell_uuid, reasons in orders.items():
            conductor.registry.get(cell_uuid).write(roll_back, reasons, time.time())
        cloud.start()
        cloud.settle()
        assert {cloud.row(uuid).state for uuid in others} == {State.DELETED}
        wait_decided(cloud)

    def test_a_conductor_that_hands_over_after_the_failure(self, cloud: World, conductor: Conductor) -> None:
        """It had read that the batch was open, and nothing stops it: what it hands over is found in its cell."""
        driven = conductor.drive(whole(cloud), upto="staged")
        culprit, *others = driven.uuids
        assert self.hand_over(driven, culprit) == [culprit]
        fail(cloud, culprit)
        go(conductor, "judged")
        assert self.hand_over(driven, *others) == others
        cloud.start()
        assert_rolled_back(cloud, culprit, others)

    def hand_over(self, driven: Drive, *uuids: str) -> list[str]:
        placed = driven.placed
        driven.keep_only(*uuids)
        try:
            return driven.hand_over()
        finally:
            driven.placed = placed


class TestCut:
    def test_a_returning_cell_rolls_back(self, cloud: World, conductor: Conductor) -> None:
        driven = conductor.drive(whole(cloud, 6), upto="handed over")
        homes = {uuid: next(iter(cloud.rows(uuid))) for uuid in driven.uuids}
        there = [uuid for uuid, name in homes.items() if name == "cell2"]
        culprit, *here = [uuid for uuid, name in homes.items() if name == "cell1"]
        for uuid in (*here, *there):
            activated(cloud, uuid)
        fail(cloud, culprit)
        conductor.keep()
        conductor.databases["cell2"].away = True
        for _ in range(2):
            conductor.batches.decide_batches()
        assert {cloud.row(uuid).state for uuid in here} == {State.DELETING}
        assert {cloud.row(uuid).state for uuid in there} == {State.ACTIVE}
        conductor.databases["cell2"].away = False
        cloud.start()
        assert_rolled_back(cloud, culprit, [*here, *there])

    @pytest.mark.parametrize("trouble", ["lose_answer_to", "refuse_write"])
    def test_a_failed_or_doubtful_write_is_repeated(self, cloud: World, conductor: Conductor, trouble: str) -> None:
        driven = mixed(cloud, conductor)
        *others, culprit = driven.uuids
        fail(cloud, culprit)
        conductor.keep()
        for name in HOSTS:
            setattr(conductor.databases[name], trouble, 1)
        conductor.batches.decide_batches()
        conductor.batches.decide_batches()
        assert {cloud.row(uuid).state for uuid in others} == {State.ERROR, State.DELETING}
        cloud.start()
        assert_rolled_back(cloud, culprit, others)
        assert ends(cloud, driven.uuids) == dict.fromkeys(driven.uuids, 1)

    def test_a_dead_host_loses_its_guest_on_return(self, cloud: World, conductor: Conductor) -> None:
        culprit, other = conductor.drive(whole(cloud, 2), upto="handed over").uuids
        row = activated(cloud, other)
        fail(cloud, culprit)
        go(conductor, "rolled back")
        cell = cloud.homes[row.host or ""]
        _, sweep = cloud.cell_conductor(cell, down_time=0.0)
        sweep.dead_hosts()
        for host in HOSTS[cell]:
            if host != row.host:
                cloud.appear(host)  # a host is dead that is silent while others are heard
        sweep.dead_hosts()
        assert cloud.row(other).state is State.ERROR
        cloud.start()
        assert_rolled_back(cloud, culprit, [other])

    def test_a_build_dead_with_its_agent_stays_ended(self, cloud: World, conductor: Conductor) -> None:
        culprit, other = conductor.drive(whole(cloud, 2), upto="handed over").uuids
        leave_guest(cloud, accepted(cloud, other))
        fail(cloud, culprit)
        go(conductor, "rolled back")
        cloud.start()
        assert_rolled_back(cloud, culprit, [other])


class TestSettled:
    def test_what_happens_once_all_are_active_touches_nobody(self, cloud: World) -> None:
        cloud.start()
        uuids = cloud.uuids(whole(cloud))
        cloud.settle()
        wait_decided(cloud)
        deleted, *others = uuids
        cloud.delete(deleted)
        cloud.settle()
        assert {cloud.row(uuid).state for uuid in others} == {State.ACTIVE}
        assert cloud.row(deleted).state is State.DELETED

    def test_a_delete_is_no_failure(self, cloud: World, conductor: Conductor) -> None:
        """Of one that is queued, one in its cell, and one whose failure nobody had heard of."""
        driven = conductor.drive(whole(cloud, 5), upto="claimed")
        queued, staged, failed, *others = driven.uuids
        driven.keep_only(staged, failed, *others)
        cloud.delete(queued)
        driven.stage()
        driven.hand_over()
        cloud.delete(staged)
        fail(cloud, failed)
        cloud.delete(failed)
        cloud.start()
        cloud.settle()
        assert {cloud.row(uuid).state for uuid in others} == {State.ACTIVE}
        wait_decided(cloud)

    def test_if_all_are_deleted_nothing_is_left(self, cloud: World, conductor: Conductor) -> None:
        driven = conductor.drive(whole(cloud, 2), upto="handed over")
        for uuid in driven.uuids:
            cloud.delete(uuid)
        cloud.start()
        cloud.settle()
        wait_decided(cloud)


def test_a_batch_with_a_failing_host_rolls_back(cloud: World) -> None:
    """From accept to the end, by services alone: each server's own fault rolls all back; without the option it does not."""
    cloud.start()
    abort = ServerProperties(metadata={METADATA_KEY: "abort:a1"})
    both = [cloud.uuids(whole(cloud, 8, properties=abort)), cloud.uuids(cloud.accept(8, properties=abort))]
    cloud.settle()
    wait_decided(cloud)
    cloud.settle()
    [of_whole, of_ordinary] = [{cloud.row(uuid).state for uuid in uuids} for uuids in both]
    assert (of_whole, of_ordinary) == ({State.ERROR}, {State.ERROR, State.ACTIVE})
    assert cloud.evidence().claims.keys() == {uuid for uuid in both[1] if cloud.row(uuid).state is State.ACTIVE}


def test_a_batch_that_fits_nowhere_fails_at_once(cloud: World) -> None:
    cloud.start()
    uuids = cloud.uuids(whole(cloud, 2, size=fleet.flavor(vcpus=1000)))
    cloud.settle()
    assert all((cloud.row(uuid).fault or "").startswith("No valid host was found") for uuid in uuids)
    wait_decided(cloud)


def test_many_batches_survive_failing_hosts_and_deletes(cloud: World) -> None:
    """Two conductors with leases that run out at once: in the end each batch is whole, or nothing of it is left."""
    cloud.start_cells()
    for host in cloud.homes:
        cloud.start_agent(host, simulated={"failure_rate": 0.3})
    for _ in range(2):
        cloud.hasty_conductor()
    specs = [whole(cloud, random.randint(2, 4), max_attempts=2) for _ in range(10)]
    uuids = [uuid for spec in specs for uuid in cloud.uuids(spec)]
    for uuid in random.sample(uuids, 6):
        time.sleep(random.random() * 0.2)  # the delete meets its batch at any step
        cloud.delete(uuid)
    wait_decided(cloud)
    evidence = cloud.settle()
    states: dict[str, set[str]] = defaultdict(set)
    for server in evidence.servers:
        if not server.deleted:
            states[server.batch_id].add(server.state)
    assert all(len(of_batch) == 1 for of_batch in states.values()), states
