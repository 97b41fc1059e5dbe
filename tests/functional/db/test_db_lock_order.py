"""Everybody at once on the same rows of a server: nothing fails, nothing is lost, and transactions hardly ever meet in a ring."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec
import pytest

from db.api.claims import claims
from db.api.queue import builds, leases
from db.api.reconcile import events
from db.api.reconcile.events import FeedPosition
from db.api.servers import mappings
from db.audit import quotas
from db.cell import compute_nodes, feed, instances, services, staging
from db.sql.engine import Database
from objects import errors, lifecycle
from objects.cell import CELL0_UUID
from objects.feed import EventKind, InstanceEvent, InstanceSummary
from objects.group import GroupPolicy
from objects.instance import Failure, FailureClass, Instance
from objects.lifecycle import Outcome
from tests.functional.db.test_db_instances import SPEC, new, selection
from tests.support import fleet
from tests.support.conductor import FAR, NOW, Queue
from tests.support.databases import database_on
from tests.support.fleet import CELLS, CONTEXT

LOG = logging.getLogger(__name__)

SECONDS = 4.0
ROUNDS = 300
"""On a busy machine it goes on for longer, until there were as many."""
HOSTS = [f"h{n}" for n in range(8)]
MOST_DEADLOCKS = 0.02
"""Of all transactions. One that is systematic shows in a tenth of them or more."""


class Meetings(logging.Handler):
    """Counts what ``db/sql/retry.py`` says of transactions that are run again."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.seen: Counter[str] = Counter()

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage().lower()
        kind = next((kind for kind in ("deadlock", "timeout", "time-out") if kind in text), "other")
        self.seen[kind] += 1


@contextmanager
def counting() -> Iterator[Counter[str]]:
    handler, logger = Meetings(), logging.getLogger("db.sql.retry")
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    try:
        yield handler.seen
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)


def all_at_once(*work: Callable[[random.Random], object]) -> int:
    """Each in a thread of its own, again and again; returns how often. Refusals are part of the game, anything else is not."""
    begun = time.monotonic()
    done = [0] * len(work)
    failed: list[Exception] = []

    def goes_on() -> bool:
        passed = time.monotonic() - begun
        return not failed and (passed < SECONDS or (sum(done) < ROUNDS and passed < 5 * SECONDS))

    def run(number: int) -> None:
        drawn = random.Random(number)
        while goes_on():
            try:
                work[number](drawn)
            except (errors.NoValidHost, errors.Conflict, claims.Raced):
                continue
            except Exception as error:  # noqa: BLE001 - returned to the test
                failed.append(error)
            done[number] += 1

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(work))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert failed == []
    assert min(done) > 0
    return sum(done)


def home(uuid: str) -> str:
    """The one cell that an instance may be in."""
    return CELLS[int(uuid[-1], 16) % len(CELLS)]


