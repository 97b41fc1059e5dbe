"""What MariaDB's answers say, and what texts arrive, through our connection and through the driver's own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pymysql
import pytest
import sqlalchemy as sa
from pymysql.connections import Connection

from db.sql import pymysql_connection
from db.sql.pymysql_connection import QuietConnection
from tests.support.databases import MARIADB, scratch_url
from tests.support.servers import MYSQL, give_up

TYPES = "i INT, b BIGINT UNSIGNED, d DECIMAL(20, 5), g DOUBLE, at DATETIME(6), v VARCHAR(300), txt MEDIUMTEXT, blo LONGBLOB, j JSON"
ROWS: list[tuple[Any, ...]] = [
    (None,) * 9,
    (-3, 2**64 - 1, "1.50000", -1e300, "2026-01-02 03:04:05.6", "ü€😀", "", b"\x00\xff", '{"a": [1, "ö"]}'),
    (3, 4, "0", 0.1, "2026-01-02", "v" * 250, "ö" * 70_000, b"\x00" * 300_000, "[]"),
]
STATEMENTS = (
    "SELECT * FROM things ORDER BY i",
    "SELECT v, i FROM things WHERE i = 77",
    "SELECT i AS v, v AS i FROM things ORDER BY i",
    "SELECT 1, 'a', NULL, 1.5, 1e0",
    "SELECT COUNT(*), SUM(i), MAX(at) FROM things",
    "SELECT REPEAT('x', 17000000)",  # more than a packet holds
    "UPDATE things SET v = 'w' WHERE i = 3",
    "DELETE FROM things WHERE i >= 3 RETURNING i, v",
)
TEXTS = (
    *(chr(n) for n in range(128)),
    "".join(map(chr, range(128))) * 2,
    'it\'s \\ "it"',
    "\\",
    "\\'",
    "'\\",
    "''\\\\''",
    "'; DROP TABLE things; -- ",
    "%s %% %(v)s",
    "\\0 \\n \\Z \\%",
    "ü€😀 'ä' \\ß\\",
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
                cursor.executemany(f"INSERT INTO things VALUES ({', '.join(['%s'] * 9)})", ROWS)
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
        told = (count, rows, [[type(value) for value in row] for row in rows], cursor.description, cursor.rowcount)
    connection.rollback()
    return told


def test_every_answer_is_what_the_driver_reads(connections: tuple[Connection, Connection]) -> None:
    driver, ours = connections
    pymysql_connection._parse_column.cache_clear()
    for _ in range(3):  # columns are learnt, then known
        for statement in STATEMENTS:
            assert answer(ours, statement) == answer(driver, statement), statement
    known = pymysql_connection._parse_column.cache_info()
    assert known.hits >= 2 * known.misses > 0


def test_changed_columns_are_read_as_they_are(connections: tuple[Connection, Connection]) -> None:
    driver, ours = connections
    statement = "SELECT v, i FROM things ORDER BY i"
    for change in ("MODIFY v VARBINARY(300)", "MODIFY i DOUBLE", "CHANGE i i VARCHAR(40)", "CHANGE i i INT"):
        assert answer(ours, statement) == answer(driver, statement)
        with driver.cursor() as cursor:
            cursor.execute(f"ALTER TABLE things {change}")
        assert answer(ours, statement) == answer(driver, statement), change


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


@pytest.mark.parametrize("mode", ["TRADITIONAL", "TRADITIONAL,NO_BACKSLASH_ESCAPES", "TRADITIONAL,ANSI_QUOTES"])
def test_every_text_arrives_as_it_was(mode: str, connections: tuple[Connection, Connection]) -> None:
    """One by one, many in one statement, and as what is compared with."""
    _, ours = connections
    with ours.cursor() as cursor:
        cursor.execute(f"SET SESSION sql_mode = '{mode}'")
        for text in TEXTS:
            cursor.execute("SELECT %s, %s = CONVERT(%s USING utf8mb4)", (text, text, text.encode()))
            assert cursor.fetchall() == ((text, 1),)
        cursor.execute("DELETE FROM things")
        cursor.executemany("INSERT INTO things (i, txt) VALUES (%s, %s)", list(enumerate(TEXTS)))
        cursor.execute("SELECT txt FROM things ORDER BY i")
        assert tuple(text for (text,) in cursor.fetchall()) == TEXTS
