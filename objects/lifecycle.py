"""The only module that decides which changes of an instance row are allowed, and on what condition.

Each function takes the row as read in the caller's transaction. It returns a ``Change`` (the row to write, and the feed event), or
a ``Refused`` with the reason. The caller writes under the guard ``version = <version read>``. ``docs/protocol.md`` has the guards.
``python -m tests.faults.protocol_check --without GUARD`` shows the trace that makes one necessary. No guard reads a clock.
"""

from __future__ import annotations

from collections import Counter

import msgspec

from objects import text
from objects.base import INT32_MAX, INT64_MAX, Object
from objects.feed import EventKind
from objects.instance import Attempt, Failure, FailureClass, Instance, State
from objects.task import Power, StoredContent, Task, TaskState
from objects.unknown_guest import UnknownGuest

LIVE = frozenset({State.SCHEDULED, State.BUILDING})
"""States of a build under way in the cell."""


MAX_RESTARTS = 3
"""Restarts of a host's agent that a build forgives. After that it moves on, so a host whose agent dies with every build is
left."""


TOO_MANY_ATTEMPTS = "Exceeded maximum number of attempts"
NO_HOST_LEFT = "Exhausted all hosts available for retrying build failures."


FENCE_STEP = 2**32
"""Added to the fences of requests when the comparison of a restored API database begins, and when a lost request is queued again:
no earlier driver holds such a fence."""

LARGEST_LEARNED_TASK = 2**48
"""The highest number of a task that a host's word counts for: the API level must be able to count on from it."""

LARGEST_ATTEMPT = INT32_MAX
LARGEST_VERSION = INT64_MAX
"""Limits of the row's columns. A row with the largest version keeps it, because it must still be able to end."""


class Change(Object, frozen=True, kw_only=True):
    """The row after the transition, and its feed event (None: nothing outside the cell needs it)."""

    row: Instance
    event: EventKind | None = None


class Refused(Object, frozen=True, kw_only=True):
    """The guard does not hold. ``done``: the same transition was made before, so the caller may continue as if it had
    succeeded.

    ``known`` false: there is no row. ``keep``: the row does not prove that the reported guest is superseded, so it stays.
    ``later``: the row is not confirmed yet, so the agent asks again.
    """

    reason: str
    done: bool = False
    known: bool = True
    keep: bool = False
    later: bool = False


Outcome = Change | Refused


def _next_version(row: Instance, event: EventKind | None = None, /, **changes: object) -> Change:
    version = min(row.version + 1, LARGEST_VERSION)
    return Change(row=msgspec.structs.replace(row, version=version, **changes), event=event)


def activate_row(row: Instance, fence: int, *, cell0: bool) -> Outcome:
    """The settler found that the mapping was decided for this cell with ``fence``: STAGED -> SCHEDULED (in cell0: ERROR)."""
    if row.state is not State.STAGED or row.fence != fence:
        return Refused(reason=f"{row.state} under fence {row.fence}")
    return _next_version(row, state=State.ERROR if cell0 else State.SCHEDULED)


def accept_order(row: Instance, host: str, fence: int, attempt: int, builder: str) -> Outcome:
    """An agent asks to spawn: STAGED (an order exists only after hand_over) or SCHEDULED -> BUILDING."""
    if (row.host, row.fence, row.attempt) != (host, fence, attempt):
        return Refused(reason=f"attempt {row.attempt} on {row.host} is in force")
    if row.state in (State.STAGED, State.SCHEDULED):
        return _next_version(row, state=State.BUILDING, builder=builder)
    return Refused(reason=str(row.state), done=row.state is State.BUILDING and row.builder == builder)


