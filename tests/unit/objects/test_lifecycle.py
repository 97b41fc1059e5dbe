"""The transitions of an instance row: every guard of the protocol, one by one."""

from __future__ import annotations

import msgspec
import pytest

from objects import lifecycle, stored, text
from objects.feed import EventKind
from objects.instance import Failure, FailureClass, Instance, State
from objects.lifecycle import Change, Outcome, Refused
from objects.selection import Selection
from objects.task import DriveChanges, Power, Task, TaskArgs, TaskKind, TaskState

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


def test_the_settler_activates_only_the_mapped_fence() -> None:
    assert changed(lifecycle.activate_row(row(State.STAGED), 3, cell0=False)).row.state is State.SCHEDULED
    assert changed(lifecycle.activate_row(row(State.STAGED), 3, cell0=True)).row.state is State.ERROR
    refused(lifecycle.activate_row(row(State.STAGED), 4, cell0=False))
    refused(lifecycle.activate_row(row(State.ACTIVE), 3, cell0=False))


@pytest.mark.parametrize("state", [State.STAGED, State.SCHEDULED])
def test_accept_starts_a_build_that_is_still_wanted(state: State) -> None:
    after = changed(lifecycle.accept_order(row(state), "h1", 3, 1, "h1:a"))
    assert (after.row.state, after.row.builder, after.event) == (State.BUILDING, "h1:a", None)


@pytest.mark.parametrize(("host", "fence", "attempt"), [("h2", 3, 1), ("h1", 2, 1), ("h1", 4, 1), ("h1", 3, 2)])
def test_reports_under_another_host_or_fence_are_refused(host: str, fence: int, attempt: int) -> None:
    building = row(State.BUILDING, builder="h1:a")
    refused(lifecycle.accept_order(row(State.SCHEDULED), host, fence, attempt, "h1:a"))
    refused(lifecycle.confirm_active(building, host, fence, attempt, "h1:a", 9.0))
    refused(lifecycle.fail_attempt(building, host, fence, attempt, "h1:a", HOST_FAULT))


def test_a_second_accept_needs_the_same_start() -> None:
    refused(lifecycle.accept_order(row(State.BUILDING, builder="h1:a"), "h1", 3, 1, "h1:a"), done=True)
    refused(lifecycle.accept_order(row(State.BUILDING, builder="h1:a"), "h1", 3, 1, "h1:b"))


@pytest.mark.parametrize("state", [State.DELETING, State.DELETED, State.ERROR])
def test_nothing_is_built_after_an_end_or_delete(state: State) -> None:
    over = row(state, builder="h1:a")
    refused(lifecycle.accept_order(over, "h1", 3, 1, "h1:a"))
    refused(lifecycle.confirm_active(over, "h1", 3, 1, "h1:a", 9.0))
    refused(lifecycle.fail_attempt(over, "h1", 3, 1, "h1:a", HOST_FAULT))
    refused(lifecycle.host_dead(over, 1, HOST_FAULT))
    refused(lifecycle.end_overdue(over, 1, HOST_FAULT))


def test_active_takes_the_builder_that_was_accepted() -> None:
    building = row(State.BUILDING, builder="h1:a")
    after = changed(lifecycle.confirm_active(building, "h1", 3, 1, "h1:a", 9.0))
    assert (after.row.state, after.row.launched_at, after.event) == (State.ACTIVE, 9.0, EventKind.ACTIVE)
    refused(lifecycle.confirm_active(building, "h1", 3, 1, "h1:b", 9.0))
    refused(lifecycle.confirm_active(after.row, "h1", 3, 1, "h1:a", 9.9), done=True)


def test_a_failed_build_goes_to_the_next_alternate() -> None:
    after = changed(lifecycle.fail_attempt(row(State.BUILDING, builder="h1:a"), "h1", 3, 1, "h1:a", HOST_FAULT))
    assert (after.row.state, after.row.host, after.row.attempt, after.row.builder) == (State.SCHEDULED, "h2", 2, None)
    assert [s.host for s in after.row.alternates] == ["h3"]
    assert [(a.number, a.host, a.failure) for a in after.row.history] == [(1, "h1", HOST_FAULT)]
    assert after.event is EventKind.MOVED


def test_a_failed_report_of_earlier_starts_is_refused() -> None:
    refused(lifecycle.fail_attempt(row(State.BUILDING, builder="h1:b"), "h1", 3, 1, "h1:a", HOST_FAULT))


