"""What an agent tells its cell by itself, and how it shares messages."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest

from compute.audit import PERIODS_OF_SETTLED
from compute.driver import Guest
from compute.main import ComputeService, make_reporter
from compute.reports import NOT_SENT, Reporter
from objects import errors
from objects.build import Holding, Report, ReportKind, Verdict
from objects.compute_node import ComputeNode
from objects.context import RequestContext
from objects.instance import Failure, FailureClass, State
from rpc.transport import Bus
from service.periodic import wait_until
from tests.support.agents import Agents, settings
from tests.support.cell_conductor import PATIENCE, MemoryCell


@pytest.fixture
def agents(bus: Bus, tmp_path: Path) -> Iterator[Agents]:
    agents = Agents(bus, tmp_path)
    yield agents
    agents.stop()


class HangingCell(MemoryCell):
    """Never answers ``holdings`` once told to."""

    def __init__(self, bus: Bus) -> None:
        self.hang = False
        self.free = threading.Event()
        super().__init__(bus)

    def holdings(self, context: RequestContext, host: str) -> list[Holding]:
        if self.hang:
            self.messages["hanging"] += 1
            self.free.wait(PATIENCE)
        return super().holdings(context, host)


class ForgetfulCell(MemoryCell):
    """Refuses stats a few times, as a cell without its database does."""

    def __init__(self, bus: Bus) -> None:
        self.refuse = 0
        super().__init__(bus)

    def update_resource_stats(self, context: RequestContext, node: ComputeNode) -> None:
        if self.refuse:
            self.refuse -= 1
            raise errors.DatabaseUnavailable("The cell's database is away.")
        super().update_resource_stats(context, node)


class RecordingCell(MemoryCell):
    """Keeps the groups in which reports came."""

    def __init__(self, bus: Bus) -> None:
        self.groups: list[list[Report]] = []
        super().__init__(bus)

    def report(self, context: RequestContext, reports: Sequence[Report]) -> list[Verdict]:
        self.groups.append(list(reports))
        return super().report(context, reports)


def test_a_hanging_call_delays_neither_heartbeats_nor_orders(bus: Bus, agents: Agents) -> None:
    cell = HangingCell(bus)
    agents.start()
    assert wait_until(lambda: cell.messages["holdings"] > 0, PATIENCE)
    cell.hang = True
    assert wait_until(lambda: cell.messages["hanging"] > 0, PATIENCE)
    before = cell.heartbeats["h1"]
    assert wait_until(lambda: cell.heartbeats["h1"] >= before + 3, PATIENCE)
    cell.boot_active("h1")
    cell.free.set()


def test_existing_guests_count_before_the_cell_answers(bus: Bus, agents: Agents) -> None:
    cell = HangingCell(bus)
    first = agents.start(simulated={"memory_mb": 1024})
    uuids = cell.boot("h1", count=2)
    cell.wait(State.ACTIVE, *uuids)
    first.stop()
    cell.hang = True
    agents.start(simulated={"memory_mb": 1024})
    (one,) = cell.boot("h1")
    cell.wait(State.ERROR, one)
    assert cell.rows[one].history[0].failure.kind is FailureClass.NO_ROOM
    cell.free.set()


def test_stats_that_were_not_taken_are_sent_again(bus: Bus, agents: Agents) -> None:
    cell = ForgetfulCell(bus)
    agents.start()
    assert wait_until(lambda: len(cell.stats) == 1, PATIENCE)
    cell.refuse = 3
    (one,) = cell.boot("h1")
    assert wait_until(lambda: cell.stats[-1].running_vms == 1, PATIENCE)
    assert cell.refuse == 0
    cell.wait(State.ACTIVE, one)


def test_agents_of_one_process_may_share_a_reporter(bus: Bus, tmp_path: Path) -> None:
    cell = MemoryCell(bus)
    reporter = make_reporter(settings(tmp_path), bus).start()
    services = [
        ComputeService(settings(tmp_path, host, audit_interval=3600.0), bus, reporter=reporter) for host in ("h1", "h2", "h3")
    ]
    try:
        for service in services:
            service.start()
        uuids = [one for host in ("h1", "h2", "h3") for one in cell.stage(host, count=4)]
        cell.order(*uuids)
        cell.wait(State.ACTIVE, *uuids)
        services[0].stop()
        cell.boot_active("h2")
    finally:
        for service in services[1:]:
            service.stop(0.0)
        reporter.stop()


def test_a_message_holds_one_report_per_instance(bus: Bus, tmp_path: Path) -> None:
    """A verdict names its instance only: with two of them in an answer one could be taken for the other."""
    cell = RecordingCell(bus)
    (one,) = cell.stage("h1")
    reporter: Reporter = make_reporter(settings(tmp_path), bus)
    verdicts: dict[ReportKind, Verdict] = {}
    kinds = (ReportKind.GONE, ReportKind.ACCEPT)
    reports = [Report(kind=kind, instance_uuid=one, host="h1", fence=1, attempt=1, builder="h1:a") for kind in kinds]
    reporter.submit_reports([(report, partial(verdicts.__setitem__, report.kind)) for report in reports])
    reporter.start()
    assert reporter.flush_reports("h1", PATIENCE)
    assert wait_until(lambda: len(verdicts) == 2, PATIENCE)
    reporter.stop()
    assert [len(group) for group in cell.groups] == [1, 1]
    assert (verdicts[ReportKind.GONE].accepted, verdicts[ReportKind.ACCEPT].accepted) == (False, True)


def test_a_bad_report_does_not_delay_the_good(bus: Bus, agents: Agents) -> None:
    """The message it came in fails as a whole once; from then on every report of that message travels alone."""
    cell = RecordingCell(bus)
    agents.start()
    bad, *good = cell.stage("h1", count=20)

    def stumble(report: Report) -> None:
        if report.instance_uuid == bad:
            raise RuntimeError("a bug of the conductor's")

    cell.hold = stumble
    cell.order(bad, *good)
    cell.wait(State.ACTIVE, *good)
    company = [len(group) for group in cell.groups if bad in {report.instance_uuid for report in group}]
    assert company[0] == 20
    assert set(company[1:]) <= {1}
    cell.hold = None
    cell.wait(State.ACTIVE, bad)


def test_what_a_stopped_host_still_owes_is_dropped(bus: Bus, tmp_path: Path) -> None:
    """Its next start will say it again; here it must not be said for a host that is no longer held."""
    reporter = make_reporter(settings(tmp_path, call_timeout=0.1), bus).start()
    report = Report(kind=ReportKind.ACTIVE, instance_uuid="a", host="h1", fence=1, attempt=1, builder="h1:a")
    reporter.submit_reports([(report, None)])
    assert not reporter.flush_reports("h1", 0.05)
    assert reporter.flush_reports("h1", 0.0)
    reporter.stop()


class FussyCell(MemoryCell):
    """Refuses each message that has a failure with a text of a host's own."""

    def __init__(self, bus: Bus) -> None:
        self.told: list[str] = []
        super().__init__(bus)

    def build_instances(self, context: RequestContext, reports: Sequence[Report]) -> list[Verdict]:
        for report in reports:
            if report.failure is not None and "odd" in report.failure.message:
                raise errors.Invalid("it cannot be stored")
        self.told += [report.failure.message for report in reports if report.failure is not None]
        return [Verdict(instance_uuid=report.instance_uuid, accepted=True) for report in reports]


