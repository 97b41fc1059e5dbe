"""Operations that were not compared with the cells since a restore: nobody takes a step, users and operators are told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa

from cells import last_body
from cells.last_body import Ending
from cells.thaw import Thaw
from conductor.audit import operations as audit_operations
from db.api.operations import accepting, steps, thaw
from db.api.operations import operations as api_operations
from db.api.queue import builds, holds
from db.api.rows import incarnation
from db.api.rows.tables import build_requests, instance_mappings
from db.api.rows.tables import holds as holds_table
from db.api.rows.tables import incarnation as incarnation_table
from db.api.rows.tables import operations as table
from db.cell import services
from objects import errors
from objects.flavor import Flavor
from objects.operation import Operation, OperationKind, OperationState, Outcome
from objects.process import AGENT_BINARY
from objects.task import Power, Task, TaskKind
from objects.verdict import Fate
from tests.support.auditing import away
from tests.support.ground import USUAL
from tests.support.moved import Moved
from tests.support.world import world_fixture

DAY_S = 86400.0
LARGE = Flavor(flavor_id="large", name="large", vcpus=2, memory_mb=1024, root_gb=10)


site = world_fixture(grounds=USUAL, embedded=True, of=Moved)


def close(site: Moved) -> str:
    """A comparison begins; the last mark is a day old."""
    now = site.cloud.api.write(incarnation.advance_mark)
    site.api(sa.update(incarnation_table).values(changed_at=incarnation_table.c.changed_at - DAY_S))
    assert site.cloud.api.write(incarnation.close, now.uuid, "a test says so")
    return now.uuid


def stored(site: Moved, operation: Operation) -> Operation:
    [found] = site.cloud.api.read(api_operations.get, [operation.uuid])
    return found


def thawed(site: Moved) -> dict[Fate, int]:
    return dict(Thaw(site.conductor.ledger, site.conductor.registry).compare_all())


def refused(action: Callable[[], object]) -> None:
    with pytest.raises(errors.NotCompared):
        action()


def test_a_comparison_freezes_and_lifts_deadlines(site: Moved) -> None:
    [uuid] = site.active()
    operation = site.placing(uuid)
    held = site.cloud.hold(1)
    [before] = site.read(sa.select(holds_table.c.expires_at))
    [request] = site.read(sa.select(build_requests.c.deadline).where(build_requests.c.batch_id == held.batch_id))
    known = close(site)
    found = stored(site, operation)
    assert found.frozen == "a test says so"
    assert found.deadline >= operation.deadline + DAY_S
    [after] = site.read(sa.select(holds_table.c.expires_at))
    assert after["expires_at"] >= before["expires_at"] + DAY_S
    [later] = site.read(sa.select(build_requests.c.deadline).where(build_requests.c.batch_id == held.batch_id))
    assert later["deadline"] >= request["deadline"] + DAY_S
    site.api(sa.update(incarnation_table).values(changed_at=incarnation_table.c.changed_at - DAY_S))
    assert site.cloud.api.write(incarnation.open_, known, "6a3f0c1e-0000-4000-8000-000000000001", 9)
    assert stored(site, operation).deadline >= operation.deadline + 2 * DAY_S
    assert not site.cloud.api.read(holds.list_expired, site.cloud.api.current_time() + DAY_S, 10)


def test_nobody_takes_a_step_of_a_frozen_operation(site: Moved) -> None:
    [uuid] = site.active()
    operation = site.building(uuid, kind=OperationKind.RESIZE, flavor=LARGE)
    site.built(operation)
    site.cloud.api.write(thaw.freeze_operations, [operation.uuid], "restored", 1.0)
    site.api(sa.update(table).values(deadline=1.0))
    with away(*site.conductor.databases.values()):
        site.conductor.operator.run_round()
    assert stored(site, operation).state is OperationState.BUILDING
    assert "cell1" in (stored(site, operation).frozen or "")
    ledger, now = site.conductor.ledger, site.cloud.api.current_time()
    assert not ledger.write(steps.give_up, {operation.uuid: "late"}, now).operations
    refused(lambda: steps.abort_operation(ledger, operation.uuid, "enough"))
    refused(lambda: site.cloud.operate(uuid, OperationKind.STOP))
    refused(lambda: ledger.write(builds.delete, uuid, project_id=None, now=now))
    assert thawed(site) == {Fate.RESUME: 1}
    site.conductor.operator.run_round()
    assert stored(site, operation).state is OperationState.VERIFY


def test_nothing_is_accepted_while_a_database_is_compared(site: Moved) -> None:
    [uuid] = site.active()
    close(site)
    refused(lambda: site.cloud.operate(uuid, OperationKind.STOP))
    now = site.cloud.api.current_time()
    delete: Any = incarnation.charged_if_compared
    refused(lambda: site.conductor.ledger.write(delete, None, builds.delete, uuid, project_id=None, now=now))


@pytest.mark.parametrize("ending", [Ending.GIVE_UP, Ending.CONFIRM], ids=str)
def test_the_last_body_is_never_deleted(site: Moved, ending: Ending) -> None:
    """Whatever the API level has heard, its cells are asked first."""
    [uuid] = site.active()
    operation = site.building(uuid, kind=OperationKind.RESIZE, flavor=LARGE)
    site.built(operation)
    if ending is Ending.CONFIRM:
        site.conductor.ledger.write(steps.switch_servers, [operation.uuid], site.cloud.api.current_time())
    lost = uuid if ending is Ending.GIVE_UP else operation.twin_uuid or ""
    site.database(lost).write(set_state, lost, "deleted")
    with pytest.raises(errors.NotCompared):
        last_body.refuse_last_body(site.cloud.api, site.conductor.registry, ending, operation.uuid)
    assert stored(site, operation).frozen is not None


def set_state(tx: Any, uuid: str, state: str) -> None:
    tx.execute(sa.text("UPDATE instances SET state = :state WHERE uuid = :uuid"), {"state": state, "uuid": uuid})


@pytest.mark.parametrize("dead", [True, False], ids=["dead", "back"])
def test_a_returned_host_is_not_evacuated_again(site: Moved, dead: bool) -> None:
    """The evacuation may have been given up since the backup, and a second one would cost the server its disk."""
    [uuid] = site.active()
    operation = site.placing(uuid, OperationKind.EVACUATE)
    site.database(uuid).write(services.set_forced_down, operation.source_host or "", AGENT_BINARY, dead, 1.0)
    site.cloud.api.write(thaw.freeze_operations, [operation.uuid], "restored", 1.0)
    assert thawed(site) == {Fate.RESUME if dead else Fate.RETURN: 1}
    assert stored(site, operation).state is (OperationState.PLACING if dead else OperationState.UNDOING)
    assert site.body(operation).deleted is not dead


def test_an_audit_reports_and_thaws_a_frozen_operation(site: Moved) -> None:
    [uuid] = site.active()
    operation = site.building(uuid)
    site.built(operation)
    site.cloud.api.write(thaw.freeze_operations, [operation.uuid], "restored", 1.0)
    assert site.cloud.api.read(thaw.count_frozen) == (1, "restored")
    assert (audit_operations.FROZEN, uuid) in site.auditor.kinds()
    site.auditor.repair()
    assert stored(site, operation).frozen is None


def test_a_restored_soft_deleted_server_is_not_reclaimed(site: Moved) -> None:
    [uuid] = site.active()
    operation = site.cloud.operate(uuid, OperationKind.SOFT_DELETE)
    site.held(uuid, operation.number)
    site.tasked(uuid, Task(number=operation.number + 3, kind=TaskKind.POWER, power=Power.ON))
    site.api(sa.update(table).values(deadline=1.0))
    site.conductor.operator.run_round()
    assert stored(site, operation).outcome is None
    assert stored(site, operation).frozen is not None
    assert thawed(site) == {Fate.RESUME: 1}
    site.conductor.operator.run_round()
    assert site.state(operation)[1] is Outcome.REVERTED
    assert not site.server(uuid).deleted


def test_a_lost_move_under_way_is_reopened(site: Moved) -> None:
    """Neither the API database nor anybody else has its operation: its body shows it."""
    [uuid] = site.active()
    operation = site.building(uuid)
    for name in ("operations", "build_requests"):
        site.api(sa.delete(sa.table(name)))
    site.api(sa.delete(instance_mappings).where(instance_mappings.c.instance_uuid == operation.twin_uuid))
    site.auditor.repair()
    [found] = site.cloud.api.read(api_operations.open_for, [uuid]).values()
    assert (found.source_uuid, found.twin_uuid) == (uuid, operation.twin_uuid)
    assert accepting.turn_of(found.number) == accepting.turn_of(operation.number)
    thawed(site)
    site.built(operation)
    site.conductor.operator.run_round()
    assert site.server(uuid).body_uuid == operation.twin_uuid
