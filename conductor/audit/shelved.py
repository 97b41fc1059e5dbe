"""Bodies that a restored API database does not know to have been shelved: a tombstone in a cell, and a snapshot."""

from __future__ import annotations

from conductor.audit.places import Places
from db.audit import cell_rows
from objects import errors
from objects.base import Object
from objects.instance import State
from objects.instance_row import InstanceRow
from objects.task import Power, TaskState

SHELVED_SINCE = "server shelved in its cell only"


class TombstoneSnapshot(Object, frozen=True, kw_only=True):
    """Of a body's last task, ``number``. ``is_saved``: whether the image store has it; without, the server was deleted."""

    number: int
    image_id: str
    is_saved: bool


def snapshot_of(places: Places, cell_uuid: str, row: InstanceRow) -> TombstoneSnapshot | None:
    """None: the body was not shelved, or nothing is known of its snapshot."""
    if row.state is not State.DELETED or row.power != Power.HELD or row.task_state != TaskState.DONE or places.images is None:
        return None
    number, image_id = (places.ask(cell_uuid, cell_rows.snapshots_of, [row.uuid]) or {}).get(row.uuid, (0, ""))
    if not image_id or number != row.task_number:
        return None
    try:
        return TombstoneSnapshot(number=number, image_id=image_id, is_saved=places.images.exists(image_id))
    except errors.ServiceUnavailable as error:
        places.unknown["images"] = str(error)
        return None
