"""Instance rows on real databases: staging, transitions, sweeps' reads, and the feed they write."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pytest

from db.cell import feed, instances, rebuild, staging
from db.sql.engine import Database
from objects import lifecycle, stored
from objects.feed import EventKind, InstanceSummary
from objects.flavor import Flavor
from objects.instance import Failure, FailureClass, Instance, State
from objects.lifecycle import Change, Refused
from objects.selection import HostCapacity, Selection
from objects.spec import RequestSpec, ServerProperties
from objects.task import Power
from tests.support.databases import MARIADB, POSTGRESQL, cell_database, scratch_url, synced
from tests.support.threads import run_threads

SPEC = RequestSpec(
    batch_id="b1",
    request_id="req-1",
    project_id="p1",
    user_id="u1",
    name="web",
    flavor=Flavor(flavor_id="1", name="tiny", vcpus=1, memory_mb=512),
    properties=ServerProperties(tags=("a", "b"), block_devices=({"uuid": "img", "boot_index": 0},)),
)
LIMITS = HostCapacity(vcpus=64.0, memory_mb=1024.0, disk_gb=10.0)


@pytest.fixture(params=["sqlite", "mariadb", "postgresql"])
def cell(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    with ExitStack() as stack:
        if request.param == "sqlite":
            database = cell_database(tmp_path)
        else:
            url = stack.enter_context(scratch_url(MARIADB if request.param == "mariadb" else POSTGRESQL))
            database = synced(url, "cell")
        yield database
        database.dispose_connections()


def selection(host: str) -> Selection:
    return Selection(host=host, node=host, cell_uuid="c1", limits=LIMITS)


def new(uuid: str, fence: int = 1, host: str = "h1", fault: str | None = None) -> staging.NewInstance:
    row = Instance(
        uuid=uuid,
        state=State.STAGED,
        fence=fence,
        host=host,
        node=host,
        limits=LIMITS,
        alternates=(selection("h2"),),
        deadline=1000.0,
        fault=fault,
    )
    return staging.NewInstance(instance=row, name=f"web-{uuid}", launch_index=0, created_at=10.0)


def stage(cell: Database, *uuids: str, fence: int = 1, host: str = "h1") -> list[str]:
    return cell.write(staging.stage_instances, SPEC, [new(uuid, fence, host) for uuid in uuids], 11.0)


def get(cell: Database, uuid: str) -> Instance:
    row = cell.read(instances.get, uuid)
    assert row is not None
    return row


def accept(cell: Database, uuid: str, host: str = "h1", fence: int = 1, attempt: int = 1, builder: str = "h1:a") -> bool:
    outcome = cell.write(
        instances.transition_rows, [uuid], lambda r: lifecycle.accept_order(r, host, fence, attempt, builder), 12.0
    )[uuid]
    return isinstance(outcome, Change) or outcome.done


def test_staged_rows_return_unchanged_and_publish_no_event(cell: Database) -> None:
    assert stage(cell, "u1", "u2") == ["u1", "u2"]
    row = get(cell, "u1")
    assert (row.state, row.fence, row.host, row.limits, row.alternates) == (State.STAGED, 1, "h1", LIMITS, (selection("h2"),))
    assert cell.read(feed.read_head) == 0
    assert cell.read(staging.list_staged, 12.0, 10) == {"u1": 1, "u2": 1}
    assert cell.read(staging.list_staged, 11.0, 10) == {}


@pytest.mark.parametrize("names", [("u1-boot", "u2-twin"), ("u1-twin", "u2-boot")])
def test_a_body_an_operation_boots_stages_with_boots(cell: Database, names: tuple[str, str]) -> None:
    """Whichever comes first in the statement."""
    twin = {"server_uuid": "s", "turn": 4, "power": Power.INCOMING}
    news = [
        msgspec.structs.replace(new(uuid), instance=msgspec.structs.replace(new(uuid).instance, **twin if "twin" in uuid else {}))
        for uuid in names
    ]
    assert cell.write(staging.stage_instances, SPEC, news, 11.0) == list(names)
    found = {uuid: get(cell, uuid) for uuid in names}
    seen = {uuid.partition("-")[2]: (row.server_uuid, row.turn, row.power) for uuid, row in found.items()}
    assert seen == {"twin": ("s", 4, Power.INCOMING), "boot": (None, 0, Power.ON)}


def test_stage_again_needs_an_equal_or_higher_fence(cell: Database) -> None:
    stage(cell, "u1", fence=2)
    assert stage(cell, "u1", fence=2) == ["u1"]
    assert stage(cell, "u1", "u2", fence=3, host="h9") == ["u1", "u2"]
    assert (get(cell, "u1").host, get(cell, "u1").fence) == ("h9", 3)
    assert stage(cell, "u1", fence=2) == []
    assert get(cell, "u1").host == "h9"
    assert accept(cell, "u1", host="h9", fence=3)
    assert stage(cell, "u1", fence=4) == []
    assert get(cell, "u1").state is State.BUILDING


def test_a_tombstone_refuses_a_late_stage(cell: Database) -> None:
    rows = cell.write(instances.delete, ["u1"], 12.0)
    assert rows["u1"].state is State.DELETED
    assert stage(cell, "u1", fence=9) == []
    assert get(cell, "u1").state is State.DELETED
    assert [e.kind for e in cell.read(feed.read, 0, 10).events] == [EventKind.ENDED]
    assert cell.write(instances.delete, ["u1"], 13.0)["u1"].version == 1  # again: nothing changes
    assert cell.read(feed.read_head) == 1


def test_a_life_from_staged_to_deleted_with_events(cell: Database) -> None:
    stage(cell, "u1")
    assert accept(cell, "u1")
    cell.write(instances.transition_rows, ["u1"], lambda r: lifecycle.confirm_active(r, "h1", 1, 1, "h1:a", 20.0), 20.0)
    assert get(cell, "u1").launched_at == 20.0
    assert cell.write(instances.delete, ["u1"], 21.0)["u1"].state is State.DELETING
    cell.write(instances.transition_rows, ["u1"], lambda r: lifecycle.confirm_gone(r, "h1", 1, 22.0), 22.0)
    events = cell.read(feed.read, 0, 10).events
    assert [(e.sequence, e.kind, e.version) for e in events] == [(1, EventKind.ACTIVE, 2), (2, EventKind.ENDED, 4)]
    assert [stored.load_text(e.payload, InstanceSummary).state for e in events] == ["active", "deleted"]


def test_a_reschedule_keeps_history_and_moves_the_order(cell: Database) -> None:
    stage(cell, "u1")
    accept(cell, "u1")
    failure = Failure(kind=FailureClass.HOST, error="BuildFailed", message="no disk", at=13.0)
    cell.write(instances.transition_rows, ["u1"], lambda r: lifecycle.fail_attempt(r, "h1", 1, 1, "h1:a", failure), 13.0)
    (order,) = cell.read(instances.orders_of, ["u1"]).orders
    assert (order.instance.host, order.instance.attempt, order.instance.limits) == ("h2", 2, LIMITS)
    assert order.spec == SPEC
    assert order.instance.history[0].failure == failure
    assert cell.read(instances.list_unaccepted, 13.0, 10).orders == []  # it was just sent
    assert [o.instance.uuid for o in cell.read(instances.list_unaccepted, 13.5, 10).orders] == ["u1"]
    cell.write(instances.record_sent, ["u1"], 14.0)
    assert cell.read(instances.list_unaccepted, 13.5, 10).orders == []
    cell.write(instances.transition_rows, ["u1"], lambda r: lifecycle.fail_attempt(r, "h2", 1, 2, "h2:a", failure), 15.0)
    ended = get(cell, "u1")
    assert ended.state is State.ERROR
    assert "Attempt 1 on h1" in (ended.fault or "")
    assert "Attempt 2 on h2" in (ended.fault or "")


def test_refusals_write_nothing_and_unknown_uuids_are_refused(cell: Database) -> None:
    stage(cell, "u1")
    outcomes = cell.write(instances.transition_rows, ["u1", "nobody"], lambda r: Refused(reason="no"), 12.0)
    assert all(isinstance(outcome, Refused) for outcome in outcomes.values())
    assert get(cell, "u1").version == 0


def test_the_settlers_removal_touches_only_staged_rows(cell: Database) -> None:
    stage(cell, "u1", "u2")
    accept(cell, "u2")
    cell.write(staging.remove_staged, ["u1", "u2"])
    assert cell.read(instances.get, "u1") is None
    assert get(cell, "u2").state is State.BUILDING
    assert stage(cell, "u1") == ["u1"]  # with its tags and devices, which went too


def test_cell0_keeps_the_reason_from_the_start(cell: Database) -> None:
    row = new("u1", fault="No valid host was found.")
    cell.write(staging.stage_instances, SPEC, [row], 11.0)
    cell.write(instances.transition_rows, ["u1"], lambda r: lifecycle.activate_row(r, 1, cell0=True), 12.0)
    assert (get(cell, "u1").state, get(cell, "u1").fault) == (State.ERROR, "No valid host was found.")


def test_sweeps_find_what_they_own(cell: Database) -> None:
    stage(cell, "s1", "b1", "a1", "d1")
    for uuid in ("b1", "a1", "d1"):
        accept(cell, uuid)
    cell.write(instances.transition_rows, ["a1"], lambda r: lifecycle.confirm_active(r, "h1", 1, 1, "h1:a", 20.0), 20.0)
    cell.write(instances.delete, ["d1"], 21.0)
    assert {r.uuid for r in cell.read(instances.on_hosts, ["h1"], [State.BUILDING])} == {"b1"}
    assert {r.uuid for r in cell.read(instances.list_overdue, 1001.0, 0.0, 10)} == {"b1"}
    assert cell.read(instances.list_overdue, 999.0, 0.0, 10) == []
    assert {r.uuid for r in cell.read(instances.in_state, [State.DELETING], 22.0, 10)} == {"d1"}
    assert {(h.instance_uuid, h.state) for h in cell.read(instances.list_holdings, "h1")} == {
        ("b1", "building"),
        ("a1", "active"),
        ("d1", "deleting"),
    }


def test_a_rebuild_tells_what_the_feed_would_have(cell: Database) -> None:
    stage(cell, "s1", "b1", "a1")
    accept(cell, "b1")
    accept(cell, "a1")
    cell.write(instances.transition_rows, ["a1"], lambda r: lifecycle.confirm_active(r, "h1", 1, 1, "h1:a", 20.0), 20.0)
    page = cell.read(rebuild.read_snapshot, "", 10, 30.0)
    assert [(e.key, e.kind) for e in page.events] == [
        ("a1", EventKind.MOVED),
        ("a1", EventKind.ACTIVE),
        ("b1", EventKind.MOVED),
    ]
    assert cell.read(rebuild.read_snapshot, "b1", 10, 30.0).last_uuid is None or page.last_uuid == "b1"


def test_a_trimmed_feed_informs_a_reader_behind(cell: Database) -> None:
    cell.write(instances.delete, ["u1"], 12.0)
    cell.write(instances.delete, ["u2"], 20.0)
    assert cell.write(feed.trim_events, 15.0) == 1
    assert cell.read(feed.read, 0, 10).trimmed
    page = cell.read(feed.read, 1, 10)
    assert not page.trimmed
    assert [e.key for e in page.events] == ["u2"]
    assert cell.write(feed.trim_events, 15.0) == 0


def test_events_of_concurrent_writers_are_numbered_without_gaps(cell: Database) -> None:
    def work(prefix: str) -> None:
        for number in range(20):
            cell.write(instances.delete, [f"{prefix}{number}"], 12.0)

    run_threads([threading.Thread(target=work, args=(name,)) for name in "abcd"])
    sequences = [e.sequence for e in cell.read(feed.read, 0, 1000).events]
    assert sequences == list(range(1, 81))


def test_one_of_two_agents_starts_wins_the_row(cell: Database) -> None:
    stage(cell, "u1")
    won: list[str] = []

    def ask(builder: str) -> None:
        if accept(cell, "u1", builder=builder):
            won.append(builder)

    run_threads([threading.Thread(target=ask, args=(f"h1:{n}",)) for n in range(6)])
    assert len(won) == 1
    assert get(cell, "u1").builder == won[0]
