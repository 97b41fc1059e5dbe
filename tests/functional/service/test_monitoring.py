"""What a region that works tells of itself: counts, states, and that it is well."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from conductor.queue_metrics import CellQueue, OperationMetrics, QueueMetrics
from db.cell import metering
from db.sql.counting import StatementCounter
from service import health, metrics
from service.monitor import Monitor, MonitorSettings
from service.periodic import wait_until
from tests.support.databases import api_database, cell_database
from tests.support.region import Region, host, region

PATIENCE = 60.0


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Region]:
    hosts = [host("h1", vcpus=2), host("h2", "cell2", vcpus=2)]
    with region(tmp_path_factory.mktemp("region"), hosts) as running:
        yield running


def value(name: str, **labels: str) -> float:
    """Of this process so far; another test's region may have counted too."""
    return metrics.REGISTRY.get_sample_value(f"superconductor_{name}", labels) or 0.0


def test_a_boots_way_counts_once_at_every_stage(deployment: Region) -> None:
    def told() -> dict[str, float]:
        counts = {stage: value("stage_seconds_count", stage=stage) for stage in metrics.STAGES}
        counts |= {"boots": value("boot_seconds_count"), "active": value("builds_ended_total", result="active")}
        counts |= {"accepted": value("servers_accepted_total"), "claims": value("claims_total")}
        return counts | {"placed": value("decisions_total", result="placed"), "posts": value_of_posts()}

    def value_of_posts() -> float:
        return value("api_request_seconds_count", method="POST", status="202")

    before = told()
    uuid = deployment.boot("counted", count=2)
    deployment.wait_for(uuid, "ACTIVE")
    assert wait_until(lambda: told()["active"] - before["active"] == 2, PATIENCE)
    counted = {name: after - before[name] for name, after in told().items()}
    once = dict.fromkeys(("accept", "posts"), 1.0)
    twice = dict.fromkeys(("build", "boots", "active", "accepted"), 2.0)
    assert {name: counted[name] for name in once | twice} == once | twice
    least = {"queue": 1, "plan": 1, "placed": 1, "stage": 1, "hand_over": 1, "order": 1, "grant": 2, "claims": 2}
    for name, number in least.items():
        assert counted[name] >= number, name  # more often where the machine is so slow that something is tried again


def test_what_is_refused_is_counted(deployment: Region) -> None:
    def told() -> tuple[float, float]:
        return value("decisions_total", result="refused"), value("builds_ended_total", result="unplaced")

    before = told()
    deployment.flavor("huge", vcpus=99)
    deployment.wait_for(deployment.boot("refused", flavor="huge"), "ERROR")
    assert wait_until(lambda: told()[1] == before[1] + 1, PATIENCE), "an end is counted after it is committed"
    assert told()[0] > before[0]


def test_states_are_read_when_they_are_asked_for(deployment: Region) -> None:
    cells = {"cell1", "cell2"}

    def told(reading: metrics.ReadGauge) -> dict[tuple[str, ...], float]:
        (family,) = reading.collect()
        return {tuple(sample.labels.values()): sample.value for sample in family.samples}

    assert cells <= {labels[0] for labels in told(metrics.FEED_LAG)}
    ways = [(cell, resource) for cell in cells for resource in ("database", "bus")]
    assert wait_until(lambda: {told(metrics.BREAKER)[way] for way in ways} == {0.0}, PATIENCE)
    assert cells <= {labels[0] for labels in told(metrics.VIEW_AGE)}
    assert told(metrics.CAPACITY)["cell1", "vcpus"] > 0
    assert {told(metrics.SLOTS)[(name,)] > 0 for name in ("h1", "h2")} == {True}
    assert ("queue",) in told(metrics.SWEEP_AGE)
    deployment.settle()
    assert wait_until(lambda: set(told(metrics.FEED_BEHIND).values()) == {0.0}, PATIENCE)


def test_repeated_requests_read_the_queues_by_one_statement(tmp_path: Path) -> None:
    databases = api_database(tmp_path), cell_database(tmp_path)
    queue, cell = QueueMetrics(databases[0]), CellQueue("cell1", databases[1])
    operations = OperationMetrics(databases[0])
    for sample in (queue._sample, cell._sample, operations._sample):
        sample._keep, sample._patience = 1000.0, PATIENCE  # whatever the machine is busy with
    with StatementCounter(*databases) as counter:
        for _ in range(3):
            assert list(queue._count_waiting()) == list(queue._oldest_age()) == []
            assert list(operations._oldest_age()) == []
            assert dict(operations._count_waiting())[("verify",)] == 0
            assert {labels[1]: count for labels, count in cell._count_waiting()} == dict.fromkeys(metering.PASSING, 0)
        totals = counter.totals_by_database()
    assert sorted(count.executions for count in totals.values()) == [1, 2], "the cell's queue; the API level's and its operations"
    for database in databases:
        database.dispose_connections()


def test_a_region_at_work_is_well(deployment: Region) -> None:
    assert wait_until(lambda: health.BOARD.look_at_parts().is_well, PATIENCE), health.BOARD.look_at_parts()
    checked = {finding.check for finding in health.BOARD.look_at_parts().findings}
    assert {"API", "the API database", "queue", "keep-cell1", "scheduler-follow", "compute-h1"} <= checked
    topics = {check.partition(".")[0] for check in checked}
    assert {"super-conductor", "cell-conductor", "scheduler", "compute"} <= topics


def test_all_of_it_is_served(deployment: Region) -> None:
    served = Monitor(MonitorSettings())
    told: list[str] = []
    body = b"".join(
        served.answer_request({"REQUEST_METHOD": "GET", "PATH_INFO": "/metrics"}, lambda status, headers: told.append(status))
    )
    assert told == ["200 OK"]
    text = body.decode()
    for name in (
        "open_operations",
        "queue_depth",
        "cell_queue_depth",
        "agent_builds",
        "view_age_seconds",
        "sweep_age_seconds",
        "cell_hosts",
    ):
        assert f"# TYPE superconductor_{name} gauge" in text
    assert 'superconductor_cell_queue_depth{cell="' in text
