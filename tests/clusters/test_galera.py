"""Two nodes of a Galera cluster get transactions at once: locks mean what they mean on one server, and no commit is lost."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

import service.opts
from cli.databases import connecting
from db.api.rows import incarnation
from db.sql import galera as nodes
from db.sql.engine import Database
from db.sql.sync import sync_schema
from deploy.galera import GaleraTwoWriters
from objects import errors
from service import config
from service.periodic import wait_until
from tests.support.threads import run_threads

PATIENCE = 60.0
GUARDS, CHILDREN_PER_WRITER = 100, 6
_LOCK = sa.text("SELECT is_open FROM guards WHERE id = :guard FOR UPDATE")
_IS_OPEN = sa.text("SELECT is_open FROM guards WHERE id = :guard")
_ADD = sa.text("INSERT INTO children (id, guard) VALUES (:id, :guard)")
_COUNT = sa.text("SELECT count(*) FROM children WHERE guard = :guard")
_CLOSE = sa.text("UPDATE guards SET is_open = 0, counted = :counted WHERE id = :guard")


@pytest.fixture(scope="module")
def urls(galera: GaleraTwoWriters) -> list[str]:
    """Of one database, at each node."""
    url = galera.create_database("api", "api", "secret")
    sync_schema(url, "api")
    return [url.replace(f":{galera.port}/", f":{node.port}/") for node in galera.cluster_nodes]


@pytest.fixture
def writers(urls: list[str]) -> Iterator[list[Database]]:
    made = [Database(url, name=f"node{number}") for number, url in enumerate(urls)]
    yield made
    for database in made:
        database.dispose_connections()


def new_guards(tx: sa.Connection) -> None:
    for table in ("guards", "children"):
        tx.exec_driver_sql(f"DROP TABLE IF EXISTS {table}")
    tx.exec_driver_sql("CREATE TABLE guards (id INT PRIMARY KEY, is_open INT, counted INT) ENGINE=InnoDB")
    tx.exec_driver_sql("CREATE TABLE children (id BIGINT PRIMARY KEY, guard INT, KEY (guard)) ENGINE=InnoDB")
    tx.execute(sa.text("INSERT INTO guards VALUES (:id, 1, 0)"), [{"id": number} for number in range(GUARDS)])


def lock(tx: sa.Connection, guard: int) -> None:
    tx.execute(_LOCK, {"guard": guard}).one()
    nodes.compare_locks(tx, "guard", [str(guard)])


def add(tx: sa.Connection, guard: int, number: int) -> bool:
    """Adds where the guard is open. It locks the guard and leaves it unchanged."""
    lock(tx, guard)
    if not tx.execute(_IS_OPEN, {"guard": guard}).scalar_one():
        return False
    tx.execute(_ADD, {"id": guard * 10_000 + number, "guard": guard})
    return True


def close(tx: sa.Connection, guard: int) -> None:
    lock(tx, guard)
    tx.execute(_CLOSE, {"guard": guard, "counted": tx.execute(_COUNT, {"guard": guard}).scalar_one()})


def test_no_node_adds_what_another_one_has_closed(writers: list[Database]) -> None:
    writers[0].write(new_guards)
    chance = random.Random(1)

    def adding(node: int, guard: int) -> Callable[[], None]:
        def run() -> None:
            for number in range(CHILDREN_PER_WRITER):
                if not writers[node].write(add, guard, node * 1000 + number):
                    return

        return run

    for guard in range(GUARDS):
        threads = [threading.Thread(target=adding(node, guard)) for node in (0, 1)]
        for thread in threads:
            thread.start()
        threading.Event().wait(chance.random() * 0.03)
        writers[chance.randrange(2)].write(close, guard)
        for thread in threads:
            thread.join()
    late = sa.text("SELECT count(*) FROM guards WHERE counted <> (SELECT count(*) FROM children WHERE guard = guards.id)")
    assert writers[1].read(lambda tx: tx.execute(late).scalar_one()) == 0
    assert writers[1].read(lambda tx: tx.execute(sa.text("SELECT count(*) FROM children")).scalar_one()) > GUARDS


def test_counts_of_two_nodes_add_up(writers: list[Database]) -> None:
    """Each transaction reads the count, and writes it plus one: many are refused at their commits, and run again.

    On a busy machine one of the three nodes may lose so often that it is given up as busy. Its caller then asks again.
    """
    writers[0].write(new_guards)
    read, write = sa.text("SELECT counted FROM guards WHERE id = 0"), sa.text("UPDATE guards SET counted = :more WHERE id = 0")

    def raise_(tx: sa.Connection) -> None:
        tx.execute(sa.text("SELECT id FROM guards WHERE id = 0 FOR UPDATE")).one()
        tx.execute(write, {"more": tx.execute(read).scalar_one() + 1})

    def raised(database: Database) -> bool:
        try:
            database.write(raise_)
        except errors.DatabaseUnavailable as error:
            if "stays busy" not in str(error):
                raise
            return False
        return True

    def work(database: Database) -> None:
        for _ in range(50):
            while not raised(database):
                pass

    run_threads([threading.Thread(target=work, args=(database,)) for database in writers])
    assert writers[2].read(lambda tx: tx.execute(read).scalar_one()) == 50 * len(writers)


def test_a_node_sees_commits_of_another_at_once(writers: list[Database]) -> None:
    writers[0].write(new_guards)
    for number in range(100):
        writers[0].write(lambda tx, n: tx.execute(sa.text("UPDATE guards SET counted = :n WHERE id = 1"), {"n": n}), number)
        seen = writers[1].read(lambda tx: tx.execute(sa.text("SELECT counted FROM guards WHERE id = 1")).scalar_one())
        assert seen == number


def test_all_nodes_are_one_server(writers: list[Database]) -> None:
    """Otherwise a fail-over would be taken for a restored backup."""
    writers[0].write(incarnation.advance_mark)
    told = {database.read(lambda tx: tx.execute(sa.select(incarnation.ServerIdentity())).scalar_one()) for database in writers}
    assert len(told) == 1
    found = [database.read(incarnation.read) for database in writers]
    assert [each is not None and not each.moved for each in found] == [True] * len(writers)


def test_what_does_not_fit_is_found(writers: list[Database], urls: list[str], galera: GaleraTwoWriters, tmp_path: Path) -> None:
    assert writers[0].read(nodes.list_misfits) == []
    file = tmp_path / "api.conf"
    file.write_text(f"[api_database]\nconnection = {urls[1]}\n")

    def checked() -> connecting.ConnectionAnswer:
        (answer,) = connecting.try_connections(config.load_options(["--config-file", str(file)], service.opts.list_opts()))
        return answer

    assert checked().fits
    assert checked().text.endswith("answers, a node of a Galera cluster: it fits")
    admin = sa.create_engine(galera.cluster_nodes[1].admin_url, isolation_level="AUTOCOMMIT")
    with admin.connect() as connection:
        connection.exec_driver_sql("SET GLOBAL wsrep_OSU_method = 'RSU'")
        writers[1].dispose_connections()
        found = writers[1].read(nodes.list_misfits)
        told = checked()
        connection.exec_driver_sql("SET GLOBAL wsrep_OSU_method = 'TOI'")
    assert found is not None
    assert [misfit.text.split(" ")[0] for misfit in found] == ["wsrep_osu_method"]
    assert not told.fits
    assert "wsrep_osu_method = RSU, and not TOI" in told.text


def test_writes_stop_without_quorum_and_then_resume(writers: list[Database], galera: GaleraTwoWriters) -> None:
    writers[0].write(new_guards)
    bump = sa.text("UPDATE guards SET counted = counted + 1 WHERE id = 2")
    answered = []

    def write() -> bool:
        try:
            writers[0].write(lambda tx: tx.execute(bump))
        except errors.DatabaseUnavailable:
            return False
        answered.append(1)
        return True

    assert write()
    for number in (1, 2):
        galera.freeze_node(number)
    try:
        assert wait_until(lambda: not write(), PATIENCE)
        before = len(answered)
    finally:
        for number in (1, 2):
            galera.thaw_node(number)
    assert wait_until(write, PATIENCE)
    counted = writers[1].read(lambda tx: tx.execute(sa.text("SELECT counted FROM guards WHERE id = 2")).scalar_one())
    assert counted >= len(answered) > before, "what was answered is there; what was refused may be, as for any lost commit"
