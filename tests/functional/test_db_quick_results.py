"""What our reader of MariaDB's answers returns, beside what the driver's own returns for the same statement."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pymysql
import pytest
import sqlalchemy as sa
from pymysql.connections import Connection

from db import pymysql_result
from db.pymysql_connection import QuietConnection
from db.pymysql_result import QuickResult
from tests.support.databases import MARIADB, scratch_url
from tests.support.servers import MYSQL, give_up

TYPES = """
    n TINYINT, s SMALLINT, i INT, b BIGINT UNSIGNED, y YEAR, bits BIT(10), d DECIMAL(20, 5), f FLOAT, g DOUBLE, at DATETIME(6),
    day DATE, t TIME, c CHAR(10), v VARCHAR(300), txt MEDIUMTEXT, bin VARBINARY(300), blo LONGBLOB, e ENUM('x', 'y'), j JSON
"""
NUMBERS = ((-1, 2, -3, 2**64 - 1, 2026, b"\x02\x01", "1.50000", 0.5, -1e300), (1, 2, 3, 4, 2026, b"\x00\x01", "0", 0.0, 0.1))
TIMES = (("2026-01-02 03:04:05.6", "2026-01-02", "-01:02:03"), ("2026-01-02", "2026-01-02", "00:00:00"))
TEXTS = (
    ("ä", "ü€😀", "", b"\x00\xff", b"", "y", '{"a": [1, "ö"]}'),
    ("c", "v" * 250, "ö" * 70_000, b"\xff" * 251, b"\x00" * 300_000, "x", "[]"),
)
ROWS: list[tuple[Any, ...]] = [(None,) * 19, *((*n, *t, *x) for n, t, x in zip(NUMBERS, TIMES, TEXTS, strict=True))]
STATEMENTS = (
    "SELECT * FROM things ORDER BY n",
    "SELECT v, i FROM things WHERE i = 77",
    "SELECT v, i FROM things WHERE i = 3",
    "SELECT i, v FROM things ORDER BY i",
    "SELECT i AS n, v FROM things ORDER BY i",
    "SELECT 1, 'a', NULL, 1.5, 1e0",
    "SELECT 1, 'other text', NULL, 1.5, 1e0",
    "SELECT COUNT(*), SUM(i), MAX(at) FROM things",
    "SELECT REPEAT('x', 17000000)",  # more than a packet holds
    "SHOW SESSION VARIABLES LIKE 'autocommit'",
    "INSERT INTO things (i) VALUES (77), (78)",
    "UPDATE things SET v = 'w' WHERE i = 77",
    "DELETE FROM things WHERE i >= 77 RETURNING i, v",
    "SELECT seq, seq * 2 FROM seq_1_to_3000",
)


@pytest.fixture
def connections() -> Iterator[tuple[Connection, Connection]]:
    """The driver's own, and ours, on one database."""
    if not MARIADB:
        give_up(MYSQL, "no server answers")
    with scratch_url(MARIADB) as text:
        url = sa.make_url(text)
        place: dict[str, Any] = {"host": url.host, "port": url.port or 3306, "user": url.username, "password": url.password or ""}
        both = [kind(**place, database=url.database, charset="utf8mb4") for kind in (Connection, QuietConnection)]
        try:
            with both[0].cursor() as cursor:
                cursor.execute(f"CREATE TABLE things ({TYPES})")
                cursor.executemany(f"INSERT INTO things VALUES ({', '.join(['%s'] * 19)})", ROWS)
            both[0].commit()
            yield both[0], both[1]
        finally:
            for connection in both:
                connection.close()


def answer(connection: Connection, statement: str) -> tuple[Any, ...]:
    """All that a cursor tells of a statement, which is rolled back."""
    with connection.cursor() as cursor:
        count = cursor.execute(statement)
        rows = cursor.fetchall()
        told = (
            count,
            rows,
            [[type(value) for value in row] for row in rows],
            cursor.description,
            cursor.rowcount,
            cursor.lastrowid,
        )
    connection.rollback()
    return told


def test_every_answer_is_what_the_driver_reads(connections: tuple[Connection, Connection]) -> None:
    driver, ours = connections
    QuickResult.known.clear()
    for _ in range(3):  # columns are learnt, then known
        for statement in STATEMENTS:
            assert answer(ours, statement) == answer(driver, statement), statement


def test_columns_that_have_changed_are_read_as_they_are_now(connections: tuple[Connection, Connection]) -> None:
    driver, ours = connections
    statement = "SELECT n, v, i FROM things ORDER BY i"
    for change in ("MODIFY v VARBINARY(300)", "MODIFY i DOUBLE", "CHANGE i i VARCHAR(40)", "CHANGE i i INT"):
        assert answer(ours, statement) == answer(driver, statement)
        with driver.cursor() as cursor:
            cursor.execute(f"ALTER TABLE things {change}")
        assert answer(ours, statement) == answer(driver, statement), change


def test_more_columns_than_are_kept_are_read_all_the_same(
    connections: tuple[Connection, Connection], monkeypatch: pytest.MonkeyPatch
) -> None:
    driver, ours = connections
    monkeypatch.setattr(pymysql_result, "KNOWN", 3)
    names = [f"SELECT i AS c{n % 7}, '{'x' * (n % 40)}' FROM things ORDER BY i" for n in range(200)]
    for statement in names:
        assert answer(ours, statement) == answer(driver, statement)
    assert len(QuickResult.known) <= 3
    assert all(len(alike) <= pymysql_result.ALIKE for alike in QuickResult.known.values())


@pytest.mark.parametrize("statement", ["SELECT i FROM nowhere", "SELECT i, (SELECT seq FROM seq_1_to_2) FROM things", "SELEC"])
def test_an_error_leaves_a_connection_that_works(statement: str, connections: tuple[Connection, Connection]) -> None:
    driver, ours = connections
    said = []
    for connection in (driver, ours):
        with pytest.raises(pymysql.MySQLError) as raised:
            answer(connection, statement)
        said.append((type(raised.value), raised.value.args))
        connection.rollback()
    assert said[0] == said[1]
    assert answer(ours, STATEMENTS[0]) == answer(driver, STATEMENTS[0])


def test_an_error_in_the_midst_of_rows_is_raised(connections: tuple[Connection, Connection]) -> None:
    """The server has sent rows already when it finds out that it ran out of time."""
    _, ours = connections
    answer(ours, "SELECT seq, REPEAT('x', 1000) FROM seq_1_to_100")
    with pytest.raises(pymysql.MySQLError, match="max_statement_time"):
        answer(ours, "SET STATEMENT max_statement_time = 0.2 FOR SELECT seq, SLEEP(0.0005 * seq) FROM seq_1_to_1000")
    assert answer(ours, "SELECT 1")[1] == ((1,),)


def test_a_lost_connection_is_told_as_the_driver_does(connections: tuple[Connection, Connection]) -> None:
    driver, ours = connections
    number = answer(ours, "SELECT CONNECTION_ID()")[1][0][0]
    answer(driver, f"KILL CONNECTION {number}")
    with pytest.raises(pymysql.OperationalError) as raised:
        answer(ours, "SELECT 1")
    assert raised.value.args[0] in (2006, 2013)
    assert not ours.open