def confirm_active(
    row: Instance,
    host: str,
    fence: int,
    attempt: int,
    builder: str,
    now: float,
    *,
    confirmed: bool = False,
    last_task: int = 0,
    power: Power | None = None,
) -> Outcome:
    """The agent's guest runs: BUILDING -> ACTIVE. ``now`` only fills times. ``confirmed``: the cell accepted this agent start
    before.

    STAGED or SCHEDULED with the reported host, fence and attempt becomes ACTIVE too. An agent spawns only after a grant, so the
    cell granted this attempt to this host and lost the grant. No other host can have got it.

    ``last_task``, ``power``: of the guest. A row of a lower number lost tasks when its database was restored: they are over, and
    the guest is what they have made of it. No order of an earlier task is in force any more.
    """
    same_order = (row.host, row.fence, row.attempt) == (host, fence, attempt)
    learned: dict[str, object] = {}
    if row.task_number < last_task <= LARGEST_LEARNED_TASK:
        learned = {"task_number": last_task, "power": row.power if power is None else power}
        learned |= {"task_state": TaskState.DONE, "task_fault": None, "task_stored": None}
    if same_order and row.state in (State.STAGED, State.SCHEDULED):
        return _next_version(
            row, EventKind.ACTIVE, state=State.ACTIVE, builder=builder, building_at=now, launched_at=now, **learned
        )
    if same_order and row.builder == builder and row.state is State.BUILDING:
        return _next_version(row, EventKind.ACTIVE, state=State.ACTIVE, launched_at=now, **learned)
    if same_order and row.builder == builder and row.state is State.ACTIVE:
        return _next_version(row, EventKind.TASK, **learned) if learned else Refused(reason=str(row.state), done=True)
    reason = f"{row.state}, attempt {row.attempt} on {row.host}"
    return Refused(reason=reason, keep=not _is_superseding(row, fence, attempt, confirmed=confirmed))


def _is_superseding(row: Instance, fence: int, attempt: int, *, confirmed: bool) -> bool:
    """Whether the row proves that a guest of this fence and attempt is no longer the instance's.

    A row older than its guest lost commits, because its database was restored or failed over: it proves nothing. These prove
    nothing either: a lease that is newer than a restore, whose giver did not know of the guest; a failed build that the cell has
    seen ACTIVE; an ended attempt that the row has never granted; and a damaged row.
    """
    if row.state in (State.DELETING, State.DELETED) or (row.state is State.ERROR and row.rolled_back is not None):
        return True
    if row.damage is not None:
        return False
    if row.fence != fence:
        return row.fence > fence and row.fence // FENCE_STEP == fence // FENCE_STEP
    if row.attempt <= attempt or confirmed:
        return False
    return not any(past.number == attempt and past.started_at is None for past in row.history)


def fail_attempt(row: Instance, host: str, fence: int, attempt: int, builder: str, failure: Failure) -> Outcome:
    """The agent gives up the attempt: on to the next alternate, or ERROR with the whole history."""
    if (row.host, row.fence, row.attempt) != (host, fence, attempt):
        return Refused(reason=f"attempt {row.attempt} on {row.host} is in force")
    if row.state in (State.STAGED, State.SCHEDULED) or (row.state is State.BUILDING and row.builder == builder):
        return next_attempt(row, failure)
    return Refused(reason=str(row.state))


def host_dead(row: Instance, attempt: int, failure: Failure) -> Outcome:
    """The sweep found the row's host down: like ``fail_attempt``, guarded by the attempt that was read."""
    if row.state not in LIVE or row.attempt != attempt:
        return Refused(reason=f"{row.state}, attempt {row.attempt}")
    return next_attempt(row, failure)


def host_stopping(row: Instance, attempt: int, failure: Failure) -> Outcome:
    """The agent of the row's host takes no more orders: move to another host if one is left. Otherwise the row waits for the
    agent.
    """
    if row.state is not State.SCHEDULED or row.attempt != attempt:
        return Refused(reason=f"{row.state}, attempt {row.attempt}")
    if not _has_fresh_alternate(row):
        return Refused(reason="no other host is left")
    return next_attempt(row, failure)


def end_overdue(row: Instance, attempt: int, failure: Failure) -> Outcome:
    """The build's deadline has passed: ERROR, under a new attempt that fences off the agent."""
    if row.state not in LIVE or row.attempt != attempt:
        return Refused(reason=f"{row.state}, attempt {row.attempt}")
    if row.turn:
        return Refused(reason="its operation ends it: a guest that comes up after ERROR would run beside its server")
    return _give_up(row, _history_with(row, failure), f"Build {failure.message}.")


