"""The agent's half of the protocol, step by step and without threads."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from compute import work_table as entries_module
from compute.build import Build, Phase
from compute.builds import Builds
from compute.driver import Guest
from compute.failures import classify_error, timed_out
from compute.guests import Guests
from compute.teardown import Ends
from compute.tracker import ResourceTracker
from compute.work_table import Entries
from objects import errors
from objects.build import Holding, ReportKind
from objects.compute_node import ComputeNode
from objects.instance import FailureClass
from tests.support.agents import owed_report
from tests.support.examples import examples

NODE = ComputeNode(host="h1", node="h1", vcpus=4, memory_mb=2048, disk_gb=40)
FAILED = classify_error(errors.BuildFailed("broken"), 5.0)
LATE = timed_out(3, 6.0)


def a_guest(uuid: str = "a", attempt: int = 1, *, memory_mb: int = 512) -> Guest:
    return Guest(
        uuid=uuid, name=uuid, node="h1", fence=7, attempt=attempt, builder="h1:me", vcpus=1, memory_mb=memory_mb, disk_gb=1
    )


class Host:
    """The entries of a host with their tracker, and short cuts into each phase."""

    def __init__(self) -> None:
        self.tracker = ResourceTracker([NODE])
        entries = Entries("h1", "h1:me", self.tracker, lambda: 100.0)
        self.builds, self.guests, self.ends = Builds(entries), Guests(entries), Ends(entries)

    def begun(self, guest: Guest | None = None) -> Build:
        build = self.builds.begin_build(guest or a_guest(), None)
        assert build is not None
        return build

    def spawning(self) -> Build:
        build = self.begun()
        assert self.builds.note_granted(build)
        assert self.builds.begin_spawn(build, None)
        return build

    def running(self) -> Build:
        build = self.spawning()
        assert self.builds.end_spawn(build, None)
        assert self.guests.note_confirmed(build)
        return build

    def used(self) -> float:
        """MiB that are claimed, measured by what still fits."""
        fits = next(mb for mb in range(2048, -1, -512) if self.tracker.claim_resources(a_guest("probe", memory_mb=mb)) is None)
        self.tracker.release_resources("probe")
        return 2048 - fits


@pytest.fixture
def host() -> Host:
    return Host()


def test_the_way_of_a_build_that_succeeds(host: Host) -> None:
    build = host.begun()
    report = owed_report(host.builds.report_of(build))
    assert (report.kind, report.host, report.fence, report.attempt, report.builder) == (ReportKind.ACCEPT, "h1", 7, 1, "h1:me")
    assert host.builds.note_granted(build)
    assert host.builds.report_of(build) is None
    assert host.builds.begin_spawn(build, None)
    assert host.builds.end_spawn(build, None)
    report = owed_report(host.builds.report_of(build))
    assert report.kind is ReportKind.ACTIVE
    assert host.guests.note_confirmed(build)
    assert host.guests.read_phases() == {"a": (Phase.RUNNING, a_guest())}
    assert host.used() == 512


def test_a_doubled_order_is_ignored_in_every_phase(host: Host) -> None:
    build = host.begun()
    assert host.builds.begin_build(a_guest(), None) is None
    assert host.builds.note_granted(build)
    assert host.builds.begin_build(a_guest(), None) is None
    assert host.builds.begin_spawn(build, None)
    assert host.builds.begin_build(a_guest(), None) is None
    assert not host.builds.end_spawn(build, FAILED)
    assert host.builds.begin_build(a_guest(), None) is None
    assert host.ends.report_destroyed(build) is not None
    assert host.builds.begin_build(a_guest(), None) is None
    host.ends.note_settled(build)
    assert host.builds.begin_build(a_guest(), None) is None
    assert host.builds.begin_build(a_guest(attempt=2), None) is not None


def test_an_order_is_ignored_while_its_guest_exists(host: Host) -> None:
    host.running()
    assert host.builds.begin_build(a_guest(attempt=2), None) is None


def test_no_room_fails_at_once_and_takes_nothing(host: Host) -> None:
    build = host.begun(a_guest(memory_mb=4096))
    report = owed_report(host.builds.report_of(build))
    assert report.kind is ReportKind.FAILED
    assert report.failure is not None
    assert report.failure.kind is FailureClass.NO_ROOM
    assert "4096 > 2048" in report.failure.message
    assert host.used() == 0


def test_a_refused_accept_is_forgotten_with_its_claim(host: Host) -> None:
    build = host.begun()
    assert host.builds.note_refused(build)
    assert not host.builds.note_refused(build)
    assert host.guests.read_phases() == {}
    assert host.used() == 0


def test_a_failed_spawn_is_destroyed_before_its_report(host: Host) -> None:
    build = host.spawning()
    assert not host.builds.end_spawn(build, FAILED)
    assert host.builds.report_of(build) is None
    assert host.used() == 512
    report = owed_report(host.ends.report_destroyed(build))
    assert (report.kind, report.failure) == (ReportKind.FAILED, FAILED)
    assert host.used() == 0
    host.ends.note_settled(build)
    assert host.guests.read_phases() == {}


def test_only_the_hosts_own_faults_count_against_it(host: Host) -> None:
    build = host.spawning()
    host.builds.end_spawn(build, classify_error(errors.BuildAborted("bad image"), 5.0))
    assert host.tracker.report_nodes(0)[0].failed_builds == 0.0
    host.ends.report_destroyed(build)
    host.ends.note_settled(build)
    assert host.builds.begin_build(a_guest("b"), None) is not None


def test_a_grant_after_a_delete_is_for_nobody(host: Host) -> None:
    build = host.begun()
    assert host.ends.delete("a", 1) is build
    assert not host.builds.note_granted(build)
    report = owed_report(host.ends.report_destroyed(build))
    assert (report.kind, report.attempt) == (ReportKind.GONE, 1)
    assert host.builds.begin_build(a_guest(), None) is None
    assert host.used() == 0


def test_a_delete_removes_a_build_from_the_queue(host: Host) -> None:
    build = host.begun()
    assert host.builds.note_granted(build)
    assert host.ends.delete("a", 1) is build
    assert not host.builds.begin_spawn(build, None)


def test_a_delete_while_spawning_waits_for_the_driver(host: Host) -> None:
    build = host.spawning()
    assert host.ends.delete("a", 1) is None
    assert build.cancel.is_set()
    assert host.ends.report_destroyed(build) is None, "it is not the destroyer's yet"
    assert not host.builds.end_spawn(build, None), "a guest that was finished all the same goes too"
    report = owed_report(host.ends.report_destroyed(build))
    assert report.kind is ReportKind.GONE


def test_a_delete_of_a_running_guest(host: Host) -> None:
    build = host.running()
    assert host.ends.delete("a", 1) is build
    assert not host.guests.note_rejected(build)
    assert host.guests.report_again("a") is None
    assert host.ends.report_destroyed(build) is not None
    assert host.used() == 0


def test_a_delete_of_unknown_instances_bars_their_order(host: Host) -> None:
    build = host.ends.delete("a", 1)
    assert build is not None
    report = owed_report(host.ends.report_destroyed(build))
    assert report.kind is ReportKind.GONE
    assert host.builds.begin_build(a_guest(), None) is None


def test_a_repeated_delete_is_answered_once_per_destroy(host: Host) -> None:
    build = host.ends.delete("a", 1)
    assert build is not None
    assert host.ends.delete("a", 1) is None
    assert host.ends.report_destroyed(build) is not None
    assert host.ends.delete("a", 1) is not None


def test_a_delete_outlives_the_answer_to_a_failure(host: Host) -> None:
    build = host.begun(a_guest(memory_mb=4096))
    assert host.ends.delete("a", 1) is build
    host.ends.note_settled(build)
    assert "a" in host.guests.read_phases(), "the answer to the failure must not end the delete"
    report = owed_report(host.ends.report_destroyed(build))
    assert report.kind is ReportKind.GONE


def test_a_refused_guest_is_destroyed_without_a_word(host: Host) -> None:
    build = host.spawning()
    assert host.builds.end_spawn(build, None)
    assert host.guests.note_rejected(build)
    assert host.ends.report_destroyed(build) is None
    assert host.guests.read_phases() == {}


def test_a_surviving_guest_is_reported_under_its_builder(host: Host) -> None:
    guest = a_guest(attempt=2, memory_mb=9999)
    build = host.guests.count_found(guest)
    assert build is not None
    report = owed_report(host.builds.report_of(build))
    assert (report.kind, report.attempt, report.builder) == (ReportKind.ACTIVE, 2, "h1:me")
    assert host.guests.count_found(guest) is None
    assert host.tracker.report_nodes(0)[0].memory_mb_used == 9999
    assert host.builds.begin_build(a_guest(), None) is None


def test_a_doubted_guest_is_reported_once(host: Host) -> None:
    build = host.running()
    assert host.guests.report_again("a") is build
    assert host.guests.report_again("a") is None
    assert host.guests.note_confirmed(build)
    assert host.guests.report_again("b") is None


def test_a_hand_back_reports_and_bars_earlier_attempts(host: Host) -> None:
    build = host.ends.hand_back("a", 7, 2, "h1:earlier")
    assert build is not None
    assert build.phase is Phase.DESTROYING
    report = owed_report(host.ends.report_destroyed(build))
    assert (report.kind, report.attempt, report.builder) == (ReportKind.FAILED, 2, "h1:earlier")
    assert report.failure is not None
    assert report.failure.kind is FailureClass.RESTARTED
    host.ends.note_settled(build)
    assert host.guests.read_phases() == {}
    assert host.builds.begin_build(a_guest(attempt=2), None) is None


def test_a_next_order_may_overtake_the_hand_back(host: Host) -> None:
    build = host.ends.hand_back("a", 7, 2, "h1:earlier")
    assert build is not None
    assert host.builds.begin_build(a_guest(attempt=3), None) is None  # what may be left of the guest is not destroyed yet
    host.ends.report_destroyed(build)
    assert host.builds.begin_build(a_guest(attempt=3), None) is not None


def test_what_is_under_way_is_not_handed_back(host: Host) -> None:
    host.begun()
    assert host.ends.hand_back("a", 7, 1, "h1:earlier") is None


def test_a_slow_spawn_is_cancelled_as_overdue(host: Host) -> None:
    build = host.begun()
    host.builds.note_granted(build)
    host.builds.begin_spawn(build, 10.0)
    assert host.builds.cancel_overdue(9.9, LATE) == []
    assert host.builds.cancel_overdue(10.0, LATE) == [build]
    assert host.builds.cancel_overdue(11.0, LATE) == []
    assert build.cancel.is_set()
    assert not host.builds.end_spawn(build, FAILED)
    assert build.failure == LATE


def test_a_guest_that_ran_late_is_destroyed(host: Host) -> None:
    build = host.begun()
    host.builds.note_granted(build)
    host.builds.begin_spawn(build, 10.0)
    host.builds.cancel_overdue(10.0, LATE)
    assert not host.builds.end_spawn(build, None)


def test_a_failed_destroy_is_retried_under_its_claim(host: Host) -> None:
    build = host.running()
    host.ends.delete("a", 1)
    host.ends.not_destroyed(build)
    assert host.used() == 512
    assert host.ends.take_stuck() == [build]
    assert host.ends.take_stuck() == []
    assert host.ends.report_destroyed(build) is not None


def test_stopping_cancels_what_spawns_and_nothing_else(host: Host) -> None:
    build = host.spawning()
    other = host.begun(a_guest("b"))
    host.builds.cancel_all()
    assert build.cancel.is_set()
    assert not other.cancel.is_set()
    assert not host.builds.end_spawn(build, FAILED)
    report = owed_report(host.ends.report_destroyed(build))
    assert report.failure is not None
    assert report.failure.kind is FailureClass.STOPPING


def test_stopping_hands_over_what_no_thread_has_taken(host: Host) -> None:
    """Queued, waiting for a service, granted a moment later, and ordered a moment later; what spawns comes to its end."""
    spawning, queued = host.spawning(), host.begun(a_guest("b"))
    assert host.builds.note_granted(queued)
    asking = host.begun(a_guest("c"))
    assert host.builds.stop() == [queued]
    assert not host.builds.begin_spawn(queued, None)
    assert not host.builds.note_granted(asking)
    ordered = host.begun(a_guest("d"))
    for build in (queued, asking, ordered):
        report = owed_report(host.builds.report_of(build))
        assert report.failure is not None
        assert (report.kind, report.failure.kind) == (ReportKind.FAILED, FailureClass.STOPPING)
    assert host.used() == 512, "their claims are given back"
    assert host.builds.end_spawn(spawning, None)


def test_a_build_awaiting_a_service_retains_its_claim(host: Host) -> None:
    build = host.spawning()
    host.builds.note_postponed(build, lambda outages: 10.0 * outages)
    assert host.builds.take_resumed(99.0) == [], "what is half made is destroyed first"
    assert host.ends.report_destroyed(build) is None
    assert host.used() == 512
    assert host.builds.begin_build(a_guest(), None) is None
    assert host.builds.take_resumed(9.0) == []
    assert host.builds.take_resumed(10.0) == [build]
    assert host.builds.take_resumed(10.0) == []
    report = owed_report(host.builds.report_of(build))
    assert report.kind is ReportKind.ACCEPT
    assert host.builds.note_granted(build)
    assert host.builds.begin_spawn(build, None)
    host.builds.note_postponed(build, lambda outages: 10.0 * outages)
    assert host.ends.report_destroyed(build) is None
    assert build.resume_at == 20.0, "longer each time"
    assert host.tracker.report_nodes(0)[0].failed_builds == 0.0
    assert host.builds.stop() == [build]


def test_a_delete_refusal_or_stop_ends_a_wait(host: Host) -> None:
    build = host.spawning()
    host.builds.note_postponed(build, lambda _: 1.0)
    assert host.ends.delete("a", 1) is None, "the driver is at it"
    report = owed_report(host.ends.report_destroyed(build))
    assert report.kind is ReportKind.GONE
    build = host.begun(a_guest("b"))
    assert host.builds.note_granted(build)
    assert host.builds.begin_spawn(build, None)
    host.builds.stop()
    host.builds.note_postponed(build, lambda _: 1.0)
    report = owed_report(host.ends.report_destroyed(build))
    assert report.failure is not None
    assert report.failure.kind is FailureClass.STOPPING


def test_builds_withdrawn_by_the_cell_are_cancelled_silently(host: Host) -> None:
    spawning = host.spawning()
    queued = host.begun(a_guest("b"))
    assert host.builds.note_granted(queued)
    assert [host.builds.get_begun(uuid) for uuid in "abx"] == [spawning, queued, None]
    asked = host.builds.accept_again(spawning)
    assert (asked.kind, asked.attempt, asked.wants_secrets) == (ReportKind.ACCEPT, 1, False)
    assert host.builds.abandon_build(spawning)
    assert host.builds.abandon_build(queued)
    assert spawning.cancel.is_set()
    assert host.builds.cancel_overdue(99.0, LATE) == []
    assert not host.builds.end_spawn(spawning, FAILED)
    assert host.ends.report_destroyed(spawning) is None
    assert host.guests.read_phases() == {}
    assert host.used() == 0
    assert host.tracker.report_nodes(0)[0].failed_builds == 0.0, "it was not the host's fault"
    assert not host.builds.abandon_build(spawning)


def test_a_guest_running_by_now_is_not_abandoned(host: Host) -> None:
    assert not host.builds.abandon_build(host.running())


def test_a_later_fence_begins_whatever_its_order_number(host: Host) -> None:
    host.builds.note_refused(host.begun(a_guest(attempt=3)))
    assert host.builds.begin_build(a_guest(attempt=2), None) is None
    later = msgspec.structs.replace(a_guest(attempt=1), fence=8)
    host.builds.note_refused(host.begun(later))
    assert host.builds.begin_build(a_guest(attempt=9), None) is None, "of an earlier fence"
    assert host.builds.begin_build(later, None) is None


def test_a_delete_of_an_earlier_attempt_spares_later(host: Host) -> None:
    build = host.begun(a_guest(attempt=2))
    assert host.ends.delete("a", 1, 7) is None
    assert host.ends.delete("a", 1) is None
    assert host.ends.delete("a", 9, 6) is None
    assert host.builds.note_granted(build)
    assert host.ends.delete("a", 2, 7) is build


def test_a_delete_bars_fences_up_to_its_fence(host: Host) -> None:
    for fence, barred in ((7, True), (6, False), (0, True)):
        uuid = f"fence-{fence}"
        build = host.ends.delete(uuid, 1, fence)
        assert build is not None
        host.ends.report_destroyed(build)
        assert (host.builds.begin_build(a_guest(uuid), None) is None) is barred


def test_an_unrecorded_guest_counts_until_its_cell_knows(host: Host) -> None:
    build = host.guests.count_found(a_guest())
    assert build is not None
    assert host.guests.note_unknown(build, 100.0) == 0.0
    assert host.guests.keep_unaccounted(build, "no record"), "said once"
    assert host.guests.unknown_guests() == {"h1": 1}
    assert host.guests.report_again("a") is build
    assert host.guests.note_unknown(build, 130.0) == 30.0
    assert not host.guests.keep_unaccounted(build, "no record")
    assert host.guests.report_again("a") is build
    assert host.guests.note_confirmed(build)
    assert host.guests.unknown_guests() == {}
    report = host.builds.report_of(host.guests.report_again("a") or build)
    assert report is not None
    assert report.confirmed


def test_a_guest_on_record_again_is_accounted_for(host: Host) -> None:
    build = host.running()
    assert host.guests.report_again("a") is build
    host.guests.keep_unaccounted(build, "on record: error")
    record = Holding(instance_uuid="a", state="active", fence=7, attempt=2, builder="h1:me")
    host.guests.on_record({"a": record})
    assert [guest.uuid for guest, _ in host.guests.list_unaccounted()] == ["a"], "another attempt's record"
    host.guests.on_record({"a": msgspec.structs.replace(record, attempt=1)})
    assert host.guests.list_unaccounted() == []


def test_an_order_of_an_ended_attempt_is_answered(host: Host) -> None:
    build = host.running()
    assert host.builds.repeat_failed(a_guest()) is None, "its guest runs"
    assert host.ends.delete("a", 1, 7) is build
    assert host.ends.report_destroyed(build) is not None
    assert host.builds.begin_build(a_guest(), None) is None
    over = host.builds.repeat_failed(a_guest())
    assert over is not None
    report = host.builds.report_of(over)
    assert report is not None
    assert (report.kind, report.attempt, report.failure and report.failure.kind) == ("failed", 1, FailureClass.RESTARTED)
    assert host.builds.begin_build(a_guest(attempt=2), None) is not None


def test_memory_of_ended_builds_is_bounded(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entries_module, "BARRED_LIMIT", 2)
    for uuid in "abc":
        host.builds.note_refused(host.begun(a_guest(uuid)))
    assert host.builds.begin_build(a_guest("b"), None) is None
    assert host.builds.begin_build(a_guest("a"), None) is not None


UUIDS = st.sampled_from(["a", "b", "c"])


class AnyOrder(RuleBasedStateMachine):
    """Orders, verdicts, spawns, deletes and audits in any order, each answer possibly late or doubled."""

    def __init__(self) -> None:
        super().__init__()
        self.host = Host()
        self.known: list[Build] = []
        self.guests: set[str] = set()
        self.spawns: set[tuple[str, int]] = set()

    def pick(self, index: int) -> Build | None:
        return self.known[index % len(self.known)] if self.known else None

    @rule(uuid=UUIDS, attempt=st.integers(1, 3))
    def order(self, uuid: str, attempt: int) -> None:
        build = self.host.builds.begin_build(a_guest(uuid, attempt, memory_mb=1024), None)
        if build is not None:
            self.known.append(build)

    @rule(index=st.integers(0, 9), accepted=st.booleans())
    def accept_answered(self, index: int, accepted: bool) -> None:
        if build := self.pick(index):
            _ = self.host.builds.note_granted(build) if accepted else self.host.builds.note_refused(build)

    @rule(index=st.integers(0, 9), fails=st.booleans())
    def spawn(self, index: int, fails: bool) -> None:
        build = self.pick(index)
        if build and self.host.builds.begin_spawn(build, 1.0):
            assert (build.uuid, build.attempt) not in self.spawns, "an attempt was started twice"
            assert build.uuid not in self.guests, "a second guest of one instance"
            self.spawns.add((build.uuid, build.attempt))
            if not fails:
                self.guests.add(build.uuid)
            self.host.builds.end_spawn(build, FAILED if fails else None)

    @rule(index=st.integers(0, 9), accepted=st.booleans())
    def active_answered(self, index: int, accepted: bool) -> None:
        if build := self.pick(index):
            _ = self.host.guests.note_confirmed(build) if accepted else self.host.guests.note_rejected(build)

    @rule(index=st.integers(0, 9))
    def failed_answered(self, index: int) -> None:
        if build := self.pick(index):
            self.host.ends.note_settled(build)

    @rule(uuid=UUIDS, attempt=st.integers(1, 3))
    def delete(self, uuid: str, attempt: int) -> None:
        build = self.host.ends.delete(uuid, attempt)
        if build is not None:
            self.known.append(build)

    @rule(uuid=UUIDS, attempt=st.integers(1, 3))
    def hand_back(self, uuid: str, attempt: int) -> None:
        build = self.host.ends.hand_back(uuid, 7, attempt, "h1:earlier")
        if build is not None:
            self.known.append(build)

    @rule(index=st.integers(0, 9))
    def taken_away(self, index: int) -> None:
        if build := self.pick(index):
            self.host.builds.abandon_build(build)

    @rule(index=st.integers(0, 9))
    def outage(self, index: int) -> None:
        build = self.pick(index)
        if build and self.host.builds.begin_spawn(build, 1.0):
            self.host.builds.note_postponed(build, lambda _: 1.0)
            if build.phase is Phase.DESTROYING:
                self.host.ends.report_destroyed(build)

    @rule()
    def resume(self) -> None:
        self.host.builds.take_resumed(1.0)

    @rule(uuid=UUIDS)
    def doubt(self, uuid: str) -> None:
        self.host.guests.report_again(uuid)

    @rule(index=st.integers(0, 9))
    def destroy(self, index: int) -> None:
        build = self.pick(index)
        if build and build.phase is Phase.DESTROYING and build.uuid in self.host.guests.read_phases():
            self.guests.discard(build.uuid)
            self.host.ends.report_destroyed(build)

    @invariant()
    def every_guest_has_its_entry_and_its_claim(self) -> None:
        entries = self.host.guests.read_phases()
        assert self.guests <= set(entries), "a guest nobody answers for"
        holding = [uuid for uuid, (phase, guest) in entries.items() if guest and phase not in (Phase.FAILED, Phase.DESTROYING)]
        assert self.host.used() >= 1024 * len(holding)
        assert self.host.used() <= 1024 * len(entries)
        assert len(self.guests) <= 2, "more guests than the host has room for"


AnyOrder.TestCase.settings = examples(60, stateful_step_count=40)
TestAnyOrder = AnyOrder.TestCase
