"""What projects are charged: exactly what they may have under a race, and freed once, whatever way a server ends."""

from __future__ import annotations

import contextlib
import random
import re
import threading
import uuid
from collections import Counter
from typing import Any

import msgspec
import pytest
import sqlalchemy as sa

from db.api.projects import quotas
from db.api.queue import builds
from db.api.queue.accepting import Accepted, NewBatch, NewServer
from db.api.queue.accepting import accept_batch as accept_batches
from db.api.reconcile import events
from db.api.reconcile.events import FeedPosition
from db.api.rows.tables import instance_mappings
from db.api.servers import mappings
from db.audit import quotas as quota_audit
from db.sql.connection import ApiTransaction
from db.sql.counting import StatementCounter
from db.sql.engine import Database
from objects import errors
from objects.feed import EventKind, InstanceEvent, InstanceSummary
from objects.quota import Admission, OwnLimits, QuotaLimits, QuotaUsage
from tests.functional.db.test_db_lock_order import counting
from tests.support import fleet
from tests.support.accepted import accept_batch
from tests.support.conductor import FAR, NOW, Queue, servers
from tests.support.databases import database_fixture
from tests.support.fleet import CELLS
from tests.support.transactions import run_threads

NONE = QuotaLimits()
SIZE = fleet.flavor(vcpus=2, memory_mb=512)


database = database_fixture()


@pytest.fixture
def queue(database: Database) -> Queue:
    return Queue(database)


def accept(
    queue: Queue,
    count: int = 1,
    *,
    token: str | None = None,
    at_least: int | None = None,
    project: str = "p",
    limits: QuotaLimits = NONE,
) -> Accepted:
    spec = fleet.spec(size=SIZE, project_id=project, name="web", num_instances=count)
    admission = Admission(limits=limits, at_least=at_least)
    news = [NewServer(uuid=str(uuid.uuid4()), name=f"web-{n + 1}", launch_index=n) for n in range(count)]
    return queue.database.write(accept_batch, spec, news, now=NOW, deadline=FAR, token=token, admission=admission)


def used(queue: Queue, project: str = "p") -> QuotaUsage:
    """What the project is charged for; that this is what it has is checked on the way."""
    assert queue.database.read(quota_audit.list_differences) == []
    return queue.database.read(quotas.get, project).used


def of(count: int) -> QuotaUsage:
    return QuotaUsage.of_flavor(SIZE, count)


# -- races -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limits", "text"),
    [
        ({"instances": 50}, "instances: Requested 1, but already used 50 of 50 instances"),
        ({"cores": 101}, "cores: Requested 2, but already used 100 of 101 cores"),
        ({"ram": 50 * 512}, "ram: Requested 512, but already used 25600 of 25600 ram"),
    ],
)
def test_a_hundred_concurrent_boots_stop_at_the_limit(queue: Queue, limits: dict[str, int], text: str) -> None:
    together = threading.Barrier(100)
    refusals: list[str] = []

    def boot(_: int) -> None:
        together.wait(60)
        try:
            accept(queue, limits=QuotaLimits(**limits))
        except errors.OverQuota as refusal:
            refusals.append(str(refusal))

    with counting() as met:
        assert run_threads(100, boot) == []
    assert refusals == [f"Quota exceeded for {text}"] * 50
    assert len(queue.requests()) == len(queue.mapped()) == 50
    assert used(queue) == of(50)
    assert met["deadlock"] == 0


def test_a_hundred_boots_without_quota_are_refused(queue: Queue) -> None:
    """Nobody commits, so the row is inserted and rolled back again and again."""
    together = threading.Barrier(100)
    refusals: list[str] = []

    def boot(_: int) -> None:
        together.wait(60)
        with pytest.raises(errors.OverQuota) as refusal:
            accept(queue, limits=QuotaLimits(instances=0))
        refusals.append(str(refusal.value))

    with counting() as met:
        assert run_threads(100, boot) == []
    assert refusals == ["Quota exceeded for instances: Requested 1, but already used 0 of 0 instances"] * 100
    assert met["deadlock"] == 0
    assert used(queue) == QuotaUsage()


def test_projects_share_no_limit_and_no_wait(queue: Queue) -> None:
    """While one project's row is locked, another project's servers come and go."""
    accept(queue, project="busy")
    if queue.database.dialect == "sqlite":  # one writer at a time: nothing to be shown but the limits
        accept(queue, 3, project="other", limits=QuotaLimits(instances=3))
        return
    locked, done = threading.Event(), threading.Event()

    def hold(tx: ApiTransaction) -> None:
        quotas.lock_project(tx, "busy")
        locked.set()
        assert done.wait(60)

    holder = threading.Thread(target=queue.database.write, args=(hold,))
    holder.start()
    try:
        assert locked.wait(60)
        first, *_ = accept(queue, 3, project="other", limits=QuotaLimits(instances=3)).uuids
        assert queue.delete(first) is not None
        assert queue.database.read(quotas.get, "other").used == of(2)
    finally:
        done.set()
        holder.join(60)