class Region:
    """What conductors, schedulers, the API and the feeds' appliers do in the API database."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.queue = Queue(database)
        self.site = self.queue.site
        self.group = fleet.group(GroupPolicy.ANTI_AFFINITY)
        first = self.site.leased(fleet.spec(group=self.group))
        self.batches = [first.batch_id]
        self.known = list(first.fences)
        self.versions = Counter[str]()
        self.turns = {cell: threading.Lock() for cell in CELLS}

    def boot(self) -> Callable[[random.Random], object]:
        scheduler, ledger = self.site.scheduler(), claims.Ledger(self.database, "conductor")

        def work(drawn: random.Random) -> None:
            asked = fleet.spec(group=self.group) if drawn.random() < 0.3 else fleet.spec()
            leased = self.site.leased(asked, drawn.randint(1, 4))
            fences = dict(leased.fences)
            self.batches.append(leased.batch_id)
            self.known.extend(fences)
            try:
                scheduler.select_destinations(CONTEXT, leased, list(fences))
            except errors.NoValidHost:
                burials = [builds.Burial(instance_uuid=u, fence=f, fault="full") for u, f in fences.items()]
                ledger.write(builds.bury_requests, burials, NOW)
                return
            if drawn.random() < 0.3:
                leased = self.site.refenced(leased)
                fences = dict(leased.fences)
                if fences:
                    scheduler.select_destinations(CONTEXT, leased, list(fences))
            self.hand_over(drawn, fences)

        return work

    def hand_over(self, drawn: random.Random, fences: dict[str, int]) -> None:
        for cell in CELLS:
            mine = [uuid for uuid in drawn.sample(sorted(fences), len(fences)) if home(uuid) == cell]
            self.queue.hand_over({uuid: fences[uuid] for uuid in mine}, cell, drawn.choice(HOSTS))

    def take_over(self, drawn: random.Random) -> None:
        """A lease ran out, or so another conductor thinks."""
        some = [drawn.choice(self.batches) for _ in range(3)]
        fences = self.queue.lease(*set(some), owner="late", now=FAR, seconds=1.0)
        self.database.write(leases.renew_leases, fences, 0.0)
        if drawn.random() < 0.5:
            self.hand_over(drawn, self.database.write(leases.refence_requests, fences))
        else:
            claims.Ledger(self.database, "late").write(
                builds.bury_requests, [builds.Burial(instance_uuid=u, fence=f, fault="late") for u, f in fences.items()], NOW
            )

    def delete(self) -> Callable[[random.Random], object]:
        ledger = claims.Ledger(self.database, "api")

        def work(drawn: random.Random) -> None:
            ledger.write(builds.delete, drawn.choice(self.known[-40:]), project_id=None, now=NOW)

        return work

    def apply(self, cell: str) -> Callable[[random.Random], object]:
        ledger = claims.Ledger(self.database, "applier")

        def work(drawn: random.Random) -> None:
            found = [drawn.choice(self.known[-60:]) for _ in range(16)]
            page = [self.event(drawn, uuid) for uuid in found if home(uuid) == cell]
            nodes = [fleet.node(host, vcpus=64 + drawn.randint(0, 9)) for host in drawn.sample(HOSTS, 3) if drawn.random() < 0.3]
            cursor = self.database.write(events.lock_cursor, cell)
            ledger.write(events.apply_page, FeedPosition(cell_uuid=cell, cursor=cursor, upto=cursor + 1), page, nodes)

        return work

    def event(self, drawn: random.Random, uuid: str, kind: EventKind | None = None) -> InstanceEvent:
        kind = kind or drawn.choice((EventKind.MOVED, EventKind.MOVED, EventKind.ACTIVE, EventKind.ENDED))
        host = drawn.choice(HOSTS)
        self.versions[uuid] += 1
        state = {EventKind.ENDED: "deleted", EventKind.ACTIVE: "active"}.get(kind, "building")
        summary = InstanceSummary(state=state, host=host, node=host, updated_at=NOW, has_group=drawn.random() < 0.5)
        return InstanceEvent(kind=kind, key=uuid, version=self.versions[uuid], summary=summary)

    def reap(self, drawn: random.Random) -> None:
        claims.Ledger(self.database, "reaper").write(claims.release_claims, self.database.read(claims.list_orphans))
        gone = [s.uuid for s in self.database.read(mappings.list_deleting, 50) if s.cell_uuid == CELL0_UUID]
        self.database.write(mappings.confirm_deletes, gone, NOW)

    def settle(self) -> None:
        """Everything that lives ends."""
        for uuid in self.known:
            self.queue.delete(uuid)
        drawn = random.Random(0)
        for cell in CELLS:
            page = [self.event(drawn, uuid, EventKind.ENDED) for uuid in self.known if home(uuid) == cell]
            cursor = self.database.write(events.lock_cursor, cell)
            self.queue.ledger.write(events.apply_page, FeedPosition(cell_uuid=cell, cursor=cursor, upto=cursor + 1), page)
        self.reap(drawn)


@pytest.mark.parametrize("server", ["mariadb", "postgresql"])
def test_the_api_database(server: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    with database_on(server, tmp_path_factory.mktemp("api"), "api") as database:
        region = Region(database)
        with counting() as seen:
            rounds = all_at_once(
                *(region.boot() for _ in range(4)),
                *(region.delete() for _ in range(2)),
                *(region.apply(cell) for cell in CELLS),
                region.take_over,
                region.reap,
            )
        LOG.info("%s: %d rounds, met %s", server, rounds, dict(seen))
        assert seen["deadlock"] <= rounds * MOST_DEADLOCKS, (rounds, seen)
        region.settle()
        assert region.queue.requests() == {}
        assert region.site.claimed() == {}
        assert region.site.slots() == []
        assert region.site.overfull() == []
        assert {mapped.deleted for mapped in region.queue.mapped().values()} == {True}
        assert database.read(quotas.list_differences) == []


class CellSite:
    """What conductors of both levels, agents and sweeps do in a cell's database."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.numbers: list[int] = []
        self.known = [f"u{n}" for n in range(12)]

    def some(self, drawn: random.Random) -> list[str]:
        return drawn.sample(self.known[-40:], 6)

    def stage(self, drawn: random.Random) -> None:
        """Mostly for the first time: of a row that is there MariaDB's insert takes a shared lock first, which may end in a ring."""
        fence = drawn.randint(1, 3)
        uuids = [f"u{drawn.randint(100, 10**9)}" for _ in range(6)]
        uuids[:1] = self.some(drawn)[:1] if drawn.random() < 0.1 else uuids[:1]
        self.known += uuids
        news = [new(uuid, fence, drawn.choice(HOSTS)) for uuid in sorted(uuids)]
        more = {"alternates": (selection("h2"), selection("h3"), selection("h4")), "max_attempts": 9}
        news = [msgspec.structs.replace(n, instance=msgspec.structs.replace(n.instance, **more)) for n in news]
        self.database.write(staging.stage_instances, SPEC, news, NOW)

    def change(self, drawn: random.Random) -> None:
        failure = Failure(kind=FailureClass.HOST, error="E", message="m", at=NOW)
        steps: tuple[Callable[[Instance], Outcome], ...] = (
            lambda row: lifecycle.activate_row(row, row.fence, cell0=False),
            lambda row: lifecycle.accept_order(row, row.host or "", row.fence, row.attempt, "b"),
            lambda row: lifecycle.confirm_active(row, row.host or "", row.fence, row.attempt, "b", NOW),
            lambda row: lifecycle.fail_attempt(row, row.host or "", row.fence, row.attempt, "b", failure),
            lambda row: lifecycle.host_dead(row, row.attempt, failure),
            lambda row: lifecycle.confirm_gone(row, row.host or "", row.attempt, NOW),
        )
        self.database.write(instances.transition_rows, self.some(drawn), drawn.choice(steps), NOW)

    def delete(self, drawn: random.Random) -> None:
        self.database.write(instances.delete, [*self.some(drawn)[:2], f"x{drawn.randint(0, 60)}"], NOW)

    def sweep(self, drawn: random.Random) -> None:
        orders = self.database.read(instances.list_unaccepted, FAR, 20).orders
        if orders:
            self.database.write(instances.record_sent, [order.instance.uuid for order in orders], NOW)
        staged = self.database.read(staging.list_staged, FAR, 20)
        self.database.write(staging.remove_staged, sorted(staged)[:2])

    def report(self, drawn: random.Random) -> None:
        hosts = drawn.sample(HOSTS, 4)
        beats = [services.Beat(host=host, binary="superconductor-compute") for host in hosts]
        self.database.write(services.record_heartbeats, beats, NOW)
        nodes = [fleet.node(host, vcpus=drawn.randint(1, 99)) for host in hosts]
        self.database.write(compute_nodes.store_all, nodes, NOW)

    def follow(self, drawn: random.Random) -> None:
        after = self.numbers[-1] if self.numbers else 0
        self.numbers += [event.sequence for event in self.database.read(feed.read, after, 100).events]

    def trim(self, drawn: random.Random) -> None:
        self.database.write(feed.trim_events, NOW)


@pytest.mark.parametrize("server", ["mariadb", "postgresql"])
def test_a_cell(server: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    with database_on(server, tmp_path_factory.mktemp("cell"), "cell") as database:
        site = CellSite(database)
        with counting() as seen:
            rounds = all_at_once(
                site.stage, site.stage, *[site.change] * 4, site.delete, site.delete, site.sweep, site.sweep,
                site.report, site.report, site.trim, site.follow,
            )  # fmt: skip
        LOG.info("%s: %d rounds, met %s", server, rounds, dict(seen))
        assert seen["deadlock"] <= rounds * MOST_DEADLOCKS, (rounds, seen)
        while (head := database.read(feed.read_head)) > (site.numbers[-1] if site.numbers else 0):
            site.follow(random.Random())
        assert site.numbers == list(range(1, head + 1))
        for row in database.read(instances.read, set(site.known)):
            # one attempt each, however often they met
            assert len(row.history) in (row.attempt - 1, row.attempt) or not row.history, row
