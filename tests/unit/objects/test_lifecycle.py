"""The transitions of an instance row: every guard of the protocol, one by one."""

from __future__ import annotations

import msgspec
import pytest

from objects import lifecycle
from objects.feed import EventKind
from objects.instance import Failure, FailureClass, Instance, State
from objects.lifecycle import Change, Outcome, Refused
from objects.selection import Selection

UUID = "6a3c34ac-0cb5-4fb5-b0bf-b2e3e8a9ad3a"
HOST_FAULT = Failure(kind=FailureClass.HOST, error="BuildFailed", message="no disk", at=1.0)


def selection(host: str) -> Selection:
    return Selection(host=host, node=host, cell_uuid="c1")


def row(state: State, **changes: object) -> Instance:
    base = Instance(
        uuid=UUID, state=state, fence=3, attempt=1, host="h1", node="h1", version=5, alternates=(selection("h2"), selection("h3"))
    )
    return msgspec.structs.replace(base, **changes)


def changed(outcome: Outcome) -> Change:
    assert isinstance(outcome, Change), outcome
    assert outcome.row.version == 6
    return outcome


def refused(outcome: Outcome, *, done: bool = False) -> None:
    assert isinstance(outcome, Refused), outcome
    assert outcome.done is done


def test_the_settler_activates_only_the_row_whose_fence_the_mapping_carries() -> None:
    assert changed(lifecycle.activate(row(State.STAGED), 3, cell0=False)).row.state is State.SCHEDULED
    assert changed(lifecycle.activate(row(State.STAGED), 3, cell0=True)).row.state is State.ERROR
    refused(lifecycle.activate(row(State.STAGED), 4, cell0=False))
    refused(lifecycle.activate(row(State.ACTIVE), 3, cell0=False))


@pytest.mark.parametrize("state", [State.STAGED, State.SCHEDULED])
def test_accept_starts_a_build_that_is_still_wanted(state: State) -> None:
    after = changed(lifecycle.accept(row(state), "h1", 3, 1, "h1:a"))
    assert (after.row.state, after.row.builder, after.event) == (State.BUILDING, "h1:a", None)


@pytest.mark.parametrize(("host", "fence", "attempt"), [("h2", 3, 1), ("h1", 2, 1), ("h1", 4, 1), ("h1", 3, 2)])
def test_every_report_is_refused_for_another_host_fence_or_attempt(host: str, fence: int, attempt: int) -> None:
    building = row(State.BUILDING, builder="h1:a")
    refused(lifecycle.accept(row(State.SCHEDULED), host, fence, attempt, "h1:a"))
    refused(lifecycle.active(building, host, fence, attempt, "h1:a", 9.0))
    refused(lifecycle.failed(building, host, fence, attempt, "h1:a", HOST_FAULT))


def test_accept_twice_by_the_same_start_is_done_and_by_another_start_refused() -> None:
    refused(lifecycle.accept(row(State.BUILDING, builder="h1:a"), "h1", 3, 1, "h1:a"), done=True)
    refused(lifecycle.accept(row(State.BUILDING, builder="h1:a"), "h1", 3, 1, "h1:b"))


@pytest.mark.parametrize("state", [State.DELETING, State.DELETED, State.ERROR])
def test_nothing_is_built_or_reported_after_the_end_or_a_delete(state: State) -> None:
    over = row(state, builder="h1:a")
    refused(lifecycle.accept(over, "h1", 3, 1, "h1:a"))
    refused(lifecycle.active(over, "h1", 3, 1, "h1:a", 9.0))
    refused(lifecycle.failed(over, "h1", 3, 1, "h1:a", HOST_FAULT))
    refused(lifecycle.host_dead(over, 1, HOST_FAULT))
    refused(lifecycle.deadline(over, 1, HOST_FAULT))


def test_active_takes_the_builder_that_was_accepted() -> None:
    building = row(State.BUILDING, builder="h1:a")
    after = changed(lifecycle.active(building, "h1", 3, 1, "h1:a", 9.0))
    assert (after.row.state, after.row.launched_at, after.event) == (State.ACTIVE, 9.0, EventKind.ACTIVE)
    refused(lifecycle.active(building, "h1", 3, 1, "h1:b", 9.0))
    refused(lifecycle.active(after.row, "h1", 3, 1, "h1:a", 9.9), done=True)


def test_a_failed_build_goes_to_the_next_alternate_left_to_right() -> None:
    after = changed(lifecycle.failed(row(State.BUILDING, builder="h1:a"), "h1", 3, 1, "h1:a", HOST_FAULT))
    assert (after.row.state, after.row.host, after.row.attempt, after.row.builder) == (State.SCHEDULED, "h2", 2, None)
    assert [s.host for s in after.row.alternates] == ["h3"]
    assert [(a.number, a.host, a.failure) for a in after.row.history] == [(1, "h1", HOST_FAULT)]
    assert after.event is EventKind.MOVED


def test_a_failed_report_of_an_earlier_agent_start_is_refused() -> None:
    refused(lifecycle.failed(row(State.BUILDING, builder="h1:b"), "h1", 3, 1, "h1:a", HOST_FAULT))


