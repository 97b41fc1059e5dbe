"""What waits is counted by who waits, within bounds, on every server that answers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from db.api.rows import metering as api_metering
from db.cell import instances, staging
from db.cell import metering as cell_metering
from objects import lifecycle
from objects.instance import Instance, State
from objects.waiting import WaitingCount
from tests.support import fleet
from tests.support.conductor import Queue
from tests.support.databases import SERVERS, database_on


@pytest.fixture(params=SERVERS)
def queue(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Queue]:
    with database_on(request.param, tmp_path, "api") as made:
        yield Queue(made)


def test_projects_with_longest_queues_are_named_others_counted(queue: Queue) -> None:
    assert queue.database.read(api_metering.count_queued, 2) == []
    for number, (project, count) in enumerate([("p1", 1), ("p2", 3), ("p3", 2), ("p4", 1)]):
        queue.accept(count, project_id=project, now=1000.0 - number)
    told = queue.database.read(api_metering.count_queued, 2)
    assert told == [
        WaitingCount(name="p2", count=3, oldest=999.0),
        WaitingCount(name="p3", count=2, oldest=998.0),
        WaitingCount(name="", count=2, oldest=997.0),
    ]
    assert [waiting.name for waiting in queue.database.read(api_metering.count_queued, 9)] == ["p2", "p3", "p1", "p4"]


@pytest.mark.parametrize("server", SERVERS)
def test_instances_on_their_way_are_counted_by_state(server: str, tmp_path: Path) -> None:
    with database_on(server, tmp_path, "cell") as made:
        rows = [Instance(uuid=uuid, state=State.STAGED, fence=1, host="h1", node="h1") for uuid in ("a", "b")]
        news = [staging.NewInstance(instance=row, name=row.uuid, launch_index=0, created_at=1.0) for row in rows]
        made.write(staging.stage_instances, fleet.spec(), news, 50.0)
        assert made.read(cell_metering.count_passing) == [WaitingCount(name="staged", count=2, oldest=50.0)]
        made.write(instances.transition_rows, ["a"], lambda row: lifecycle.activate_row(row, 1, cell0=True), 60.0)
        assert made.read(cell_metering.count_passing) == [WaitingCount(name="staged", count=1, oldest=50.0)]
