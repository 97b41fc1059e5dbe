"""All-or-nothing batches: decided once from what is known of their servers, and rolled back where these are."""

from __future__ import annotations

import time

import pytest

from conductor.roll_back import BatchSweep
from db.api.queue import batches
from db.sql.counting import StatementCounter
from objects import errors
from objects.instance import State
from objects.quota import Admission, QuotaLimits
from rpc.counting import MessageKind
from tests.support import fleet
from tests.support.accepted import accept_batch
from tests.support.batches import accepted, activated, assert_rolled_back, fail, mixed, open_batches, whole
from tests.support.conductor import servers
from tests.support.conductor_process import Conductor
from tests.support.ground import CHOSEN, GROUNDS, on
from tests.support.world import World, world_fixture

cloud = world_fixture({"cell1": ["a1", "a2"], "cell2": ["b1", "b2"]}, CHOSEN)


def states(cloud: World, uuids: list[str]) -> list[State]:
    return [cloud.row(uuid).state for uuid in uuids]


@on("cloud", *GROUNDS)
def test_siblings_in_every_state_are_rolled_back(cloud: World, conductor: Conductor) -> None:
    """What may have a guest when its host has destroyed that, and its claim with it; the rest at once."""
    driven = mixed(cloud, conductor)
    *others, culprit = driven.uuids
    conductor.keep()
    assert conductor.batches.decide_batches(), "it is open"
    assert states(cloud, others) == [State.SCHEDULED, State.SCHEDULED, State.BUILDING, State.ACTIVE]
    fail(cloud, culprit)
    conductor.keep()
    assert not conductor.batches.decide_batches()
    assert states(cloud, others) == [State.ERROR, State.ERROR, State.DELETING, State.DELETING]
    assert conductor.sent.counts_by_method()["compute", "delete_instances", MessageKind.CAST] >= 1
    conductor.keep()
    assert cloud.evidence().claims.keys() == set(others[2:]), "these are still on their hosts"
    [batch] = open_batches(cloud)
    assert batch.fault is not None
    cloud.start()
    assert_rolled_back(cloud, culprit, others)


def test_open_batches_are_checked_often_roll_backs_rarely(cloud: World, conductor: Conductor) -> None:
    sweep = BatchSweep(conductor.database, conductor.registry, idle=3600.0)
    sweep.run_round()
    culprit, other = conductor.drive(whole(cloud, 2), upto="handed over").uuids
    activated(cloud, other)
    fail(cloud, culprit)
    conductor.keep()
    sweep.run_round()
    assert cloud.row(other).state is State.ACTIVE, "nobody knew that there is one"
    sweep = BatchSweep(conductor.database, conductor.registry, idle=3600.0)
    sweep.run_round()
    assert cloud.row(other).state is State.DELETING


def test_without_the_option_nothing_is_touched_or_queried(cloud: World, conductor: Conductor) -> None:
    def paid(counter: StatementCounter) -> int:
        return sum(count.executions for (_, text), count in counter.count_by_statement().items() if "all_or_nothing" in text)

    with StatementCounter(conductor.database) as counter:
        culprit, other = conductor.drive(cloud.accept(2), upto="handed over").uuids
        conductor.build(cloud.accept(2))
        activated(cloud, other)
        accepted(cloud, culprit)
        fail(cloud, culprit)
        conductor.keep()
        assert paid(counter) == 0
        conductor.batches.decide_batches()
        assert paid(counter) == 1, "the sweep's own look"
    assert states(cloud, [culprit, other]) == [State.ERROR, State.ACTIVE]


def test_of_one_server_alone_there_is_no_batch(cloud: World) -> None:
    whole(cloud, 1)
    assert open_batches(cloud) == []


def test_what_quota_leaves_of_it_is_the_batch(cloud: World, conductor: Conductor) -> None:
    """Between min_count and max_count; and all that were accepted are to be ACTIVE, or none."""
    spec, now = fleet.spec(all_or_nothing=True, project_id="small", num_instances=5), time.time()
    admission = Admission(limits=QuotaLimits(instances=3), at_least=2)
    taken = cloud.api.write(accept_batch, spec, servers(5), now=now, deadline=now + 60.0, admission=admission)
    assert len(taken.uuids) == 3
    culprit, *others = conductor.drive(spec, upto="handed over").uuids
    for uuid in others:
        activated(cloud, uuid)
    fail(cloud, culprit)
    cloud.start()
    assert_rolled_back(cloud, culprit, others)
    with pytest.raises(errors.OverQuota, match="already used 3 of 3 instances"):
        cloud.api.write(accept_batch, fleet.spec(project_id="small"), servers(1), now=now, deadline=now, admission=admission)
    for uuid in taken.uuids:
        cloud.delete(uuid)
    cloud.settle()


@on("cloud", *GROUNDS)
def test_a_batch_is_decided_once(cloud: World) -> None:
    """Whoever writes first; and what is done with has no row."""
    batch = whole(cloud, 2).batch_id
    write, now = cloud.api.write, time.time()
    assert cloud.api.read(batches.fault_of, batch) is None
    assert write(batches.decide_batches, [], {batch: "first"}, now) == [batch]
    assert write(batches.decide_batches, [batch], {batch: "second"}, now) == []
    assert cloud.api.read(batches.fault_of, batch) == "first"
    write(batches.finish_batches, [batch])
    assert write(batches.decide_batches, [], {batch: "third"}, now) == []
    settled = whole(cloud, 2).batch_id
    write(batches.finish_batches, [settled])
    assert [open_batch.batch_id for open_batch in open_batches(cloud)] == [settled], "it has not failed"
    write(batches.decide_batches, [settled], {}, now)
    assert open_batches(cloud) == []
