"""What is to become of an operation of a restored API database, by what the cells' rows of its server show.

All that the backup has did happen, and the cells may show what happened since. Each operation has four task numbers and one turn.
So a row with a later number or turn shows that the operation has ended. Nothing here reads or writes (``docs/moves.md``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from db.api.operations.accepting import NUMBERS, turn_of
from db.api.operations.operations import OpenOperation
from objects.base import Object
from objects.instance import State
from objects.instance_row import InstanceRow
from objects.operation import Operation, OperationKind, OperationState
from objects.task import Power
from objects.verdict import Fate, OperationVerdict

FORWARD = (
    OperationState.PLACING,
    OperationState.HOLDING,
    OperationState.BUILDING,
    OperationState.SENDING,
    OperationState.VERIFY,
    OperationState.REVERTING,
)
"""The states of a move on its way, in their order. What the cells show takes an operation forward only."""


class Seen(Object, frozen=True, kw_only=True):
    """What is seen of one operation's server.

    ``rows``: of its bodies that were handed over to a cell, by uuid. ``silent``: why cells did not answer, by their uuids.
    ``image``: whether the image store has the snapshot or image that the operation makes, or is made from; None: not known.
    ``is_host_back``: whether the host that an evacuation leaves is not dead any more.
    """

    rows: Mapping[str, InstanceRow]
    silent: Mapping[str, str] = {}
    image: bool | None = None
    is_host_back: bool = False

    def waits_for(self, cells: Iterable[str | None]) -> str:
        """Why one of these cells did not answer; empty if all did."""
        return next((self.silent[cell] for cell in cells if cell is not None and cell in self.silent), "")


def judge_operation(opened: OpenOperation, seen: Seen) -> OperationVerdict:
    operation = opened.operation
    homes = [body.server.cell_uuid for body in (opened.source, opened.twin) if body is not None]
    if reason := seen.waits_for(homes):
        return _undecided_verdict(f"it is compared when its cell answers: {reason}")
    bodies = [uuid for uuid in (operation.source_uuid, operation.twin_uuid) if uuid is not None]
    gone = tuple(uuid for uuid in bodies if _has_ended(seen.rows.get(uuid)))
    if any(_is_later(row, operation.number) for row in seen.rows.values()):
        task_verdict = _of_ended(operation, seen)
    elif operation.kind.is_move:
        task_verdict = _of_move(opened, seen)
    else:
        task_verdict = _of_task(opened, seen)
    if task_verdict.fate is Fate.DELETE and seen.silent:
        return _undecided_verdict(f"a cell that does not answer may have its server: {next(iter(seen.silent.values()))}")
    source = seen.rows.get(operation.source_uuid or "")
    is_task_known = source is not None and source.state is State.ACTIVE and source.task_number >= operation.number
    return msgspec.structs.replace(task_verdict, gone=gone, asked=is_task_known, image=seen.image is not False)


def _undecided_verdict(reason: str) -> OperationVerdict:
    return OperationVerdict(fate=Fate.UNDECIDED, reason=reason)


def _resume_verdict(state: OperationState) -> OperationVerdict:
    return OperationVerdict(fate=Fate.RESUME, state=state)


def _arrive_verdict(row: InstanceRow) -> OperationVerdict:
    return OperationVerdict(fate=Fate.ARRIVE, body=row.uuid)


def _is_later(row: InstanceRow, number: int) -> bool:
    return row.task_number >= number + NUMBERS or row.turn > turn_of(number)


def _is_leaving(row: InstanceRow) -> bool:
    return row.state is State.DELETED or (row.state is State.DELETING and row.rolled_back is None)


def _has_ended(row: InstanceRow | None) -> bool:
    return row is None or _is_leaving(row) or row.state is State.ERROR


def _is_held(row: InstanceRow) -> bool:
    return row.state is State.ACTIVE and row.power == Power.HELD


def _two_run(first: InstanceRow, second: InstanceRow) -> OperationVerdict:
    text = f"the rows of two of its bodies permit them to run: {first.uuid} on {first.host} and {second.uuid} on {second.host}"
    return _undecided_verdict(f"{text}: look which of them is right")


# -- an operation that has ended ---------------------------------------------------------------------------------------------------


def _of_ended(operation: Operation, seen: Seen) -> OperationVerdict:
    """The server is the body that may run. If none may, it is the latest that is held.

    A body that had an operation of its own is the server, although it is held: the move that has made it had ended before. Only
    the row of a restored cell can still permit an earlier one to run.
    """
    outlived = _outlived_body(operation, seen.rows)
    rows = sorted((row for row in seen.rows.values() if row is not outlived), key=lambda row: row.turn, reverse=True)
    running = [row for row in rows if row.may_run]
    if len(running) > 1:
        return _two_run(*running[:2])
    if len(running) == 1 and (source := _source_of(running[0], operation, rows)) is not None:
        return msgspec.structs.replace(_arrive_verdict(source), twin=running[0].uuid)
    latest = latest_of(rows)
    if running and running[0].turn < latest.turn and _is_held(latest) and latest.task_number >= (latest.turn + 1) * NUMBERS:
        return _arrive_verdict(latest)
    if current := running or [row for row in rows if _is_held(row)]:
        turn = max(current[0].turn, turn_of(operation.number))
        later = next((row.uuid for row in rows if row.turn > turn and not _has_ended(row)), None)
        return msgspec.structs.replace(_arrive_verdict(current[0]), twin=later)
    if building := [row for row in rows if not _has_ended(row)]:
        return _undecided_verdict(f"its body {building[0].uuid} is being built: it is compared when that has come to its end")
    if not all(_is_leaving(row) for row in rows) or latest.power == Power.HELD:  # it may have been shelved since
        return OperationVerdict(fate=Fate.END, body=latest.uuid)
    return OperationVerdict(fate=Fate.DELETE)


def _outlived_body(operation: Operation, rows: Mapping[str, InstanceRow]) -> InstanceRow | None:
    """The row of the operation's source or twin that has ended, although the row does not show it; None if both or none may have.

    Neither has an operation of its own before the move has ended, and then one of them ends. So the one that had a later operation
    has outlived the other. A resize of number 4 that was reverted, then a soft delete::

        source  task_number 8  held    reported by its host, which has the guest
        twin    task_number 6  held    as in the backup: its guest was destroyed

    Only these two: the turn of a body that was adopted from its host is a guess.
    """
    pair = [rows.get(uuid or "") for uuid in (operation.source_uuid, operation.twin_uuid)]
    live = [row for row in pair if row is not None and not _has_ended(row)]
    ended = [row for row in live if row.task_number < operation.number + NUMBERS]
    return ended[0] if len(live) == len(pair) and len(ended) == 1 else None


def _source_of(current: InstanceRow, operation: Operation, rows: Iterable[InstanceRow]) -> InstanceRow | None:
    """The body that is held for this one by a later operation: that is not over, as a resize waits for its user."""
    number = current.turn * NUMBERS
    return next((row for row in rows if number > operation.number and _is_held(row) and row.task_number == number), None)


def latest_of(rows: Iterable[InstanceRow]) -> InstanceRow:
    """The body of a server that had the last operation. One that a move has made is later than the one that was held for it."""
    return max(rows, key=lambda row: (max(row.task_number, row.turn * NUMBERS), row.turn))


# -- a task ------------------------------------------------------------------------------------------------------------------------


def _of_task(opened: OpenOperation, seen: Seen) -> OperationVerdict:
    operation = opened.operation
    row = seen.rows.get(operation.source_uuid or "")
    if operation.state in (OperationState.TASK, OperationState.SHELVED) and _has_left(operation, row, seen):
        return OperationVerdict(fate=Fate.OFFLOAD)
    may_be_shelved = operation.kind is OperationKind.SHELVE and seen.image is not False
    if (row is None and _has_told_its_end(opened) and not may_be_shelved) or (row is not None and _is_leaving(row)):
        return OperationVerdict(fate=Fate.DELETE)
    if row is None:
        return _undecided_verdict("its cell has no row of its server: see 'superconductor verify'")
    if row.state is State.ERROR:
        return OperationVerdict(fate=Fate.END, body=row.uuid)
    return _resume_verdict(OperationState.STARTING if row.task_number > operation.number else operation.state)


def _has_told_its_end(opened: OpenOperation) -> bool:
    """Whether the cell has told that the source has ended under this operation. It may have purged the row since."""
    server = opened.source.server if opened.source is not None else None
    return server is not None and server.state == "deleted" and server.task_number < opened.operation.number + NUMBERS


def _has_left(operation: Operation, row: InstanceRow | None, seen: Seen) -> bool:
    """Whether the server was shelved, and has left its host. Then its snapshot is needed, and in the store."""
    if operation.kind is not OperationKind.SHELVE or seen.image is False:
        return False
    if row is None:
        return seen.image is True
    return _is_leaving(row) and (row.power, row.task_number, row.task_state) == (Power.HELD, operation.number, "done")


# -- a move ------------------------------------------------------------------------------------------------------------------------


def _of_move(opened: OpenOperation, seen: Seen) -> OperationVerdict:
    operation, number = opened.operation, opened.operation.number
    source, twin = seen.rows.get(operation.source_uuid or ""), seen.rows.get(operation.twin_uuid or "")
    was_on_host = opened.source is not None and opened.source.server.cell_uuid is not None
    source_ended = was_on_host and (source is None or _is_leaving(source))
    if twin is None or _has_ended(twin) or (opened.twin is not None and opened.twin.server.deleted):
        return _without_twin(opened, seen, source_ended=source_ended)
    if twin.may_run and source is not None and source.may_run:
        return _two_run(source, twin)
    if source_ended and (twin.may_run or _is_held(twin)):
        return _arrive_verdict(twin)
    if source is not None and source.may_run and source.task_number > number:  # the twin's host may have forgotten its guest
        return OperationVerdict(fate=Fate.RETURN)
    if _is_held(twin):
        return _resume_verdict(OperationState.REVERTING)
    has_sent = source_ended or twin.task_number > number or (source is not None and source.task_number >= number)
    if operation.kind is OperationKind.LIVE_MIGRATE and twin.state is State.ACTIVE and has_sent:
        return _resume_verdict(OperationState.SENDING)
    return _resume_verdict(_later_state(operation.state, OperationState.BUILDING))


def _without_twin(opened: OpenOperation, seen: Seen, *, source_ended: bool) -> OperationVerdict:
    """Of a move whose new body was not handed over, has ended, or is to."""
    operation = opened.operation
    source, twin = seen.rows.get(operation.source_uuid or ""), seen.rows.get(operation.twin_uuid or "")
    if source_ended and ((source is None and not _has_told_its_end(opened)) or (twin is not None and not _has_ended(twin))):
        return _undecided_verdict("its cells have no row of its server: see 'superconductor verify'")
    if source_ended or (operation.kind is OperationKind.UNSHELVE and seen.image is False):  # both have lost their disk
        return OperationVerdict(fate=Fate.DELETE)
    if source is not None and source.state is State.ERROR and operation.kind is not OperationKind.RESPAWN:
        return OperationVerdict(fate=Fate.END, body=source.uuid)
    if operation.state in (OperationState.UNDOING, OperationState.STARTING):
        return _resume_verdict(operation.state)
    is_back = source is not None and source.task_number > operation.number
    if twin is not None or is_back:
        return OperationVerdict(fate=Fate.RETURN)
    is_unneeded = operation.kind is OperationKind.EVACUATE and seen.is_host_back and source is not None and source.may_run
    if operation.state in (OperationState.PLACING, OperationState.HOLDING) and not is_unneeded:
        return _resume_verdict(operation.state)
    if source is None or source.may_run:  # the twin never had what the source has
        return OperationVerdict(fate=Fate.RETURN)
    return _undecided_verdict(f"the cell of its new body {operation.twin_uuid} has no row of it: see 'superconductor verify'")


def _later_state(state: OperationState, shown: OperationState) -> OperationState:
    """The later of two states; one that is not on its way stays."""
    if state not in FORWARD:
        return state
    return max(state, shown, key=FORWARD.index)