def next_attempt(row: Instance, failure: Failure) -> Change:
    """Move to the next alternate, from left to right, or end in ERROR. ``max_attempts`` is in the row, so no call to the API
    level is needed.

    A restart of the agent takes a new attempt number on the same host, and a stop one on another host. Neither counts against
    ``max_attempts``. A stop only moves to a host that was not stopped before, and the host left behind becomes the last alternate.
    If all hosts were stopped, the build waits for its host and keeps the others for real failures.
    """
    history = _history_with(row, failure)
    leaves = failure.kind is FailureClass.STOPPING and _has_fresh_alternate(row)
    stays = failure.kind in (FailureClass.RESTARTED, FailureClass.STOPPING) and not leaves
    if stays and _count_restarts(history, row.host) <= MAX_RESTARTS:
        return _next_version(row, EventKind.MOVED, state=State.SCHEDULED, attempt=row.attempt + 1, builder=None, history=history)
    if failure.kind is FailureClass.REQUEST:
        return _give_up(row, history, f"Build of instance {row.uuid} aborted: {failure.message}")
    if len(history) - _count_restarts(history) >= row.max_attempts:
        return _give_up(row, history, f"{TOO_MANY_ATTEMPTS} ({row.max_attempts}).")
    if not row.alternates:
        return _give_up(row, history, NO_HOST_LEFT)
    selection, *rest = row.alternates
    if leaves and not row.has_group:  # another member of the group may have taken this host meanwhile
        rest.append(
            msgspec.structs.replace(
                selection, host=row.host, node=row.node, limits=row.limits, availability_zone=row.availability_zone
            )
        )
    return _next_version(
        row,
        EventKind.MOVED,
        state=State.SCHEDULED,
        attempt=row.attempt + 1,
        builder=None,
        host=selection.host,
        node=selection.node,
        limits=selection.limits,
        availability_zone=selection.availability_zone,
        alternates=tuple(rest),
        history=history,
    )


def delete(row: Instance, now: float) -> Outcome:
    """A delete decided at the API level reaches the cell. An instance that may have a guest goes through DELETING."""
    if row.state in (State.STAGED, State.SCHEDULED, State.ERROR):
        return _deleted_change(row, now)
    if row.state in (State.BUILDING, State.ACTIVE, State.UNKNOWN):
        return _next_version(row, state=State.DELETING)
    if row.state is State.DELETING and row.rolled_back is not None:
        return _next_version(row, rolled_back=None)
    return Refused(reason=str(row.state), done=True)


def roll_back(row: Instance, reason: str) -> Outcome:
    """Another server of its all-or-nothing batch failed: ERROR for that reason. An instance that may have a guest goes through
    DELETING.
    """
    reason = text.clean_text(reason, text.FAULTS_SIZE)
    if row.turn:
        return Refused(reason="it was booted by an operation, not by the batch", done=True)
    if row.state in (State.STAGED, State.SCHEDULED):
        return _rolled_back(row, reason)
    if row.state in (State.BUILDING, State.ACTIVE):
        return _next_version(row, state=State.DELETING, rolled_back=reason)
    return Refused(reason=str(row.state), done=True)


def confirm_gone(row: Instance, host: str | None, attempt: int, now: float) -> Outcome:
    """The agent destroyed the guest, or its host is called down: DELETING -> DELETED, or ERROR if it is rolled back.

    An instance in ERROR has already ended.
    """
    if row.state is not State.DELETING or (row.host, row.attempt) != (host, attempt):
        return Refused(reason=str(row.state), done=row.state in (State.DELETED, State.ERROR))
    if row.rolled_back is not None:
        return _rolled_back(row, row.rolled_back)
    return _deleted_change(row, now)


def retell_row(row: Instance, version: int, seen: int, event: EventKind) -> Outcome:
    """An audit found that the API level has another version of the row: send the same row again, newer than any version
    ``seen``.

    Guarded by the version that the audit read: a row that changed meanwhile sends its own event.
    """
    if row.version != version:
        return Refused(reason=f"version {row.version}")
    return Change(row=msgspec.structs.replace(row, version=max(row.version, seen) + 1), event=event)


