"""Sweeps of the API level, and the audit, go on past rows that a database or a codec refuses."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import pytest
import sqlalchemy as sa

from conductor.settle import settle_staged
from conductor.tidy import reap_claims, tidy_database
from db import dead_letters, outbox
from db.api.rows.tables import all_or_nothing, notifications, request_specs
from db.cell.tables import instances as instance_rows
from db.sql.connection import Connection
from db.sql.engine import Database
from objects.instance import State
from tests.support.applying import CELL, OTHER, build, ordered
from tests.support.auditing import Auditor
from tests.support.conductor_process import Conductor
from tests.support.ground import GROUNDS
from tests.support.spoiled_rows import refusal
from tests.support.world import World, world_fixture

cloud = world_fixture({CELL: ["a1", "a2"], OTHER: ["b1"]}, GROUNDS, embedded=True)


@pytest.fixture
def conductor(cloud: World) -> Conductor:
    return cloud.conductor("one")


def change(database: Database, statement: sa.Executable) -> None:
    def run(tx: Connection) -> None:
        tx.execute(statement)

    database.write(run)


def refused(cloud: World, uuid: str) -> AbstractContextManager[None]:
    """While inside, the cell's database refuses whatever is written of this instance."""
    return refusal(cloud.databases[CELL], "instances", uuid)


def raw_state(cloud: World, uuid: str) -> str:
    def read(tx: Connection) -> Any:
        return tx.execute(sa.select(instance_rows.c.state).where(instance_rows.c.uuid == uuid)).scalar_one()

    return str(cloud.databases[CELL].read(read))


def letters(cloud: World) -> list[tuple[str, str]]:
    return [(letter.step, letter.key) for letter in cloud.api.read(dead_letters.list_all, "api")]


def test_deletes_of_neighbours_are_carried_out(cloud: World, conductor: Conductor) -> None:
    servers = ordered(cloud, conductor, 5)
    odd = servers[2]
    for server in servers:
        assert cloud.delete(server) is not None
    with refused(cloud, odd):
        conductor.deleter.run_round()
        assert {raw_state(cloud, server) for server in servers if server != odd} == {State.DELETED}
        assert letters(cloud) == [("delete", odd)]
        conductor.deleter.run_round()
        assert letters(cloud) == [("delete", odd)]


def test_rows_of_neighbours_are_settled(cloud: World, conductor: Conductor) -> None:
    servers = ordered(cloud, conductor, 5)
    odd = servers[2]
    with refused(cloud, odd):
        settle_staged(conductor.database, conductor.cell(CELL), -1.0)
    assert {raw_state(cloud, server) for server in servers if server != odd} == {State.SCHEDULED}
    assert letters(cloud) == [("settle", odd)]


def test_batches_beside_an_odd_one_are_rolled_back(cloud: World, conductor: Conductor) -> None:
    good = ordered(cloud, conductor, 2, all_or_nothing=True)
    bad = ordered(cloud, conductor, 2, all_or_nothing=True)
    change(cloud.api, sa.update(all_or_nothing).values(fault="it has failed", failed_at=1.0))
    with refused(cloud, bad[0]):
        conductor.batches.decide_batches()
    assert {raw_state(cloud, server) for server in (*good, bad[1])} == {State.ERROR}
    assert letters(cloud) == [("roll back", bad[0])]


def test_the_audit_names_the_parts_it_cannot_check(cloud: World, conductor: Conductor) -> None:
    servers = ordered(cloud, conductor, 3)
    odd, other = servers[0], servers[1]
    build(cloud, servers)
    change(cloud.databases[CELL], sa.update(instance_rows).where(instance_rows.c.uuid == odd).values(state="weird"))
    auditor = Auditor(conductor)
    conductor.keep()
    change(cloud.databases[CELL], sa.update(instance_rows).where(instance_rows.c.uuid == other).values(state="deleted"))
    found = auditor.audit.check_all()
    kinds = {(finding.kind, finding.key) for findings in found.values() for finding in findings}
    assert ("row deleted in its cell only", other) in kinds
    assert any(odd in reason and "could not check" in reason for reason in auditor.places.unknown.values())


def test_a_notification_that_cannot_be_decoded_is_dropped(cloud: World) -> None:
    row = {
        "message_id": "m",
        "event_type": "instance.create.end",
        "priority": "INFO",
        "subject": "s",
        "at": 1.0,
        "taken_until": 0.0,
    }
    change(cloud.api, sa.insert(notifications).values(facts="{", **row))
    assert cloud.api.write(outbox.take_notices, "api", 10.0, 70.0, 100) == []
    assert cloud.api.read(outbox.is_empty, "api")


def test_a_failing_tidying_step_prevents_no_other(cloud: World, conductor: Conductor, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[float] = []

    def fail(*_: object) -> None:
        raise LookupError("an odd decision")

    def note(tx: Connection, before: float) -> int:
        done.append(before)
        return 0

    monkeypatch.setattr("conductor.tidy.decisions.trim_decisions", fail)
    monkeypatch.setattr("conductor.tidy.builds.forget_tokens", note)
    with pytest.raises(LookupError):
        tidy_database(conductor.database, 1.0, 1.0)
    assert len(done) == 1


def test_repairs_skip_undecodable_specs(cloud: World, conductor: Conductor) -> None:
    servers = ordered(cloud, conductor, 2)
    build(cloud, servers)
    conductor.keep()
    change(cloud.api, sa.update(request_specs).values(spec="{"))
    reap_claims(conductor.database, conductor.ledger)
    assert Auditor(conductor).kinds() == []