def test_concurrent_changes_end_with_the_rows_usage(queue: Queue) -> None:
    """Boots, deletes, burials, hand-overs, changed limits, audits and repairs, in three projects."""
    known: list[str] = []
    batches: list[str] = []

    def step(drawn: random.Random) -> None:
        project, kind = drawn.choice("abc"), drawn.randrange(6)
        if kind < 2 or not known:
            limits = QuotaLimits(instances=20, cores=30)
            accepted = accept(queue, drawn.randint(1, 4), project=project, at_least=1, limits=limits)
            batches.append(accepted.batch_id)
            known.extend(accepted.uuids)
        elif kind < 4:
            queue.delete(drawn.choice(known))
        elif kind == 4:
            fences = queue.lease(drawn.choice(batches))
            (queue.bury if drawn.random() < 0.5 else queue.hand_over)(fences)
        else:
            queue.database.write(quotas.change_limits, project, OwnLimits(instances=drawn.randint(5, 20)), force=True)
            assert queue.database.read(quota_audit.list_differences) == []
            assert queue.database.write(quota_audit.repair_charges, project) == []

    def work(number: int) -> None:
        drawn = random.Random(number)
        for _ in range(25):
            with contextlib.suppress(errors.OverQuota):
                step(drawn)

    assert run_threads(8, work) == []
    charged = {project: used(queue, project) for project in "abc"}
    assert all(0 <= usage.instances <= 20 and usage.cores <= 30 for usage in charged.values())
    for server in known:
        queue.delete(server)
    assert [used(queue, project) for project in "abc"] == [QuotaUsage()] * 3


# -- accepting ---------------------------------------------------------------------------------------------------------------


def test_a_refused_batch_leaves_its_token_unused(queue: Queue) -> None:
    accept(queue, 2, limits=QuotaLimits(instances=3))
    with pytest.raises(errors.OverQuota, match="Requested 2, but already used 2 of 3 instances"):
        accept(queue, 2, token="once", limits=QuotaLimits(instances=3))
    assert used(queue) == of(2)
    assert len(queue.requests()) == len(queue.mapped()) == 2
    assert not accept(queue, 1, token="once", limits=QuotaLimits(instances=3)).replayed


def test_a_repeated_token_is_charged_once(queue: Queue) -> None:
    first = accept(queue, 3, token="once", limits=QuotaLimits(instances=3))
    together = threading.Barrier(4)
    answers: list[Accepted] = []

    def again(_: int) -> None:
        together.wait(60)
        answers.append(accept(queue, 3, token="once", limits=QuotaLimits(instances=3)))

    assert run_threads(4, again) == []
    assert {(answer.uuids, answer.replayed) for answer in answers} == {(first.uuids, True)}
    assert used(queue) == of(3)


def test_a_uuid_that_is_taken_charges_nothing(queue: Queue) -> None:
    taken = accept(queue).uuids[0]
    with pytest.raises(errors.Conflict):
        queue.database.write(accept_batch, fleet.spec(size=SIZE), [NewServer(uuid=taken, name="web")], now=NOW, deadline=FAR)
    assert used(queue) == of(1)


@pytest.mark.parametrize(
    ("room", "names"), [(5, ["web-1", "web-2", "web-3", "web-4", "web-5"]), (2, ["web-1", "web-2"]), (1, ["web"])]
)
def test_a_shrinkable_batch_is_cut_to_the_room(queue: Queue, room: int, names: list[str]) -> None:
    accepted = accept(queue, 5, at_least=1, limits=QuotaLimits(cores=2 * room))
    found = [queue.database.read(mappings.get, server) for server in accepted.uuids]
    assert [server.name for server in found if server] == names
    assert queue.requests().keys() == queue.mapped().keys() == set(accepted.uuids)
    assert queue.database.read(mappings.specs_by_batch, [accepted.batch_id])[accepted.batch_id].num_instances == room
    assert used(queue) == of(room)
    with pytest.raises(errors.OverQuota, match="Requested 2-5"):
        accept(queue, 5, at_least=2, limits=QuotaLimits(instances=room + 1))


