"""Times in a database are that database's own: a process whose clock is an hour off parks nothing, ends nothing early and takes
nothing over."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import sqlalchemy as sa

from db.api.queue import leases
from db.api.rows import incarnation
from db.api.rows.tables import build_requests, instance_mappings
from db.api.rows.tables import incarnation as incarnation_rows
from db.cell import instances
from db.cell.tables import builds, feed
from db.sql import clock
from objects.cell import CELL0_UUID
from objects.instance import State
from tests.support import applying
from tests.support.auditing import Ground
from tests.support.databases import database_on
from tests.support.ground import GROUNDS
from tests.support.world import world_fixture

HOUR = 3600.0
LEASE = 30.0
CLOSE = 300.0
"""Seconds: two times that are less apart were told by one clock, on a busy machine too."""

SKEWS = pytest.mark.parametrize("skew", [HOUR, -HOUR], ids=["ahead", "behind"])


site = world_fixture(of=Ground)


@pytest.fixture
def skewed(monkeypatch: pytest.MonkeyPatch, skew: float) -> float:
    """This process's wall clock is off from now on."""
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + skew)
    return skew


@pytest.mark.parametrize("ground", ["sqlite", *GROUNDS[1:]])
@SKEWS
def test_a_database_tells_its_own_time(tmp_path: Path, ground: str, skew: float, skewed: float) -> None:
    with database_on(ground, tmp_path, "api") as database:
        assert abs(database.current_time() - database.read(clock.read)) < CLOSE
        assert abs(database.current_time() - time.time()) > HOUR - CLOSE


@pytest.mark.parametrize("ground", ["sqlite", *GROUNDS[1:]])
def test_the_mark_rises_immediately_after_clock_corrections(tmp_path: Path, ground: str) -> None:
    """Else no task would begin in any cell whose conductor starts before that clock is where it was."""
    with database_on(ground, tmp_path, "api") as database:
        first = database.write(incarnation.advance_mark)
        later = incarnation_rows.c.changed_at + HOUR
        database.write(lambda tx: tx.execute(sa.update(incarnation_rows).values(changed_at=later)))
        assert [database.write(incarnation.advance_mark).mark - first.mark for _ in range(2)] == [1, 1]


@SKEWS
def test_leases_are_written_and_judged_by_the_database(site: Ground, skew: float, skewed: float) -> None:
    """Neither parked for an hour, nor free to be taken by another."""
    builder = site.conductor.builder
    builder.lease_seconds = LEASE
    spec = site.cloud.accept(timeout=2 * HOUR)
    [batch] = site.cloud.api.write(leases.lease_batches, "test", [spec.batch_id], site.conductor.database.current_time(), LEASE)
    with builder.driving.renew_during([batch]):
        builder.driving.leave_leases(
            {request.instance_uuid: request.fence for request in batch.requests}, site.cloud.api.current_time() + LEASE
        )
    [row] = site.cloud.requests().values()
    assert abs(row.lease_until - site.cloud.api.read(clock.read)) < CLOSE
    site.conductor.build(spec)
    [row] = site.cloud.requests().values()
    assert row.owner == "test", "its lease has not run out"


@SKEWS
def test_a_boot_of_a_skewed_conductor_is_built(site: Ground, skew: float, skewed: float) -> None:
    """Its deadline was written by the API database's clock, and is kept by the cell's."""
    spec = site.cloud.accept(timeout=60.0)
    site.conductor.build(spec)
    [uuid] = site.cloud.uuids(spec)
    assert site.cloud.mapped(uuid).cell_uuid not in (None, CELL0_UUID)


def test_a_lease_by_a_fast_clock_is_over(site: Ground) -> None:
    """Whoever wrote it is gone, or was stepped back: nothing is parked until its time comes."""
    site.conductor.builder.lease_seconds = LEASE
    spec = site.cloud.accept(timeout=2 * HOUR)
    values = {"state": "leased", "owner": "fast", "lease_until": site.cloud.api.current_time() + HOUR, "fence": 7}
    site.api(sa.update(build_requests).values(values))
    site.conductor.build(spec)
    [uuid] = site.cloud.uuids(spec)
    assert site.cloud.mapped(uuid).fence == 8


@SKEWS
def test_time_remaining_until_deadlines_is_equal_in_cells(site: Ground, skew: float) -> None:
    """The clock of a cell's database is an hour off the API database's."""
    for name in ("cell1", "cell2"):
        site.conductor.cell(name).write(lambda tx: None)  # a new connection reads the real clock
        site.conductor.databases[name]._clock.note_time(time.time() + skew)
    spec = site.cloud.accept(timeout=60.0)
    site.conductor.build(spec)
    [uuid] = site.cloud.uuids(spec)
    cell = next(name for name in site.cloud.rows(uuid) if name != "cell0")
    [row] = site.read(sa.select(builds).where(builds.c.instance_uuid == uuid), cell)
    assert abs(row["deadline"] - (time.time() + skew + 60.0)) < CLOSE


@SKEWS
def test_summaries_are_dated_by_the_database_holding_them(site: Ground, skew: float) -> None:
    """So that a delete that was lost is told again in time, whatever the cell's clock says."""
    [uuid] = site.ordered()
    applying.build(site.cloud, [uuid])
    site.cell("cell1", sa.update(feed).values(payload=sa.func.replace(feed.c.payload, '"updated_at":7', '"updated_at":9999999997')))
    site.keep()
    [row] = site.read(sa.select(instance_mappings).where(instance_mappings.c.instance_uuid == uuid))
    assert row["state"] == "active"
    assert abs(row["updated_at"] - site.cloud.api.current_time()) < CLOSE


@SKEWS
def test_a_cells_sweep_goes_by_the_cells_clock(site: Ground, skew: float, skewed: float) -> None:
    """It ends nothing early and nothing late, and sends again what waits."""
    early, late = site.ordered(2)
    site.keep()
    now = site.cloud.databases["cell1"].current_time()
    for uuid, deadline in ((early, now + 600.0), (late, now - 600.0)):
        site.cell("cell1", sa.update(builds).where(builds.c.instance_uuid == uuid).values(deadline=deadline))
    site.cloud.cell_conductor("cell1")[1].end_overdue()
    rows = {row.uuid: row.state for row in site.cloud.databases["cell1"].read(instances.read, [early, late])}
    assert rows == {early: State.SCHEDULED, late: State.ERROR}