LOST_TRACK = (
    "The cell's database was restored to a state from before this server was built: 'superconductor guest adopt' its guest."
)
"""Why a build ends of which the API level knows that its guest runs elsewhere."""


def lose_track(row: Instance, attempt: int, now: float) -> Outcome:
    """The API level has seen this build end well on another host, but the row is of a backup: ERROR, so that none builds it again.

    Guarded by the attempt that was read. The guest has a later attempt, so it stays, and can be adopted.
    """
    if row.state not in LIVE or row.attempt != attempt:
        return Refused(reason=f"{row.state}, attempt {row.attempt}")
    failure = Failure(kind=FailureClass.HOST, error="Restored", message=LOST_TRACK, at=now)
    return _give_up(row, _history_with(row, failure), LOST_TRACK)


NO_NEW_DRIVE = "The host's agent is of an older release and cannot make a new config drive. The guest is as it was."
"""Why a rebuild fails that gives its guest secrets or another key."""

INTERRUPTED = "The host's agent was restarted during the task. How far it came is not known: do it again if it is still wanted."


# -- tasks of an ACTIVE instance -------------------------------------------------------------------------------------------------


def ask_task(row: Instance, number: int, power: Power, fault: str | None = None) -> Outcome:
    """The API level orders a task: the row takes its number, and what the guest is to be. Late and repeated orders are refused.

    ``fault``: the task is over at once, and has failed for this reason. It does not replace one that is not over: ask again later.
    """
    if row.state is not State.ACTIVE:
        return Refused(reason=str(row.state))
    if number <= row.task_number:
        return Refused(reason=f"task {row.task_number} is in force", done=number == row.task_number)
    if fault is not None and not row.task_state.is_over:
        return Refused(reason=f"task {row.task_number} is {row.task_state}")
    if fault is not None:
        return _next_version(
            row, EventKind.TASK, task_number=number, task_state=TaskState.FAILED, task_fault=fault, task_stored=None
        )
    return _next_version(
        row, EventKind.TASK, power=power, task_number=number, task_state=TaskState.ORDERED, task_fault=None, task_stored=None
    )


def relearn_task(row: Instance, version: int, number: int, power: Power, state: TaskState) -> Outcome:
    """The API level has seen a later state of this row: how the task of this number ended, and the power since.

    Guarded by the version that was read, and by the number. So a task that was over before a restore does not begin again.
    """
    if row.state is not State.ACTIVE or (row.version, row.task_number) != (version, number):
        return Refused(reason=f"{row.state}, version {row.version}, task {row.task_number}")
    if not state.is_over or (row.power, row.task_state) == (power, state):
        return Refused(reason=f"power {row.power}, the task is {row.task_state}", done=True)
    return _next_version(row, EventKind.TASK, power=power, task_state=state)


def begin_task(
    row: Instance,
    host: str,
    fence: int,
    attempt: int,
    number: int,
    builder: str,
    task: Task | None,
    *,
    restores: bool = False,
    makes_drive: bool = True,
) -> Outcome:
    """An agent asks whether to carry out the task in force. ``task``: as stored; None: it is over.

    Granted again to the same agent start, and a task that may be repeated also to a later one. For any other task nobody knows how
    far the earlier start came: it fails. A task that is over is refused, because a late order must not repeat it. ``restores``: the
    agent asks whether to bring back the power of a task that is over, because its host has lost it. After a task that failed only a
    guest that is to be on is brought back: nobody knows what the others are. ``makes_drive``: it can make the guest a new config
    drive. A rebuild that changes the drive fails if it cannot.
    """
    if not _is_task_of(row, host, fence, attempt, number):
        return Refused(reason=f"{row.state}, task {row.task_number} of attempt {row.attempt} on {row.host} is in force")
    if restores or row.task_state.is_over or task is None:
        known = row.task_state is TaskState.DONE or (row.task_state is TaskState.FAILED and row.power is Power.ON)
        return Refused(reason=f"the task is {row.task_state}", done=restores and known)
    if row.task_state is TaskState.RUNNING and task.builder == builder:
        return Refused(reason=str(row.task_state), done=True)
    if row.task_state is TaskState.RUNNING and task.kind.runs_once:
        return _next_version(row, EventKind.TASK, task_state=TaskState.FAILED, task_fault=INTERRUPTED)
    if task.args.drive and not makes_drive:
        return _next_version(row, EventKind.TASK, task_state=TaskState.FAILED, task_fault=NO_NEW_DRIVE)
    return _next_version(row, task_state=TaskState.RUNNING)