def test_attempts_end_at_max_attempts_listing_all_faults() -> None:
    current = row(State.SCHEDULED, max_attempts=2)
    current = changed(lifecycle.fail_attempt(current, "h1", 3, 1, "h1:a", HOST_FAULT)).row
    outcome = lifecycle.fail_attempt(current, "h2", 3, 2, "h2:a", msgspec.structs.replace(HOST_FAULT, message="no power"))
    assert isinstance(outcome, Change)
    assert (outcome.row.state, outcome.event) == (State.ERROR, EventKind.ENDED)
    assert outcome.row.fault == (
        "Exceeded maximum number of attempts (2). Attempt 1 on h1: BuildFailed: no disk. Attempt 2 on h2: BuildFailed: no power."
    )


def test_a_restarted_agent_builds_again_without_using_tries() -> None:
    restarted = Failure(kind=FailureClass.RESTARTED, error="AgentRestarted", message="restart", at=1.0)
    current = row(State.BUILDING, builder="h1:a", alternates=(), max_attempts=1)
    for number in range(lifecycle.MAX_RESTARTS):
        outcome = lifecycle.fail_attempt(current, "h1", 3, number + 1, "h1:a", restarted)
        assert isinstance(outcome, Change)
        assert (outcome.row.state, outcome.row.host, outcome.row.attempt) == (State.SCHEDULED, "h1", number + 2)
        assert (outcome.row.builder, outcome.event) == (None, EventKind.MOVED)
        current = msgspec.structs.replace(outcome.row, state=State.BUILDING, builder="h1:a")
    tired = lifecycle.fail_attempt(current, "h1", 3, lifecycle.MAX_RESTARTS + 1, "h1:a", restarted)
    assert isinstance(tired, Change)
    assert tired.row.state is State.ERROR


STOPPING = Failure(kind=FailureClass.STOPPING, error="AgentStopping", message="stop", at=1.0)


def test_a_stopping_agents_build_moves_without_using_tries() -> None:
    current = row(State.BUILDING, builder="h1:a", max_attempts=1)
    moved = changed(lifecycle.fail_attempt(current, "h1", 3, 1, "h1:a", STOPPING))
    assert (moved.event, moved.row.state, moved.row.host, moved.row.attempt) == (EventKind.MOVED, State.SCHEDULED, "h2", 2)


def test_a_host_that_stopped_is_tried_again_last() -> None:
    """When all hosts of a cell are stopped and started, hosts that fail builds must not be the only ones left."""

    def left(before: Instance, outcome: Outcome) -> Instance:
        assert isinstance(outcome, Change), outcome
        assert outcome.row.attempt == before.attempt + 1
        return outcome.row

    begun = row(State.BUILDING, builder="h1:a", node="n1", max_attempts=2)
    first = left(begun, lifecycle.fail_attempt(begun, "h1", 3, 1, "h1:a", STOPPING))
    assert [first.host, *(other.host for other in first.alternates)] == ["h2", "h3", "h1"]
    moved = left(first, lifecycle.host_stopping(first, first.attempt, STOPPING))
    assert [moved.host, *(other.host for other in moved.alternates)] == ["h3", "h1", "h2"]
    refused(lifecycle.host_stopping(moved, moved.attempt, STOPPING))  # all were stopped: it waits for its host's next start
    again = msgspec.structs.replace(moved, state=State.BUILDING, builder="h3:a")
    stayed = left(again, lifecycle.fail_attempt(again, "h3", 3, again.attempt, "h3:a", STOPPING))
    assert [stayed.host, *(other.host for other in stayed.alternates)] == ["h3", "h1", "h2"], "the others are kept for failures"
    moved = first
    for then in ("h3", "h1"):
        building = msgspec.structs.replace(moved, state=State.BUILDING, builder="a", max_attempts=9)
        moved = left(building, lifecycle.fail_attempt(building, building.host or "", 3, building.attempt, "a", HOST_FAULT))
        assert moved.host == then
    assert (moved.node, moved.alternates) == ("n1", ())


def test_members_of_strict_groups_do_not_return() -> None:
    """The host that they left is nobody's: another member may be there by now."""
    current = row(State.BUILDING, builder="h1:a", has_group=True)
    moved = changed(lifecycle.fail_attempt(current, "h1", 3, 1, "h1:a", STOPPING)).row
    assert [other.host for other in moved.alternates] == ["h3"]


def test_a_stopping_agents_build_waits_without_other_hosts() -> None:
    current = row(State.SCHEDULED, alternates=())
    for number in range(lifecycle.MAX_RESTARTS):
        stopped = lifecycle.fail_attempt(current, "h1", 3, number + 1, "h1:a", STOPPING)
        current = msgspec.structs.replace(changed(stopped).row, version=5)
        assert (current.state, current.host, current.attempt) == (State.SCHEDULED, "h1", number + 2)
    last = changed(lifecycle.fail_attempt(current, "h1", 3, lifecycle.MAX_RESTARTS + 1, "h1:a", STOPPING)).row
    assert last.state is State.ERROR


