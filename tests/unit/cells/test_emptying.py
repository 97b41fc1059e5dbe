"""What a server on a host that is emptied needs, and which hosts count as dead."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from cells.emptying import HostCondition, MoveOrder, Need, conditions_by_host, judge_row
from db.api.operations.operations import Body
from db.cell.instances import DueRow
from db.cell.services import SeenService
from objects.compute_node import Service
from objects.instance import Server, State
from objects.operation import Operation, OperationKind, OperationState
from objects.task import Power

UP, DEAD, SILENT = HostCondition.UP, HostCondition.DEAD, HostCondition.SILENT
BOTH = MoveOrder(kinds={UP: OperationKind.MIGRATE, DEAD: OperationKind.EVACUATE}, user_id="u")
ROW = DueRow(uuid="b", state=State.ACTIVE, host="h1", fence=1, attempt=1, batch_id=None, rolled_back=False)


def body(*, hidden: bool = False, **changes: Any) -> Body:
    values: dict[str, Any] = {"state": "active", "host": "h1", "power": Power.ON} | changes
    known: dict[str, Any] = {
        "batch_id": "r",
        "project_id": "p",
        "user_id": "u",
        "name": "web",
        "created_at": 0.0,
        "updated_at": 0.0,
    }
    return Body(server=Server(uuid="s", own_uuid="b", **known, **values), hidden=hidden, charge=(1, 1))


def operation(state: OperationState, kind: OperationKind = OperationKind.MIGRATE) -> Operation:
    asked: dict[str, Any] = {"project_id": "p", "user_id": "u", "request_id": "r", "power_before": Power.ON, "number": 4}
    return Operation(uuid="o", server_uuid="s", kind=kind, state=state, created_at=0.0, updated_at=0.0, deadline=1.0, **asked)


def agent(host: str, age: float, *, forced_down: bool = False) -> SeenService:
    service = Service(uuid=host, host=host, binary="c", report_count=1, last_seen=0.0, disabled=False, forced_down=forced_down)
    return SeenService(service, age)


def test_a_host_is_dead_when_declared_or_silent() -> None:
    found = conditions_by_host([agent("up", 1.0), agent("silent", 61.0), agent("called", 1.0, forced_down=True)], 60.0)
    assert found == {"up": UP, "silent": DEAD, "called": DEAD}


def test_no_host_of_a_silent_cell_is_dead() -> None:
    found = conditions_by_host([agent("one", 61.0), agent("two", 1000.0), agent("called", 70.0, forced_down=True)], 60.0)
    assert found == {"one": SILENT, "two": SILENT, "called": DEAD}


@pytest.mark.parametrize(
    ("condition", "kind"), [(UP, OperationKind.MIGRATE), (DEAD, OperationKind.EVACUATE), (SILENT, None)], ids=str
)
def test_the_move_is_that_of_the_hosts_condition(condition: HostCondition, kind: OperationKind | None) -> None:
    found = judge_row(ROW, body(), None, condition, BOTH)
    assert (found.need, found.kind) == (Need.STUCK if kind is None else Need.MOVE, kind)
    assert (found.server_uuid, found.body_uuid, found.name, found.host) == ("s", "b", "web", "h1")


def test_servers_of_a_returned_host_are_not_evacuated() -> None:
    only_dead = msgspec.structs.replace(BOTH, kinds={DEAD: OperationKind.EVACUATE})
    assert judge_row(ROW, body(), None, UP, only_dead).need is Need.STUCK


@pytest.mark.parametrize("power", list(Power))
def test_what_may_not_be_moved_has_a_reason(power: Power) -> None:
    migrated, evacuated = (judge_row(ROW, body(power=power), None, condition, BOTH) for condition in (UP, DEAD))
    assert (migrated.need is Need.MOVE) == (power in (Power.ON, Power.OFF))
    assert (evacuated.need is Need.MOVE) == (power not in (Power.HELD, Power.INCOMING))
    assert bool(migrated.reason) == (migrated.need is Need.STUCK)


@pytest.mark.parametrize("state", [each for each in OperationState if each is not OperationState.ENDED])
def test_an_open_operation_is_waited_for(state: OperationState) -> None:
    """But a resize in *verify* has no end of its own, and an evacuation ends a task that a dead host will not carry out.

    A server that is shelved on its host can leave it, and a soft-deleted one is left there. A live migration from or to a dead host
    is ended.
    """
    needs = {OperationState.VERIFY: Need.STUCK, OperationState.SHELVED: Need.OFFLOAD, OperationState.SOFT_DELETED: Need.STUCK}
    assert judge_row(ROW, body(), operation(state), UP, BOTH).need is needs.get(state, Need.WAIT)
    needs |= {OperationState.TASK: Need.MOVE, OperationState.SENDING: Need.GIVE_UP}
    assert judge_row(ROW, body(), operation(state), DEAD, BOTH).need is needs.get(state, Need.WAIT)


@pytest.mark.parametrize("state", [each for each in OperationState if each is not OperationState.ENDED])
def test_a_move_awaiting_a_dead_host_is_abandoned(state: OperationState) -> None:
    from_here = msgspec.structs.replace(operation(state), source_uuid="b")
    waits = state in (OperationState.PLACING, OperationState.HOLDING, OperationState.SENDING)
    assert (judge_row(ROW, body(), from_here, DEAD, BOTH).need is Need.GIVE_UP) == waits
    assert judge_row(ROW, body(), from_here, UP, BOTH).need is not Need.GIVE_UP
    assert judge_row(ROW, body(), msgspec.structs.replace(from_here, forced=True), DEAD, BOTH).need is not Need.GIVE_UP or (
        state is OperationState.SENDING
    )


@pytest.mark.parametrize("power", list(Power))
def test_running_servers_are_migrated_live_on_request(power: Power) -> None:
    order = msgspec.structs.replace(BOTH, live=True)
    live = dict.fromkeys((Power.ON, Power.PAUSED), OperationKind.LIVE_MIGRATE)
    kinds = {**live, Power.OFF: OperationKind.MIGRATE}
    found = judge_row(ROW, body(power=power), None, UP, order)
    assert (found.kind if found.need is Need.MOVE else None) == kinds.get(power)
    assert judge_row(ROW, body(power=power), None, DEAD, order).kind is OperationKind.EVACUATE


def test_a_resize_is_confirmed_from_either_body() -> None:
    order, waiting = msgspec.structs.replace(BOTH, confirm=True), operation(OperationState.VERIFY, OperationKind.RESIZE)
    assert judge_row(ROW, body(), waiting, UP, order).need is Need.CONFIRM
    assert judge_row(ROW, body(hidden=True), waiting, UP, order).need is Need.CONFIRM


@pytest.mark.parametrize(
    ("row", "known"),
    [
        (ROW, body(state="building")),
        (ROW._replace(state=State.BUILDING), body()),
        (ROW._replace(state=State.DELETING), body(deleted=True)),
        (ROW, body(hidden=True)),
        (ROW, body(host="h2")),
    ],
    ids=["not told yet", "building", "deleted", "hidden", "elsewhere"],
)
def test_what_is_about_to_change_is_waited_for(row: DueRow, known: Body) -> None:
    assert judge_row(row, known, None, UP, BOTH).need is Need.WAIT


def test_what_only_the_cell_knows_is_left() -> None:
    found = judge_row(ROW, None, None, UP, BOTH)
    assert (found.need, found.server_uuid) == (Need.STUCK, "b")
    assert "superconductor verify" in found.reason