def test_attempts_end_where_max_attempts_says_and_the_fault_tells_them_all() -> None:
    current = row(State.SCHEDULED, max_attempts=2)
    current = changed(lifecycle.failed(current, "h1", 3, 1, "h1:a", HOST_FAULT)).row
    outcome = lifecycle.failed(current, "h2", 3, 2, "h2:a", msgspec.structs.replace(HOST_FAULT, message="no power"))
    assert isinstance(outcome, Change)
    assert (outcome.row.state, outcome.event) == (State.ERROR, EventKind.ENDED)
    assert outcome.row.fault == (
        "Exceeded maximum number of attempts (2). Attempt 1 on h1: BuildFailed: no disk. Attempt 2 on h2: BuildFailed: no power."
    )


def test_a_restarted_agent_builds_again_on_its_host_without_using_up_a_try() -> None:
    restarted = Failure(kind=FailureClass.RESTARTED, error="AgentRestarted", message="restart", at=1.0)
    current = row(State.BUILDING, builder="h1:a", alternates=(), max_attempts=1)
    for number in range(lifecycle.MAX_RESTARTS):
        outcome = lifecycle.failed(current, "h1", 3, number + 1, "h1:a", restarted)
        assert isinstance(outcome, Change)
        assert (outcome.row.state, outcome.row.host, outcome.row.attempt) == (State.SCHEDULED, "h1", number + 2)
        assert (outcome.row.builder, outcome.event) == (None, EventKind.MOVED)
        current = msgspec.structs.replace(outcome.row, state=State.BUILDING, builder="h1:a")
    tired = lifecycle.failed(current, "h1", 3, lifecycle.MAX_RESTARTS + 1, "h1:a", restarted)
    assert isinstance(tired, Change)
    assert tired.row.state is State.ERROR


def test_restarts_are_forgiven_but_failures_still_counted() -> None:
    restarted = Failure(kind=FailureClass.RESTARTED, error="AgentRestarted", message="restart", at=1.0)
    current = changed(lifecycle.failed(row(State.BUILDING, builder="h1:a", max_attempts=2), "h1", 3, 1, "h1:a", restarted)).row
    moved = lifecycle.failed(current, "h1", 3, 2, "h1:b", HOST_FAULT)
    assert isinstance(moved, Change)
    assert (moved.row.host, moved.row.attempt) == ("h2", 3)
    ended = lifecycle.failed(moved.row, "h2", 3, 3, "h2:a", HOST_FAULT)
    assert isinstance(ended, Change)
    assert ended.row.state is State.ERROR


def test_no_alternates_left_is_an_end_with_a_reason() -> None:
    after = changed(lifecycle.failed(row(State.SCHEDULED, alternates=()), "h1", 3, 1, "h1:a", HOST_FAULT))
    assert after.row.state is State.ERROR
    assert after.row.fault is not None
    assert after.row.fault.startswith("Exhausted all hosts")


def test_a_fault_of_the_request_is_an_end_at_once() -> None:
    abort = Failure(kind=FailureClass.REQUEST, error="BuildAborted", message="image is broken", at=1.0)
    after = changed(lifecycle.failed(row(State.SCHEDULED), "h1", 3, 1, "h1:a", abort))
    assert after.row.state is State.ERROR
    assert "image is broken" in (after.row.fault or "")


def test_a_dead_host_and_a_deadline_are_guarded_by_the_attempt_that_was_read() -> None:
    refused(lifecycle.host_dead(row(State.BUILDING), 2, HOST_FAULT))
    refused(lifecycle.deadline(row(State.BUILDING), 2, HOST_FAULT))
    assert changed(lifecycle.host_dead(row(State.BUILDING), 1, HOST_FAULT)).row.host == "h2"
    late = changed(lifecycle.deadline(row(State.BUILDING), 1, HOST_FAULT)).row
    assert (late.state, late.attempt, late.builder) == (State.ERROR, 2, None)


@pytest.mark.parametrize("state", [State.STAGED, State.SCHEDULED, State.ERROR])
def test_what_has_no_guest_is_deleted_at_once(state: State) -> None:
    after = changed(lifecycle.delete(row(state), 9.0))
    assert (after.row.state, after.row.terminated_at, after.event) == (State.DELETED, 9.0, EventKind.ENDED)


@pytest.mark.parametrize("state", [State.BUILDING, State.ACTIVE])
def test_what_may_have_a_guest_goes_through_deleting(state: State) -> None:
    deleting = changed(lifecycle.delete(row(state), 9.0)).row
    assert deleting.state is State.DELETING
    refused(lifecycle.gone(deleting, "h2", 1, 9.5))
    refused(lifecycle.gone(deleting, "h1", 2, 9.5))
    gone = lifecycle.gone(deleting, "h1", 1, 9.5)
    assert isinstance(gone, Change)
    assert (gone.row.state, gone.event) == (State.DELETED, EventKind.ENDED)
    refused(lifecycle.gone(gone.row, "h1", 1, 9.9), done=True)


def test_deleting_twice_is_done() -> None:
    refused(lifecycle.delete(row(State.DELETING), 9.0), done=True)
    refused(lifecycle.delete(row(State.DELETED), 9.0), done=True)
