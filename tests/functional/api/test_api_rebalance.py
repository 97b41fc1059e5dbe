"""Which moves would free the most: what a real scheduler plans, with nothing changed, and each move as it would be made."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import falcon.testing
import msgspec
import pytest
import sqlalchemy as sa

from api.opts import ApiSettings
from db.api.claims import claims, displaced, server_groups
from db.api.deployment import aggregates
from db.api.operations import accepting, operations
from db.api.projects import flavors
from db.api.rows.tables import build_requests, instance_mappings, inventories, request_specs
from db.api.rows.tables import operations as operation_rows
from db.cell import services
from db.sql.connection import ApiTransaction
from objects import stored
from objects.destination import Destination
from objects.flavor import Flavor
from objects.group import GroupPolicy
from objects.move import Move, MoveKind
from objects.process import AGENT_BINARY
from objects.spec import RequestSpec
from rpc.scheduler import SchedulerClient
from service.periodic import wait_until
from tests.functional.api.test_api_capacity import boot
from tests.support import fleet
from tests.support.api import CELL1_UUID, TENANT, Front, refusal, with_status
from tests.support.deciding import FAST, add_hosts, contents, scheduler_of

PATH = "/v2.1/superconductor/rebalance"


@pytest.fixture
def lonely(tmp_path: Path) -> Iterator[Front]:
    """Without a scheduler. Five hosts of 8 vCPUs."""
    made = Front(tmp_path, ApiSettings(cell_timeout=1.0))
    made.database.write(flavors.create, Flavor(flavor_id="big", name="m1.big", vcpus=6, memory_mb=8192))
    add_hosts(made, [fleet.node(f"h{n}", vcpus=8) for n in range(1, 6)])
    yield made
    made.close()


@pytest.fixture
def front(lonely: Front) -> Iterator[Front]:
    with scheduler_of(lonely):
        yield lonely


def run(front: Front, name: str, host: str, flavor: str = "1", count: int = 1, **hints: str) -> None:
    """Servers that run on this host: their cell is not asked for them here."""
    boot(front, name, host, flavor, count, **hints)
    front.database.write(_active, host)


def _active(tx: ApiTransaction, host: str) -> None:
    mine = sa.and_(instance_mappings.c.host.is_(None), instance_mappings.c.state == "building")
    values = {"state": "active", "host": host, "node": host, "cell_uuid": CELL1_UUID}
    tx.execute(sa.update(instance_mappings).where(mine).values(values))


def _forget_force(tx: ApiTransaction) -> None:
    """``run`` names hosts as administrators do: these requests name none."""
    for batch, text in tx.execute(sa.select(request_specs.c.batch_id, request_specs.c.spec)).all():
        spec = msgspec.structs.replace(stored.load_text(text, RequestSpec), force_hosts=(), availability_zone=None)
        tx.execute(sa.update(request_specs).where(request_specs.c.batch_id == batch).values(spec=stored.dump_value(spec)))


def ask(front: Front, query: str = "at_most=100", headers: dict[str, str] | None = None) -> falcon.testing.Result:
    return front.client.simulate_get(PATH, headers=headers, query_string=query)


def told(front: Front, query: str = "at_most=100") -> Any:
    """The answer, before and after which the databases are the same."""
    front.database.write(_forget_force)
    before = contents(front)
    answer = with_status(ask(front, query), 200)
    assert contents(front) == before
    return answer.json["rebalance"]


def ways(found: Any) -> list[tuple[str, str, str]]:
    return [(each["name"].rpartition("-")[0] or each["name"], each["source"], each["destination"]) for each in found["moves"]]


def carry_out(front: Front, found: Any) -> None:
    """Make each move as the scheduler of production claims it, and free what it leaves."""
    ids = front.database.read(lambda tx: list(tx.execute(sa.select(inventories.c.id)).scalars()))
    standing = front.database.read(displaced.read, ids, 1000)
    bodies = front.database.read(operations.bodies_by_uuid, [each.uuid for each in standing.bodies])
    batches = {each.server_uuid: (each, standing.specs[each.batch_id]) for each in standing.bodies}
    for number, each in enumerate(found["moves"]):
        claim, spec = batches[each["server"]]
        move = Move(kind=MoveKind.MIGRATE, instance_uuid=claim.uuid, source_host=each["source"], source_cell_uuid=CELL1_UUID)
        spec = accepting.current_spec(spec, bodies[claim.uuid].server)
        twin = f"00000000-0000-4000-8000-{number:012}"
        moving = spec.for_move(move, claim.batch_id, destination=Destination(host=each["destination"]))
        front.database.write(_queue, twin, claim.batch_id)
        moving = msgspec.structs.replace(moving, fences={twin: 1})
        [[chosen, *_]] = SchedulerClient(front.bus).select_destinations(fleet.CONTEXT, moving, [twin])
        assert chosen.host == each["destination"]
        front.ledger.write(claims.release_claims, [claim.uuid])


def _queue(tx: ApiTransaction, twin: str, batch: str) -> None:
    row = {"instance_uuid": twin, "batch_id": batch, "state": "leased", "fence": 1, "lease_until": 2e9, "deadline": 2e9}
    tx.execute(sa.insert(build_requests), row | {"owner": "test", "priority": 0, "created_at": 1.0})


def test_the_emptiest_hosts_are_emptied_to_the_fullest(front: Front) -> None:
    for host, count in (("h1", 1), ("h2", 2), ("h3", 4), ("h4", 5)):
        run(front, "web", host, count=count)
    found = told(front, "at_most=100&flavor=big")
    assert (found["servers"], found["allowed"], found["considered"], found["kept"]) == (12, 12, 12, {})
    assert found["hosts"] == ["h1", "h2"]
    assert ways(found) == [("web", "h1", "h4"), ("web", "h2", "h4"), ("web", "h2", "h4")]
    assert [each["gain"] for each in found["moves"]] == [1.0, 0.5, 0.5]
    assert all(each["live"] and (each["vcpus"], each["memory_mb"]) == (1, 2048) for each in found["moves"])
    assert found["bound"] == 4, "by their numbers alone"
    assert (found["before"]["empty_hosts"], found["after"]["empty_hosts"]) == (1, 3)
    assert (found["before"]["fits"], found["after"]["fits"]) == ({"m1.big": 3}, {"m1.big": 3})
    carry_out(front, found)
    again = told(front, "at_most=100&flavor=big")
    assert again["before"] == found["after"]


def test_no_more_are_moved_than_allowed(front: Front) -> None:
    for host, count in (("h1", 2), ("h2", 3), ("h3", 5)):
        run(front, "web", host, count=count)
    assert [told(front, f"at_most={number}")["hosts"] for number in (19, 20, 49, 50)] == [[], ["h1"], ["h1"], ["h1"]]
    few = told(front, "at_most=19")
    assert (few["allowed"], few["moves"], few["bound"]) == (1, [], 0)
    assert few["before"] == few["after"]
    assert told(front, "")["allowed"] == 0, "5 % of ten servers"


@pytest.mark.parametrize("why", ["locked", "operation", "building", "silent", "disabled"])
def test_what_cannot_be_moved_keeps_its_host(front: Front, why: str) -> None:
    run(front, "fixed", "h1")
    run(front, "web", "h2", count=2)
    run(front, "web", "h3", count=3)
    reason = {"locked": "locked", "operation": "an operation is open", "building": "not active"}.get(why)
    front.database.write(_spoil, why)
    if why == "disabled":
        front.cell.write(services.set_disabled, "h1", AGENT_BINARY, True, "drained", time.time())
    if why == "silent":
        front.cell.write(services.set_forced_down, "h1", AGENT_BINARY, True, time.time())
    found = told(front)
    if reason is not None:
        assert found["kept"] == {reason: 1}
        assert found["hosts"] == ["h2"]
    else:
        assert wait_until(lambda: told(front)["hosts"] == ["h2"], 90.0)
        found = told(front)
    assert "h1" not in [each["destination"] for each in found["moves"] if each["source"] != "h1"]


def _spoil(tx: ApiTransaction, why: str) -> None:
    mine = instance_mappings.c.name == "fixed"
    if why == "locked":
        tx.execute(sa.update(instance_mappings).where(mine).values(locked_by="owner"))
    if why == "building":
        tx.execute(sa.update(instance_mappings).where(mine).values(state="building"))
    if why == "operation":
        uuid = tx.execute(sa.select(instance_mappings.c.instance_uuid).where(mine)).scalar_one()
        values = {"uuid": "0" * 8 + "-0000-4000-8000-" + "0" * 12, "server_uuid": uuid, "open_for": uuid, "kind": "stop"}
        values |= {"args": "{}", "state": "task", "number": 1, "power_before": "on", "held": False, "forced": False}
        values |= {"project_id": "p", "user_id": "u", "request_id": "r", "created_at": 1.0, "updated_at": 1.0, "deadline": 2e9}
        tx.execute(sa.insert(operation_rows), values)


def test_zones_and_groups_hold(front: Front) -> None:
    zone = front.database.write(aggregates.create, "north", {"availability_zone": "north"})
    for host in ("h1", "h2"):
        front.database.write(aggregates.add_host, zone.id, host)
    apart = fleet.group(GroupPolicy.ANTI_AFFINITY).__replace__(project_id="admin")
    front.database.write(server_groups.create, apart)
    for host in ("h3", "h4"):
        run(front, f"apart-{host}", host, group=apart.uuid)
    run(front, "north", "h1")
    run(front, "web", "h2", count=2)
    run(front, "web", "h5", count=4)
    front.database.write(_forget_force)
    front.database.write(_ask_zone, "north", "north")
    before = told_as_is(front)
    assert ("north", "h1", "h2") in ways(before) or ("north", "h1", "h2") in [
        (each["name"], each["source"], each["destination"]) for each in before["moves"]
    ]
    hosts = {each["name"]: each["destination"] for each in before["moves"]}
    members = {"apart-h3": "h3", "apart-h4": "h4"} | {name: host for name, host in hosts.items() if name.startswith("apart")}
    assert len(set(members.values())) == 2
    assert any(name.startswith("apart") for name in hosts)
    carry_out(front, before)


def _ask_zone(tx: ApiTransaction, name: str, zone: str) -> None:
    batch = tx.execute(sa.select(instance_mappings.c.batch_id).where(instance_mappings.c.name == name)).scalar_one()
    spec = stored.load_text(
        tx.execute(sa.select(request_specs.c.spec).where(request_specs.c.batch_id == batch)).scalar_one(), RequestSpec
    )
    text = stored.dump_value(msgspec.structs.replace(spec, availability_zone=zone))
    tx.execute(sa.update(request_specs).where(request_specs.c.batch_id == batch).values(spec=text))


def told_as_is(front: Front) -> Any:
    answer = with_status(ask(front), 200)
    return answer.json["rebalance"]


def test_a_host_that_an_administrator_named_is_kept(front: Front) -> None:
    run(front, "web", "h1")
    run(front, "web", "h2", count=3)
    found = told_as_is(front)
    assert (found["moves"], found["kept"]) == ([], {"an administrator named its host": 4})


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("at_most=0", "at_most: '0' is not a number above 0"),
        ("at_most=101", "at_most: '101' is not"),
        ("at_most=nan", "at_most: 'nan' is not"),
        ("at_most=5%25", "at_most: '5%' is not"),
        ("at_most=5&at_most=6", "at_most: is given more than 1 times"),
        ("flavor=none", "flavor: 'none' could not be found"),
        ("flavor=", "flavor: is given"),
        ("flavors=big", "flavors: is no parameter"),
    ],
)
def test_bad_questions_are_refused(front: Front, query: str, words: str) -> None:
    assert words in refusal(ask(front, query), 400)


def test_members_are_refused(front: Front) -> None:
    assert "superconductor:rebalance" in refusal(ask(front, headers=TENANT), 403)


def test_an_absent_or_new_scheduler_is_reported(lonely: Front) -> None:
    assert "No scheduler answers" in refusal(ask(lonely), 503)
    with scheduler_of(lonely, FAST.__replace__(warm_up=60.0)):
        found = told(lonely)
        assert (found["early"], found["servers"], found["moves"]) == (True, 0, [])
        assert json.dumps(found["before"]) == json.dumps(found["after"])
