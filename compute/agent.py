"""Receives orders, and carries out what ``Builds``, ``Guests``, ``Tasks`` and ``Ends`` decide: spawns, tasks, destroys, reports."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeGuard

from compute import failures
from compute.build import Build, Work
from compute.builds import Builds
from compute.console_relay import ConsoleRelay
from compute.driver import ComputeDriver, Guest, GuestSpec
from compute.guests import Guests
from compute.opts import ComputeSettings
from compute.reports import Answer, Reporter
from compute.tasks import Tasks, guest_after, is_hold
from compute.teardown import Ends
from compute.work_table import Entries
from objects import console, errors, extra_specs
from objects.build import BuildOrder, BuildOrders, DeleteOrder, Report, Verdict
from objects.console import ConsoleKind, ConsoleListener
from objects.context import request_of
from objects.diagnostics import Diagnostics
from objects.instance import Failure
from objects.spec import BootSecrets, RequestSpec
from objects.task import NewImage, TaskKind, TaskOrder
from objects.text import hostname_of
from service import metrics
from service.logs import log_step
from service.rate_limited_log import RateLimitedLog
from service.retry import pause_after
from service.worker_pool import WorkerPool

LOG = logging.getLogger(__name__)

DESTROY_THREADS = 4
"""Concurrent destroys."""

TASK_THREADS = 8
"""Concurrent tasks of running guests. Most of them wait for a guest's system."""

SECRETS_LOST = "The user data and password of this task are no longer stored, or the cell's conductor is of an older release."
"""Why a task failed whose grant came without the secrets that it needs."""

NO_RECORD = "no record"
"""The reason for a guest that the cell has no record of at all."""

FIRST_RETRY_S = 1.0
"""Seconds before the first retry of a build that met an unavailable service, or of a hold; doubled for each further one. After so
many seconds the agent asks again about a task that its cell cannot decide yet."""

LONGEST_HOLD_RETRY_S = 30.0
"""Longest pause in seconds before the agent tries again to hold a guest."""