def task_over(
    row: Instance,
    host: str,
    fence: int,
    attempt: int,
    number: int,
    fault: str | None = None,
    stored: StoredContent | None = None,
) -> Outcome:
    """The agent has carried out the task in force, or gives it up for the reason ``fault``. ``stored``: what it has written."""
    if not _is_task_of(row, host, fence, attempt, number):
        return Refused(reason=f"{row.state}, task {row.task_number} of attempt {row.attempt} on {row.host} is in force")
    if row.task_state.is_over:
        return Refused(reason=f"the task is {row.task_state}", done=True)
    if fault is None:
        return _next_version(row, EventKind.TASK, task_state=TaskState.DONE, task_stored=stored)
    return _next_version(row, EventKind.TASK, task_state=TaskState.FAILED, task_fault=text.clean_text(fault, text.FAULT_SIZE))


def powered_off(row: Instance, host: str, fence: int, attempt: int, builder: str, number: int, reason: str) -> Outcome:
    """The agent has found the guest off, which the record says is on. The report of an earlier look must not undo a later task."""
    if not _is_task_of(row, host, fence, attempt, number) or row.builder != builder:
        return Refused(reason=f"{row.state}, task {row.task_number} of attempt {row.attempt} on {row.host} is in force")
    if row.task_state is not TaskState.DONE or not row.power.uses_disk:
        return Refused(reason=f"power {row.power}, the task is {row.task_state}", done=row.power is Power.OFF)
    return _next_version(row, EventKind.TASK, power=Power.OFF, task_fault=text.clean_text(reason, text.FAULT_SIZE))


def _is_task_of(row: Instance, host: str, fence: int, attempt: int, number: int) -> bool:
    in_force = (row.host, row.fence, row.attempt, row.task_number)
    return row.state is State.ACTIVE and in_force == (host, fence, attempt, number)


def adopt_guest(
    row: Instance,
    host: str,
    guest: UnknownGuest,
    now: float,
    *,
    number: int = 0,
    power: Power = Power.ON,
    state: TaskState = TaskState.DONE,
    fault: str | None = None,
) -> Outcome:
    """An operator decides that this guest, which its agent reported, is the instance's: ACTIVE on the guest's host.

    The row takes the guest's attempt and builder, since these are stored with the guest, and the power that the guest has, unless
    another body may run. ``number`` to ``fault``: the latest task that the API level knows of, which the row may have lost. A later
    one that only the host knows counts too. A row that was only staged is older than a guest of a later fence. Refused if the
    instance is being deleted, is being built as a later attempt, or is ACTIVE with another guest. ``now`` only fills a time.
    """
    if row.state in (State.DELETING, State.DELETED):
        return Refused(reason=f"it is {row.state}")
    is_before_guest = row.state is State.STAGED and row.fence < guest.fence
    if row.fence != guest.fence and not is_before_guest:
        return Refused(reason=f"its record has fence {row.fence} and the guest has fence {guest.fence}")
    is_its_guest = (row.attempt, row.builder) == (guest.attempt, guest.builder)
    if row.state is State.ACTIVE and is_its_guest and row.host == host:
        return Refused(reason="it is on record already", done=True)
    if row.state is State.ACTIVE and not is_its_guest:
        return Refused(reason=f"it is ACTIVE on host {row.host} with another guest, of attempt {row.attempt}")
    if row.state in LIVE and row.attempt > guest.attempt:
        return Refused(reason=f"it is being built on host {row.host} as attempt {row.attempt}")
    if guest.last_task <= LARGEST_LEARNED_TASK and guest.last_task > max(number, row.task_number):
        number, power, state, fault = guest.last_task, guest.known_power or power, TaskState.DONE, None
    is_lost = number > row.task_number
    permitted = power if is_lost else row.power
    return _next_version(
        row,
        state=State.ACTIVE,
        fence=guest.fence,
        host=host,
        node=guest.node,
        attempt=guest.attempt,
        builder=guest.builder,
        building_at=now,
        launched_at=row.launched_at or now,
        alternates=(),
        rolled_back=None,
        fault=None,
        power=permitted if permitted in (Power.HELD, Power.INCOMING) else guest.known_power or permitted,
        task_number=max(row.task_number, number),
        task_state=state if is_lost and state.is_over else TaskState.DONE,
        task_fault=fault if is_lost and state.is_over else None,
    )


