"""What a cell's feed or rows say, and the API database or a codec refuses, costs no other server of the cell anything.

The poison is written into the cell's tables directly. The instance is set aside, and its state is taken from its row later.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import sqlalchemy as sa

from conductor.apply import STEP, Applier
from conductor.feed_follower import FeedFollower, FeedSettings
from conductor.quarantine import Quarantine
from db import dead_letters
from db.api.reconcile import events
from db.api.rows.tables import instance_mappings
from db.cell import feed
from db.cell.tables import feed as feed_table
from db.cell.tables import feed_head, instances
from db.sql import clock
from db.sql.connection import CellTransaction, Connection
from objects import errors
from objects.feed import EventKind, InstanceEvent, InstanceSummary
from objects.text import FAULTS_SIZE
from tests.support.applying import CELL, OTHER, build, catch_up, ordered, sound
from tests.support.clock import Clock
from tests.support.conductor_process import Conductor
from tests.support.ground import GROUNDS
from tests.support.world import World, world_fixture

cloud = world_fixture({CELL: ["a1", "a2"], OTHER: ["b1"]}, GROUNDS, embedded=True)


@pytest.fixture
def ticking() -> Clock:
    return Clock()


@pytest.fixture
def conductor(cloud: World) -> Conductor:
    return cloud.conductor("one")


@pytest.fixture
def applier(conductor: Conductor, ticking: Clock) -> Applier:
    aside = Quarantine(conductor.database, "api", ticking)
    made = Applier(conductor.ledger, conductor.cell(CELL), None, aside)
    catch_up(made)
    return made


def tell(cloud: World, key: str, payload: str, kind: str = "active", version: int = 9) -> None:
    """One more event, as the cell's database might hold it."""

    def append(tx: CellTransaction) -> None:
        sequence = feed.read_head(tx) + 1
        row = {"kind": kind, "key": key, "version": version, "payload": payload, "created_at": clock.read(tx)}
        tx.execute(sa.insert(feed_table).values(sequence=sequence, **row))
        tx.execute(sa.update(feed_head).values(sequence=sequence))

    cloud.databases[CELL].write(append)


def saying(**changes: Any) -> str:
    """The summary of an ACTIVE server, but for these fields."""
    plain = msgspec.to_builtins(InstanceSummary(state="active", host="a1", node="a1", updated_at=77.0))
    return msgspec.json.encode(plain | changes).decode()


def states(cloud: World, servers: list[str]) -> list[str]:
    return [cloud.mapped(server).state for server in servers]