class Agent:
    """Everything that one host does for its cell. Methods that answer questions about guests last as long as the driver takes. All
    others return soon; long work runs in separate threads.

    An order first makes a claim on the host, then asks the cell. The driver spawns only after the cell has accepted the attempt for
    this start of the agent. A failed or refused guest is destroyed before it is reported, so every report to the cell is true.
    Tasks of a running guest are carried out only after the cell has granted them, too.

    While the hypervisor cannot be used, builds that have not begun are handed back, orders of builds and tasks are dropped, and
    what it has interrupted waits. The cell sends the orders again.
    """

    def __init__(self, settings: ComputeSettings, driver: ComputeDriver, entries: Entries, reporter: Reporter) -> None:
        self._settings = settings
        self._driver = driver
        self._builder = entries.builder
        self._entries = entries
        self._builds = Builds(entries)
        self._guests = Guests(entries)
        self._tasks = Tasks(entries)
        self._ends = Ends(entries)
        self._reporter = reporter
        self._relay = ConsoleRelay(settings, driver.connect_console)
        self._exclusion = ""
        """Why this machine must not run as the host; empty if it may."""
        self._complaints = RateLimitedLog(LOG)
        self._spawners = WorkerPool(f"spawn-{settings.host}", settings.max_concurrent_builds)
        self._destroyers = WorkerPool(f"destroy-{settings.host}", DESTROY_THREADS)
        self._workers = WorkerPool(f"task-{settings.host}", TASK_THREADS)
        self._without_thread: deque[tuple[WorkerPool, Callable[[Build], None], Build]] = deque()
        """Work that no thread could be started for."""
        metrics.SLOTS.follow_reader(self._slot_values)
        metrics.BUILDS.follow_reader(self._under_way)
        metrics.HYPERVISOR.follow_reader(self._usable_values)

    def start(self) -> None:
        """Open the port for consoles, if it is a fixed one. Raises errors.Misconfigured."""
        self._relay.start()

    @property
    def is_busy(self) -> bool:
        """Whether anything is under way."""
        with self._entries as entries:
            return entries.is_busy

    @property
    def queued_builds(self) -> int:
        """Accepted builds that wait for a thread."""
        return self._spawners.waiting_count

    def _slot_values(self) -> metrics.Values:
        return [((self._settings.host,), self._settings.max_concurrent_builds)]

    def _under_way(self) -> metrics.Values:
        host = self._settings.host
        return [((host, "queued"), self._spawners.waiting_count), ((host, "spawning"), self._spawners.busy_count)]

    def _usable_values(self) -> metrics.Values:
        return [((self._settings.host,), int(not self.current_trouble))]

    @property
    def current_trouble(self) -> str:
        """Why the hypervisor cannot be used now; empty if it can."""
        return self._builds.current_trouble

    def look_at_hypervisor(self) -> None:
        """Ask the driver whether the hypervisor can be used, and act on the answer."""
        trouble = self._driver.trouble()
        if self._exclusion:
            self._pause_builds("", self._exclusion)
        elif trouble:
            self._pause_builds("its hypervisor cannot be used: ", trouble)
        elif self._builds.go_on():
            LOG.info("Host %s: its hypervisor can be used again", self._settings.host)

    def exclude(self, reason: str) -> None:
        """Another machine runs as the host: until ``admit``, this one is as one whose hypervisor cannot be used."""
        self._exclusion = reason
        self.look_at_hypervisor()

    def admit(self) -> None:
        """This machine runs as the host."""
        if self._exclusion:
            self._exclusion = ""
            self.look_at_hypervisor()

    def _pause_builds(self, cause: str, trouble: str) -> None:
        """The hypervisor cannot be used: say so once, and hand back builds that have not begun."""
        is_new, builds = self._builds.pause_builds(trouble)
        if is_new:
            LOG.warning("Host %s takes no orders: %s%s", self._settings.host, cause, trouble)
        self._report_builds(builds)

    def build_guests(self, orders: BuildOrders) -> None:
        """Start the new ones among these orders, with one accept for all of them."""
        if self.current_trouble:
            LOG.debug("Host %s drops %d orders to build: %s", self._settings.host, len(orders.orders), self.current_trouble)
            return
        builds = []
        for order in orders.orders:
            if order.host != self._settings.host:
                LOG.warning("Ignoring an order for host %s: this is %s", order.host, self._settings.host)
                continue
            try:
                build = self._begin_build(order, orders.spec)
            except Exception as error:  # carry out the other orders of the message all the same
                LOG.exception("The order to build instance %s could not be carried out", order.instance_uuid)
                build = self._builds.refuse_order(order, failures.classify_error(error, time.time()))
            builds += [build] if build is not None else []
        self._report_builds(builds)

    def _begin_build(self, order: BuildOrder, spec: RequestSpec) -> Build | None:
        """The build to report for this order: either a new one, or a failed one if its attempt has already ended here."""
        guest = guest_of(order, spec, self._builder)
        guest_spec = guest_spec_of(order, spec)
        build = self._builds.begin_build(guest, order.limits, spec=guest_spec, wants_secrets=spec.has_secrets, origin=order.origin)
        if build is not None:
            self._log_step("order taken", build)
            return build
        LOG.debug("Attempt %d of instance %s was started or passed before", order.attempt, order.instance_uuid)
        return self._builds.repeat_failed(guest)

    def delete(self, orders: Sequence[DeleteOrder]) -> None:
        """End builds and destroy guests of these instances, and report them gone."""
        for order in orders:
            if order.builds_only and self._guests.is_built(order.instance_uuid):
                self.recheck_guests([order.instance_uuid])
                continue
            build = self._ends.delete(order.instance_uuid, order.attempt, order.fence)
            if build is not None:
                self._begin_work(self._destroyers, self._destroy_guest, build)

    def do_tasks(self, orders: Sequence[TaskOrder], *, restores: bool = False) -> None:
        """Begin these tasks, with one question to the cell for all of them. Those that are dropped are ordered again.

        Of a guest that has had a later task the cell learns which is the latest. ``restores``: the tasks are over, and their host
        has lost the power that they gave: bring the guests back to it.
        """
        passed = [order for order in orders if self._tasks.is_passed(order)]
        self.recheck_guests([order.instance_uuid for order in passed])
        in_force = [order for order in orders if order not in passed]
        begun = [self._tasks.take_order(order, restores=restores) for order in in_force]
        self._report_tasks([build for build in begun if build is not None])

    def report_stopped(self, guests: Sequence[tuple[Guest, int]]) -> None:
        """Report these guests, which are off, each with the number of its latest task on record."""
        reports = [report for guest, number in guests if (report := self._guests.report_stopped(guest, number)) is not None]
        self._reporter.submit_reports([(report, partial(self._stop_answered, report)) for report in reports])

    def _stop_answered(self, report: Report, verdict: Verdict) -> None:
        if verdict.accepted and report.failure is not None:
            LOG.warning("Instance %s is off, and its record says so now: %s", report.instance_uuid, report.failure.message)

    def console_output(self, uuid: str, lines: int | None) -> str:
        """The end of what a guest has written to its console. It lasts as long as the driver takes. Raises what the driver does."""
        output = self._driver.console_output(uuid, console.CONSOLE_BYTES)
        return console.readable_output(output.decode(errors="replace"), lines)

    def open_console(self, uuid: str, kind: ConsoleKind, path_digest: str, lifetime: float) -> ConsoleListener:
        """Connect whoever shows the access path with this digest to a console of the guest. Raises what the driver does."""
        self._driver.check_console(uuid, kind)
        return self._relay.open(uuid, kind, path_digest, lifetime)

    def read_diagnostics(self, uuid: str) -> Diagnostics:
        """What the hypervisor knows of the guest. Raises what the driver does."""
        return self._driver.diagnostics(uuid)

    def report_found(self, guests: Sequence[Guest]) -> None:
        """Report guests on the host that this start of the agent did not spawn: the cell decides whether they may stay."""
        builds = []
        for guest in guests:
            try:
                build = self._guests.count_found(guest)
            except Exception as error:  # noqa: BLE001 - a driver's guest may be invalid: it stays, and the others are reported
                text = "A guest on host %s cannot be reported and is left alone: %s: %s"
                name = type(error).__name__
                self._complaints(f"guest {name}", logging.ERROR, text, self._settings.host, name, error, exc_info=error)
            else:
                builds += [build] if build is not None else []
        self._report_builds(builds)

    def recheck_guests(self, uuids: Sequence[str]) -> None:
        """Report these guests again, because the cell's records do not show them as expected."""
        self._report_builds([build for uuid in uuids if (build := self._guests.report_again(uuid)) is not None])

    def recheck_builds(self, uuids: Sequence[str]) -> None:
        """Ask again whether these builds are still ours, because the cell's records do not show them. Cancel those that are
        not.
        """
        reports: list[tuple[Report, Answer | None]] = []
        for uuid in uuids:
            build = self._builds.get_begun(uuid)
            if build is not None:
                reports.append((self._builds.accept_again(build), partial(self._handle_recheck, build)))
        self._reporter.submit_reports(reports)

    def hand_back(self, uuid: str, fence: int, attempt: int, builder: str) -> None:
        """Report a build as failed that died with an earlier start of the agent."""
        build = self._ends.hand_back(uuid, fence, attempt, builder)
        if build is not None:
            LOG.info("Handing back attempt %d of instance %s: its build died with an earlier start", attempt, uuid)
            self._begin_work(self._destroyers, self._destroy_guest, build)

    def keep_up(self) -> None:
        """Cancel overdue spawns, retry failed destroys, resume builds and tasks whose pause is over, and what no thread could be
        started for. Called about once a second while ``is_busy``.
        """
        for _ in range(len(self._without_thread)):
            self._begin_work(*self._without_thread.popleft())
        failure = failures.timed_out(self._settings.spawn_timeout, time.time())
        for build in self._builds.cancel_overdue(time.monotonic(), failure):
            LOG.warning("Instance %s: %s Cancelling its spawn", build.uuid, failure.message)
        for build in self._ends.take_stuck():
            self._begin_work(self._destroyers, self._destroy_guest, build)
        self._report_builds(self._builds.take_resumed(time.monotonic()))
        self._report_tasks(self._tasks.take_resumed(time.monotonic()))

    def hand_over(self) -> None:
        """The agent is about to stop: hand back to the cell builds that have not begun, and all later orders. Drop such tasks."""
        self._report_builds(self._builds.stop())
        self._tasks.stop()

    def drain_work(self, timeout: float) -> bool:
        """Wait up to ``timeout`` seconds for running spawns and tasks, then cancel the spawns; return whether all work ended
        without that.
        """
        if self._spawners.drain_calls(timeout):
            return self._workers.drain_calls(timeout) and self._destroyers.drain_calls(timeout)
        self._spawners.stop()
        self._builds.cancel_all()
        self._spawners.drain_calls(1.0)
        return False

    def stop(self) -> None:
        """Begin no more work, and end all connections to consoles."""
        self._relay.stop()
        self._spawners.stop()
        self._workers.stop()
        self._destroyers.stop()

    def _begin_work(self, pool: WorkerPool, function: Callable[[Build], None], build: Build) -> None:
        """Have a thread of the pool do it. If the system has no room for one now, ``keep_up`` tries again."""
        try:
            pool.post_call(function, build)
        except (RuntimeError, MemoryError):  # the pool has logged it
            self._without_thread.append((pool, function, build))

    # -- one build ------------------------------------------------------------------------------------------------------

    def _report_builds(self, builds: Sequence[Build], *, at_once: bool = False) -> None:
        """Send the report that each build owes in its phase, all in one message. ``at_once``: do not wait for others."""
        reports: list[tuple[Report, Answer | None]] = []
        for build in builds:
            report = self._builds.report_of(build)
            if report is not None:
                reports.append((report, partial(self._handle_verdict, build, report)))
        self._reporter.submit_reports(reports, at_once=at_once)

    def _handle_verdict(self, build: Build, report: Report, verdict: Verdict) -> None:
        """Act on the cell's verdict on a report of ``_report_builds``."""
        match report.kind:
            case "accept" if verdict.accepted:
                if self._builds.note_granted(build, verdict.secrets):
                    self._begin_work(self._spawners, self._spawn_guest, build)
                else:
                    self._report_builds([build])  # handed over, if the agent stops
            case "accept":
                if self._builds.note_refused(build):
                    self._log_step("not ours to build", build, verdict.reason)
            case "active" if verdict.accepted:
                self._guests.note_confirmed(build)
                if self._tasks.note_confirmed(build):
                    self._report_tasks([build])
            case "active" if verdict.keep:
                self._keep_guest(build, verdict.reason)
            case "active" if not verdict.known and not self._may_remove(build):
                self._guests.keep_unaccounted(build, NO_RECORD)
            case "active":
                if self._guests.note_rejected(build):
                    LOG.warning("The guest of instance %s was refused (%s): destroying it", build.uuid, verdict.reason)
                    self._begin_work(self._destroyers, self._destroy_guest, build)
            case "failed":
                self._ends.note_settled(build)

    def _handle_recheck(self, build: Build, verdict: Verdict) -> None:
        """Act on the cell's verdict on a build under way. Acceptance changes nothing, because it was granted before."""
        if not verdict.accepted and self._builds.abandon_build(build):
            LOG.warning(
                "Attempt %d of instance %s is no longer ours to build (%s): cancelling it",
                build.attempt,
                build.uuid,
                verdict.reason,
            )

    def _keep_guest(self, build: Build, record: str) -> None:
        """The cell's record differs but does not prove that this guest is superseded. It stays, because it may be the only one."""
        if self._guests.keep_unaccounted(build, f"on record: {record}"):
            LOG.error(
                "Instance %s is %s on record, but its guest of attempt %d runs here. It stays: see 'superconductor guest list'",
                *(build.uuid, record, build.attempt),
            )

    def _may_remove(self, build: Build) -> bool:
        """Whether to remove a guest now that the cell has no record of, by ``[compute] unknown_guests``."""
        first = build.unknown_since is None
        age = self._guests.note_unknown(build, time.monotonic())
        policy = self._settings.unknown_guests
        if first and policy != "keep":
            LOG.error(
                "The cell has no record of instance %s, but its guest runs here. [compute] unknown_guests = %s: %s",
                *(build.uuid, policy, "it stays, see 'superconductor guest list'" if policy == "report" else "it will be removed"),
            )
        return policy == "remove" and age >= self._settings.unknown_guest_age

    def _log_step(self, event: str, build: Build, note: str = "") -> None:
        request_id = request_of(build.guest.batch_id) if build.guest is not None else None
        log_step(LOG, event, build.uuid, request_id, host=self._settings.host, attempt=build.attempt, note=note)

    def _spawn_guest(self, build: Build) -> None:
        timeout = self._settings.spawn_timeout
        guest, spec = build.guest, build.spec
        if guest is None or spec is None or not self._builds.begin_spawn(build, time.monotonic() + timeout if timeout else None):
            return
        self._log_step("spawning", build)
        failure: Failure | None = None
        secrets: BootSecrets | None = None
        untouched = False
        try:
            secrets = self._builds.take_secrets(build)
            self._driver.spawn(guest, spec, secrets, build.cancel, build.origin)
        except errors.ServiceUnavailable as error:
            LOG.warning(
                "Instance %s waits for a service that is down: %s", build.uuid, secrets.mask_text(str(error)) if secrets else error
            )
            self._builds.note_postponed(build, self._resume_at)
            self._destroy_guest(build)
            return
        except Exception as error:  # noqa: BLE001 - a driver may raise anything; failures.classify handles every error
            failure = failures.classify_error(error, time.time(), secrets)
            untouched = self._is_down(error, failure.message) and error.untouched
        if self._builds.end_spawn(build, failure):
            self._log_step("spawned", build)
            self._report_builds([build], at_once=not self._spawners.waiting_count and self._spawners.busy_count <= 1)
        elif untouched:
            self._report_destroyed(build)
        else:
            self._destroy_guest(build)

    def _resume_at(self, outages: int) -> float:
        return time.monotonic() + pause_after(outages, FIRST_RETRY_S, self._settings.outage_retry_max, spread=0.5)

    def _is_down(self, error: Exception, text: str) -> TypeGuard[errors.HypervisorDown]:
        """Whether the error says that the hypervisor is down; then begin nothing more, also before the next
        ``look_at_hypervisor``.
        """
        if not isinstance(error, errors.HypervisorDown):
            return False
        self._pause_builds("its hypervisor cannot be used: ", text)
        return True

    def _destroy_guest(self, build: Build) -> None:
        if self.current_trouble:
            self._ends.not_destroyed(build)
            return
        self._relay.forget_guest(build.uuid)
        try:
            self._driver.destroy(build.uuid)
        except Exception as error:  # not reported, as it is not destroyed: the entry stays, and keep_up retries
            if not self._is_down(error, str(error)):
                LOG.exception("The guest of instance %s could not be destroyed; the destroy is retried", build.uuid)
            self._ends.not_destroyed(build)
            return
        self._report_destroyed(build)

    def _report_destroyed(self, build: Build) -> None:
        """Nothing is left of the guest: report it."""
        report = self._ends.report_destroyed(build)
        if report is not None:
            if report.failure is not None:
                self._log_step("failed", build, report.failure.message)
            else:
                self._log_step("destroyed", build)
            self._reporter.submit_reports([(report, partial(self._handle_verdict, build, report))])

    # -- one task -------------------------------------------------------------------------------------------------------

    def _report_tasks(self, builds: Sequence[Build]) -> None:
        """Send the report that each entry owes about its task, all in one message."""
        reports: list[tuple[Report, Answer | None]] = []
        for build in builds:
            report = self._tasks.report_of(build)
            if report is not None:
                reports.append((report, partial(self._task_answered, build, report)))
        self._reporter.submit_reports(reports)

    def _task_answered(self, build: Build, report: Report, verdict: Verdict) -> None:
        """Act on the cell's verdict on a report of ``_report_tasks``."""
        match report.kind:
            case "begin" if verdict.accepted:
                if self._tasks.note_granted(build, report.task, verdict.secrets):
                    self._begin_work(self._workers, self._work_on_task, build)
            case "begin" if verdict.later:
                if self._tasks.note_postponed(build, report.task, self._retry_at(1)):
                    text = "Instance %s: its task waits, as may others of host %s: %s"
                    self._complaints("later", logging.WARNING, text, build.uuid, self._settings.host, verdict.reason)
            case "begin":
                if self._tasks.note_refused(build, report.task):
                    self._log_step("task refused", build, verdict.reason)
            case _:
                self._tasks.note_answered(build, report.task)

    def _work_on_task(self, build: Build) -> None:
        guest = build.guest
        work = self._tasks.start(build)
        if guest is None or work is None:
            return
        order = work.order
        self._log_step(f"{order.kind} begins", build, f"power {order.power}")
        failure: Failure | None = None
        again = False
        try:
            if work.restores:
                self._carry_out(build, guest, work)
            else:
                self._do_once(build, guest, work)
        except Exception as error:  # noqa: BLE001 - a driver may raise anything; failures.classify handles every error
            failure = failures.classify_error(error, time.time(), work.secrets)
            if self._is_down(error, failure.message):
                again = error.untouched or not order.kind.runs_once
                failure = failures.task_lost(failure)
            outcome = "will be tried again" if again or is_hold(order) else "failed"
            text = "Host %s: the %s task %d of instance %s (power %s) %s: %s: %s"
            about = (self._settings.host, order.kind, order.number, build.uuid, order.power, outcome)
            LOG.log(logging.DEBUG if again else logging.WARNING, text, *about, failure.error, failure.message)
        if self._tasks.end_work(build, work, failure, self._retry_at, again=again):
            self._report_tasks([build])
        else:
            self._destroy_guest(build)

    def _do_once(self, build: Build, guest: Guest, work: Work) -> None:
        """Carry out the task, and have the driver keep its number, so that no restored cell repeats it or an earlier one.

        The number of a task that may be repeated is kept before it begins: a guest may go over to another host while the agent
        dies.
        """
        number, once = work.order.number, work.order.kind.runs_once
        if once and number == guest.last_task:
            return
        if not once:
            self._note(build, number)
        self._carry_out(build, build.guest or guest, work)
        if once:
            self._note(build, number)

    def _note(self, build: Build, number: int) -> None:
        self._driver.note_task(build.uuid, number)
        self._tasks.noted(build, number)

    def _carry_out(self, build: Build, guest: Guest, work: Work) -> None:
        match work.order.kind:
            case TaskKind.POWER:
                self._driver.set_power(guest.uuid, work.order.power, hard=work.is_hard)
            case TaskKind.REBOOT:
                self._driver.reboot(guest.uuid, hard=work.is_hard)
            case TaskKind.REBUILD:
                _check_secrets(work)
                self._driver.rebuild(guest_after(guest, work.order), work.order.args.drive, work.secrets)
            case TaskKind.SEND:
                if work.order.args.target is None:
                    raise errors.TaskFailed("The order does not say where the guest is to go.")
                self._driver.send(guest.uuid, work.order.args.target, build.cancel)
            case TaskKind.SNAPSHOT:
                self._driver.set_power(guest.uuid, work.order.power, hard=work.is_hard)
                work.stored = self._driver.snapshot(guest.uuid, work.order.args.image_id or "")
            case TaskKind.IMAGE:
                work.stored = self._driver.make_image(guest.uuid, *_image_of(work), build.cancel)
            case TaskKind.RESCUE:
                _check_secrets(work)
                self._driver.rescue(guest.uuid, *_rescue_image_of(work, guest))
            case TaskKind.PASSWORD:
                self._driver.set_password(guest.uuid, _password_of(work))
            case TaskKind.INTERFACES:
                self._set_interfaces(guest, work)
            case TaskKind.CRASH_DUMP:
                self._driver.crash_dump(guest.uuid)

    def _set_interfaces(self, guest: Guest, work: Work) -> None:
        """A guest that has just shut itself down is not started: its power only changes if the order says another one."""
        self._driver.set_interfaces(guest.uuid, work.order.args.ports)
        if guest.power is not work.order.power:
            self._driver.set_power(guest.uuid, work.order.power, hard=work.is_hard)

    def _retry_at(self, tries: int) -> float:
        return time.monotonic() + pause_after(tries, FIRST_RETRY_S, LONGEST_HOLD_RETRY_S, spread=0.5)


