"""Remove user data from stored request specs: releases before 0002 kept it there, readable."""

from __future__ import annotations

import json

import sqlalchemy as sa
from alembic import op

SCRUB_PAGE_SIZE = 200
_MARK = '%"user_data":"%'


def remove_user_data(table: str, key: str) -> None:
    """Rewrite the specs of ``table`` that hold some; repeatable. What it was for is lost: no driver of those releases used it."""
    specs = sa.table(table, sa.column(key, sa.String), sa.column("spec", sa.Text))
    tx, after = op.get_bind(), ""
    query = (
        sa.select(specs)
        .where(specs.c.spec.like(_MARK), specs.c[key] > sa.bindparam("after"))
        .order_by(specs.c[key])
        .limit(SCRUB_PAGE_SIZE)
    )
    write = sa.update(specs).where(specs.c[key] == sa.bindparam("row")).values(spec=sa.bindparam("scrubbed"))
    while rows := tx.execute(query, {"after": after}).all():
        tx.execute(write, [{"row": row[0], "scrubbed": _scrubbed(row[1])} for row in rows])
        after = rows[-1][0]


def _scrubbed(text: str) -> str:
    spec = json.loads(text)
    spec.get("properties", {}).pop("user_data", None)
    return json.dumps(spec, separators=(",", ":"), ensure_ascii=False)