def make_tombstone(uuid: str, now: float) -> Change:
    """A delete found no row: write a tombstone, so that a late stage finds the uuid in use."""
    row = Instance(uuid=uuid, state=State.DELETED, fence=0, attempt=0, version=1, terminated_at=now)
    return Change(row=row, event=EventKind.ENDED)


def is_exhausted(row: Instance) -> bool:
    """Whether the build ended because no host of the cell could take it: another cell may."""
    return row.state is State.ERROR and (row.fault or "").startswith((TOO_MANY_ATTEMPTS, NO_HOST_LEFT))


def describe_attempts(history: tuple[Attempt, ...]) -> str:
    """The attempts so far as one readable text, oldest first."""
    return " ".join(f"Attempt {a.number} on {a.host}: {a.failure.error}: {a.failure.message.rstrip('.')}." for a in history)


def bound_messages(history: tuple[Attempt, ...]) -> tuple[Attempt, ...]:
    """The same attempts, with at most ``text.FAULTS_SIZE`` bytes of messages in total.

    If they have more, each gets an equal share. The number of attempts does not change, because ``next_attempt`` counts them.
    """
    if sum(len(attempt.failure.message.encode()) for attempt in history) <= text.FAULTS_SIZE:
        return history
    share = text.FAULTS_SIZE // len(history)
    return tuple(_cut_message(attempt, share) for attempt in history)


def _cut_message(attempt: Attempt, size: int) -> Attempt:
    message = text.clean_text(attempt.failure.message, size)
    return msgspec.structs.replace(attempt, failure=msgspec.structs.replace(attempt.failure, message=message))


def _has_fresh_alternate(row: Instance) -> bool:
    """Whether an alternate is left that was not stopped or restarted during this build; those that were are last."""
    return bool(row.alternates) and not _count_restarts(row.history, row.alternates[0].host)


def _count_restarts(history: tuple[Attempt, ...], host: str | None = None) -> int:
    """Attempts that an agent's restart or stop ended, on ``host``. Without ``host``: on all hosts, up to the limit that is
    forgiven.
    """
    counts = Counter(a.host for a in history if a.failure.kind in (FailureClass.RESTARTED, FailureClass.STOPPING))
    return counts[host] if host is not None else sum(min(count, MAX_RESTARTS) for count in counts.values())


def _history_with(row: Instance, failure: Failure) -> tuple[Attempt, ...]:
    over = Attempt(number=row.attempt, host=row.host or "", node=row.node or "", failure=failure, started_at=row.building_at)
    return bound_messages((*row.history, over))


def _give_up(row: Instance, history: tuple[Attempt, ...], sentence: str) -> Change:
    fault = text.clean_text(f"{sentence} {describe_attempts(history)}".strip(), text.FAULTS_SIZE)
    return _next_version(
        row, EventKind.ENDED, state=State.ERROR, attempt=row.attempt + 1, builder=None, history=history, fault=fault
    )


def _rolled_back(row: Instance, reason: str) -> Change:
    return _next_version(
        row,
        EventKind.ENDED,
        state=State.ERROR,
        attempt=row.attempt + 1,
        builder=None,
        fault=text.clean_text(reason, text.FAULTS_SIZE),
    )


def _deleted_change(row: Instance, now: float) -> Change:
    return _next_version(row, EventKind.ENDED, state=State.DELETED, builder=None, alternates=(), terminated_at=now)
