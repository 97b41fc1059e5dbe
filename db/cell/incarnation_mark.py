"""The mark of the API database's incarnation that a cell's database remembers (``db/api/incarnation.py``)."""

from __future__ import annotations

import sqlalchemy as sa

from db.cell.tables import incarnation_seen
from db.sql.connection import CellTransaction
from db.sql.upsert import Upsert
from objects.base import Object


class KnownMark(Object, frozen=True, kw_only=True):
    """What a cell's database was told last."""

    incarnation: str
    mark: int


_SEEN = sa.select(incarnation_seen).where(incarnation_seen.c.id == 1)
_NOTE = Upsert(incarnation_seen, key=["id"], replaced=["incarnation", "mark"])
_STEP = (
    sa.update(incarnation_seen)
    .where(
        incarnation_seen.c.id == 1,
        incarnation_seen.c.incarnation == sa.bindparam("of"),
        incarnation_seen.c.mark == sa.bindparam("confirmed"),
    )
    .values(mark=sa.bindparam("next"))
)


def seen(tx: CellTransaction) -> KnownMark | None:
    """None: this cell was never told."""
    row = tx.execute(_SEEN).one_or_none()
    return None if row is None else KnownMark(incarnation=row.incarnation, mark=row.mark)


def note(tx: CellTransaction, told: KnownMark, *, anew: bool = False) -> bool:
    """Remember this mark, unless a later one is known. ``anew``: of another incarnation too. Returns whether it is known now."""
    before = seen(tx)
    if before is not None and before.incarnation != told.incarnation and not anew:
        return False
    if before is None or before.incarnation != told.incarnation or before.mark < told.mark:
        _NOTE(tx, [{"id": 1, "incarnation": told.incarnation, "mark": told.mark}])
    return True


def step(tx: CellTransaction, told: KnownMark, confirmed: int) -> bool:
    """Remember this mark where the last one is what the cell has confirmed: neither database was restored. Else change nothing."""
    return bool(tx.execute(_STEP, {"of": told.incarnation, "next": told.mark, "confirmed": confirmed}).rowcount)
