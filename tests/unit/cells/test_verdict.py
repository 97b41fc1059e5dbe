"""What becomes of an operation of a restored database, by the rows of its server."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from cells.verdict import Seen, judge_operation
from db.api.operations.operations import Body, OpenOperation
from objects.instance import Server, State
from objects.instance_row import InstanceRow
from objects.operation import Operation, OperationKind, OperationState
from objects.task import Power
from objects.verdict import Fate

NUMBER = 8
S, T, LATER = "source", "twin", "later"
Kind, At = OperationKind, OperationState


def row(uuid: str, state: State = State.ACTIVE, *, power: Power = Power.ON, number: int = 0, done: bool = True) -> InstanceRow:
    turn = {S: 1, T: 2, LATER: 3}[uuid]
    return InstanceRow(
        uuid=uuid,
        state=state,
        fence=1,
        attempt=1,
        version=1,
        host="h",
        node="h",
        availability_zone=None,
        batch_id=None,
        project_id="p",
        user_id="u",
        name="s",
        launch_index=0,
        created_at=0.0,
        updated_at=0.0,
        rolled_back=None,
        server_uuid=S,
        turn=turn,
        power=power,
        task_number=number,
        task_state="done" if done else "running",
    )


def opened(kind: OperationKind, state: OperationState, *, told: str = "active") -> OpenOperation:
    operation = Operation(
        uuid="operation",
        server_uuid=S,
        kind=kind,
        state=state,
        number=NUMBER,
        power_before=Power.ON,
        project_id="p",
        user_id="u",
        request_id="r",
        created_at=0.0,
        updated_at=0.0,
        deadline=0.0,
        source_uuid=S,
        twin_uuid=T if kind.is_move else None,
        frozen="restored",
    )
    return OpenOperation(operation=operation, source=body(S, told), twin=body(T, "building") if kind.is_move else None)


def body(uuid: str, state: str) -> Body:
    server = Server(
        uuid=S, batch_id="b", project_id="p", user_id="u", name="s", launch_index=0, created_at=0.0, state="", updated_at=0.0
    )
    server = msgspec.structs.replace(
        server, cell_uuid=None if state == "shelved" else "cell", own_uuid=None if uuid == S else uuid, state=state
    )
    return Body(server=server, hidden=uuid != S, charge=(1, 1))


def fate(each: OpenOperation, *rows: InstanceRow, **seen: Any) -> tuple[Fate, OperationState | str | None]:
    verdict = judge_operation(each, Seen(rows={row.uuid: row for row in rows}, **seen))
    return verdict.fate, verdict.state or verdict.body


HELD = row(S, power=Power.HELD, number=NUMBER)
GONE = row(S, State.DELETED, power=Power.HELD, number=NUMBER)
NO_TWIN = row(T, State.DELETED)
BACK = row(S, number=NUMBER + 3)


@pytest.mark.parametrize(
    ("kind", "state", "rows", "expected"),
    [
        (Kind.MIGRATE, At.BUILDING, (GONE, row(T)), (Fate.ARRIVE, T)),
        (Kind.RESIZE, At.VERIFY, (GONE, row(T)), (Fate.ARRIVE, T)),
        (Kind.RESIZE, At.VERIFY, (BACK, NO_TWIN), (Fate.RETURN, None)),
        (Kind.RESIZE, At.BUILDING, (HELD, row(T)), (Fate.RESUME, At.BUILDING)),
        (Kind.RESIZE, At.VERIFY, (HELD, row(T)), (Fate.RESUME, At.VERIFY)),
        (Kind.RESIZE, At.VERIFY, (HELD, row(T, power=Power.HELD, number=NUMBER + 2)), (Fate.RESUME, At.REVERTING)),
        (Kind.RESIZE, At.REVERTING, (BACK, row(T, power=Power.HELD, number=NUMBER + 2, done=False)), (Fate.RETURN, None)),
        (Kind.MIGRATE, At.BUILDING, (HELD, row(T, State.BUILDING)), (Fate.RESUME, At.BUILDING)),
        (Kind.MIGRATE, At.BUILDING, (HELD, NO_TWIN), (Fate.RETURN, None)),
        (Kind.MIGRATE, At.BUILDING, (GONE, NO_TWIN), (Fate.DELETE, None)),
        (Kind.MIGRATE, At.BUILDING, (row(S), row(T)), (Fate.UNDECIDED, None)),
        (Kind.MIGRATE, At.BUILDING, (HELD,), (Fate.UNDECIDED, None)),
        (Kind.MIGRATE, At.PLACING, (row(S),), (Fate.RESUME, At.PLACING)),
        (Kind.MIGRATE, At.PLACING, (BACK,), (Fate.RETURN, None)),
        (Kind.MIGRATE, At.BUILDING, (GONE, row(T, State.DELETED), row(LATER)), (Fate.ARRIVE, LATER)),
        (Kind.MIGRATE, At.BUILDING, (row(S, number=NUMBER + 4), NO_TWIN), (Fate.ARRIVE, S)),
        (Kind.LIVE_MIGRATE, At.BUILDING, (HELD, row(T, power=Power.INCOMING)), (Fate.RESUME, At.SENDING)),
        (Kind.LIVE_MIGRATE, At.BUILDING, (row(S), row(T, power=Power.INCOMING)), (Fate.RESUME, At.BUILDING)),
        (Kind.LIVE_MIGRATE, At.SENDING, (GONE, row(T, number=NUMBER + 2)), (Fate.ARRIVE, T)),
        (Kind.SOFT_DELETE, At.SOFT_DELETED, (HELD,), (Fate.RESUME, At.SOFT_DELETED)),
        (Kind.SOFT_DELETE, At.SOFT_DELETED, (BACK,), (Fate.RESUME, At.STARTING)),
        (Kind.SOFT_DELETE, At.SOFT_DELETED, (row(S, State.DELETING),), (Fate.DELETE, None)),
        (Kind.STOP, At.TASK, (row(S, power=Power.OFF, number=NUMBER),), (Fate.RESUME, At.TASK)),
        (Kind.STOP, At.TASK, (row(S, State.DELETED, power=Power.HELD, number=NUMBER + 4),), (Fate.END, S)),
        (Kind.STOP, At.TASK, (), (Fate.UNDECIDED, None)),
        (Kind.SHELVE, At.TASK, (GONE,), (Fate.OFFLOAD, None)),
    ],
    ids=lambda value: str(value) if isinstance(value, str) else None,
)
def test_rows_tell_what_became_of_it(
    kind: OperationKind, state: OperationState, rows: tuple[InstanceRow, ...], expected: tuple[Fate, str | None]
) -> None:
    assert fate(opened(kind, state), *rows) == expected


def test_the_store_distinguishes_shelved_from_deleted_servers() -> None:
    shelve, unshelve = opened(Kind.SHELVE, At.TASK, told="deleted"), opened(Kind.UNSHELVE, At.BUILDING, told="shelved")
    assert fate(shelve, GONE, image=False)[0] is Fate.DELETE
    assert fate(shelve, image=True)[0] is Fate.OFFLOAD
    assert fate(shelve)[0] is Fate.UNDECIDED
    assert fate(unshelve, NO_TWIN, image=False)[0] is Fate.DELETE


def test_a_returned_host_is_not_evacuated_again() -> None:
    evacuation = opened(Kind.EVACUATE, At.PLACING)
    assert fate(evacuation, row(S)) == (Fate.RESUME, At.PLACING)
    assert fate(evacuation, row(S), is_host_back=True) == (Fate.RETURN, None)
    assert fate(evacuation, HELD, is_host_back=True) == (Fate.RESUME, At.PLACING)
    assert fate(evacuation, HELD, row(T), is_host_back=True) == (Fate.RESUME, At.BUILDING)


def test_a_silent_cell_is_awaited_where_it_matters() -> None:
    move = opened(Kind.MIGRATE, At.BUILDING)
    assert fate(move, silent={"cell": "it is down"})[0] is Fate.UNDECIDED
    assert fate(move, GONE, NO_TWIN, silent={"other": "it is down"})[0] is Fate.UNDECIDED
    assert fate(move, GONE, row(T), silent={"other": "it is down"}) == (Fate.ARRIVE, T)


def test_a_later_move_on_its_way_is_told() -> None:
    held = row(T, power=Power.HELD, number=NUMBER + 4)
    verdict = judge_operation(opened(Kind.MIGRATE, At.BUILDING), Seen(rows={T: held, LATER: row(LATER, State.BUILDING)}))
    assert (verdict.fate, verdict.body, verdict.twin) == (Fate.ARRIVE, T, LATER)


def test_a_later_resize_awaiting_its_user_is_reported() -> None:
    held = row(T, power=Power.HELD, number=NUMBER + 4)
    verdict = judge_operation(opened(Kind.MIGRATE, At.BUILDING), Seen(rows={S: GONE, T: held, LATER: row(LATER)}))
    assert (verdict.fate, verdict.body, verdict.twin) == (Fate.ARRIVE, T, LATER)


def test_the_compared_move_is_not_opened_again() -> None:
    rows = {S: row(S, power=Power.HELD, number=NUMBER), T: row(T, number=NUMBER + 4)}
    verdict = judge_operation(opened(Kind.RESIZE, At.VERIFY), Seen(rows=rows))
    assert (verdict.fate, verdict.body, verdict.twin) == (Fate.ARRIVE, T, None)


def test_a_body_with_operations_outweighs_an_older_permit() -> None:
    rows = {S: row(S), T: row(T, power=Power.HELD, number=NUMBER + 4)}
    verdict = judge_operation(opened(Kind.MIGRATE, At.PLACING), Seen(rows=rows))
    assert (verdict.fate, verdict.body) == (Fate.ARRIVE, T)


@pytest.mark.parametrize("power", [Power.HELD, Power.OFF, Power.ON])
@pytest.mark.parametrize("twin", [row(T), row(T, power=Power.HELD, number=NUMBER + 2), row(T, power=Power.HELD, number=NUMBER + 3)])
@pytest.mark.parametrize("state", [At.VERIFY, At.REVERTING, At.UNDOING])
def test_a_source_with_later_operations_outlives_its_twin(state: OperationState, twin: InstanceRow, power: Power) -> None:
    assert fate(opened(Kind.RESIZE, state), row(S, power=power, number=NUMBER + 4), twin) == (Fate.ARRIVE, S)


def test_a_body_with_operations_outlives_an_older_one() -> None:
    assert fate(opened(Kind.RESIZE, At.VERIFY), row(S), row(T, number=NUMBER + 4)) == (Fate.ARRIVE, T)
    assert fate(opened(Kind.RESIZE, At.VERIFY), row(S, number=NUMBER + 4), row(T, number=NUMBER + 4))[0] is Fate.UNDECIDED


def test_a_move_after_a_revert_is_told() -> None:
    held = row(S, power=Power.HELD, number=NUMBER + 4)
    verdict = judge_operation(opened(Kind.RESIZE, At.REVERTING), Seen(rows={S: held, T: row(T), LATER: row(LATER)}))
    assert (verdict.fate, verdict.body, verdict.twin) == (Fate.ARRIVE, S, LATER)


def test_an_adopted_body_is_not_outlived() -> None:
    """Its turn is a guess, which may be too low: it is the twin of the move that the source is held for."""
    source, adopted = row(S, power=Power.HELD, number=NUMBER + 8), row(LATER)
    assert fate(opened(Kind.STOP, At.TASK), source, adopted) == (Fate.ARRIVE, LATER)