def test_orders_of_a_stopping_host_move_if_possible() -> None:
    waiting = row(State.SCHEDULED)
    moved = changed(lifecycle.host_stopping(waiting, 1, STOPPING)).row
    assert (moved.state, moved.host, moved.attempt, moved.version) == (State.SCHEDULED, "h2", 2, waiting.version + 1)
    for other in (row(State.BUILDING, builder="h1:a"), row(State.STAGED), row(State.SCHEDULED, alternates=()), moved):
        assert isinstance(lifecycle.host_stopping(other, 1, STOPPING), Refused)


def test_a_host_ending_an_ended_build_is_done() -> None:
    outcome = lifecycle.confirm_gone(row(State.ERROR), "h1", 1, 9.0)
    assert isinstance(outcome, Refused)
    assert outcome.done


def test_restarts_are_forgiven_but_failures_still_counted() -> None:
    restarted = Failure(kind=FailureClass.RESTARTED, error="AgentRestarted", message="restart", at=1.0)
    current = changed(
        lifecycle.fail_attempt(row(State.BUILDING, builder="h1:a", max_attempts=2), "h1", 3, 1, "h1:a", restarted)
    ).row
    moved = lifecycle.fail_attempt(current, "h1", 3, 2, "h1:b", HOST_FAULT)
    assert isinstance(moved, Change)
    assert (moved.row.host, moved.row.attempt) == ("h2", 3)
    ended = lifecycle.fail_attempt(moved.row, "h2", 3, 3, "h2:a", HOST_FAULT)
    assert isinstance(ended, Change)
    assert ended.row.state is State.ERROR


def test_no_alternates_ends_with_a_reason() -> None:
    after = changed(lifecycle.fail_attempt(row(State.SCHEDULED, alternates=()), "h1", 3, 1, "h1:a", HOST_FAULT))
    assert after.row.state is State.ERROR
    assert after.row.fault is not None
    assert after.row.fault.startswith("Exhausted all hosts")


def test_a_fault_of_the_request_ends_at_once() -> None:
    abort = Failure(kind=FailureClass.REQUEST, error="BuildAborted", message="image is broken", at=1.0)
    after = changed(lifecycle.fail_attempt(row(State.SCHEDULED), "h1", 3, 1, "h1:a", abort))
    assert after.row.state is State.ERROR
    assert "image is broken" in (after.row.fault or "")


def test_dead_hosts_and_deadlines_are_guarded_by_attempt() -> None:
    refused(lifecycle.host_dead(row(State.BUILDING), 2, HOST_FAULT))
    refused(lifecycle.end_overdue(row(State.BUILDING), 2, HOST_FAULT))
    assert changed(lifecycle.host_dead(row(State.BUILDING), 1, HOST_FAULT)).row.host == "h2"
    late = changed(lifecycle.end_overdue(row(State.BUILDING), 1, HOST_FAULT)).row
    assert (late.state, late.attempt, late.builder) == (State.ERROR, 2, None)


@pytest.mark.parametrize("state", [State.STAGED, State.SCHEDULED, State.ERROR])
def test_what_has_no_guest_is_deleted_at_once(state: State) -> None:
    after = changed(lifecycle.delete(row(state), 9.0))
    assert (after.row.state, after.row.terminated_at, after.event) == (State.DELETED, 9.0, EventKind.ENDED)


@pytest.mark.parametrize("state", [State.BUILDING, State.ACTIVE])
def test_what_may_have_a_guest_goes_through_deleting(state: State) -> None:
    deleting = changed(lifecycle.delete(row(state), 9.0)).row
    assert deleting.state is State.DELETING
    refused(lifecycle.confirm_gone(deleting, "h2", 1, 9.5))
    refused(lifecycle.confirm_gone(deleting, "h1", 2, 9.5))
    gone = lifecycle.confirm_gone(deleting, "h1", 1, 9.5)
    assert isinstance(gone, Change)
    assert (gone.row.state, gone.event) == (State.DELETED, EventKind.ENDED)
    refused(lifecycle.confirm_gone(gone.row, "h1", 1, 9.9), done=True)


def test_deleting_twice_is_done() -> None:
    refused(lifecycle.delete(row(State.DELETING), 9.0), done=True)
    refused(lifecycle.delete(row(State.DELETED), 9.0), done=True)


