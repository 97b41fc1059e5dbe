"""Adopt a guest that the cell's records do not account for: create its row again, or update the row to match the guest."""

from __future__ import annotations

from db.cell import instances, row_repair, staging, tasks, unknown_guests
from db.cell.unknown_guests import Reported
from db.sql.connection import CellTransaction
from objects import lifecycle
from objects.base import Object
from objects.instance import Instance, State
from objects.lifecycle import Change, Outcome
from objects.spec import RequestSpec
from objects.task import Power, TaskState


class Lost(Object, frozen=True, kw_only=True):
    """Data from the API level to create a missing row: the batch's spec, the server's own fields, and those of its body."""

    spec: RequestSpec
    name: str
    launch_index: int = 0
    created_at: float
    server_uuid: str | None = None
    turn: int = 0


class Told(Object, frozen=True, kw_only=True):
    """What the API level knows of the instance: the last version that it has applied, and the latest task that the cell told."""

    seen: int = 0
    number: int = 0
    power: Power = Power.ON
    state: TaskState = TaskState.DONE
    fault: str | None = None


def adopt_guest(tx: CellTransaction, reported: Reported, lost: Lost | None, told_state: Told, now: float) -> Outcome:
    """Assign the guest to the instance and append to the feed; refused if the row does not allow it (``lifecycle.adopt_guest``).

    ``lost``: to create the row from if it is missing.
    """
    guest = reported.guest
    if lost is not None:
        row = Instance(
            uuid=guest.uuid,
            state=State.STAGED,
            fence=guest.fence,
            attempt=guest.attempt,
            host=reported.host,
            node=guest.node,
            max_attempts=lost.spec.max_attempts,
            server_uuid=lost.server_uuid,
            turn=lost.turn,
        )
        new = staging.NewInstance(instance=row, name=lost.name, launch_index=lost.launch_index, created_at=lost.created_at)
        staging.replace_lost(tx, lost.spec, new, now)

    def decide_adoption(row: Instance) -> Outcome:
        about = (row, reported.host, guest, now)
        return lifecycle.adopt_guest(
            *about, number=told_state.number, power=told_state.power, state=told_state.state, fault=told_state.fault
        )

    outcome = instances.transition_rows(tx, [guest.uuid], decide_adoption, now)[guest.uuid]
    if isinstance(outcome, Change):
        tasks.forget_tasks(tx, [guest.uuid])
        row_repair.retell_rows(tx, {guest.uuid: row_repair.Read(version=outcome.row.version, seen=told_state.seen)}, now)
    if isinstance(outcome, Change) or outcome.done:
        unknown_guests.remove_guest(tx, guest.uuid)
    return outcome
