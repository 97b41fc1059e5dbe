"""The agent's half of a task, step by step and without threads."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from compute.audit import compare_power
from compute.build import AT_TASK, Build, Phase
from compute.builds import Builds
from compute.driver import Guest
from compute.failures import classify_error
from compute.guests import Guests
from compute.tasks import Tasks
from compute.teardown import Ends
from compute.tracker import ResourceTracker
from compute.work_table import Entries
from objects import errors
from objects.build import Holding, ReportKind
from objects.compute_node import ComputeNode
from objects.spec import BootSecrets
from objects.task import Power, TaskArgs, TaskKind, TaskOrder, TaskState
from tests.support.agents import owed_report
from tests.support.examples import examples

NODE = ComputeNode(host="h1", node="h1", vcpus=4, memory_mb=2048, disk_gb=40)
STUCK = classify_error(errors.TaskFailed("it does not react"), 5.0)
OVER = TaskState.DONE
SOFT = TaskArgs()
SECRETS = BootSecrets(admin_pass="p")


def a_guest(uuid: str = "a", *, power: Power = Power.ON) -> Guest:
    return Guest(
        uuid=uuid,
        name=uuid,
        node="h1",
        fence=7,
        attempt=1,
        builder="h1:earlier",
        vcpus=1,
        memory_mb=512,
        disk_gb=1,
        image_id="old",
        power=power,
    )


def an_order(
    number: int = 4,
    power: Power = Power.OFF,
    kind: TaskKind = TaskKind.POWER,
    *,
    uuid: str = "a",
    fence: int = 7,
    attempt: int = 1,
    args: TaskArgs = SOFT,
) -> TaskOrder:
    return TaskOrder(instance_uuid=uuid, fence=fence, attempt=attempt, number=number, kind=kind, power=power, args=args)


class Host:
    """The entries of a host, and short cuts into each phase of a task."""

    def __init__(self) -> None:
        self.tracker = ResourceTracker([NODE])
        self.entries = Entries("h1", "h1:me", self.tracker, lambda: 100.0)
        self.builds, self.guests = Builds(self.entries), Guests(self.entries)
        self.tasks, self.ends = Tasks(self.entries), Ends(self.entries)

    def found(self, uuid: str = "a") -> Build:
        build = self.guests.count_found(a_guest(uuid))
        assert build is not None
        return build

    def running(self) -> Build:
        build = self.found()
        assert self.guests.note_confirmed(build)
        return build

    def asking(self, order: TaskOrder | None = None) -> Build:
        build = self.running()
        assert self.tasks.take_order(order or an_order()) is build
        return build

    def granted(self, order: TaskOrder | None = None) -> Build:
        build = self.asking(order)
        assert self.tasks.note_granted(build, 4)
        return build

    def working(self, order: TaskOrder | None = None) -> Build:
        build = self.granted(order)
        assert self.tasks.start(build) is build.work
        return build

    def finishing(self, order: TaskOrder | None = None) -> Build:
        build = self.working(order)
        assert build.work is not None
        assert self.tasks.end_work(build, build.work, None, lambda _: 0.0)
        return build

    def worked(self, build: Build, fails: bool = False) -> bool:
        assert build.work is not None
        return self.tasks.end_work(build, build.work, STUCK if fails else None, lambda tries: 10.0 * tries)

    def owes(self, build: Build) -> tuple[ReportKind, int] | None:
        report = self.tasks.report_of(build)
        return (report.kind, report.task) if report is not None else None

    def power(self) -> Power:
        build = self.entries.get("a")
        assert build is not None
        assert build.guest is not None
        return build.guest.power


@pytest.fixture
def host() -> Host:
    return Host()


@pytest.mark.parametrize("kind", [TaskKind.REBUILD, TaskKind.RESCUE, TaskKind.PASSWORD])
def test_secrets_of_a_task_stay_until_it_ends(host: Host, kind: TaskKind) -> None:
    build = host.asking(an_order(4, Power.ON, kind))
    asked = owed_report(host.tasks.report_of(build))
    assert asked.wants_secrets
    assert host.tasks.note_granted(build, 4, SECRETS)
    work = host.tasks.start(build)
    assert work is not None
    assert work.secrets == SECRETS
    assert host.worked(build)
    assert work.secrets is None
    told = owed_report(host.tasks.report_of(build))
    assert (told.kind, told.wants_secrets) == (ReportKind.DONE, False)
    host.tasks.note_answered(build, 4)
    other = host.tasks.take_order(an_order(8))
    assert other is not None
    asked = owed_report(host.tasks.report_of(other))
    assert not asked.wants_secrets


@pytest.mark.parametrize(
    ("kind", "power"),
    [
        (TaskKind.RESCUE, Power.RESCUED),
        (TaskKind.IMAGE, Power.ON),
        (TaskKind.PASSWORD, Power.ON),
        (TaskKind.CRASH_DUMP, Power.ON),
        (TaskKind.INTERFACES, Power.RESCUED),
    ],
)
def test_what_a_guest_is_after_a_task(host: Host, kind: TaskKind, power: Power) -> None:
    """Only a rescue and a change of interfaces bring it to the power of the order."""
    host.finishing(an_order(4, Power.RESCUED, kind))
    assert host.power() is power


def test_a_task_that_succeeds(host: Host) -> None:
    build = host.asking()
    report = owed_report(host.tasks.report_of(build))
    assert (report.kind, report.task, report.fence, report.attempt) == (ReportKind.BEGIN, 4, 7, 1)
    assert not report.restores
    assert report.builder == "h1:me", "this start of the agent asks, and not the one that built the guest"
    assert host.tasks.note_granted(build, 4)
    assert host.owes(build) is None
    work = host.tasks.start(build)
    assert work is not None
    assert not work.is_hard
    assert host.worked(build)
    assert host.owes(build) == (ReportKind.DONE, 4)
    host.tasks.note_answered(build, 4)
    assert host.guests.read_phases() == {"a": (Phase.RUNNING, a_guest(power=Power.OFF))}
    assert host.owes(build) is None


def test_a_failed_task_is_reported_and_spares_guests(host: Host) -> None:
    build = host.working()
    assert host.worked(build, fails=True)
    report = owed_report(host.tasks.report_of(build))
    assert (report.kind, report.failure) == (ReportKind.TASK_FAILED, STUCK)
    host.tasks.note_answered(build, 4)
    assert host.guests.read_phases() == {"a": (Phase.RUNNING, a_guest())}


def test_a_refused_task_changes_nothing(host: Host) -> None:
    build = host.asking()
    assert host.tasks.note_refused(build, 4)
    assert not host.tasks.note_refused(build, 4)
    assert host.tasks.start(build) is None
    assert host.guests.read_phases() == {"a": (Phase.RUNNING, a_guest())}


@pytest.mark.parametrize("order", [an_order(fence=6), an_order(fence=8), an_order(attempt=2), an_order(uuid="b")])
def test_an_order_for_another_guest_is_dropped(host: Host, order: TaskOrder) -> None:
    host.running()
    assert host.tasks.take_order(order) is None
    assert host.tasks.take_order(order, restores=True) is None


@pytest.mark.parametrize("phase", [Phase.WORKING, *sorted(set(Phase) - AT_TASK - {Phase.RUNNING, Phase.REPORTING})])
def test_no_order_is_taken_without_an_idle_guest(host: Host, phase: Phase) -> None:
    build = host.running()
    build.phase = phase
    assert host.tasks.take_order(an_order()) is None
    assert (build.phase, build.work) == (phase, None)


@pytest.mark.parametrize("into", [Host.asking, Host.granted, Host.working, Host.finishing])
def test_doubled_and_earlier_orders_are_dropped(host: Host, into: Callable[[Host], Build]) -> None:
    build = into(host)
    phase = build.phase
    for number in (3, 4):
        assert host.tasks.take_order(an_order(number, Power.ON)) is None
    assert build.work is not None
    assert (build.phase, build.work.order) == (phase, an_order())


@pytest.mark.parametrize("into", [Host.asking, Host.granted, Host.finishing])
def test_a_later_task_replaces_one_without_a_driver(host: Host, into: Callable[[Host], Build]) -> None:
    """The order may overtake the answer to ``done``."""
    build = into(host)
    assert host.tasks.take_order(an_order(8, Power.ON)) is build
    host.tasks.note_answered(build, 4)
    assert not host.tasks.note_granted(build, 4)
    assert host.owes(build) == (ReportKind.BEGIN, 8)
    assert host.tasks.note_granted(build, 8)
    work = host.tasks.start(build)
    assert work is not None
    assert work.order.number == 8
    assert host.tasks.start(build) is None, "the thread of the replaced task comes too late"


def test_a_later_task_waits_while_the_driver_works(host: Host) -> None:
    build = host.working()
    assert host.tasks.take_order(an_order(8, Power.ON)) is None
    assert host.worked(build)
    assert host.owes(build) == (ReportKind.DONE, 4)


def test_an_order_overtaking_an_answer_waits_for_it(host: Host) -> None:
    build = host.found()
    assert host.tasks.take_order(an_order()) is None
    assert host.owes(build) is None
    host.guests.note_confirmed(build)
    assert host.tasks.note_confirmed(build)
    assert host.owes(build) == (ReportKind.BEGIN, 4)


def test_an_order_for_unconfirmed_guests_succeeds_on_repetition(host: Host) -> None:
    build = host.found()
    host.tasks.take_order(an_order())
    host.guests.keep_unaccounted(build, "on record: error")
    assert host.owes(build) is None
    assert host.tasks.take_order(an_order()) is build


def test_a_late_answer_does_not_settle_later_tasks(host: Host) -> None:
    build = host.finishing()
    assert not host.tasks.note_granted(build, 4)
    assert not host.tasks.note_refused(build, 4)
    host.tasks.note_answered(build, 4)
    assert host.tasks.take_order(an_order(8, Power.ON)) is build
    host.tasks.note_answered(build, 4)
    assert not host.tasks.note_granted(build, 4)
    assert not host.tasks.note_refused(build, 4)
    assert host.owes(build) == (ReportKind.BEGIN, 8)
    assert host.tasks.note_granted(build, 8)


def test_every_kind_of_task_states_the_resulting_guest(host: Host) -> None:
    host.tasks.note_answered(host.finishing(an_order(power=Power.ON, kind=TaskKind.REBUILD, args=TaskArgs(image_id="new"))), 4)
    assert host.guests.read_phases()["a"][1] == msgspec.structs.replace(a_guest(), image_id="new")
    build = host.entries.get("a")
    assert build is not None
    for number, kind, power in (
        (5, TaskKind.REBUILD, Power.OFF),
        (6, TaskKind.REBOOT, Power.ON),
        (7, TaskKind.POWER, Power.PAUSED),
    ):
        assert host.tasks.take_order(an_order(number, power, kind)) is build
        assert host.tasks.note_granted(build, number)
        assert host.tasks.start(build)
        assert host.worked(build)
        host.tasks.note_answered(build, number)
        assert host.guests.read_phases()["a"][1] == msgspec.structs.replace(a_guest(), image_id="new", power=power)


def test_a_hold_repeats_until_done_and_never_fails(host: Host) -> None:
    build = host.working(an_order(power=Power.HELD))
    for tries in (1, 2):
        assert host.worked(build, fails=True)
        assert (build.phase, build.resume_at, host.owes(build)) == (Phase.RETRYING, 10.0 * tries, None)
        assert host.tasks.take_order(an_order(4, Power.HELD)) is None
        assert host.tasks.take_resumed(10.0 * tries - 1.0) == []
        assert host.tasks.take_resumed(10.0 * tries) == [build]
        assert host.owes(build) == (ReportKind.BEGIN, 4), "a later task may be in force by now"
        assert host.tasks.note_granted(build, 4)
        work = host.tasks.start(build)
        assert work is not None
        assert work.is_hard
    assert host.worked(build)
    assert host.owes(build) == (ReportKind.DONE, 4)
    assert host.power() is Power.HELD


def test_a_hold_no_longer_in_force_is_abandoned(host: Host) -> None:
    build = host.working(an_order(power=Power.HELD))
    host.worked(build, fails=True)
    assert host.tasks.take_resumed(10.0) == [build]
    assert host.tasks.note_refused(build, 4)
    assert host.tasks.take_order(an_order(7, Power.ON)) is build


def test_a_later_task_replaces_a_pausing_hold(host: Host) -> None:
    build = host.working(an_order(power=Power.HELD))
    host.worked(build, fails=True)
    assert host.tasks.take_order(an_order(7, Power.ON)) is build
    assert host.tasks.take_resumed(1e9) == []
    assert host.owes(build) == (ReportKind.BEGIN, 7)


def test_hard_is_set_by_order_or_second_try(host: Host) -> None:
    build = host.granted(an_order(args=TaskArgs(hard=True)))
    work = host.tasks.start(build)
    assert work is not None
    assert work.is_hard


@pytest.mark.parametrize("into", [Host.asking, Host.granted, Host.finishing])
def test_a_delete_ends_a_task_without_a_driver(host: Host, into: Callable[[Host], Build]) -> None:
    build = into(host)
    assert host.ends.delete("a", 1) is build
    assert not host.tasks.note_granted(build, 4)
    assert host.tasks.start(build) is None
    host.tasks.note_answered(build, 4)
    assert host.owes(build) is None
    report = owed_report(host.ends.report_destroyed(build))
    assert report.kind is ReportKind.GONE


def test_a_delete_does_not_await_a_paused_hold(host: Host) -> None:
    build = host.working(an_order(power=Power.HELD))
    host.worked(build, fails=True)
    assert host.ends.delete("a", 1) is build
    assert host.tasks.take_resumed(1e9) == []


@pytest.mark.parametrize("power", [Power.OFF, Power.HELD])
@pytest.mark.parametrize("fails", [False, True])
def test_a_delete_waits_for_the_working_driver(host: Host, power: Power, fails: bool) -> None:
    build = host.working(an_order(power=power))
    assert host.ends.delete("a", 1) is None
    assert not host.worked(build, fails=fails)
    assert host.owes(build) is None
    report = owed_report(host.ends.report_destroyed(build))
    assert (report.kind, report.attempt) == (ReportKind.GONE, 1)
    assert host.guests.read_phases() == {}


def test_a_stop_drops_what_no_thread_carries_out(host: Host) -> None:
    build = host.granted()
    host.builds.stop()
    host.tasks.stop()
    assert host.tasks.start(build) is None
    assert host.tasks.take_order(an_order(5)) is None
    assert host.tasks.take_order(an_order(5), restores=True) is None
    assert build.phase is Phase.RUNNING


def test_a_grant_after_a_stop_is_dropped(host: Host) -> None:
    build = host.asking()
    host.builds.stop()
    host.tasks.stop()
    assert not host.tasks.note_granted(build, 4)
    assert build.phase is Phase.RUNNING


def test_a_stop_lets_a_running_task_finish(host: Host) -> None:
    build = host.working()
    host.builds.stop()
    host.tasks.stop()
    assert host.worked(build)
    assert host.owes(build) == (ReportKind.DONE, 4)


def test_a_hold_does_not_continue_after_a_stop(host: Host) -> None:
    build = host.working(an_order(power=Power.HELD))
    host.worked(build, fails=True)
    host.builds.stop()
    host.tasks.stop()
    assert host.tasks.take_resumed(1e9) == []
    assert build.phase is Phase.RUNNING


def test_a_restored_guest_is_queried_and_not_reported(host: Host) -> None:
    build = host.running()
    assert host.tasks.take_order(an_order(), restores=True) is build
    report = owed_report(host.tasks.report_of(build))
    assert (report.kind, report.task, report.restores) == (ReportKind.BEGIN, 4, True)
    assert host.tasks.note_granted(build, 4)
    assert host.tasks.start(build)
    assert host.worked(build)
    assert host.owes(build) is None
    assert host.guests.read_phases() == {"a": (Phase.RUNNING, a_guest(power=Power.OFF))}


def test_an_unconfirmed_guest_is_restored_once_confirmed(host: Host) -> None:
    build = host.found()
    assert not host.tasks.note_confirmed(build)
    assert host.tasks.take_order(an_order(), restores=True) is None
    assert host.owes(build) is None
    assert host.guests.note_confirmed(build)
    assert host.tasks.note_confirmed(build)
    assert not host.tasks.note_confirmed(build)
    assert host.owes(build) == (ReportKind.BEGIN, 4)


def test_a_guest_that_is_refused_is_not_restored(host: Host) -> None:
    build = host.found()
    host.tasks.take_order(an_order(), restores=True)
    assert host.guests.note_rejected(build)
    assert not host.tasks.note_confirmed(build)
    assert host.owes(build) is None


def test_a_hold_that_is_restored_is_repeated_too(host: Host) -> None:
    build = host.running()
    assert host.tasks.take_order(an_order(power=Power.HELD), restores=True) is build
    assert host.tasks.note_granted(build, 4)
    assert host.tasks.start(build)
    host.worked(build, fails=True)
    assert host.tasks.take_resumed(10.0) == [build]


@pytest.mark.parametrize("phase", sorted(AT_TASK))
def test_a_guest_under_a_task_is_reported_once(host: Host, phase: Phase) -> None:
    build = host.running()
    build.phase = phase
    assert host.guests.is_built("a")
    assert host.guests.report_again("a") is None
    assert not host.guests.note_rejected(build)
    assert host.guests.count_found(a_guest()) is None
    assert host.builds.begin_build(a_guest(), None) is None
    assert host.tracker.report_nodes(0)[0].running_vms == 1


def a_holding(power: str = Power.ON, state: str = "active", task_state: str = OVER, *, attempt: int = 1) -> Holding:
    return Holding(
        instance_uuid="a",
        state=state,
        fence=7,
        attempt=attempt,
        builder="h1:earlier",
        power=power,
        task_number=4,
        task_state=task_state,
    )


@pytest.mark.parametrize("now", Power)
@pytest.mark.parametrize("wanted", Power)
@pytest.mark.parametrize("starting", [True, False])
def test_which_guests_get_back_the_power_on_record(now: Power, wanted: Power, starting: bool) -> None:
    found = compare_power([a_guest(power=now)], [a_holding(wanted)], uncompared={"a"} if starting else ())
    runs_and_must_not = now.uses_disk and wanted is not Power.ON
    expected = now is not wanted and wanted is not Power.INCOMING and (starting or runs_and_must_not)
    assert found.restored == ((an_order(power=wanted),) if expected else ())
    reported = wanted.uses_disk and now is Power.OFF
    assert found.off == (((a_guest(power=now), 4),) if reported and not starting else ())
    without = compare_power([a_guest(power=now)], [a_holding(wanted)], uncompared={"a"} if starting else (), resumes=False)
    assert (bool(without.off), bool(without.restored)) == (reported, expected and not reported)


@pytest.mark.parametrize(
    "record",
    [
        a_holding("off", "deleting"),
        a_holding("off", "building"),
        a_holding("off", task_state="ordered"),
        a_holding("off", task_state="running"),
        a_holding("off", task_state="failed"),
        a_holding("off", attempt=2),
        a_holding("on", task_state="ordered"),
        a_holding("a power of a later release"),
    ],
)
@pytest.mark.parametrize("starting", [True, False])
def test_no_other_record_decides_the_power_of_guests(record: Holding, starting: bool) -> None:
    found = compare_power([a_guest(), a_guest("b")], [record], uncompared={"a", "b"} if starting else ())
    assert (found.restored, found.off) == ((), ())


def test_a_guest_off_after_failure_is_not_reported() -> None:
    found = compare_power([a_guest(power=Power.OFF)], [a_holding("on", task_state="failed")], uncompared=())
    assert (found.restored, found.off) == ((), ())


def test_a_guest_losing_power_after_failure_is_restarted() -> None:
    found = compare_power([a_guest(power=Power.OFF)], [a_holding("on", task_state="failed")], uncompared={"a"})
    assert (found.restored, found.off) == ((an_order(power=Power.ON),), ())


@pytest.mark.parametrize(("task_state", "undecided"), [("ordered", {"a"}), ("running", {"a"}), ("done", set()), ("failed", set())])
def test_a_guest_is_compared_after_its_running_task(task_state: str, undecided: set[str]) -> None:
    holding = a_holding("on", task_state=task_state)
    found = compare_power([a_guest(power=Power.OFF)], [holding], uncompared={"a", "another host's"})
    assert found.undecided == undecided


class AnyTaskOrder(RuleBasedStateMachine):
    """Orders, answers, tries, deletes and stops in any order, each possibly late or doubled. The cell is a list of numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.host = Host()
        self.build = self.host.running()
        self.deleted = False

    @rule(number=st.integers(1, 3), power=st.sampled_from([Power.ON, Power.OFF, Power.HELD]))
    def order(self, number: int, power: Power) -> None:
        self.host.tasks.take_order(an_order(number, power))

    @rule(number=st.integers(1, 3), power=st.sampled_from(Power))
    def restore(self, number: int, power: Power) -> None:
        self.host.tasks.take_order(an_order(number, power), restores=True)

    @rule(number=st.integers(1, 3), accepted=st.booleans())
    def begin_answered(self, number: int, accepted: bool) -> None:
        asked = self.build.phase is Phase.ASKING and self.build.work is not None and self.build.work.order.number == number
        took = self.host.tasks.note_granted(self.build, number) if accepted else self.host.tasks.note_refused(self.build, number)
        assert not took or asked

    @rule(fails=st.booleans())
    def carry_out(self, fails: bool) -> None:
        if self.host.tasks.start(self.build) is not None:
            assert not self.deleted
            assert self.host.worked(self.build, fails=fails)

    @rule(fails=st.booleans())
    def delete_while_the_driver_works(self, fails: bool) -> None:
        if self.host.tasks.start(self.build) is not None:
            assert self.host.ends.delete("a", 1) is None
            self.deleted = True
            assert not self.host.worked(self.build, fails=fails)

    @rule()
    def delete(self) -> None:
        if not self.deleted:
            self.deleted = True
            assert self.host.ends.delete("a", 1) is self.build

    @rule(number=st.integers(1, 3))
    def end_answered(self, number: int) -> None:
        self.host.tasks.note_answered(self.build, number)

    @rule()
    def resume(self) -> None:
        self.host.tasks.take_resumed(1e9)

    @rule()
    def stop(self) -> None:
        self.host.builds.stop()
        self.host.tasks.stop()

    @invariant()
    def the_guest_stays_until_it_is_deleted_and_each_phase_has_its_task(self) -> None:
        assert self.build.phase is Phase.DESTROYING if self.deleted else self.build.phase in {Phase.RUNNING, *AT_TASK}
        assert (self.build.phase in AT_TASK) <= (self.build.work is not None)
        assert self.deleted or (self.build.phase is Phase.RUNNING) == (self.build.work is None)


AnyTaskOrder.TestCase.settings = examples(60, stateful_step_count=40)
TestAnyTaskOrder = AnyTaskOrder.TestCase


def test_an_order_passed_by_later_tasks_is_recognised(host: Host) -> None:
    build = host.finishing(an_order(4, Power.HELD))
    host.tasks.noted(build, 4)
    host.tasks.note_answered(build, 4)
    assert [host.tasks.is_passed(an_order(number)) for number in (3, 4, 8)] == [True, False, False]


def test_a_guest_is_reported_with_its_latest_task(host: Host) -> None:
    build = host.finishing(an_order(4, Power.HELD))
    host.tasks.noted(build, 4)
    host.tasks.note_answered(build, 4)
    assert host.guests.report_again("a") is build
    report = Builds(host.entries).report_of(build)
    assert report is not None
    assert (report.kind, report.last_task, report.power) == (ReportKind.ACTIVE, 4, Power.HELD)
