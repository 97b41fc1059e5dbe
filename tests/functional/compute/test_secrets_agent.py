"""An agent gives its guests what came with the grant, keeps nothing of it, and builds nothing without it."""

from __future__ import annotations

import hashlib
import threading
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import pytest

from compute.driver import Guest, GuestSpec
from compute.journal import Received, read_entries
from compute.main import ComputeService
from compute.simulated import SimulatedDriver, journal_path
from objects import errors
from objects.build import Origin, Report, ReportKind, Verdict
from objects.context import RequestContext
from objects.instance import FailureClass, State
from objects.spec import BootSecrets
from rpc.transport import Bus
from tests.support.agents import Agents, settings
from tests.support.cell_conductor import MemoryCell

SECRETS = BootSecrets(user_data="bWFya2VkLWh1bnRlcjI=", admin_pass="marked-password")
RECEIVED = Received(user_data_sha256=hashlib.sha256(b"bWFya2VkLWh1bnRlcjI=").hexdigest(), admin_pass_set=True)


class ConfidentialCell(MemoryCell):
    """Its builds have secrets, and its grants carry them as the project's conductor does: once in an answer."""

    def __init__(self, bus: Bus) -> None:
        super().__init__(bus)
        self.secrets: BootSecrets | None = SECRETS

    def report(self, context: RequestContext, reports: Sequence[Report]) -> list[Verdict]:
        verdicts, first = [], ""
        for report, verdict in zip(reports, super().report(context, reports), strict=True):
            if report.wants_secrets and verdict.accepted and first:
                verdict = msgspec.structs.replace(verdict, secrets_with=first)
            elif report.wants_secrets and verdict.accepted and self.secrets is not None:
                first = report.instance_uuid
                verdict = msgspec.structs.replace(verdict, secrets=self.secrets)
            verdicts.append(verdict)
        return verdicts

    def stage_confidential(self, host: str, *alternates: str, count: int = 1) -> list[str]:
        uuids = self.stage(host, *alternates, count=count)
        for one in uuids:
            self.specs[one] = msgspec.structs.replace(self.specs[one], has_secrets=True)
        return uuids


@pytest.fixture
def bus() -> Iterator[Bus]:
    bus = Bus(f"embedded://{uuid.uuid4().hex}/")
    yield bus
    bus.close()


@pytest.fixture
def cell(bus: Bus) -> ConfidentialCell:
    return ConfidentialCell(bus)


@pytest.fixture
def agents(bus: Bus, tmp_path: Path, cell: ConfidentialCell) -> Iterator[Agents]:
    agents = Agents(bus, tmp_path)
    yield agents
    agents.stop()


def received(folder: Path, host: str = "h1") -> dict[str, Received | None]:
    entries = read_entries(journal_path(str(folder), host))
    return {entry.spawned.uuid: entry.received for entry in entries if entry.spawned is not None}


def test_every_batch_guest_gets_secrets_beside_a_digest(cell: ConfidentialCell, agents: Agents, tmp_path: Path) -> None:
    service = agents.start()
    uuids = cell.stage_confidential("h1", count=5)
    cell.order(*uuids)
    (plain,) = cell.boot("h1")
    cell.wait(State.ACTIVE, *uuids, plain)
    assert received(tmp_path) == dict.fromkeys(uuids, RECEIVED) | {plain: None}
    asked = {r.instance_uuid for r in cell.reports if r.kind is ReportKind.ACCEPT and r.wants_secrets}
    assert asked == set(uuids)
    service.stop(1.0)
    agents.start()
    assert received(tmp_path) == dict.fromkeys(uuids, RECEIVED) | {plain: None}, "the host's file was rewritten"
    for path in filter(Path.is_file, tmp_path.rglob("*")):
        assert b"marked" not in path.read_bytes()
        assert b"bWFya2Vk" not in path.read_bytes()


def test_an_agent_that_died_gets_its_secrets_again(cell: ConfidentialCell, agents: Agents, tmp_path: Path) -> None:
    (one,) = cell.stage_confidential("h1")
    assert cell.accept_for(one, "h1:before")
    agents.start()
    cell.wait(State.ACTIVE, one)
    assert received(tmp_path) == {one: RECEIVED}


def test_a_grant_without_them_builds_nothing(cell: ConfidentialCell, agents: Agents, tmp_path: Path) -> None:
    """A conductor of an earlier release does not know that it was asked for more."""
    cell.secrets = None
    agents.start()
    (one,) = cell.stage_confidential("h1")
    cell.order(one)
    cell.wait(State.ERROR, one)
    assert received(tmp_path) == {}
    (failure,) = [report.failure for report in cell.reports if report.kind is ReportKind.FAILED]
    assert failure is not None
    assert (failure.kind, failure.error) == (FailureClass.HOST, "BuildFailed")
    assert "upgrade" in failure.message


class Talkative(SimulatedDriver):
    """Quotes what it was given, as a hypervisor's tools may."""

    def spawn(
        self, guest: Guest, spec: GuestSpec, secrets: BootSecrets | None, cancel: threading.Event, origin: Origin | None = None
    ) -> None:
        assert secrets is not None
        raise errors.BuildFailed(f"virt-customize --password {secrets.admin_pass} --data marked-hunter2 {secrets.user_data}: no")


def test_a_driver_that_quotes_them_is_not_repeated(
    cell: ConfidentialCell, bus: Bus, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    made = settings(tmp_path)
    service = ComputeService(made, bus, driver=Talkative(made))
    service.start()
    try:
        (one,) = cell.stage_confidential("h1")
        cell.order(one)
        cell.wait(State.ERROR, one)
    finally:
        service.stop(0.0)
    assert "virt-customize --password *** --data *** ***: no" in (cell.rows[one].fault or "")
    assert "marked" not in (cell.rows[one].fault or "") + caplog.text
    assert "bWFya2Vk" not in (cell.rows[one].fault or "") + caplog.text