@pytest.mark.parametrize("state", [State.STAGED, State.SCHEDULED])
def test_a_row_without_guest_is_rolled_back_immediately(state: State) -> None:
    after = changed(lifecycle.roll_back(row(state), "another failed"))
    assert (after.row.state, after.row.attempt, after.row.fault) == (State.ERROR, 2, "another failed")
    assert after.event is EventKind.ENDED


@pytest.mark.parametrize("state", [State.BUILDING, State.ACTIVE])
def test_a_possible_guest_leaves_an_error_once_gone(state: State) -> None:
    deleting = changed(lifecycle.roll_back(row(state, builder="h1:a"), "another failed"))
    assert (deleting.row.state, deleting.row.attempt, deleting.event) == (State.DELETING, 1, None)
    refused(lifecycle.roll_back(deleting.row, "a third failed"), done=True)
    refused(lifecycle.confirm_gone(deleting.row, "h1", 2, 9.5))
    gone = lifecycle.confirm_gone(deleting.row, "h1", 1, 9.5)
    assert isinstance(gone, Change)
    assert (gone.row.state, gone.row.attempt, gone.row.fault) == (State.ERROR, 2, "another failed")
    assert (gone.row.builder, gone.event) == (None, EventKind.ENDED)
    refused(lifecycle.confirm_gone(gone.row, "h1", 1, 9.9), done=True)
    deleted = lifecycle.delete(gone.row, 9.9)
    assert isinstance(deleted, Change)
    assert deleted.row.state is State.DELETED


@pytest.mark.parametrize("state", [State.DELETING, State.DELETED, State.ERROR])
def test_ended_or_deleting_rows_are_not_rolled_back(state: State) -> None:
    refused(lifecycle.roll_back(row(state), "another failed"), done=True)


def test_a_delete_during_rollback_ends_as_a_delete() -> None:
    undone = changed(lifecycle.delete(row(State.DELETING, rolled_back="another failed"), 9.0))
    assert (undone.row.state, undone.row.rolled_back, undone.event) == (State.DELETING, None, None)
    gone = lifecycle.confirm_gone(undone.row, "h1", 1, 9.5)
    assert isinstance(gone, Change)
    assert gone.row.state is State.DELETED


def test_a_row_is_repeated_under_an_unseen_version() -> None:
    known = row(State.ACTIVE, version=4)
    for seen, version in ((2, 5), (9, 10)):
        told = lifecycle.retell_row(known, 4, seen, EventKind.MOVED)
        assert told == Change(row=msgspec.structs.replace(known, version=version), event=EventKind.MOVED)
    refused(lifecycle.retell_row(known, 3, 9, EventKind.MOVED))


def test_a_long_history_and_fault_fit_every_database() -> None:
    text_of_a_driver = Failure(kind=FailureClass.HOST, error="OSError", message="é\n" * 40_000, at=1.0)
    hosts = tuple(selection(f"h{number}") for number in range(2, 40))
    current = row(State.BUILDING, builder="b", alternates=hosts, max_attempts=30)
    while current.state is not State.ERROR:
        outcome = lifecycle.next_attempt(msgspec.structs.replace(current, state=State.BUILDING), text_of_a_driver)
        current = outcome.row
    assert len(current.history) == 30, "each attempt is kept"
    assert sum(len(attempt.failure.message.encode()) for attempt in current.history) <= text.FAULTS_SIZE
    assert current.fault is not None
    assert len(current.fault.encode()) <= text.FAULTS_SIZE
    assert len(stored.dump_value(current.history)) < 64 * 1024


def test_short_messages_of_a_history_stay_whole() -> None:
    outcome = lifecycle.next_attempt(row(State.BUILDING, builder="b"), HOST_FAULT)
    assert [attempt.failure.message for attempt in outcome.row.history] == ["no disk"]


def test_a_reason_to_roll_back_is_cleaned() -> None:
    after = changed(lifecycle.roll_back(row(State.STAGED), "bad\0" * 40_000))
    assert after.row.fault is not None
    assert text.is_safe(after.row.fault)
    assert len(after.row.fault.encode()) <= text.FAULTS_SIZE
    deleting = changed(lifecycle.roll_back(row(State.ACTIVE), "bad\0" * 40_000))
    assert deleting.row.rolled_back == after.row.fault


def at_task(state: TaskState, kind: TaskKind = TaskKind.POWER, builder: str | None = None) -> tuple[Instance, Task]:
    task = Task(number=4, kind=kind, power=Power.OFF, builder=builder)
    return row(State.ACTIVE, power=Power.OFF, task_number=4, task_state=state), task


