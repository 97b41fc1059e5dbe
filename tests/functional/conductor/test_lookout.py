"""The lookout reads the epochs for the other loops of its process, and tells when followers of feeds must look."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from conductor.due_work import DueWork
from conductor.signals import NoSignals
from db.api.rows import epochs
from db.api.rows.cache import EpochCache, EpochReader
from db.api.rows.epochs import Epoch
from db.sql.counting import StatementCounter
from db.sql.engine import Database
from tests.support.databases import SERVERS, database_on

AGES = {"sweep_interval": 2.0, "lease_seconds": 10.0, "resend_age": 5.0}


class Looking(NoSignals):
    """A lookout, the epochs of its process, and how often it told that followers must look."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.epochs = EpochReader(database)
        self.lookout = DueWork(database, self.epochs, self, **AGES)
        self.changes = 0
        self.hosts = EpochCache(self.epochs, (Epoch.HOSTS,), lambda tx: epochs.read(tx)[Epoch.HOSTS])

    def look(self) -> None:
        self.lookout.look_for_work()

    def follow_changes(self) -> None:
        self.changes += 1


@pytest.fixture(params=SERVERS)
def looking(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Looking]:
    with database_on(request.param, tmp_path, "api") as database:
        for kind in Epoch:
            database.write(epochs.bump_epoch, kind)
        yield Looking(database)


def test_a_sufficiently_recent_cache_needs_no_statement(looking: Looking) -> None:
    age = looking.lookout.epochs_age
    looking.look()
    assert looking.hosts.get(age) == 1
    looking.look()
    with StatementCounter(looking.database) as counter:
        assert looking.hosts.get(age) == 1
        assert looking.epochs.read(0.0)[0][Epoch.HOSTS] == 1
    assert counter.totals_by_database() == {}
    looking.database.write(epochs.bump_epoch, Epoch.HOSTS)
    looking.look()
    with StatementCounter(looking.database) as counter:
        assert looking.hosts.get(age) == 2
    assert sum(count.executions for count in counter.totals_by_database().values()) == 1, "the hosts"


@pytest.mark.parametrize("kind", [Epoch.CELLS, Epoch.HOSTS, Epoch.FEEDS])
def test_changes_that_followers_need_are_reported_once(looking: Looking, kind: Epoch) -> None:
    looking.look()
    assert looking.changes == 1
    looking.look()
    looking.database.write(epochs.bump_epoch, Epoch.FLAVORS)
    looking.look()
    assert looking.changes == 1
    looking.database.write(epochs.bump_epoch, kind)
    looking.look()
    assert looking.changes == 2
