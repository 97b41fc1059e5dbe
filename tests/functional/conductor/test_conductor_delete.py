"""Deletes decided at the API level reach their cells, however often it takes."""

from __future__ import annotations

import time

from conductor.delete import Deleter
from conductor.super_conductor import SuperConductor
from db.api.servers import mappings
from db.cell import instances
from objects import lifecycle
from objects.cell import CELL0_UUID
from objects.context import RequestContext
from objects.instance import Failure, FailureClass, State
from rpc.counting import MessageKind
from tests.support import fleet
from tests.support.conductor_process import Conductor
from tests.support.direct_signals import DirectSignals
from tests.support.ground import GROUNDS
from tests.support.world import World, world_fixture

SMALL = fleet.flavor(vcpus=0, memory_mb=1, root_gb=0)


cloud = world_fixture(grounds=GROUNDS)


def handed_over(cloud: World, conductor: Conductor, count: int = 1, host: str = "a1") -> list[str]:
    return conductor.drive(cloud.accept(count, force_hosts=(host,), size=SMALL), upto="handed over").uuids


def building(cloud: World, cell: str, *uuids: str) -> None:
    """An agent has taken these."""
    cloud.databases[cell].write(
        instances.transition_rows,
        uuids,
        lambda r: lifecycle.accept_order(r, r.host or "", r.fence, r.attempt, "agent"),
        time.time(),
    )


def deleted(cloud: World, *uuids: str) -> None:
    for uuid in uuids:
        assert cloud.delete(uuid) is not None


def sent(conductor: Conductor) -> int:
    return conductor.sent.counts_by_method().get(("compute", "delete_instances", MessageKind.CAST), 0)


def test_a_doorbell_carries_out_only_its_deletes(cloud: World, conductor: Conductor) -> None:
    first, second, live = handed_over(cloud, conductor, 3)
    building(cloud, "cell1", first, second, live)
    deleted(cloud, first, second)
    [queued] = conductor.drive(cloud.accept(), upto="claimed").uuids
    deleted(cloud, queued)
    endpoint = SuperConductor(DirectSignals(conductor.builder), conductor.deleter)
    endpoint.delete_instances(RequestContext(request_id="req-1"), [first, live, queued, "unknown"])
    assert [cloud.row(uuid).state for uuid in (first, second, live)] == [State.DELETING, State.BUILDING, State.BUILDING]
    assert cloud.rows(queued) == {}
    assert sent(conductor) == 1


def test_the_sweep_waits_before_repeating_a_delete(cloud: World, conductor: Conductor) -> None:
    [uuid] = handed_over(cloud, conductor)
    building(cloud, "cell1", uuid)
    deleted(cloud, uuid)
    Deleter(cloud.api, conductor.registry, resend_age=60.0).run_round()
    assert (cloud.row(uuid).state, sent(conductor)) == (State.BUILDING, 0)
    Deleter(cloud.api, conductor.registry, resend_age=0.0).run_round()
    assert (cloud.row(uuid).state, sent(conductor)) == (State.DELETING, 1)


def test_a_guestless_delete_ends_without_asking_its_host(cloud: World, conductor: Conductor) -> None:
    staged, scheduled = handed_over(cloud, conductor, 2)
    cloud.databases["cell1"].write(
        instances.transition_rows, [scheduled], lambda row: lifecycle.activate_row(row, 1, cell0=False), time.time()
    )
    deleted(cloud, staged, scheduled)
    conductor.deleter.run_round()
    assert [cloud.row(uuid).state for uuid in (staged, scheduled)] == [State.DELETED] * 2
    assert sent(conductor) == 0
    assert cloud.mapped(staged).state == "building", "the feed tells"
    conductor.keep()
    assert {cloud.mapped(uuid).state for uuid in (staged, scheduled)} == {"deleted"}
    assert cloud.evidence().claims == {}


def test_in_cell0_it_is_over_with_the_row(cloud: World, conductor: Conductor) -> None:
    """cell0 has no feed that would tell."""
    driven = conductor.lease(cloud.accept().batch_id)
    driven.bury()
    [uuid] = driven.uuids
    deleted(cloud, uuid)
    conductor.deleter.carry_out([uuid])
    assert cloud.row(uuid).state is State.DELETED
    assert (cloud.mapped(uuid).cell_uuid, cloud.mapped(uuid).state) == (CELL0_UUID, "deleted")
    assert cloud.api.read(mappings.list_deleting, 10) == []


def test_a_cell_without_the_row_gets_a_tombstone(cloud: World, conductor: Conductor) -> None:
    """So that a stage that comes late finds the uuid taken."""
    driven = conductor.drive(cloud.accept(force_hosts=("a1",)), upto="claimed")
    driven.hand_over()
    [uuid] = driven.uuids
    deleted(cloud, uuid)
    conductor.deleter.run_round()
    assert cloud.row(uuid).state is State.DELETED
    assert driven.stage() == []
    conductor.keep()
    assert cloud.mapped(uuid).state == "deleted"


def test_the_sweep_repeats_until_the_cell_confirms(cloud: World, conductor: Conductor) -> None:
    [uuid] = handed_over(cloud, conductor)
    building(cloud, "cell1", uuid)
    deleted(cloud, uuid)
    for rounds in (1, 2, 3):
        conductor.deleter.run_round()
        assert sent(conductor) == rounds
    row = cloud.row(uuid)
    cloud.databases["cell1"].write(
        instances.transition_rows, [uuid], lambda r: lifecycle.confirm_gone(r, "a1", row.attempt, 9.0), 9.0
    )
    conductor.deleter.run_round()
    conductor.keep()
    conductor.deleter.run_round()
    assert sent(conductor) == 3
    assert cloud.row(uuid).state is State.DELETED


def test_a_deleted_error_is_carried_out_and_confirmed(cloud: World, conductor: Conductor) -> None:
    """Its end was told to the API level once before: as an error."""
    [uuid] = handed_over(cloud, conductor)
    building(cloud, "cell1", uuid)
    late = Failure(kind=FailureClass.DEADLINE, error="BuildTimeout", message="too late", at=5.0)
    cloud.databases["cell1"].write(instances.transition_rows, [uuid], lambda row: lifecycle.end_overdue(row, 1, late), 5.0)
    conductor.keep()
    assert cloud.mapped(uuid).state == "error"
    deleted(cloud, uuid)
    conductor.deleter.run_round()
    conductor.keep()
    assert cloud.mapped(uuid).state == "deleted"


def test_an_unreachable_cell_holds_up_no_other(cloud: World, conductor: Conductor) -> None:
    first = handed_over(cloud, conductor, 2, "a1")
    second = handed_over(cloud, conductor, 2, "b1")
    deleted(cloud, *first, *second)
    conductor.databases["cell1"].away = True
    conductor.deleter.carry_out([*first, *second])
    assert [cloud.row(uuid).state for uuid in (*first, *second)] == [State.STAGED] * 2 + [State.DELETED] * 2
    conductor.databases["cell1"].away = False
    conductor.deleter.run_round()
    assert {cloud.row(uuid).state for uuid in first} == {State.DELETED}


def test_a_sweep_goes_over_more_than_one_page(cloud: World, conductor: Conductor) -> None:
    uuids = handed_over(cloud, conductor, 23)
    deleted(cloud, *uuids)
    Deleter(conductor.database, conductor.registry, page=10).run_round()
    assert {row.state for row in (cloud.databases["cell1"].read(instances.read, uuids))} == {State.DELETED}