def _check_secrets(work: Work) -> None:
    """Raises errors.TaskFailed if the task has secrets, and its grant came without them."""
    if work.order.args.drive.has_secrets and work.secrets is None:
        raise errors.TaskFailed(SECRETS_LOST)


def _password_of(work: Work) -> str:
    """The password to be set. Raises errors.TaskFailed."""
    if work.secrets is None or work.secrets.admin_pass is None:
        raise errors.TaskFailed(SECRETS_LOST)
    return work.secrets.admin_pass


def _rescue_image_of(work: Work, guest: Guest) -> tuple[str, BootSecrets | None, str]:
    """The image to rescue from, the secrets, and the hash of the image."""
    args = work.order.args
    if args.image_id is not None:
        return args.image_id, work.secrets, args.image_hash
    return guest.image_id or "", work.secrets, guest.image_hash


def _image_of(work: Work) -> tuple[str, NewImage]:
    """The image to be made, by its id. Raises errors.TaskFailed."""
    args = work.order.args
    if args.image is None or args.image_id is None:
        raise errors.TaskFailed("The order does not say what image is to be made.")
    return args.image_id, args.image


def guest_of(order: BuildOrder, spec: RequestSpec, builder: str) -> Guest:
    """The guest that an order asks for, with this agent start as its builder."""
    return Guest(
        uuid=order.instance_uuid,
        name=order.name,
        node=order.node,
        fence=order.fence,
        attempt=order.attempt,
        builder=builder,
        vcpus=spec.flavor.vcpus,
        memory_mb=spec.flavor.memory_mb,
        disk_gb=spec.disk_gb,
        batch_id=spec.batch_id,
        image_id=spec.image.id if spec.image else None,
        image_hash=spec.image.hash_value if spec.image else "",
        metadata=spec.properties.metadata,
        resources=extra_specs.resource_amounts(spec.flavor.extra_specs),
        server_uuid=order.server_uuid or "",
        power=order.power,
        numa_nodes=order.limits.numa_nodes if order.limits is not None else (),
    )


def guest_spec_of(order: BuildOrder, spec: RequestSpec) -> GuestSpec:
    """What is asked of the guest of an order."""
    properties = spec.properties
    return GuestSpec(
        project_id=spec.project_id,
        user_id=spec.user_id,
        flavor=spec.flavor,
        hostname=properties.hostname or hostname_of(order.name, order.server_uuid or order.instance_uuid),
        image=spec.image,
        networks=properties.networks,
        block_devices=properties.block_devices,
        key_name=properties.key_name,
        public_key=properties.public_key,
        ports=order.ports,
        config_drive=properties.config_drive,
        metadata=properties.metadata,
        tags=properties.tags,
        availability_zone=spec.availability_zone,
    )
