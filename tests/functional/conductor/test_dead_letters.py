"""Dead letters on every server: what a step cannot process is set aside, waits longer each time, and is shown and decided on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import sqlalchemy as sa

from conductor.quarantine import Quarantine
from db import dead_letters
from db.api.rows import tables as api
from db.cell import tables as cell
from db.dead_letters import LONGEST_RETRY_S, Level, retry_wait
from db.sql.connection import Connection
from db.sql.counting import StatementCounter
from db.sql.engine import Database
from objects import errors
from tests.support.clock import Clock
from tests.support.databases import SERVERS, database_on

STEP = "a step"


@pytest.fixture(params=[(server, level) for server in SERVERS for level in ("api", "cell")], ids=lambda p: "-".join(p))
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Database, Level]]:
    server, level = request.param
    with database_on(server, tmp_path, level) as database:
        yield database, level


def refusing(*bad: str):  # type: ignore[no-untyped-def]  # a function as ``SetAside.run`` takes it
    def work(items: Sequence[str]) -> list[str]:
        if found := [item for item in items if item in bad]:
            raise ValueError(f"cannot write {found[0]!r}")
        return list(items)

    return work


def test_a_letter_is_counted_listed_and_removed(place: tuple[Database, Level]) -> None:
    database, level = place
    database.write(dead_letters.put_letters, level, STEP, {"b": "why", "a": "because"})
    database.write(dead_letters.put_letters, level, STEP, {"b": "still"})
    first, second = database.read(dead_letters.list_all, level)
    assert (first.key, first.reason, first.tries, first.skipped) == ("a", "because", 1, False)
    assert (second.key, second.reason, second.tries) == ("b", "still", 2)
    assert second.first_at <= second.last_at
    assert second.due - second.last_at == pytest.approx(retry_wait(2))
    assert database.read(dead_letters.count_by_step, level) == {STEP: 2}
    assert database.write(dead_letters.remove_letters, level, STEP, ["b", "c"]) == 1
    assert [each.key for each in database.read(dead_letters.list_all, level)] == ["a"]


def test_waits_grow_up_to_a_bound() -> None:
    waits = [retry_wait(tries) for tries in range(1, 100)]
    assert waits == sorted(waits)
    assert waits[0] < waits[1] < waits[-1] == LONGEST_RETRY_S


@pytest.mark.parametrize(
    "odd", ["a\x00b", "\udcff", "a" * 100_000, "é" * 5000, ""], ids=["nul", "surrogate", "long", "wide", "empty"]
)
def test_reasons_and_keys_are_written_whatever_they_are(place: tuple[Database, Level], odd: str) -> None:
    database, level = place
    database.write(dead_letters.put_letters, level, STEP, {odd: odd})
    (letter,) = database.read(dead_letters.list_all, level)
    assert letter.key == dead_letters.key_of(odd)
    assert len(letter.reason.encode()) <= dead_letters.REASON_SIZE
    assert database.write(dead_letters.remove_letters, level, STEP, [odd]) == 1


def test_neighbours_go_on_and_the_bad_item_waits(place: tuple[Database, Level]) -> None:
    database, level = place
    clock = Clock()
    aside = Quarantine(database, level, clock)
    items = [f"item-{number:03}" for number in range(50)]
    done = aside.run(STEP, refusing("item-007"), items)
    assert sorted(name for some in done.results for name in some) == [name for name in items if name != "item-007"]
    assert [item for item, _ in done.failed] == ["item-007"]
    assert [each.key for each in database.read(dead_letters.list_all, level)] == ["item-007"]
    assert aside.run(STEP, refusing("item-007"), items) == ([[name for name in items if name != "item-007"]], [])
    assert aside.due_items("another step", items) == items
    clock.now += retry_wait(1) + 1.0
    assert aside.due_keys(STEP) == ["item-007"]
    assert aside.run(STEP, refusing(), items) == ([items], [])
    assert database.read(dead_letters.list_all, level) == []
    assert aside.due_keys(STEP) == []


def test_other_processes_and_operators_count_after_a_refresh(place: tuple[Database, Level]) -> None:
    database, level = place
    Quarantine(database, level).run(STEP, refusing("bad"), ["bad", "good"])
    clock = Clock()
    other = Quarantine(database, level, clock)
    assert other.due_items(STEP, ["bad", "good"]) == ["bad", "good"]
    other.refresh_letters()
    assert other.due_items(STEP, ["bad", "good"]) == ["good"]
    assert database.write(dead_letters.retry_letters, level, STEP, ["bad"]) == 1
    other.refresh_letters()
    assert other.due_items(STEP, ["bad", "good"]) == ["bad", "good"]
    assert database.write(dead_letters.skip_letters, level, STEP, ["bad"]) == 1
    other.refresh_letters()
    clock.now += 1e9
    assert other.due_items(STEP, ["bad", "good"]) == ["good"]


def test_nothing_is_asked_while_nothing_fails(place: tuple[Database, Level]) -> None:
    database, level = place
    aside = Quarantine(database, level)
    aside.refresh_letters()
    with StatementCounter(database) as counter:
        assert aside.run(STEP, refusing(), ["a", "b"]).failed == []
    assert counter.totals_by_database() == {}


def test_a_letter_that_nobody_tries_again_is_forgotten(place: tuple[Database, Level]) -> None:
    database, level = place
    table = api.api_dead_letters if level == "api" else cell.cell_dead_letters
    database.write(dead_letters.put_letters, level, STEP, {"old": "why", "skipped": "why"})
    database.write(dead_letters.skip_letters, level, STEP, ["skipped"])

    def age(tx: Connection) -> None:
        tx.execute(sa.update(table).values(due=table.c.due - 5000.0, last_at=table.c.last_at - 5000.0))

    database.write(age)
    database.write(dead_letters.put_letters, level, STEP, {"new": "why"})
    assert database.write(dead_letters.forget_stale, level) == 1
    assert [each.key for each in database.read(dead_letters.list_all, level)] == ["new", "skipped"]


def test_a_letter_that_cannot_be_written_stops_nothing(tmp_path: Path) -> None:
    with database_on("sqlite", tmp_path, "api") as database:
        database.write(lambda tx: tx.execute(sa.text("DROP TABLE api_dead_letters")))
        aside = Quarantine(database, "api")
        assert aside.run(STEP, refusing("bad"), ["bad", "good"]).results == [["good"]]
        assert aside.due_items(STEP, ["bad", "good"]) == ["good"]


def test_trouble_of_the_database_sets_nothing_aside(tmp_path: Path) -> None:
    with database_on("sqlite", tmp_path, "api") as database:
        aside = Quarantine(database, "api")

        def work(items: Sequence[str]) -> None:
            raise errors.DatabaseUnavailable("gone")

        with pytest.raises(errors.DatabaseUnavailable):
            aside.run(STEP, work, ["a", "b"])
        assert database.read(dead_letters.list_all, "api") == []