PAYLOADS = {
    "unknown state": saying(state="weird"),
    "long state": saying(state="a" * 300),
    "late": saying(updated_at=1e300),
    "early": saying(updated_at=-1e12),
    "launched late": saying(launched_at=1e300),
    "terminated early": saying(terminated_at=-1.0),
    "long host": saying(host="h" * 300),
    "host with a blank": saying(host="a1 "),
    "host with an escape": saying(host="\x1b[31m"),
    "no host": saying(host=None),
    "long node": saying(node="n" * 300),
    "long zone": saying(availability_zone="z" * 300),
    "NUL in a zone": saying(availability_zone="z\x00"),
    "attempt out of range": saying(attempt=2**40),
    "attempt below zero": saying(attempt=-1),
    "no JSON": "{",
    "nothing": "",
    "another type": "[]",
    "half a character": '{"state": "\\ud800"}',
    "too deep": '{"state":' * 5000 + "1" + "}" * 5000,
    "number too large": '{"state": "active", "updated_at": 1e999}',
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", PAYLOADS)
def test_an_odd_event_is_replaced_by_its_row(
    cloud: World, conductor: Conductor, applier: Applier, ticking: Clock, name: str
) -> None:
    first, odd, last = ordered(cloud, conductor, 3)
    build(cloud, [first])
    tell(cloud, odd, PAYLOADS[name])
    build(cloud, [last])
    catch_up(applier)
    assert states(cloud, [first, odd, last]) == ["active", "building", "active"]
    [letter] = cloud.api.read(dead_letters.list_all, "api")
    assert (letter.step, letter.key) == (STEP, odd)
    build(cloud, [odd])
    applier.retry_due()
    assert [each.key for each in cloud.api.read(dead_letters.list_all, "api")] == [odd], "it is not due yet"
    ticking.now += 60.0
    applier.retry_due()
    assert states(cloud, [odd]) == ["active"]
    assert cloud.api.read(dead_letters.list_all, "api") == []
    assert sound(cloud)


def test_events_of_unknown_kinds_are_passed(cloud: World, conductor: Conductor, applier: Applier) -> None:
    first, last = ordered(cloud, conductor, 2)
    tell(cloud, first, "?", kind="of tomorrow")
    catch_up(applier)
    build(cloud, [last])
    catch_up(applier)
    assert states(cloud, [last]) == ["active"]


@pytest.mark.parametrize("key", ["", "x" * 200, "\x1b[31m", "nobody"], ids=["empty", "long", "escape", "unknown"])
def test_events_of_what_is_no_instance_are_passed(
    cloud: World, conductor: Conductor, applier: Applier, ticking: Clock, key: str
) -> None:
    [last] = ordered(cloud, conductor, 1)
    tell(cloud, key, saying())
    build(cloud, [last])
    catch_up(applier)
    assert states(cloud, [last]) == ["active"]
    ticking.now += 60.0
    applier.retry_due()
    assert cloud.api.read(dead_letters.list_all, "api") == []


@pytest.mark.parametrize("fault", ["a\x00b", "é" * 70_000, "\x1b]0;title\x07"], ids=["nul", "long", "escape"])
@pytest.mark.parametrize("together", [False, True])
def test_faults_are_cleaned_and_cut(cloud: World, conductor: Conductor, applier: Applier, fault: str, together: bool) -> None:
    """Alone in a page, and beside others: MariaDB would cut it to another length each time."""
    servers = ordered(cloud, conductor, 3 if together else 1)
    for server in servers:
        tell(cloud, server, saying(state="error", fault=fault), kind="ended")
    catch_up(applier)
    assert set(states(cloud, servers)) == {"error"}
    for shown in cloud.evidence().servers:
        kept = shown.fault or ""
        assert 0 < len(kept.encode()) <= FAULTS_SIZE
        assert not any(c in kept for c in "\x00\x1b\x07")
    assert cloud.evidence().claims == {}


def test_an_event_refused_by_databases_harms_no_neighbours(
    cloud: World, conductor: Conductor, applier: Applier, ticking: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever passes the check: a page that cannot be written is written instance by instance."""
    first, odd, last = servers = ordered(cloud, conductor, 3)
    build(cloud, servers)
    real = events._summary_parameters

    def parameters_of(cell_uuid: str, event: InstanceEvent, now: float | None) -> dict[str, object]:
        if event.key == odd:
            raise LookupError("a fault of the program")
        return real(cell_uuid, event, now)

    monkeypatch.setattr("db.api.reconcile.events._summary_parameters", parameters_of)
    catch_up(applier)
    assert states(cloud, [first, odd, last]) == ["active", "building", "active"]
    monkeypatch.undo()
    ticking.now += 60.0
    applier.retry_due()
    assert states(cloud, servers) == ["active"] * 3
    assert sound(cloud)


@pytest.mark.parametrize("column", ["state"])
def test_an_undecodable_row_does_not_disturb_a_rebuild(
    cloud: World, conductor: Conductor, applier: Applier, ticking: Clock, column: str
) -> None:
    first, odd, last = servers = ordered(cloud, conductor, 3)
    build(cloud, servers)

    def poison(tx: Connection, value: str) -> None:
        tx.execute(sa.update(instances).where(instances.c.uuid == odd).values({column: value}))

    cloud.databases[CELL].write(poison, "weird")
    cloud.trim_feeds()
    catch_up(applier)
    assert states(cloud, [first, odd, last]) == ["active", "building", "active"]
    assert [letter.key for letter in cloud.api.read(dead_letters.list_all, "api")] == [odd]
    ticking.now += 60.0
    applier.retry_due()
    [letter] = cloud.api.read(dead_letters.list_all, "api")
    assert letter.tries == 2
    cloud.databases[CELL].write(poison, "active")
    ticking.now += 60.0
    applier.retry_due()
    assert states(cloud, servers) == ["active"] * 3
    assert cloud.api.read(dead_letters.list_all, "api") == []


def test_rows_are_settled_without_the_feed(cloud: World, conductor: Conductor, monkeypatch: pytest.MonkeyPatch) -> None:
    [server] = ordered(cloud, conductor, 1)
    keeper = FeedFollower(conductor.context, conductor.cell(CELL), FeedSettings(settle_age=-1.0))

    def fail(*_: object, **__: object) -> None:
        raise errors.DatabaseUnavailable("the feed cannot be followed")

    monkeypatch.setattr(Applier, "apply_page", fail)
    with pytest.raises(errors.DatabaseUnavailable):
        keeper.keep_up()
    assert cloud.row(server).state == "scheduled"


def test_every_kind_of_event_is_known() -> None:
    assert {kind.value for kind in EventKind} == {"moved", "active", "ended", "task", "host", "service"}


def test_odd_rows_at_the_api_level_stay_unchanged(cloud: World, conductor: Conductor, applier: Applier) -> None:
    """As a release before this one may have applied them: the next event of the server mends its row."""
    [server] = ordered(cloud, conductor, 1)
    cloud.api.write(lambda tx: tx.execute(sa.update(instance_mappings).values(state="weird", updated_at=1e300)))
    build(cloud, [server])
    catch_up(applier)
    assert states(cloud, [server]) == ["active"]
