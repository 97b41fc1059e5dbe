"""A cache of rows that follows their epochs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import Connection

from db.api.projects import flavors
from db.api.rows import epochs
from db.api.rows.cache import EpochCache, EpochReader
from db.api.rows.epochs import Epoch
from db.sql.connection import ApiTransaction
from db.sql.counting import StatementCounter
from db.sql.engine import Database
from objects import errors
from objects.flavor import Flavor
from service.periodic import wait_until
from tests.support.databases import api_database, sqlite_url

NEVER = 1e9


def flavor(name: str) -> Flavor:
    return Flavor(flavor_id=name, name=name, vcpus=1, memory_mb=1)


class Loader:
    """Loads the flavors' names, and counts how often. While ``gate`` is closed it waits in its transaction."""

    def __init__(self) -> None:
        self.loads = 0
        self.gate = threading.Event()
        self.gate.set()

    def __call__(self, tx: ApiTransaction) -> list[str]:
        self.loads += 1
        assert self.gate.wait(30)
        return [flavor.name for flavor in flavors.list_all(tx)]


def in_thread(call: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=call)
    thread.start()
    return thread


def test_value_is_loaded_again_when_its_epoch_rises(tmp_path: Path) -> None:
    database, loader = api_database(tmp_path), Loader()
    cache = EpochCache(EpochReader(database), (Epoch.FLAVORS,), loader, interval=0.0)

    assert cache.get() == []
    assert cache.get() is cache.get()
    assert loader.loads == 1

    database.write(flavors.create, flavor("m1"))
    assert cache.get() == ["m1"]
    database.write(epochs.bump_epoch, Epoch.HOSTS)
    assert cache.get() == ["m1"]
    assert loader.loads == 2, "the epoch of another kind is not ours"


def test_epochs_another_statement_has_read_are_read_once(tmp_path: Path) -> None:
    database, loader = api_database(tmp_path), Loader()
    reader = EpochReader(database)
    cache = EpochCache(reader, (Epoch.FLAVORS,), loader, interval=0.0)
    cache.get()
    database.write(flavors.create, flavor("m1"))
    began = time.monotonic()
    reader.note_epochs(database.read(epochs.read), began)
    with StatementCounter() as counter:
        assert cache.refresh_value(began) == ["m1"]
        assert not [text for _, text in counter.count_by_statement() if "epochs" in text]
        reader.note_epochs({}, began - 1.0)  # older ones change nothing
        assert cache.refresh_value(began) == ["m1"]
    assert loader.loads == 2


def test_any_of_several_epochs_reloads(tmp_path: Path) -> None:
    database, loader = api_database(tmp_path), Loader()
    cache = EpochCache(EpochReader(database), (Epoch.FLAVORS, Epoch.AGGREGATES), loader, interval=0.0)
    cache.get()
    for name in (Epoch.FLAVORS, Epoch.AGGREGATES):
        database.write(epochs.bump_epoch, name)
        cache.get()

    assert loader.loads == 3


def test_between_two_looks_the_database_is_left_alone(tmp_path: Path) -> None:
    database = api_database(tmp_path)
    cache = EpochCache(EpochReader(database), (Epoch.FLAVORS,), Loader(), interval=NEVER)
    cache.get()
    database.write(flavors.create, flavor("m1"))
    with StatementCounter(database) as counter:
        assert [cache.get() for _ in range(100)] == [[]] * 100
    assert counter.totals_by_database() == {}

    with StatementCounter(database) as counter:
        assert cache.refresh_value() == ["m1"]
        cache.refresh_value()
    assert counter.totals_by_database()["api.db"].executions == 3, "one look with a load, one look without"


def test_caches_of_one_reader_share_their_looks(tmp_path: Path) -> None:
    database = api_database(tmp_path)
    reader = EpochReader(database)
    flavor_names = EpochCache(reader, (Epoch.FLAVORS,), Loader(), interval=0.2)
    hosts = EpochCache(reader, (Epoch.HOSTS,), lambda tx: "hosts", interval=0.2)
    flavor_names.get()
    hosts.get()
    time.sleep(0.3)
    with StatementCounter(database) as counter:
        assert (flavor_names.get(), hosts.get()) == ([], "hosts")
    assert counter.totals_by_database()["api.db"].executions == 1

    database.write(flavors.create, flavor("m1"))
    hosts.refresh_value()
    with StatementCounter(database) as counter:
        assert flavor_names.refresh_value() == ["m1"], "a refresh is content only with what was read after it was asked for"
    assert counter.totals_by_database()["api.db"].executions == 2


def test_during_a_load_others_use_the_present_value(tmp_path: Path) -> None:
    database, loader = api_database(tmp_path), Loader()
    cache = EpochCache(EpochReader(database), (Epoch.FLAVORS,), loader, interval=0.0)
    cache.get()
    database.write(flavors.create, flavor("m1"))
    loader.gate.clear()
    looking = in_thread(cache.get)
    assert wait_until(lambda: loader.loads == 2, 90.0)

    assert cache.get() == []

    loader.gate.set()
    looking.join(10)
    assert cache.get() == ["m1"]
    assert loader.loads == 2


def test_first_load_happens_once_for_all_who_wait(tmp_path: Path) -> None:
    database, loader = api_database(tmp_path), Loader()
    cache = EpochCache(EpochReader(database), (Epoch.FLAVORS,), loader, interval=NEVER)
    loader.gate.clear()
    values: list[list[str]] = []
    threads = [in_thread(lambda: values.append(cache.get())) for _ in range(5)]
    assert wait_until(lambda: loader.loads == 1, 90.0)
    loader.gate.set()
    for thread in threads:
        thread.join(10)

    assert values == [[]] * 5
    assert loader.loads == 1


def test_without_its_database_the_value_stays_and_recovers(tmp_path: Path) -> None:
    database = api_database(tmp_path)
    cache = EpochCache(EpochReader(database), (Epoch.FLAVORS,), Loader(), interval=0.0)
    database.write(flavors.create, flavor("m1"))
    assert cache.get() == ["m1"]

    database.dispose_connections()
    (tmp_path / "api.db").rename(tmp_path / "away.db")
    assert cache.get() == ["m1"]
    assert cache.refresh_value() == ["m1"]

    (tmp_path / "away.db").rename(tmp_path / "api.db")
    database.write(flavors.delete, "m1")
    assert cache.get() == []


def test_without_database_and_value_it_says_so(tmp_path: Path) -> None:
    cache = EpochCache(EpochReader(Database(sqlite_url(tmp_path, "none"))), (Epoch.FLAVORS,), Loader())

    with pytest.raises(errors.DatabaseUnavailable):
        cache.get()


def test_load_that_fails_leaves_the_cache_usable(tmp_path: Path) -> None:
    database = api_database(tmp_path)
    broken = [True]

    def load(tx: Connection) -> str:
        if broken:
            raise ValueError("a row nobody can read")
        return "loaded"

    cache = EpochCache(EpochReader(database), (Epoch.FLAVORS,), load)
    with pytest.raises(ValueError, match="nobody can read"):
        cache.get()
    broken.clear()

    assert cache.get() == "loaded"
