"""Databases of an older schema: on MariaDB they come to count trailing blanks, and odd texts in them are mended on every server."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from db.api.deployment import host_mappings
from db.api.rows import tables as api
from db.api.servers import listing, mappings
from db.api.servers.listing import ServerQuery
from db.cell import staging
from db.cell import tables as cell
from db.sql.engine import Database
from db.sql.sync import Kind, sync
from objects import stored
from objects.cell import HostMapping
from objects.instance import Attempt, Failure, FailureClass, Instance, State
from objects.spec import RequestSpec, ServerProperties
from tests.support import fleet
from tests.support.conductor import Queue
from tests.support.databases import SERVERS, database_on, url_on

BEFORE: dict[Kind, str] = {"api": "0010", "cell": "0009"}
"""The schemas before."""
MENDED = "\N{REPLACEMENT CHARACTER}"


def odd_of(server: str) -> str:
    """A text that the server stores and that is not safe: PostgreSQL refuses a NUL as such, and takes it in JSON."""
    return "a\x1bb" if server == "postgresql" else "a\0\x1bb"


def insert(tx: sa.Connection, table: str, **values: Any) -> None:
    columns: list[sa.ColumnClause[Any]] = [sa.column(name) for name in values]
    tx.execute(sa.insert(sa.table(table, *columns)).values(values))


def collations(tx: sa.Connection) -> set[str]:
    of = "table_schema = DATABASE() AND table_name NOT LIKE 'schema_version%' AND"
    query = f"SELECT collation_name FROM information_schema.columns WHERE {of} collation_name IS NOT NULL"
    tables = f"SELECT table_collation FROM information_schema.tables WHERE {of} table_collation IS NOT NULL"
    return {str(name) for text in (query, tables) for name in tx.execute(sa.text(text)).scalars()}


@pytest.mark.parametrize("server", SERVERS)
def test_texts_of_the_api_database_are_mended_and_lists_answer(server: str, tmp_path: Path) -> None:
    odd = odd_of(server)
    metadata = {f"k{number}": f"{number}\0" for number in range(3)}
    spec = fleet.spec(properties=ServerProperties(metadata=metadata, description="\x1b", tags=("t\0",)), project_id="p1")
    with url_on(server, tmp_path) as url:
        sync(url, "api", BEFORE["api"])
        database = Database(url)

        def write(tx: sa.Connection) -> None:
            for number in range(1201):  # more than two pages; one in a hundred is odd
                batch = f"b{number:05}"
                text = stored.dump(spec if number % 100 == 0 else fleet.spec(project_id="p1"))
                insert(tx, "request_specs", batch_id=batch, spec=text, created_at=1.0)
            common = {"deleted": False, "fence": 0, "seen": 0, "project_id": "p1", "user_id": "u", "launch_index": 0}
            common |= {"created_at": 1.0, "updated_at": 1.0, "state": "error", "fault": odd, "name": odd}
            insert(tx, "instance_mappings", instance_uuid="u1", batch_id="b00100", **common)
            insert(tx, "decisions", id="d", batch_id="b", at=1.0, decision='{"x": "\\u0000"}')

        database.write(write)
        sync(url, "api")
        sync(url, "api")
        rows = database.read(lambda tx: tx.execute(sa.select(api.request_specs)).all())
        mended = [stored.load(row.spec, RequestSpec) for row in rows if int(row.batch_id[1:]) % 100 == 0]
        assert {one.properties.metadata["k1"] for one in mended} == {f"1{MENDED}"}
        assert {one.properties.tags for one in mended} == {(f"t{MENDED}",)}
        assert not any("\\u00" in row.spec for row in rows)
        for query in (
            ServerQuery(description=MENDED),
            ServerQuery(metadata=(("k1", f"1{MENDED}"),)),
            ServerQuery(tags=(f"t{MENDED}",)),
        ):
            [server_found] = database.read(listing.list_, query)
            assert server_found.name == server_found.fault == odd.replace("\0", MENDED).replace("\x1b", MENDED)
        decision = database.read(lambda tx: tx.execute(sa.select(api.decisions.c.decision)).scalar_one())
        assert decision == f'{{"x":"{MENDED}"}}'
        database.dispose()


@pytest.mark.parametrize("server", SERVERS)
def test_texts_of_a_cells_database_are_mended(server: str, tmp_path: Path) -> None:
    odd = odd_of(server)
    with url_on(server, tmp_path) as url:
        sync(url, "cell", BEFORE["cell"])
        database = Database(url)

        def write(tx: sa.Connection) -> None:
            common = {"state": "active", "fence": 1, "attempt": 1, "version": 1, "project_id": "p", "user_id": "u", "flavor": "f"}
            common |= {"launch_index": 0, "created_at": 1.0, "updated_at": 1.0}
            insert(tx, "instances", uuid="u1", name=odd, rolled_back=odd, **common)
            insert(tx, "instance_faults", instance_uuid="u1", code=500, message=odd, details='["\\u001b"]', created_at=1.0)
            for tag in ("ok", "a\x1b", "a\x07", "b\x1b"):
                insert(tx, "tags", instance_uuid="u1", tag=tag)
            insert(tx, "block_device_mappings", instance_uuid="u1", position=0, mapping='{"guest_format":"\\u0000"}')
            insert(tx, "block_device_mappings", instance_uuid="u1", position=1, mapping='{"guest_format":"ext4"}')

        database.write(write)
        sync(url, "cell")
        mended = odd.replace("\0", MENDED).replace("\x1b", MENDED)
        row = database.read(lambda tx: tx.execute(sa.select(cell.instances)).one())
        assert row.name == row.rolled_back == mended
        fault = database.read(lambda tx: tx.execute(sa.select(cell.instance_faults)).one())
        assert (fault.message, fault.details) == (mended, f'["{MENDED}"]')
        tags = database.read(lambda tx: tx.execute(sa.select(cell.tags.c.tag)).scalars().all())
        assert sorted(tags) == [f"a{MENDED}", f"b{MENDED}", "ok"]
        devices = database.read(lambda tx: tx.execute(sa.select(cell.block_device_mappings.c.mapping)).scalars().all())
        assert sorted(devices) == ['{"guest_format":"ext4"}', f'{{"guest_format":"{MENDED}"}}']
        database.dispose()


@pytest.mark.parametrize("kind", ["api", "cell"])
def test_a_mariadb_of_an_older_schema_comes_to_count_trailing_blanks(kind: Kind, tmp_path: Path) -> None:
    """Also after a run that was interrupted between two tables, and for tables that are made new."""
    with url_on("mariadb", tmp_path) as url:
        database = Database(url)

        def older(tx: sa.Connection) -> None:
            for name in sa.inspect(tx).get_table_names():
                if not name.startswith("schema_version"):
                    tx.exec_driver_sql(f"ALTER TABLE {name} CONVERT TO CHARACTER SET utf8mb4 COLLATE utf8mb4_bin")

        sync(url, kind, BEFORE[kind])
        assert database.read(collations) == {"utf8mb4_nopad_bin"}, "a new database has it from its first table"
        database.write(older)
        half = "host_mappings" if kind == "api" else "services"
        database.write(
            lambda tx: tx.exec_driver_sql(f"ALTER TABLE {half} CONVERT TO CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin")
        )
        assert database.read(collations) == {"utf8mb4_bin", "utf8mb4_nopad_bin"}
        sync(url, kind)
        assert database.read(collations) == {"utf8mb4_nopad_bin"}
        database.dispose()


def test_work_beside_the_conversion_waits_and_does_not_fail(tmp_path: Path) -> None:
    """Two tables of different collations cannot be joined: nobody may meet a database that is half converted."""
    with url_on("mariadb", tmp_path) as url:
        sync(url, "cell", BEFORE["cell"])
        database = Database(url)

        def older(tx: sa.Connection) -> None:
            for name in sa.inspect(tx).get_table_names():
                if not name.startswith("schema_version"):
                    tx.exec_driver_sql(f"ALTER TABLE {name} CONVERT TO CHARACTER SET utf8mb4 COLLATE utf8mb4_bin")

        database.write(older)
        joined = sa.select(cell.instances.c.uuid).select_from(
            cell.instances.join(cell.builds, cell.builds.c.instance_uuid == cell.instances.c.uuid)
        )
        stop, failed, done = threading.Event(), list[Exception](), [0]

        def work() -> None:
            while not stop.is_set():
                try:
                    database.read(lambda tx: tx.execute(joined).all())
                except Exception as error:  # noqa: BLE001 - returned to the test
                    failed.append(error)
                done[0] += 1

        thread = threading.Thread(target=work)
        thread.start()
        sync(url, "cell")
        before = done[0]
        give_up = time.monotonic() + 30.0
        while done[0] <= before and time.monotonic() < give_up:
            time.sleep(0.01)
        stop.set()
        thread.join()
        assert failed == []
        database.dispose()


PAIRS = [("a", "a "), ("a", "A"), ("é", "e\u0301"), ("ß", "ss"), ("a", "a\u200b"), ("\uff41", "a")]


@pytest.mark.parametrize("server", SERVERS)
def test_texts_that_differ_are_two_keys_on_every_server(server: str, tmp_path: Path) -> None:
    tags = tuple(dict.fromkeys(tag for pair in PAIRS for tag in pair))
    spec = fleet.spec(properties=ServerProperties(tags=tags))
    new = staging.NewInstance(instance=Instance(uuid="u1", state=State.STAGED, fence=1), name="n", launch_index=0, created_at=1.0)
    with database_on(server, tmp_path, "cell") as database:
        assert database.write(staging.stage, spec, [new], 1.0) == ["u1"]
        assert set(database.read(lambda tx: tx.execute(sa.select(cell.tags.c.tag)).scalars())) == set(tags)
    with database_on(server, tmp_path, "api") as database:
        hosts = [HostMapping(host=host, cell_uuid="c1") for host in tags]
        assert database.write(host_mappings.add, hosts, 1.0) == []
        assert {mapping.host for mapping in database.read(host_mappings.list_all)} == set(tags)


@pytest.mark.parametrize("server", SERVERS)
def test_lists_tell_texts_apart_that_differ(server: str, tmp_path: Path) -> None:
    texts = tuple(dict.fromkeys(text for pair in PAIRS for text in pair))
    with database_on(server, tmp_path, "api") as database:
        queue = Queue(database)
        for text in texts:
            queue.accept(1, properties=ServerProperties(key_name=text, tags=(text,), metadata={"k": text, text: "v"}))
        for text in texts:
            for query in (
                ServerQuery(key_name=text),
                ServerQuery(tags=(text,)),
                ServerQuery(metadata=(("k", text),)),
                ServerQuery(metadata=((text, "v"),)),
            ):
                [found] = database.read(listing.list_, query)
                spec = database.read(mappings.specs, [found.batch_id])[found.batch_id]
                assert spec.properties.key_name == text, query


def test_mariadb_stores_the_longest_history(tmp_path: Path) -> None:
    failure = Failure(kind=FailureClass.HOST, error="E" * 255, message="\n" * 100, at=1.0)
    history = tuple(Attempt(number=n, host="h" * 255, node="n" * 255, failure=failure) for n in range(200))
    row = Instance(uuid="u1", state=State.ERROR, fence=1, fault="x", history=history)
    new = staging.NewInstance(instance=row, name="n", launch_index=0, created_at=1.0)
    with database_on("mariadb", tmp_path, "cell") as database:
        database.write(staging.stage, fleet.spec(), [new], 1.0)
        details = database.read(lambda tx: tx.execute(sa.select(cell.instance_faults.c.details)).scalar_one())
        assert len(details) > 65_535
        assert stored.load(details, tuple[Attempt, ...]) == history


def test_updates_of_many_rows_find_their_index_on_mariadb(tmp_path: Path) -> None:
    """Their constants have the collation of the connection."""
    statement = (
        "EXPLAIN UPDATE (SELECT 'u1' AS row_uuid, 5 AS to_fence UNION ALL SELECT 'u2', 6) AS w STRAIGHT_JOIN instances AS t "
        "FORCE INDEX FOR JOIN (PRIMARY) ON t.uuid = w.row_uuid SET t.fence = w.to_fence WHERE t.fence < 9"
    )
    with database_on("mariadb", tmp_path, "cell") as database:
        plan = database.write(lambda tx: tx.exec_driver_sql(statement).mappings().all())
        assert [(row["table"], row["type"], row["key"]) for row in plan if row["table"] == "t"] == [("t", "eq_ref", "PRIMARY")]