def test_failures_refused_for_their_text_are_rewritten(bus: Bus, tmp_path: Path) -> None:
    cell = FussyCell(bus)
    reporter = make_reporter(settings(tmp_path, report_retry_max=0.2), bus).start()
    answers: dict[str, Verdict] = {}
    odd, plain = ([f"{kind}-{number}" for number in range(30)] for kind in ("odd", "plain"))
    reports = [
        Report(
            kind=ReportKind.FAILED,
            instance_uuid=uuid,
            host="h1",
            fence=1,
            attempt=1,
            builder="h1:a",
            failure=Failure(kind=FailureClass.HOST, error="E", message=f"an {uuid} disk", at=1.0),
        )
        for uuid in (*odd, *plain)
    ]
    try:
        reporter.submit_reports([(report, partial(answers.__setitem__, report.instance_uuid)) for report in reports])
        assert wait_until(lambda: len(answers) == len(reports), 3 * PATIENCE), len(answers)
    finally:
        reporter.stop()
    assert cell.told.count(NOT_SENT) == len(odd)
    assert {f"an {uuid} disk" for uuid in plain} < set(cell.told)


def test_an_idle_host_reads_its_records_less_often(cell: MemoryCell, agents: Agents) -> None:
    """The driver is read in each period all the same, and a guest that is gone is compared with its record at once."""
    agents.start(audit_interval=0.05)
    uuid = cell.boot_active("h1")
    driver = agents.drivers["h1"]
    read, guests = [0], driver.guests

    def counted() -> list[Guest]:
        read[0] += 1
        return guests()

    driver.guests = counted  # type: ignore[method-assign]  # whatever it says is passed on
    assert wait_until(lambda: read[0] >= PERIODS_OF_SETTLED, PATIENCE)
    periods, asked = read[0], cell.messages["holdings"]
    assert wait_until(lambda: read[0] >= periods + 10 * PERIODS_OF_SETTLED, PATIENCE)
    assert cell.messages["holdings"] - asked < (read[0] - periods) / 2, "a period that reads the records reads the driver, too"
    driver.destroy(uuid)
    asked = cell.messages["holdings"]
    assert wait_until(lambda: cell.messages["holdings"] >= asked + 5, PATIENCE)
