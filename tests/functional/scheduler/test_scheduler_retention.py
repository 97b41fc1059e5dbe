"""Decisions are kept for a time and so many of each batch; what counts for a refusal is in them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID, uuid4

import msgspec
import pytest

from conductor.tidy import tidy_database
from db.api.claims import decisions
from db.sql.connection import ApiTransaction
from db.sql.url import LOCK_TIMEOUT_S
from objects import errors
from objects.decision import Decision
from tests.support import fleet
from tests.support.deciding import site_fixture
from tests.support.fleet import CONTEXT, Site
from tests.support.ground import Ground

HUGE = fleet.flavor(vcpus=17)


site = site_fixture(lambda: [fleet.node(f"h{n}") for n in range(4)], embedded=True)


@pytest.fixture(params=["mariadb", "postgresql"])
def servers(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Site]:
    """Where there are locks of rows."""
    place = Ground(request.param, tmp_path, embedded=True)
    made = Site(place.open("api", 12), [])
    yield made
    place.end(made.database.dispose_connections, place.release)


def decision(at: float, batch_id: str | None = None, message: str = "") -> Decision:
    return Decision(
        id=str(uuid4()),
        batch_id=batch_id or str(uuid4()),
        request_id="req-1",
        at=at,
        driver="filter",
        hosts=1,
        message=message,
    )


def test_a_repeatedly_refused_request_retains_its_newest_decisions(site: Site) -> None:
    """As one does that waits for a cell: every few seconds, up to its deadline."""
    scheduler = site.scheduler()
    asked = site.leased(fleet.spec(HUGE))
    made: list[str | None] = []
    for _ in range(decisions.DECISIONS_PER_BATCH + 3):
        with pytest.raises(errors.NoValidHost) as refused:
            scheduler.select_destinations(CONTEXT, asked, list(asked.fences))
        made.append(refused.value.decision_id)
    kept = site.database.read(decisions.of_batch, asked.batch_id)
    assert [each.id for each in kept] == made[-decisions.DECISIONS_PER_BATCH :]
    assert len(site.decisions()) == decisions.DECISIONS_PER_BATCH


def test_one_that_waits_keeps_what_was_said_last(site: Site) -> None:
    """And others hear nothing of it: it may yet be placed."""
    ours = str(uuid4())
    for n in range(3):
        waiting = msgspec.structs.replace(decision(float(n), ours, "No."), id=str(UUID(int=7)), waits="for cell west")
        site.database.write(decisions.store_all, [waiting, decision(float(n))])
    site.database.write(decisions.store_all, [decision(9.0, ours)])
    assert [(each.at, each.waits) for each in site.database.read(decisions.of_batch, ours)] == [(2.0, "for cell west"), (9.0, "")]


def test_requests_that_wait_hold_up_no_other_scheduler(servers: Site) -> None:
    """What one has written and not committed is locked; the other replaces other rows."""
    waiting = [decision(1.0, message="No.") for _ in range(40)]
    both = [[msgspec.structs.replace(each, waits="for cell west") for each in some] for some in (waiting[:20], waiting[20:])]
    servers.database.write(decisions.store_all, both[1])
    seconds: list[float] = []

    def timed() -> None:
        begun = time.monotonic()
        servers.database.write(decisions.store_all, both[1])
        seconds.append(time.monotonic() - begun)

    def first(tx: ApiTransaction) -> None:
        decisions.store_all(tx, both[0])
        thread = threading.Thread(target=timed)
        thread.start()
        thread.join(LOCK_TIMEOUT_S / 2)
        assert seconds, "it waits for a row that it has nothing to do with"

    servers.database.write(first)


def test_other_batches_lose_nothing_by_that(site: Site) -> None:
    ours, theirs = str(uuid4()), str(uuid4())
    site.database.write(decisions.store_all, [decision(float(n), theirs, "No.") for n in range(decisions.DECISIONS_PER_BATCH)])
    site.database.write(decisions.store_all, [decision(float(n), ours, "No.") for n in range(decisions.DECISIONS_PER_BATCH + 30)])
    assert [each.at for each in site.database.read(decisions.of_batch, theirs)] == [
        float(n) for n in range(decisions.DECISIONS_PER_BATCH)
    ]
    assert [each.at for each in site.database.read(decisions.of_batch, ours)] == [
        float(n) for n in range(30, decisions.DECISIONS_PER_BATCH + 30)
    ]


def test_old_decisions_are_forgotten_page_by_page(site: Site) -> None:
    old = [decision(float(n), str(UUID(int=n // 2))) for n in range(9)]
    site.database.write(decisions.store_all, [*old, decision(100.0, str(UUID(int=1)))])
    after: str | None = ""
    pages = []
    while after is not None:
        gone, after = site.database.write(decisions.trim_decisions, 50.0, after, 4)
        pages.append(gone)
    assert pages == [4, 4, 1]
    assert [each.at for each in site.decisions()] == [100.0]


def test_the_keeper_of_the_house_forgets_by_age(site: Site) -> None:
    now = time.time()
    young = decision(now - 50.0)
    site.database.write(decisions.store_all, [decision(now - 150.0) for _ in range(1200)] + [young])
    tidy_database(site.database, decision_age=100.0, token_age=100.0)
    assert site.decisions() == [young]


def test_a_refusal_is_stored_with_its_sufficient_relaxations(site: Site) -> None:
    scheduler = site.scheduler()
    with pytest.raises(errors.NoValidHost) as refused:
        site.boot(scheduler, fleet.spec(HUGE, ignore_hosts=("h0",)), 2)
    [stored] = site.decisions()
    assert stored.relaxations is not None
    assert [one.as_text for one in stored.relaxations] == ["with a flavor of 1 vCPU less"]
    assert "less" not in str(refused.value), "the refusal stays one sentence about what is"
    with pytest.raises(errors.NoValidHost, match="would have fitted with a flavor of fewer vCPUs and less memory") as refused:
        site.boot(scheduler, fleet.spec(fleet.flavor(vcpus=17, memory_mb=2**30)), 1)
    [pair] = site.decisions()[-1].pairs
    assert (pair.first.less, pair.is_for_tenants) == (1, True)
    site.boot(scheduler)
    assert site.decisions()[-1].relaxations is None
