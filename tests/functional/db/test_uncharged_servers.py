"""Servers that a process of an older release has not charged for are charged by a repair or an online migration."""

from __future__ import annotations

from pathlib import Path

import pytest
import sqlalchemy as sa

from db import online
from db.api.claims import claims
from db.api.projects import quotas
from db.api.queue import builds
from db.api.servers import mappings
from db.audit import quotas as quota_audit
from db.sql.connection import Connection
from db.sql.engine import Database
from db.sql.sync import sync_schema
from objects import stored
from objects.quota import QuotaUsage
from tests.support import fleet
from tests.support.conductor import NOW
from tests.support.databases import SERVERS, database_on, url_on

SIZES = (fleet.flavor(vcpus=1, memory_mb=256), fleet.flavor(vcpus=4, memory_mb=2048))

_SPEC = sa.text("INSERT INTO request_specs (batch_id, spec, created_at) VALUES (:batch, :spec, 1.0)")
_MAPPING = sa.text(
    "INSERT INTO instance_mappings (instance_uuid, batch_id, cell_uuid, deleted, fence, seen, project_id, user_id, name,"
    " launch_index, created_at, state, updated_at)"
    " VALUES (:uuid, :batch, :cell, :deleted, 1, 0, :project, 'u', 'web', 0, 1.0, :state, 1.0)"
)
"""As the release before wrote them, and goes on writing them until its processes are replaced."""


def fill(tx: Connection, batches: range, project: str = "") -> None:
    """Of every batch one server that lives, or ended in ERROR, or is deleted but not yet gone, in two sizes and projects."""
    for n in batches:
        spec = fleet.spec(size=SIZES[n % 2], batch_id=f"b{n:03}", project_id=project or f"p{n % 4 // 2}")
        state = ("active", "error", "building")[n % 3]
        row = {"uuid": f"u{n:03}", "batch": spec.batch_id, "cell": "cell1" if n % 5 else None, "project": spec.project_id}
        tx.execute(_SPEC, {"batch": spec.batch_id, "spec": stored.dump_value(spec)})
        tx.execute(_MAPPING, row | {"deleted": n % 3 == 2, "state": state})


@pytest.mark.parametrize("server", SERVERS)
def test_a_repair_charges_servers_of_the_previous_release(server: str, tmp_path: Path) -> None:
    with url_on(server, tmp_path) as url:
        sync_schema(url, "api")
        database = Database(url)
        database.write(fill, range(6), "p")
        assert {m.uuid for m in database.read(mappings.list_, mappings.ServerQuery())} == {"u000", "u001", "u003", "u004"}
        assert [drift.project_id for drift in database.read(quota_audit.list_differences)] == ["p"]
        (repaired,) = database.write(quota_audit.repair_charges, "p")
        assert repaired.counted == database.read(quotas.get, "p").used == QuotaUsage(instances=4, cores=10, ram=4608)
        assert database.read(quota_audit.list_differences) == []
        database.dispose_connections()


@pytest.mark.parametrize("server", SERVERS)
def test_the_online_migration_charges_for_them_in_batches(server: str, tmp_path: Path) -> None:
    migration = next(migration for migration in online.migrations_of("api") if migration.name == "charge-older-servers")
    with database_on(server, tmp_path, "api") as database:
        database.write(fill, range(40))
        assert database.read(migration.count_left) == 27
        assert online.run(database, migration, 5) == 5
        assert online.run(database, migration, 4) == 4
        assert database.read(migration.count_left) == 18
        assert claims.Ledger(database, "test").write(builds.delete, "u000", project_id=None, now=NOW) is not None
        online.run(database, migration)
        assert online.run(database, migration) == database.read(migration.count_left) == 0
        assert database.read(quota_audit.list_differences) == []
        used = {quota.project_id: quota.used.instances for quota in database.read(quotas.list_all)}
        assert sum(used.values()) == 26
