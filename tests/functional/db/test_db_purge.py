"""What was deleted long ago is forgotten everywhere, and nothing else is."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import pytest
import sqlalchemy as sa

from cells import administration
from cells.administration import CellChange
from db.api.reconcile import purge as api_purge
from db.api.rows import tables as api
from db.cell import purge as cell_purge
from db.cell import tables as cell
from db.sql.engine import Database
from tests.support.cell_databases import closed_port
from tests.support.commands import Shell
from tests.support.ground import CHOSEN, GROUNDS, on
from tests.support.world import World, world_fixture

cloud = world_fixture({"cell1": ["a1", "a2"]}, CHOSEN, embedded=True)


def remembered(database: Database, *tables: sa.Table) -> dict[str, set[str]]:
    """What each table still knows, by its first column."""
    found = {}
    for table in tables:
        column = next(iter(table.c)) if "instance_uuid" not in table.c else table.c.instance_uuid
        found[table.name] = set(database.read(_all, sa.select(column)))
    return found


def _all(tx: sa.Connection, query: sa.Select[Any]) -> Sequence[str]:
    return tx.execute(query).scalars().all()


def _change(tx: sa.Connection, statement: sa.Update) -> int:
    return tx.execute(statement).rowcount


@on("cloud", *GROUNDS)
def test_deleted_servers_are_forgotten_with_their_batches(cloud: World) -> None:
    cloud.start()
    gone, half, queued = cloud.accept(3), cloud.accept(2), cloud.accept(1)
    cloud.settle()
    kept, *rest = cloud.uuids(half)
    for uuid in (*cloud.uuids(gone), *rest, *cloud.uuids(queued)):
        cloud.delete(uuid)
    cloud.settle()

    ahead = time.time() + 60.0
    assert cloud.databases["cell1"].write(cell_purge.purge_rows, 0.0) == 0, "nothing was deleted so long ago"
    assert cloud.databases["cell1"].write(cell_purge.purge_rows, ahead) == 5
    assert cloud.databases["cell1"].write(cell_purge.purge_rows, ahead) == 0
    home = administration.find_cell(cloud.api, "cell1").uuid
    assert cloud.api.write(api_purge.purge_servers, 0.0, {home}) == 0
    assert cloud.api.write(api_purge.purge_servers, ahead, ()) == 0, "their cell was not purged"
    assert cloud.api.write(api_purge.purge_servers, ahead, {home}) == 5

    left = remembered(cloud.databases["cell1"], cell.builds, cell.instance_actions, cell.instance_faults)
    assert left == {"builds": {kept}, "instance_actions": set(), "instance_faults": set()}
    assert remembered(cloud.api, api.instance_mappings, api.request_specs) == {
        "instance_mappings": {kept},
        "request_specs": {half.batch_id},
    }
    assert [server.state for server in cloud.evidence().servers] == ["active"]


def test_the_command_counts_days_and_omits_unreachable_cells(cloud: World, capsys: pytest.CaptureFixture[str]) -> None:
    cloud.start()
    spec = cloud.accept(2)
    cloud.settle()
    old, _ = uuids = cloud.uuids(spec)
    for uuid in uuids:
        cloud.delete(uuid)
    cloud.settle()
    ago = time.time() - 3 * 86400.0
    for database, table, key in (
        (cloud.api, api.instance_mappings, api.instance_mappings.c.instance_uuid),
        (cloud.databases["cell1"], cell.instances, cell.instances.c.uuid),
    ):
        statement = sa.update(table).where(key == old).values(terminated_at=ago)
        database.write(_change, statement)

    file = cloud.folder.path / "purge.conf"
    file.write_text(f"[api_database]\nconnection = {cloud.folder.database_url('api')}\n")
    shell = Shell(cloud.folder.path, capsys)

    def purged(days: int) -> tuple[int, str]:
        outcome = shell.run(
            "--config-file", str(file), "db", "purge", "--days", str(days), "-f", "value", "-c", "Database", "-c", "Servers"
        )
        return outcome.status, outcome.out

    assert purged(4) == (0, "cell0 0\ncell1 0\napi 0\n")
    assert purged(2) == (0, "cell0 0\ncell1 1\napi 1\n")
    assert purged(2) == (0, "cell0 0\ncell1 0\napi 0\n")
    assert purged(0)[0] == 2, "a day at least"
    away = f"mysql+pymysql://sc:secret@127.0.0.1:{closed_port()}/cell"
    administration.change_cell(cloud.api, "cell1", CellChange(database_url=away))
    assert purged(2) == (1, "cell0 0\ncell1 None\napi 0\n")
