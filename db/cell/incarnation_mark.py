"""The mark of the API database's incarnation, as a cell's database stores it (``db/api/rows/incarnation.py``)."""

from __future__ import annotations

import sqlalchemy as sa

from db.cell.tables import incarnation_seen
from db.sql.connection import CellTransaction
from db.sql.dialect import Upsert
from objects.base import Object


class KnownMark(Object, frozen=True, kw_only=True):
    """The incarnation and the highest mark of it that a cell's database stores."""

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


def read_mark(tx: CellTransaction) -> KnownMark | None:
    """The stored mark; None: this cell never received one."""
    row = tx.execute(_SEEN).one_or_none()
    return None if row is None else KnownMark(incarnation=row.incarnation, mark=row.mark)


def note_mark(tx: CellTransaction, current: KnownMark, *, anew: bool = False) -> bool:
    """Store this mark unless a later one is stored. False: refused, because the stored mark is of another incarnation.

    ``anew``: replace the mark of another incarnation.
    """
    before = read_mark(tx)
    if before is not None and before.incarnation != current.incarnation and not anew:
        return False
    if before is None or before.incarnation != current.incarnation or before.mark < current.mark:
        _NOTE(tx, [{"id": 1, "incarnation": current.incarnation, "mark": current.mark}])
    return True


def step_mark(tx: CellTransaction, current: KnownMark, confirmed: int) -> bool:
    """Store this mark if the stored one is ``confirmed``, which means that neither database was restored. Return whether it was."""
    return bool(tx.execute(_STEP, {"of": current.incarnation, "next": current.mark, "confirmed": confirmed}).rowcount)
