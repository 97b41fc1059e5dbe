"""PostgreSQL with standbys: a synchronous fail-over loses no commit, and an asynchronous one is recognised."""

from __future__ import annotations

from collections.abc import Callable

import sqlalchemy as sa

from db.api.rows import incarnation
from db.api.rows.tables import epochs
from db.sql.engine import Database
from db.sql.sync import sync_schema
from deploy.postgresql_replicated import PostgreSQLAsynchronous, PostgreSQLReplicated
from objects import errors
from service.periodic import wait_until

PATIENCE = 60.0


def opened(cluster: PostgreSQLReplicated) -> Database:
    url = cluster.create_database("api", "api", "secret")
    sync_schema(url, "api")
    return Database(url, name="api")


def note(tx: sa.Connection, number: int) -> None:
    tx.execute(sa.insert(epochs), {"name": f"commit {number}", "epoch": number})


def noted(tx: sa.Connection) -> set[int]:
    return set(tx.execute(sa.select(epochs.c.epoch).where(epochs.c.name.like("commit %"))).scalars())


def until_done(act: Callable[[], object]) -> None:
    """Again and again: it is harmless to repeat."""

    def tried() -> bool:
        try:
            act()
        except errors.DatabaseUnavailable:
            return False
        return True

    assert wait_until(tried, PATIENCE)


def test_a_synchronous_fail_over_loses_no_commit(replicated: PostgreSQLReplicated) -> None:
    database = opened(replicated)
    until_done(lambda: database.write(incarnation.advance_mark))
    answered = set()
    for number in range(300):
        if number in (100, 200):
            dead = replicated.fail_over()
            until_done(lambda: database.read(noted))
            replicated.revive_node(dead)
        try:
            database.write(note, number)
            answered.add(number)
        except errors.DatabaseUnavailable:
            pass
    until_done(lambda: database.read(noted))
    assert answered <= database.read(noted)
    assert len(answered) > 200
    found = database.read(incarnation.read)
    assert found is not None
    assert found.moved, "the API level compares itself with the cells"
    database.dispose_connections()


def test_what_an_asynchronous_fail_over_loses_is_recognised(asynchronous: PostgreSQLAsynchronous) -> None:
    """The API level sees another server: it then finds in its cells what it has lost (tests/functional/conductor)."""
    database = opened(asynchronous)
    until_done(lambda: database.write(incarnation.advance_mark))
    database.write(note, 1)
    asynchronous.leave_standbys_behind()
    database.write(note, 2)
    asynchronous.fail_over()
    until_done(lambda: database.read(noted))
    assert database.read(noted) == {1}
    found = database.read(incarnation.read)
    assert found is not None
    assert found.moved
    database.dispose_connections()
