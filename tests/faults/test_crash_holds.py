"""A conductor dies while it holds hosts, or sleeps until the hold was booted or has ended: others bring it to its end.

Each test ends with everything running until nothing is on its way any more; then claims, guests and rows must agree.
"""

from __future__ import annotations

import threading

import pytest

from conductor.context import ConductorContext
from conductor.expire_holds import HoldSweep
from conductor.restored import RestoreWatch
from db.api.queue import holds
from db.api.rows.incarnation import Known
from objects import errors
from objects.spec import RequestSpec
from service.periodic import wait_until
from tests.support.conductor_process import STEPS
from tests.support.threads import run_threads
from tests.support.world import PATIENCE, World, states

HOSTS = {"cell1": ["a1", "a2"], "cell2": ["b1", "b2"]}
ANY = Known(uuid="", mark=0)


def wait_held(cloud: World, uuids: list[str]) -> None:
    assert wait_until(lambda: {cloud.requests()[uuid].state for uuid in uuids} == {"held"}, PATIENCE), cloud.requests()


def expire(cloud: World, spec: RequestSpec) -> bool:
    ledger = cloud.keeper.ledger
    return ledger.write(holds.expire_hold, spec.batch_id, ledger.database.current_time() + 3600.0, None)


def test_claims_last_until_the_hold_is_booted(cloud: World) -> None:
    spec = cloud.hold(3)
    uuids = cloud.uuids(spec)
    cloud.start()
    wait_held(cloud, uuids)
    before = cloud.evidence()
    assert before.claims.keys() == set(uuids)
    assert not any(cloud.spawned(host) for host in cloud.homes)
    assert cloud.boot_held(spec)
    assert not cloud.boot_held(spec)
    assert states(cloud, uuids) == ["active"] * 3
    assert cloud.evidence().claims == before.claims
    assert not expire(cloud, spec)


def test_the_sweep_ends_an_expired_hold(cloud: World) -> None:
    spec = cloud.hold(3, seconds=0.0)
    kept = cloud.hold(1)
    cloud.start()
    assert wait_until(lambda: cloud.api.read(holds.read, spec.batch_id, None) is None, PATIENCE)
    wait_held(cloud, cloud.uuids(kept))
    assert cloud.boot_held(kept)
    assert states(cloud, cloud.uuids(kept)) == ["active"]
    assert cloud.evidence().claims.keys() == set(cloud.uuids(kept))


@pytest.mark.parametrize("step", STEPS[:2])
@pytest.mark.parametrize("end", ["boots", "expires", "deletes"])
def test_after_each_step_others_finish(cloud: World, step: str, end: str) -> None:
    spec = cloud.hold(3)
    driven = cloud.conductor("killed").drive(spec, upto=step)
    if end == "expires":
        assert expire(cloud, spec)
    elif end == "boots":
        assert cloud.boot_held(spec)
    cloud.start()
    if end == "deletes":
        wait_held(cloud, driven.uuids)
        first, *rest = driven.uuids
        assert cloud.delete(first) is not None
        assert cloud.boot_held(spec)
        assert states(cloud, rest) == ["active"] * 2
    else:
        assert states(cloud, driven.uuids) == (["active"] if end == "boots" else ["no row"]) * 3


@pytest.mark.parametrize("end", ["boots", "expires", "is still held"])
def test_a_conductor_that_wakes_too_late_changes_nothing(cloud: World, end: str) -> None:
    """It has claimed, and sleeps until another one holds the requests."""
    spec = cloud.hold(2)
    sleeper = cloud.conductor("sleeper").drive(spec, upto="claimed")
    cloud.start()
    wait_held(cloud, sleeper.uuids)
    fences = {request.instance_uuid: request.fence for request in sleeper.batch.requests}
    if end == "boots":
        assert cloud.boot_held(spec)
        assert states(cloud, sleeper.uuids) == ["active"] * 2
    elif end == "expires":
        assert expire(cloud, spec)
    assert cloud.api.write(holds.park_requests, {spec.batch_id: fences}, cloud.api.current_time()) == set()
    sleeper.stage()
    assert sleeper.hand_over() == []
    if end == "is still held":
        wait_held(cloud, sleeper.uuids)
        assert cloud.boot_held(spec)
    assert states(cloud, sleeper.uuids) == (["no row"] if end == "expires" else ["active"]) * 2


def test_late_and_doubled_scheduler_calls_claim_nothing(cloud: World) -> None:
    """The call of the conductor that held it comes again: while it is held, and after it has expired."""
    spec = cloud.hold(2)
    driven = cloud.conductor("one").drive(spec, upto="claimed")
    claims = cloud.evidence().claims
    cloud.conductor("another").lease(spec.batch_id)
    cloud.start()
    wait_held(cloud, driven.uuids)
    assert driven.claim() == [[], []], "the fence is old"
    assert cloud.evidence().claims == claims
    assert expire(cloud, spec)
    assert driven.claim() == [[], []]
    assert cloud.evidence().claims == {}
    assert states(cloud, driven.uuids) == ["no row"] * 2


def test_doorbells_for_what_is_held_change_nothing(cloud: World) -> None:
    spec = cloud.hold(2)
    cloud.start()
    wait_held(cloud, cloud.uuids(spec))
    before = cloud.requests()
    conductor = cloud.conductor("rung")
    for _ in range(3):
        conductor.builder.schedule_and_build([spec.batch_id])
    assert cloud.requests() == before
    assert cloud.boot_held(spec)
    for _ in range(3):
        conductor.builder.schedule_and_build([spec.batch_id])
    assert states(cloud, cloud.uuids(spec)) == ["active"] * 2


@pytest.mark.parametrize("turn", range(4))
def test_a_boot_races_with_the_end(cloud: World, turn: int) -> None:
    """Both at the same moment, with sweeps at work: all servers are built, or none."""
    spec = cloud.hold(3)
    uuids = cloud.uuids(spec)
    cloud.start()
    wait_held(cloud, uuids)
    won: dict[str, bool] = {}
    works = {"boot": lambda: cloud.boot_held(spec), "end": lambda: expire(cloud, spec)}
    run_threads([threading.Thread(target=lambda name=name: won.__setitem__(name, works[name]())) for name in works])
    assert sorted(won.values()) == [False, True], turn
    assert states(cloud, uuids) == (["active"] if won["boot"] else ["no row"]) * 3
    assert cloud.evidence().claims.keys() == (set(uuids) if won["boot"] else set())


def test_an_answer_lost_after_the_commit_boots_once(cloud: World) -> None:
    spec = cloud.hold(2)
    cloud.start()
    wait_held(cloud, cloud.uuids(spec))
    database = cloud.conductor("client").database
    database.lose_answer_to = 1
    now = database.current_time()
    with pytest.raises(errors.DatabaseUnavailable):
        database.write(holds.boot_hold, spec.batch_id, now, now + 60.0)
    assert not cloud.boot_held(spec), "the user asks again, and is told that it was booted"
    assert states(cloud, cloud.uuids(spec)) == ["active"] * 2


def test_the_sweep_waits_until_the_database_was_compared(cloud: World) -> None:
    spec = cloud.hold(1, seconds=0.0)
    keeper = cloud.keeper
    restored = RestoreWatch(cloud.api, keeper.ledger, keeper.registry)
    sweep = HoldSweep(ConductorContext(keeper.ledger, keeper.registry, restored=restored))
    sweep.run_round()
    assert cloud.api.read(holds.read, spec.batch_id, None) is not None
    restored.known = ANY
    sweep.run_round()
    assert cloud.api.read(holds.read, spec.batch_id, None) is None
    assert cloud.requests() == {}