@pytest.mark.parametrize("kind", TaskKind)
@pytest.mark.parametrize("state", [TaskState.DONE, TaskState.FAILED])
def test_a_late_order_does_not_repeat_ended_tasks(state: TaskState, kind: TaskKind) -> None:
    current, _ = at_task(state, kind)
    refused(lifecycle.begin_task(current, "h1", 3, 1, 4, "h1:b", None))


@pytest.mark.parametrize("state", TaskState)
def test_the_power_of_a_done_task_is_restorable(state: TaskState) -> None:
    current, task = at_task(state)
    refused(
        lifecycle.begin_task(current, "h1", 3, 1, 4, "h1:b", None if state.is_over else task, restores=True),
        done=state is TaskState.DONE,
    )
    refused(lifecycle.begin_task(current, "h1", 3, 1, 3, "h1:b", None, restores=True))
    refused(lifecycle.begin_task(current, "h2", 3, 1, 4, "h2:b", None, restores=True))


@pytest.mark.parametrize("kind", TaskKind)
def test_a_later_start_is_granted_repeatable_tasks_only(kind: TaskKind) -> None:
    current, task = at_task(TaskState.RUNNING, kind, builder="h1:a")
    refused(lifecycle.begin_task(current, "h1", 3, 1, 4, "h1:a", task), done=True)
    after = changed(lifecycle.begin_task(current, "h1", 3, 1, 4, "h1:b", task)).row
    assert after.task_state is (TaskState.FAILED if kind.runs_once else TaskState.RUNNING)


@pytest.mark.parametrize("drive", [DriveChanges(has_secrets=True), DriveChanges(key_name=""), DriveChanges(removes_user_data=True)])
def test_a_rebuild_fails_where_agents_ignore_its_changes(drive: DriveChanges) -> None:
    current, task = at_task(TaskState.ORDERED, TaskKind.REBUILD)
    assert (
        changed(lifecycle.begin_task(current, "h1", 3, 1, 4, "h1:b", task, makes_drive=False)).row.task_state is TaskState.RUNNING
    )
    task = msgspec.structs.replace(task, args=TaskArgs(drive=drive))
    assert changed(lifecycle.begin_task(current, "h1", 3, 1, 4, "h1:b", task)).row.task_state is TaskState.RUNNING
    failed = changed(lifecycle.begin_task(current, "h1", 3, 1, 4, "h1:b", task, makes_drive=False))
    assert (failed.row.task_state, failed.event) == (TaskState.FAILED, EventKind.TASK)
    assert "older release" in (failed.row.task_fault or "")


def a_stop(current: Instance, host: str = "h1", fence: int = 3, attempt: int = 1, builder: str = "b", number: int = 4) -> Outcome:
    return lifecycle.powered_off(current, host, fence, attempt, builder, number, "It crashed.")


@pytest.mark.parametrize("power", [Power.ON, Power.PAUSED])
def test_a_guest_stopped_by_itself_is_recorded_off(power: Power) -> None:
    current = row(State.ACTIVE, builder="b", power=power, task_number=4)
    after = changed(a_stop(current))
    assert (after.row.power, after.row.task_fault, after.event) == (Power.OFF, "It crashed.", EventKind.TASK)
    assert (after.row.task_number, after.row.task_state, after.row.version) == (4, TaskState.DONE, current.version + 1)
    refused(a_stop(after.row), done=True)
    for other in ({"host": "h2"}, {"fence": 2}, {"attempt": 2}, {"builder": "c"}):
        refused(a_stop(current, **other))


def test_a_late_off_report_undoes_no_start() -> None:
    started = changed(lifecycle.ask_task(row(State.ACTIVE, builder="b", power=Power.OFF, task_number=4), 8, Power.ON)).row
    refused(a_stop(started))
    done = lifecycle.task_over(started, "h1", 3, 1, 8)
    assert isinstance(done, Change)
    refused(a_stop(done.row))


@pytest.mark.parametrize("state", [TaskState.ORDERED, TaskState.RUNNING, TaskState.FAILED])
def test_a_running_or_failed_task_prevents_recording_off(state: TaskState) -> None:
    refused(a_stop(row(State.ACTIVE, builder="b", task_number=4, task_state=state)))


@pytest.mark.parametrize("power", [Power.HELD, Power.SUSPENDED, Power.INCOMING])
def test_a_guest_not_running_is_not_recorded_off(power: Power) -> None:
    refused(a_stop(row(State.ACTIVE, builder="b", power=power, task_number=4)))
