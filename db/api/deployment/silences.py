"""Cells that do not answer, as recorded by the conductors that read their feeds. Lists use these records."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import sqlalchemy as sa

from db.api.rows.tables import cell_silences, instance_mappings
from db.sql import dialect
from db.sql.connection import ApiTransaction
from db.sql.readable import convert_readable
from objects import text
from objects.base import Object


class Silence(Object, frozen=True, kw_only=True):
    """A cell whose database has not answered since ``since`` (seconds since the epoch), and the reason."""

    cell_uuid: str
    since: float
    reason: str


def read(tx: ApiTransaction) -> list[Silence]:
    """All cells that do not answer, by uuid."""
    query = sa.select(cell_silences).order_by(cell_silences.c.cell_uuid)
    return convert_readable(
        tx.execute(query), lambda r: Silence(cell_uuid=r.cell_uuid, since=r.since, reason=r.reason), cell_silences
    )


def begin_silences(tx: ApiTransaction, silences: Sequence[Silence]) -> None:
    """Record silences. An existing record keeps its time and reason."""
    rows = [{"cell_uuid": s.cell_uuid, "since": s.since, "reason": text.clean_text(s.reason, text.FAULT_SIZE)} for s in silences]
    dialect.insert_new(tx, cell_silences, sorted(rows, key=lambda row: str(row["cell_uuid"])))


def end_silences(tx: ApiTransaction, cell_uuids: Collection[str]) -> None:
    for cell_uuid in sorted(cell_uuids):
        tx.execute(sa.delete(cell_silences).where(cell_silences.c.cell_uuid == cell_uuid))


def list_concerned(tx: ApiTransaction, cell_uuids: Collection[str], project_id: str) -> set[str]:
    """The cells among these in which the project has servers."""
    query = sa.select(instance_mappings.c.cell_uuid).where(
        instance_mappings.c.project_id == project_id,
        instance_mappings.c.deleted == sa.false(),
        instance_mappings.c.hidden == sa.false(),
        instance_mappings.c.cell_uuid.in_(cell_uuids),
    )
    return set(tx.execute(query.distinct()).scalars())
