"""Processes in their level's database, by its clock alone, on every server."""

from __future__ import annotations

import time

import pytest
import sqlalchemy as sa

from cells.presence import Presence
from db import processes
from db.cell import feed, services, tables
from db.cell.services import Beat
from db.sql import clock
from db.sql.counting import StatementCounter
from db.sql.engine import Database
from objects.feed import EventKind
from objects.process import CONDUCTOR_BINARY, About, Process
from service.periodic import wait_until
from tests.support.databases import database_fixture

HOUR = 3600.0
AGENT = "superconductor-compute"


database = database_fixture("cell", scope="function")


def process(uuid: str, age: float = 0.0) -> Process:
    about = About(release="1.2", messages="1.0", pid=7)
    return Process(uuid=uuid, binary=CONDUCTOR_BINARY, host="h1", about=about, started_at=0.0, last_seen=0.0, age=age)


def made_older(database: Database, by: float) -> None:
    """As if everybody had been silent for so many seconds."""
    for table in (tables.cell_processes, tables.services):
        statement = sa.update(table).values(last_seen=table.c.last_seen - by)
        database.write(lambda tx, statement: tx.execute(statement), statement)


def test_a_process_appears_is_renewed_and_ends(database: Database) -> None:
    database.write(processes.record_process, "cell", process("p1", age=100.0))
    database.write(processes.record_process, "cell", process("p1"))  # the answer to the first was lost
    made_older(database, 50.0)
    (old,) = database.read(processes.list_all, "cell")
    assert (old.about, old.binary, old.host) == (process("p1").about, CONDUCTOR_BINARY, "h1")
    assert old.last_seen - old.started_at == pytest.approx(50.0, abs=1.0)
    assert old.age >= 50.0
    with StatementCounter(database) as counter:
        assert database.write(processes.renew_process, "cell", "p1")
    assert [count.executions for count in counter.totals_by_database().values()] == [1]
    assert database.read(processes.list_all, "cell")[0].age < 50.0
    database.write(processes.end_process, "cell", "p1")
    assert not database.write(processes.renew_process, "cell", "p1")
    assert database.read(processes.list_all, "cell") == []


def test_what_died_long_ago_is_forgotten(database: Database) -> None:
    database.write(processes.record_process, "cell", process("dead"))
    made_older(database, 2 * HOUR)
    database.write(processes.record_process, "cell", process("alive"))
    assert database.write(processes.forget_dead, "cell", HOUR) == 1
    assert [found.uuid for found in database.read(processes.list_all, "cell")] == ["alive"]


def test_a_forgotten_process_makes_its_record_again(database: Database) -> None:
    presence = Presence(database, "cell", CONDUCTOR_BINARY, interval=0.05)
    presence.start()

    def seen() -> list[Process]:
        return database.read(processes.list_all, "cell")

    assert wait_until(lambda: len(seen()) == 1, 90.0)
    database.write(processes.end_process, "cell", seen()[0].uuid)
    assert wait_until(lambda: len(seen()) == 1, 90.0)
    presence.stop()
    assert seen() == []


@pytest.mark.parametrize("skew", [HOUR, -HOUR])
def test_heartbeats_are_dated_by_the_database_clock_alone(database: Database, monkeypatch: pytest.MonkeyPatch, skew: float) -> None:
    real = time.time
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(time, "time", lambda: real() + skew)
        database.write(services.record_heartbeats, [services.Beat(host="h1", binary=AGENT)])
        database.write(services.record_heartbeats, [services.Beat(host="h1", binary=AGENT)])
        database.write(services.introduce_service, Beat(host="h2", binary=AGENT), About(release="1.2", messages="1.0", pid=7), 60.0)
    now = database.read(clock.read)
    one, two = database.read(services.list_seen, AGENT)
    assert abs(now - one.service.last_seen) < HOUR / 2
    assert one.age < HOUR / 2
    assert abs(now - 60.0 - (two.service.started_at or 0.0)) < HOUR / 2
    assert (two.service.release, two.service.messages, two.service.pid, two.service.report_count) == ("1.2", "1.0", 7, 1)
    made_older(database, HOUR)
    assert min(database.read(services.read_signs, AGENT).ages) >= HOUR


def test_a_feed_reader_knows_how_far_behind(database: Database) -> None:
    assert database.read(feed.lag_after, 0) == feed.Lag(events=0, seconds=None)
    now = database.read(clock.read)
    for written in (now - HOUR, now):
        event = feed.NewEvent(kind=EventKind.HOST, key="h1", version=0, payload="{}")
        database.write(feed.append_events, [event], written)
    lags = [database.read(feed.lag_after, cursor) for cursor in (0, 1, 2, 3)]
    assert [lag.events for lag in lags] == [2, 1, 0, 0]
    assert (lags[0].seconds or 0.0) >= HOUR > (lags[1].seconds or 0.0)
    assert lags[2].seconds is None
