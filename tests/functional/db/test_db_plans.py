"""What PostgreSQL reads for a statement that it first saw when the table was empty."""

from __future__ import annotations

import time
import uuid
from pathlib import Path

import sqlalchemy as sa

from db.api.claims import claiming
from db.api.rows.tables import build_requests
from tests.support.databases import database_on

OFTEN = 15
"""The driver has a statement prepared after five executions, and the server may keep one plan for it after five more."""


def test_rows_of_long_queues_are_looked_up_unscanned(tmp_path: Path) -> None:
    uuids = sorted(str(uuid.uuid4()) for _ in range(20_000))
    read = sa.text("SELECT seq_tup_read FROM pg_stat_xact_user_tables WHERE relname = 'build_requests'")

    def look_up(tx: sa.Connection) -> int:
        for start in range(OFTEN):
            tx.execute(claiming._STANDING, {"uuids": uuids[start : start + 8]})
        return int(tx.execute(read).scalar_one())

    def grow(tx: sa.Connection) -> None:
        now = time.time()
        common = {"batch_id": "b", "state": "leased", "owner": "o", "lease_until": now, "fence": 1, "priority": 0}
        tx.execute(sa.insert(build_requests), [{"instance_uuid": u, "deadline": now, "created_at": now} | common for u in uuids])

    with database_on("postgresql", tmp_path, "api") as database:
        database.write(lambda tx: tx.execute(sa.text("ALTER TABLE build_requests SET (autovacuum_enabled = false)")))
        database.write(look_up)
        database.write(grow)

        assert database.write(look_up) == 0
