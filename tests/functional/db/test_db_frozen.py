"""Servers that stop answering without closing a connection hold nobody longer than the read time-out."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy as sa

from db.sql.engine import Database, OutcomeUnknown
from db.sql.sync import sync_schema
from objects import errors
from service.periodic import wait_until
from tests.support.bus import FaultProxy, silent_listener
from tests.support.databases import skip_without_driver, url_on
from tests.support.transactions import increment, read_epoch

READ_TIMEOUT = 1
LONG = 10.0
"""Seconds that are far more than the time-outs given, and less than those in force without them."""

SLEEP = {"mysql": "SELECT SLEEP(30)", "postgresql": "SELECT pg_sleep(30)"}
RUNNING = {
    "mysql": "SELECT count(*) FROM information_schema.processlist WHERE info = 'SELECT SLEEP(30)'",
    "postgresql": "SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND query = 'SELECT pg_sleep(30)'",
}


class Frozen:
    """A database behind a proxy that can be told to forward nothing."""

    def __init__(self, url: str) -> None:
        self.proxy = FaultProxy(url)
        self.database = Database(f"{self.proxy.url}?read_timeout={READ_TIMEOUT}")

    def close(self) -> None:
        self.proxy.close()
        self.database.dispose_connections()


@pytest.fixture(params=["mariadb", "postgresql"])
def frozen(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Frozen]:
    with url_on(request.param, tmp_path) as url:
        sync_schema(url, "api")
        with closing(Frozen(url)) as made:
            made.database.write(increment)
            yield made


def unavailable(call: Callable[[], object]) -> errors.DatabaseUnavailable:
    """What ``call`` raises; it must be told soon."""
    told: list[BaseException] = []

    def run() -> None:
        try:
            call()
        except BaseException as error:  # noqa: BLE001 - looked at below, in the test's own thread
            told.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(LONG)
    assert not thread.is_alive(), "the caller is still held"
    assert isinstance(told[0], errors.DatabaseUnavailable), told
    return told[0]


def test_a_server_frozen_between_transactions(frozen: Frozen) -> None:
    frozen.proxy.freeze()
    assert "cannot be used" in str(unavailable(lambda: frozen.database.read(read_epoch)))
    frozen.proxy.thaw()
    assert frozen.database.read(read_epoch) == 1


def test_a_server_frozen_in_a_transaction(frozen: Frozen) -> None:
    def freeze_and_go_on(tx: sa.Connection) -> None:
        frozen.proxy.freeze()
        increment(tx)

    unavailable(lambda: frozen.database.write(freeze_and_go_on))
    frozen.proxy.thaw()
    frozen.database.write(increment)
    assert frozen.database.read(read_epoch) == 2


def test_a_server_frozen_in_the_commit(frozen: Frozen) -> None:
    def freeze_at_the_end(tx: sa.Connection) -> None:
        increment(tx)
        frozen.proxy.freeze()

    assert isinstance(unavailable(lambda: frozen.database.write(freeze_at_the_end)), OutcomeUnknown)
    frozen.proxy.thaw()
    assert frozen.database.read(read_epoch) in (1, 2)


def test_a_slow_statement_is_ended_on_its_server(frozen: Frozen) -> None:
    """Else it goes on there, with all the locks it holds."""
    dialect = frozen.database.dialect
    unavailable(lambda: frozen.database.read(lambda tx: tx.execute(sa.text(SLEEP[dialect])).all()))
    running = sa.text(RUNNING[dialect])
    assert wait_until(lambda: not frozen.database.read(lambda tx: tx.execute(running).scalar_one()), LONG, pause=0.1)


@pytest.mark.parametrize("driver", ["mysql+pymysql", "postgresql+psycopg"])
def test_a_server_that_accepts_connections_but_never_answers(driver: str) -> None:
    """As one does whose process was stopped: its kernel goes on accepting. Its default time-out for answers is longer."""
    with silent_listener() as listener:
        url = f"{driver}://nova:hunter2@127.0.0.1:{listener.getsockname()[1]}/api"
        skip_without_driver(url)
        assert "hunter2" not in str(unavailable(lambda: Database(url).read(read_epoch)))