def test_usage_is_counted_without_a_limit(queue: Queue) -> None:
    accept(queue, 7)
    with pytest.raises(
        errors.Invalid, match=r"^Quota limit 5 for instances must be greater than or equal to already used and reserved 7"
    ):
        queue.database.write(quotas.change_limits, "p", OwnLimits(instances=5))
    queue.database.write(quotas.change_limits, "p", OwnLimits(instances=8))
    accept(queue)
    with pytest.raises(errors.OverQuota, match="already used 8 of 8 instances"):
        accept(queue)
    queue.database.write(quotas.change_limits, "p", OwnLimits(instances=5), force=True)
    with pytest.raises(errors.OverQuota, match="already used 8 of 5 instances"):
        accept(queue)
    queue.database.write(quotas.forget_limits, "p")
    accept(queue)
    assert used(queue) == of(9)


def test_a_batch_or_delete_costs_one_statement(queue: Queue) -> None:
    def executed(part: str, counter: StatementCounter) -> int:
        return sum(count.executions for (_, text), count in counter.count_by_statement().items() if re.search(rf"\b{part}\b", text))

    with StatementCounter(queue.database) as counter:
        accepted = accept(queue, 30, limits=QuotaLimits(instances=1000))
        assert executed("quotas", counter) == 1
        counter.reset_counts()
        queue.delete(accepted.uuids[0])
        assert executed("quotas", counter) == 1


# -- every way a server ends -------------------------------------------------------------------------------------------------


def event(uuid: str, kind: EventKind, version: int, state: str) -> InstanceEvent:
    summary = InstanceSummary(state=state, host="h0", node="h0", updated_at=NOW)
    return InstanceEvent(kind=kind, key=uuid, version=version, summary=summary)


def apply(queue: Queue, *page: InstanceEvent) -> None:
    cursor = queue.database.write(events.lock_cursor, CELLS[0])
    queue.ledger.write(events.apply_page, FeedPosition(cell_uuid=CELLS[0], cursor=cursor, upto=cursor + 1), list(page))


@pytest.mark.parametrize("where", ["queued", "leased", "claimed", "handed over", "active", "error in its cell", "buried"])
def test_the_first_delete_of_a_server_frees_it(queue: Queue, where: str) -> None:
    batch = accept(queue, 2)
    one, other = batch.uuids
    fences = {} if where == "queued" else queue.lease(batch.batch_id)
    if where == "claimed":
        asked = msgspec.structs.replace(
            queue.database.read(mappings.specs_by_batch, [batch.batch_id])[batch.batch_id], fences=fences
        )
        queue.site.scheduler().select_destinations(fleet.CONTEXT, asked, list(fences))
    elif where == "buried":
        assert sorted(queue.bury(fences)) == sorted(batch.uuids)
    elif where not in ("queued", "leased"):
        assert sorted(queue.hand_over(fences)) == sorted(batch.uuids)
    if where == "active":
        apply(queue, event(one, EventKind.ACTIVE, 3, "active"))
    elif where == "error in its cell":
        apply(queue, event(one, EventKind.ENDED, 3, "error"))
    assert used(queue) == of(2), "ERROR counts, until it is deleted"

    answers: list[builds.Deleted | None] = []
    together = threading.Barrier(6)

    def delete(_: int) -> None:
        together.wait(60)
        answers.append(queue.delete(one))

    assert run_threads(6, delete) == []
    assert Counter(answer is None for answer in answers) == {False: 1, True: 5}
    assert used(queue) == of(1)
    for version in (7, 7, 5):  # the cell says that it ended: now, once more, and something old
        apply(queue, event(one, EventKind.ENDED, version, "deleted"))
    queue.database.write(mappings.confirm_deletes, [one], NOW)
    assert used(queue) == of(1)
    assert queue.delete(other, project_id="somebody else's") is None
    assert used(queue) == of(1)
    assert queue.delete(other) is not None
    assert used(queue) == QuotaUsage()


def test_a_delete_racing_a_hand_over_frees_once(queue: Queue) -> None:
    """Whoever wins the build request, the delete wins the mark."""
    for _ in range(10):
        batch = accept(queue)
        fences = queue.lease(batch.batch_id)
        together = threading.Barrier(2)

        def step(number: int, fences: dict[str, int] = fences, start: threading.Barrier = together) -> None:
            start.wait(60)
            if number:
                queue.hand_over(fences)
            else:
                (server,) = fences
                assert queue.delete(server) is not None

        assert run_threads(2, step) == []
        assert used(queue) == QuotaUsage()


def test_a_delete_that_is_rolled_back_frees_nothing(queue: Queue) -> None:
    server = accept(queue).uuids[0]

    def crash(tx: ApiTransaction, stamp: Any) -> None:
        assert builds.delete(tx, stamp, server, project_id=None, now=NOW) is not None
        raise ConnectionAbortedError

    with pytest.raises(ConnectionAbortedError):
        queue.ledger.write(crash)
    assert used(queue) == of(1)
    assert queue.delete(server) is not None
    assert used(queue) == QuotaUsage()


