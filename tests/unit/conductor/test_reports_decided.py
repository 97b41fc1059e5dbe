"""Which transition each report of an agent asks for."""

from __future__ import annotations

import msgspec
import pytest

from conductor.cell_conductor import decide_report
from objects.build import Report, ReportKind
from objects.instance import Failure, FailureClass, Instance, State
from objects.lifecycle import Change, Refused
from objects.selection import Selection

NOW = 50.0
ROW = Instance(
    uuid="u1",
    state=State.BUILDING,
    fence=3,
    attempt=2,
    builder="h1:a",
    host="h1",
    node="h1",
    version=5,
    alternates=(Selection(host="h2", node="h2", cell_uuid="c1"),),
)


def report(kind: ReportKind, **changes: object) -> Report:
    base = Report(kind=kind, instance_uuid="u1", host="h1", fence=3, attempt=2, builder="h1:a")
    return msgspec.structs.replace(base, **changes)


def row(state: State, **changes: object) -> Instance:
    return msgspec.structs.replace(ROW, state=state, **changes)


def after(before: Instance, said: Report) -> Instance:
    outcome = decide_report(before, said, NOW)
    assert isinstance(outcome, Change), outcome
    return outcome.row


def test_each_kind_asks_for_its_transition() -> None:
    accepted = after(row(State.SCHEDULED, builder=None), report(ReportKind.ACCEPT))
    assert (accepted.state, accepted.builder) == (State.BUILDING, "h1:a")
    active = after(ROW, report(ReportKind.ACTIVE))
    assert (active.state, active.launched_at) == (State.ACTIVE, NOW)
    gone = after(row(State.DELETING), report(ReportKind.GONE))
    assert (gone.state, gone.terminated_at) == (State.DELETED, NOW)
    failure = Failure(kind=FailureClass.HOST, error="BuildFailed", message="no disk", at=49.0)
    failed = after(ROW, report(ReportKind.FAILED, failure=failure))
    assert (failed.state, failed.host, failed.attempt) == (State.SCHEDULED, "h2", 3)
    assert failed.history[-1].failure == failure


def test_a_failure_without_a_reason_is_the_hosts() -> None:
    [attempt] = after(ROW, report(ReportKind.FAILED)).history
    assert (attempt.failure.kind, attempt.failure.at) == (FailureClass.HOST, NOW)
    assert attempt.failure.message


@pytest.mark.parametrize("kind", list(ReportKind))
@pytest.mark.parametrize("stale", [{"host": "h2"}, {"attempt": 1}, {"attempt": 3}])
def test_reports_of_another_attempt_or_host_are_refused(kind: ReportKind, stale: dict[str, object]) -> None:
    state = State.DELETING if kind is ReportKind.GONE else State.BUILDING
    outcome = decide_report(row(state), report(kind, **stale), NOW)
    assert isinstance(outcome, Refused)
    assert not outcome.done


@pytest.mark.parametrize("kind", [ReportKind.ACCEPT, ReportKind.ACTIVE, ReportKind.FAILED])
@pytest.mark.parametrize("stale", [{"fence": 2}, {"fence": 4}, {"builder": "h1:b"}])
def test_reports_of_another_fence_or_start_are_refused(kind: ReportKind, stale: dict[str, object]) -> None:
    outcome = decide_report(ROW, report(kind, **stale), NOW)
    assert isinstance(outcome, Refused)
    assert not outcome.done
