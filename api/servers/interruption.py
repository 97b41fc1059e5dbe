"""End the open operation of a server that is evacuated: its host is dead, so the operation may never end by itself."""

from __future__ import annotations

import time

from api.http.call import Call
from api.lookup.doorbell import WakeupSender
from db.api.claims.claims import Ledger
from db.api.operations import operations, steps
from objects import errors
from objects.operation import Operation, OperationKind, OperationState

INTERRUPTION_WAIT_S = 10.0
"""Seconds that an evacuation waits for the end of the operation before it. Cells answer within one or two."""
BUILDING_PATIENCE_S = 5.0
"""Seconds for which a twin that is being built may become the server: it may have the disk that an evacuation loses."""
POLL_INTERVAL_S = 0.1

FAULT = "The server's host was called dead."

_DECIDED_BY_ACCEPT = (OperationState.SHELVED, OperationState.SOFT_DELETED)


def is_left_to_accept(operation: Operation) -> bool:
    """Whether ``accept`` of an evacuation ends this open operation itself, or refuses the evacuation."""
    if operation.unreadable or operation.kind is OperationKind.EVACUATE:
        return True
    return operation.waits_for_host or operation.state in _DECIDED_BY_ACCEPT


class Interruption:
    """Takes the steps that operators and sweeps take for moves of dead hosts. ``docs/moves.md`` has their guards."""

    def __init__(self, ledger: Ledger, doorbell: WakeupSender) -> None:
        self._ledger = ledger
        self._database = ledger.database
        self._doorbell = doorbell

    def end_operation(self, call: Call, first: Operation, *, source_is_down: bool, to: str | None) -> bool:
        """End this open operation of the server whose host is dead; wait some seconds. Returns whether it has ended.

        A server whose resize waits for its user goes back to its old host, which has its disk, unless that one is down too.
        ``to``: the host that the server is to be evacuated to. Raises errors.Conflict if it would have to go back instead.
        """
        begun = time.monotonic()
        opened: Operation | None = first
        while opened is not None and opened.uuid == first.uuid and time.monotonic() - begun < INTERRUPTION_WAIT_S:
            is_patient = time.monotonic() - begun < BUILDING_PATIENCE_S
            if opened.state is OperationState.VERIFY and not source_is_down and to is not None:
                hint = f"its disk is on host {opened.source_host}: revert its {opened.kind}, or evacuate it without a host"
                raise errors.Conflict(f"Cannot 'evacuate' instance {opened.server_uuid} to host {to}: {hint}")
            if opened.state is not OperationState.BUILDING or not is_patient:
                self._take_step(call, opened, source_is_down=source_is_down)
            time.sleep(POLL_INTERVAL_S)
            opened = self._database.read(operations.open_for, [first.server_uuid]).get(first.server_uuid)
        return opened is None or opened.uuid != first.uuid

    def _take_step(self, call: Call, opened: Operation, *, source_is_down: bool) -> None:
        uuids, now = [opened.uuid], self._database.current_time()
        match opened.state:
            case OperationState.PLACING | OperationState.HOLDING | OperationState.BUILDING:
                done = self._ledger.write(steps.give_up, {opened.uuid: FAULT}, now)
            case OperationState.SENDING:
                done = self._database.write(steps.recall_migrations, uuids, now)
            case OperationState.VERIFY if source_is_down:
                done = self._ledger.write(steps.confirm_moves, uuids, now)
            case OperationState.VERIFY:
                done = self._database.write(steps.revert_moves, uuids, now)
            case OperationState.REVERTING:  # the evacuation calls the twin's host dead
                done = self._ledger.write(steps.point_back, uuids, uuids, now)
            case _:  # the sweep goes on without the host
                return
        if done.deleted:
            self._doorbell.ring_for_deleted(call.context, done.deleted)
        if done.operations:
            self._doorbell.ring_for_operation(call.context, opened.uuid)