# -- the audit ---------------------------------------------------------------------------------------------------------------


def test_the_audit_names_what_differs_and_repairs_it(queue: Queue) -> None:
    accept(queue, 3)
    accept(queue, 2, project="q")
    queue.database.write(quotas.change_limits, "q", OwnLimits(cores=50))
    queue.database.write(quotas.correct_usage, "q", of(9))
    queue.database.write(quotas.correct_usage, "r", of(9))  # a project that has no row, and gets none
    queue.database.write(quotas.lock_project, "s")
    queue.database.write(quotas.correct_usage, "s", of(4))
    drifts = [
        quota_audit.Drift(project_id="q", used=of(9), counted=of(2)),
        quota_audit.Drift(project_id="s", used=of(4), counted=QuotaUsage()),
    ]
    assert queue.database.read(quota_audit.list_differences) == drifts
    assert [queue.database.write(quota_audit.repair_charges, drift.project_id) for drift in drifts] == [[drift] for drift in drifts]
    assert queue.database.write(quota_audit.repair_charges, "p") == []
    assert used(queue, "q") == of(2)
    assert queue.database.read(quotas.get, "q").own == OwnLimits(cores=50)


def test_uncharged_servers_are_never_freed(queue: Queue) -> None:
    """Whoever writes mappings by hand may write them without sizes."""
    old = list(accept(queue, 3).uuids)

    def forget_sizes(tx: ApiTransaction) -> None:
        tx.execute(sa.update(instance_mappings).values(vcpus=None, memory_mb=None))
        quotas.correct_usage(tx, "p", QuotaUsage())

    queue.database.write(forget_sizes)
    accept(queue, 1)
    assert queue.delete(old[0]) is not None
    assert queue.database.read(quotas.get, "p").used == of(1)
    (drift,) = queue.database.read(quota_audit.list_differences)
    assert (drift.used, drift.counted.instances) == (of(1), 3)


def test_a_repair_waits_for_commits_and_counts_them(queue: Queue) -> None:
    if queue.database.dialect == "sqlite":
        pytest.skip("one writer at a time")
    accept(queue)
    charged, go_on = threading.Event(), threading.Event()

    def slowly(tx: ApiTransaction) -> None:
        accept_batch(tx, fleet.spec(size=SIZE), servers(4), now=NOW, deadline=FAR)
        charged.set()
        assert go_on.wait(60)

    found: list[object] = []
    accepting = threading.Thread(target=queue.database.write, args=(slowly,))
    accepting.start()
    assert charged.wait(60)
    repairing = threading.Thread(target=lambda: found.append(queue.database.write(quota_audit.repair_charges, "p")))
    repairing.start()
    assert queue.database.read(quota_audit.list_differences) == []
    repairing.join(0.3)
    assert repairing.is_alive()
    go_on.set()
    for thread in (accepting, repairing):
        thread.join(60)
    assert found == [[]]
    assert used(queue) == of(5)


# -- several batches in one transaction ------------------------------------------------------------------------------------------


def arrival(count: int, *, project: str = "p", limits: QuotaLimits = NONE) -> NewBatch:
    spec = fleet.spec(size=SIZE, project_id=project, name="web", num_instances=count)
    news = tuple(NewServer(uuid=str(uuid.uuid4()), name=f"web-{n + 1}", launch_index=n) for n in range(count))
    return NewBatch(spec=spec, servers=news, deadline=FAR, admission=Admission(limits=limits), sealed="sealed")


def test_batches_accepted_together_are_charged_to_their_projects(queue: Queue) -> None:
    arrivals = [arrival(2), arrival(1, project="q"), arrival(3)]
    with StatementCounter(queue.database) as counter:
        accepted = queue.database.write(accept_batches, arrivals, NOW)
    assert [a.uuids for a in accepted] == [tuple(s.uuid for s in a.servers) for a in arrivals]
    assert (used(queue), used(queue, "q")) == (of(5), of(1))
    (count,) = counter.totals_by_database().values()
    assert count.executions == 6, counter.count_by_statement()  # specs, requests, mappings, secrets, and the two projects


def test_batches_beyond_the_room_are_not_accepted_together(queue: Queue) -> None:
    """Nothing is left of any: who asked them together asks for each alone."""
    limits = QuotaLimits(instances=4)
    accept(queue, 2, limits=limits)
    for some in ([arrival(1, limits=limits), arrival(2, limits=limits)], [arrival(5, project="new", limits=limits)]):
        with pytest.raises(errors.OverQuota):
            queue.database.write(accept_batches, some, NOW)
    with pytest.raises(errors.Conflict):
        queue.database.write(accept_batches, [arrival(1), same := arrival(1), same], NOW)
    assert (used(queue), used(queue, "new")) == (of(2), of(0))
