"""Bodies that a restored API database does not know to have been shelved: a tombstone in a cell, and a snapshot."""

from __future__ import annotations

from conductor.audit.places import Places
from db.audit import cell_rows
from objects import errors
from objects.base import Object
from objects.instance import State
from objects.instance_row import InstanceRow, TombstoneSnapshot
from objects.task import Power

SHELVED_SINCE = "server shelved in its cell only"


class FoundSnapshot(Object, frozen=True, kw_only=True):
    """``is_saved``: whether the image store has it. If not, the server was deleted or unshelved since."""

    snapshot: TombstoneSnapshot
    is_saved: bool


def snapshot_of(places: Places, cell_uuid: str, row: InstanceRow) -> FoundSnapshot | None:
    """None: the body was not shelved, or nothing is known of its snapshot."""
    if row.state is not State.DELETED or row.power != Power.HELD or places.images is None:
        return None
    snapshot = (places.read_cell(cell_uuid, cell_rows.snapshots_of, [row.uuid]) or {}).get(row.uuid)
    if snapshot is None:
        return None
    try:
        return FoundSnapshot(snapshot=snapshot, is_saved=places.images.has_snapshot(snapshot.image_id))
    except errors.ServiceUnavailable as error:
        places.unknown["images"] = str(error)
        return None
