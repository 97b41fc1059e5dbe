"""``db restored``: what an operator says after a restore, and what its exit status says."""

from __future__ import annotations

from pathlib import Path

import pytest
import sqlalchemy as sa

from cells.administration import CellChange, change_cell, list_cells
from cells.registry import CellRegistry, RegistrySettings
from conductor.restored import RestoreWatch
from db.api.claims.claims import Ledger
from db.api.queue import leases
from db.api.rows import incarnation, tables
from db.api.rows.incarnation import Known
from db.cell import incarnation_mark
from db.cell.incarnation_mark import KnownMark
from db.sql.counting import StatementCounter
from tests.functional.cli.test_cli_instance import Site, uuid
from tests.support import fleet
from tests.support.accepted import accept_batch
from tests.support.commands import Shell
from tests.support.conductor import servers
from tests.support.databases import closed_port

NAME = tables.cell_mappings.c.name


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


@pytest.fixture
def shell(site: Site, capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(site.cells.folder, capsys)


def lost(site: Site, shell: Shell) -> None:
    """A server that runs in east is queued again, and one is not known."""
    site.activate("east", 1, 2)
    shell.done("-q instance map east")
    site.set(1, cell_uuid=None)
    site.queue(1)
    table = tables.instance_mappings
    site.cells.api.write(lambda tx: tx.execute(sa.delete(table).where(table.c.instance_uuid == uuid(2))))


def leasing(site: Site) -> bool:
    found = site.cells.api.read(incarnation.read)
    return found is not None and not found.comparing


def test_what_runs_is_adopted(site: Site, shell: Shell) -> None:
    lost(site, shell)
    shown = {row["Cell"]: row["Servers adopted"] for row in shell.json("db restored --api")}
    assert shown == {"cell0": 0, "east": 2, "west": 0}
    assert site.mapped() == {uuid(1): site.uuids["east"], uuid(2): site.uuids["east"]}
    assert leasing(site)
    assert {row["Servers adopted"] for row in shell.json("db restored --api")} == {0}


def test_a_silent_cell_is_awaited_or_omitted(site: Site, shell: Shell) -> None:
    lost(site, shell)
    change_cell(site.cells.api, "west", CellChange(database_url=f"mysql+pymysql://sc:x@127.0.0.1:{closed_port()}/west"))
    refused = shell("db restored --api")
    assert refused.status == 3
    assert "west" in refused.err
    assert not leasing(site)
    assert {row["Cell"] for row in shell.json("db restored --api --without west")} == {"cell0", "east"}
    assert leasing(site)
    assert site.mapped() == {uuid(1): site.uuids["east"], uuid(2): site.uuids["east"]}


def test_a_cell_with_an_unusable_url_is_omitted(site: Site, shell: Shell) -> None:
    lost(site, shell)
    site.cells.api.write(lambda tx: tx.execute(sa.update(tables.cell_mappings).where(NAME == "west").values(database_url="no url")))
    refused = shell("db restored --api")
    assert refused.status == 3
    assert "cell 'west' cannot be used" in refused.err
    assert not leasing(site)
    done = shell("db restored --api --without west -f value -c Cell")
    assert (done.status, done.out.split()) == (0, ["cell0", "east"])
    assert leasing(site)


def test_a_silent_restored_cell_sets_the_exit_status(site: Site, shell: Shell) -> None:
    change_cell(site.cells.api, "west", CellChange(database_url=f"mysql+pymysql://sc:x@127.0.0.1:{closed_port()}/west"))
    refused = shell("db restored --cell west")
    assert refused.status == 3
    assert "west" in refused.err
    assert "repeat this when it answers" in refused.err


def test_a_cell_tells_its_rows_again(site: Site, shell: Shell) -> None:
    site.activate("east", 1)
    shell.done("-q instance map east")
    site.set(1, seen=1000)
    assert shell.json("db restored --cell east") == [{"Cell": "east", "Rows told again": 1}]
    assert shell("db restored --cell east --without west").status == 1
    assert shell("db restored").status == 2


def test_a_lease_must_match_the_incarnation(site: Site) -> None:
    """Whoever has seen a later mark, or another incarnation, leases nothing; nor does anybody while it is compared."""
    database = site.cells.api
    now = database.write(incarnation.advance_mark)
    assert leased(site, Known(uuid=now.uuid, mark=now.mark)) == 1
    assert leased(site, Known(uuid=now.uuid, mark=now.mark + 1)) == 0
    assert leased(site, Known(uuid=str(uuid(7)), mark=now.mark)) == 0
    assert leased(site, None) == 1
    database.write(incarnation.close, now.uuid, "a test says so")
    assert leased(site, None) == 0
    assert not database.write(incarnation.close, now.uuid, "again"), "fences rise once"


def leased(site: Site, known: Known | None) -> int:
    site.cells.api.write(lambda tx: [tx.execute(sa.delete(t)) for t in (tables.build_requests, tables.instance_mappings)])
    site.cells.api.write(lambda tx: tx.execute(sa.delete(tables.request_specs)))
    spec = fleet.spec()
    site.cells.api.write(accept_batch, spec, servers(1), now=1.0, deadline=1e12)
    return len(site.cells.api.write(leases.lease_batches, "one", [spec.batch_id], 10.0, 30.0, known))


def test_a_cell_has_its_incarnations_highest_mark(site: Site) -> None:
    database = site.database("east")
    first, other = str(uuid(1)), str(uuid(2))
    assert database.write(incarnation_mark.note_mark, KnownMark(incarnation=first, mark=5))
    assert database.write(incarnation_mark.note_mark, KnownMark(incarnation=first, mark=3))
    assert not database.write(incarnation_mark.note_mark, KnownMark(incarnation=other, mark=9))
    assert database.read(incarnation_mark.read_mark) == KnownMark(incarnation=first, mark=5)
    assert database.write(incarnation_mark.note_mark, KnownMark(incarnation=other, mark=1), anew=True)
    assert database.read(incarnation_mark.read_mark) == KnownMark(incarnation=other, mark=1)


def test_a_mark_rises_only_where_nothing_was_restored(site: Site) -> None:
    database = site.database("east")
    mine, other = str(uuid(1)), str(uuid(2))
    assert not database.write(incarnation_mark.step_mark, KnownMark(incarnation=mine, mark=5), 4), "it was never told"
    database.write(incarnation_mark.note_mark, KnownMark(incarnation=mine, mark=4))
    later = KnownMark(incarnation=mine, mark=5)
    for told, confirmed in ((KnownMark(incarnation=other, mark=5), 4), (later, 3), (later, 5)):
        assert not database.write(incarnation_mark.step_mark, told, confirmed)
    assert database.read(incarnation_mark.read_mark) == KnownMark(incarnation=mine, mark=4)
    assert database.write(incarnation_mark.step_mark, later, 4)
    assert database.read(incarnation_mark.read_mark) == later


def test_one_of_the_super_conductors_tells_the_cells(site: Site) -> None:
    """Who raised the mark compares it with the cells; the others read one row while that mark is young."""
    database = site.cells.api
    registry = CellRegistry(database, RegistrySettings(poll_interval=3600.0))
    first, second = (RestoreWatch(database, Ledger(database, name), registry) for name in ("first", "second"))
    first.watch_marks()
    second.watch_marks()
    with StatementCounter() as counter:
        second.watch_marks()
    assert {name: each.executions for name, each in counter.totals_by_database().items()} == {"api": 1}
    assert second.known == first.known
    assert {mapping.name for mapping in list_cells(site.cells.api)} == {"cell0", "east", "west"}
    registry.close()
