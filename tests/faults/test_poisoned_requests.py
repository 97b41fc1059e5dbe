"""A request that a database or a codec refuses ends at its deadline, and costs its neighbours nothing.

The poison is put into rows directly: the doors refuse such values. The neighbours were accepted before and after it, and are built.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import msgspec
import pytest
import sqlalchemy as sa

from conductor.tidy import DeadLetterSweep
from db import dead_letters
from db.api.rows.tables import build_requests, cell_mappings, instance_mappings, request_specs
from db.cell import staging
from db.cell.tables import instances
from db.sql.connection import Connection
from db.sql.engine import Database
from objects.cell import CELL0_UUID
from objects.instance import Instance, State
from objects.spec import RequestSpec
from service.periodic import wait_until
from tests.support.ground import GROUNDS
from tests.support.world import World, world_fixture

pytestmark = pytest.mark.one_in(4)

DEADLINE = 4.0
"""Seconds that a poisoned request has. Its neighbours have a minute."""
PATIENCE = 60.0


cloud = world_fixture({"cell1": ["a1", "a2"], "cell2": ["b1", "b2"]}, GROUNDS, embedded=True)


def change(database: Database, statement: sa.Executable) -> None:
    def run(tx: Connection) -> None:
        tx.execute(statement)

    database.write(run)


def respecified(cloud: World, spec: RequestSpec, change_it: Callable[[dict[str, Any]], None] | None = None, text: str = "") -> None:
    """The stored spec of the batch is this text, or what ``change_it`` makes of it."""
    if change_it is not None:
        plain = msgspec.json.decode(msgspec.json.encode(spec))
        change_it(plain)
        text = msgspec.json.encode(plain).decode()
    change(cloud.api, sa.update(request_specs).where(request_specs.c.batch_id == spec.batch_id).values(spec=text))


def tagged(*tags: str) -> Callable[[World, RequestSpec], None]:
    def poison(cloud: World, spec: RequestSpec) -> None:
        respecified(cloud, spec, lambda plain: plain["properties"].update(tags=list(tags)))

    return poison


def worded(text: str) -> Callable[[World, RequestSpec], None]:
    return lambda cloud, spec: respecified(cloud, spec, text=text)


def without_spec(cloud: World, spec: RequestSpec) -> None:
    change(cloud.api, sa.delete(request_specs).where(request_specs.c.batch_id == spec.batch_id))


def renamed(cloud: World, spec: RequestSpec) -> None:
    """A project that no column of a cell can hold: on SQLite, where everything fits, its server is built."""
    respecified(cloud, spec, lambda plain: plain.update(user_id="u" * 300))


def row_in_the_way(cloud: World, spec: RequestSpec) -> None:
    """Every database of a cell holds a row of this uuid that no step of the protocol explains."""
    [instance] = cloud.uuids(spec)
    row = {"uuid": instance, "state": "error", "fence": 7, "created_at": 0.0, "updated_at": 0.0}
    for database in cloud.databases.values():
        change(database, sa.insert(instances).values(row))


class Poison(NamedTuple):
    put: Callable[[World, RequestSpec], None]
    letter: bool = True
    """Whether it is set aside on every server, until its deadline."""


POISONS = {
    "the same tag twice": Poison(tagged("a", "a")),
    "tags that differ by a blank": Poison(tagged("a", "a "), letter=False),
    "a NUL in a tag": Poison(tagged("a\x00"), letter=False),
    "a tag that is too long": Poison(tagged("a" * 200), letter=False),
    "a user that is too long": Poison(renamed, letter=False),
    "a spec that is no JSON": Poison(worded("{")),
    "a spec of another kind": Poison(worded('{"batch_id": 7}')),
    "a spec that is too deep": Poison(worded('{"flavor":' * 2000 + "1" + "}" * 2000)),
    "a spec with half a character": Poison(worded('{"batch_id": "\\ud800"}')),
    "no spec at all": Poison(without_spec, letter=False),
    "rows in the way": Poison(row_in_the_way, letter=False),
}


def states(cloud: World, spec: RequestSpec) -> set[str]:
    return {cloud.mapped(instance).state for instance in cloud.uuids(spec)}


def are_active(cloud: World, spec: RequestSpec) -> bool:
    return states(cloud, spec) == {"active"}


@pytest.mark.parametrize("name", POISONS)
def test_a_poisoned_request_ends_at_its_deadline(cloud: World, name: str) -> None:
    poison = POISONS[name]
    before = [cloud.accept(2) for _ in range(3)]
    bad = cloud.accept(timeout=DEADLINE)
    after = [cloud.accept(2) for _ in range(3)]
    poison.put(cloud, bad)
    cloud.start()
    for spec in before + after:
        assert wait_until(partial(are_active, cloud, spec), PATIENCE), name
    [instance] = cloud.uuids(bad)
    assert wait_until(lambda: cloud.mapped(instance).state in ("error", "active"), PATIENCE), name
    assert cloud.requests() == {}
    assert wait_until(lambda: cloud.api.read(dead_letters.list_all, "api") == [], PATIENCE)
    ended = cloud.mapped(instance)
    if poison.letter:
        assert (ended.cell_uuid, ended.state) == (CELL0_UUID, "error")
    if ended.state == "error":
        assert instance not in cloud.evidence().claims
        cloud.delete(instance)
        assert wait_until(lambda: cloud.mapped(instance).state == "deleted", PATIENCE)


def test_a_poisoned_request_is_shown_until_its_deadline(cloud: World) -> None:
    bad = cloud.accept(timeout=600.0)
    tagged("a", "a")(cloud, bad)
    conductor = cloud.conductor("one")
    conductor.build(bad)
    conductor.build(bad)  # its lease is held: it is not tried again at once
    [letter] = cloud.api.read(dead_letters.list_all, "api")
    assert (letter.step, [letter.key], letter.tries) == ("build", cloud.uuids(bad), 1)
    assert letter.reason.split(":")[0] in ("IntegrityError", "UniqueViolation")
    assert not cloud.waits(bad)
    change(cloud.api, sa.update(build_requests).values(lease_until=1.0, deadline=1.0))
    conductor.build(bad)
    assert states(cloud, bad) == {"error"}
    assert cloud.api.read(dead_letters.list_all, "api") == []


def test_a_letter_about_a_deleted_server_is_forgotten(cloud: World) -> None:
    conductor, bad, worse = cloud.conductor("one"), cloud.accept(), cloud.accept()
    tagged("a", "a")(cloud, bad)
    tagged("a", "a")(cloud, worse)
    conductor.build(bad, worse)
    assert len(cloud.api.read(dead_letters.list_all, "api")) == 2
    [instance] = cloud.uuids(bad)
    cloud.delete(instance)
    DeadLetterSweep(conductor.context).run_round()
    assert [letter.key for letter in cloud.api.read(dead_letters.list_all, "api")] == cloud.uuids(worse)


def test_a_row_a_cell_refuses_fails_no_server(cloud: World) -> None:
    conductor = cloud.conductor("one")
    good, bad = [cloud.accept(2) for _ in range(4)], cloud.accept()
    tagged("a", "a")(cloud, bad)
    conductor.build(*good[:2], bad, *good[2:])
    assert set(cloud.requests()) == set(cloud.uuids(bad))
    assert all(cloud.mapped(instance).cell_uuid for spec in good for instance in cloud.uuids(spec))
    fences = {request.fence for request in cloud.requests().values()}
    assert fences == {1}, "nothing was leased or scheduled once more"


def test_without_a_cell0_it_ends_all_the_same(cloud: World) -> None:
    change(cloud.api, sa.delete(cell_mappings).where(cell_mappings.c.uuid == CELL0_UUID))
    conductor, late = cloud.conductor("one"), cloud.accept(timeout=-1.0)
    conductor.build(late)
    [instance] = cloud.uuids(late)
    assert (cloud.requests(), cloud.mapped(instance).state) == ({}, "error")
    cloud.delete(instance)
    conductor.deleter.run_round()
    assert cloud.mapped(instance).state == "deleted"


def test_a_row_of_an_earlier_conductor_leaves_cell0(cloud: World) -> None:
    """It had staged the row and died; cell0 is away when its successor ends the request, under a higher fence."""
    conductor, late = cloud.conductor("one"), cloud.accept(timeout=-1.0)
    conductor.lease(late.batch_id)
    [instance] = cloud.uuids(late)
    row = staging.NewInstance(
        instance=Instance(uuid=instance, state=State.STAGED, fence=1, max_attempts=1, deadline=0.0),
        name="n",
        launch_index=0,
        created_at=0.0,
    )
    cloud.databases["cell0"].write(staging.stage_instances, late, [row], 0.0)
    conductor.cell("cell0")
    conductor.databases["cell0"].away = True
    conductor.build(late)
    assert (cloud.requests(), cloud.mapped(instance).state) == ({}, "error")
    conductor.databases["cell0"].away = False
    conductor.keep()
    assert cloud.rows(instance) == {}


def test_a_mapping_decided_separately_fails_no_neighbour(cloud: World) -> None:
    """No step makes such a mapping; the audit removes the request."""
    conductor, good, bad = cloud.conductor("one"), cloud.accept(), cloud.accept()
    decided = sa.update(instance_mappings).where(instance_mappings.c.batch_id == bad.batch_id)
    change(cloud.api, decided.values(cell_uuid=str(uuid.uuid4())))
    conductor.build(good, bad)
    assert set(cloud.requests()) == set(cloud.uuids(bad))
    [letter] = cloud.api.read(dead_letters.list_all, "api")
    assert [letter.key] == cloud.uuids(bad)
