"""The RPC endpoint of a cell's conductor: agents' reports, failed builds, heartbeats, stats. It never calls the API level."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

import msgspec

from cells import releases
from conductor.agent_names import check_reports, check_service, checked_about, checked_machine
from conductor.gathered_beats import GatheredBeats
from conductor.mark_watch import MarkWatch
from conductor.orders import OrderSender, ask_to_introduce, send_orders
from conductor.quarantine import Quarantine, reason_of
from conductor.release import LOST, release_secrets
from db import secrets
from db.cell import compute_nodes, instances, minimal_end, services, tasks, unknown_guests
from db.cell.instances import DueRow
from db.cell.services import Beat, HostAdmission
from db.secrets import Kept
from db.sql.connection import CellTransaction
from db.sql.engine import CellDatabase
from objects import builder_digest, errors, lifecycle, stats
from objects.build import Holding, Report, ReportKind, Verdict
from objects.compute_node import ComputeNode
from objects.context import RequestContext, request_of
from objects.host_limits import HostLimits
from objects.instance import Failure, FailureClass, Instance, State
from objects.lifecycle import Change, Outcome, Refused
from objects.machine import Machine, two_machines_text
from objects.process import About
from objects.task import Power, Task, TaskState
from objects.text import checked_name
from objects.unknown_guest import UnknownGuest
from service import metrics
from service.batching import GroupCommit
from service.bisect import isolate_failures
from service.logs import log_step
from service.pace import Pace
from service.vault import Vault

LOG = logging.getLogger(__name__)

REPORTS_WAIT_S = 0.03
"""Longest time in seconds that a report waits for others to share its transaction, if several came together lately."""


REPORTS = "reports"
"""The step of dead letters about reports. Their keys are the UUIDs of the instances."""

_TASK_REPORTS = (ReportKind.BEGIN, ReportKind.DONE, ReportKind.TASK_FAILED)

NOT_STORED = "The build failed on its host. The host's error message could not be stored."


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class Settled:
    """The outcomes of reports and the stored secrets of granted builds and tasks, by instance UUID.

    ``faults``: errors of reports that cannot be written.
    """

    outcomes: dict[str, Outcome] = dataclasses.field(default_factory=dict)
    kept_secrets: dict[str, Kept] = dataclasses.field(default_factory=dict)
    faults: dict[str, errors.SuperconductorError] = dataclasses.field(default_factory=dict)


class CellConductor:
    """The endpoint of topic ``cell-conductor``. Concurrent reports share a transaction."""

    def __init__(
        self,
        database: CellDatabase,
        sender: OrderSender,
        vault: Vault | None = None,
        limits: HostLimits | None = None,
        *,
        heartbeats: GatheredBeats | None = None,
        pace: Pace | None = None,
        down_time: float = 60.0,
    ) -> None:
        """``limits``: the most that a host may offer; None: no limits. ``heartbeats``: gathers those that can wait; None: none can.

        ``pace``: of the cell's sweep; reports on builds, deletes and tasks hurry it. ``down_time``: seconds of silence after which
        another machine may run as a host.
        """
        self._down_time = down_time
        self._gathered = heartbeats
        self.pace = pace or Pace(0.0)
        self._database = database
        self._limits = limits
        self._sender = sender
        self.aside = Quarantine(database, "cell")
        self.marks = MarkWatch(database)
        self._vault = vault or Vault()
        self._settle: GroupCommit[Sequence[Report], Settled] = GroupCommit(self._write, window=REPORTS_WAIT_S, patient=False)
        self._heartbeat: GroupCommit[Sequence[Beat], list[str]] = GroupCommit(self._write_heartbeats)

    def report(self, context: RequestContext, reports: Sequence[Report]) -> list[Verdict]:
        """Agents report accept, active or gone, and on tasks; the verdicts come in the same order.

        Raises errors.Misconfigured if no key opens the secrets of an accepted build or task. The agent begins nothing without an
        answer. It asks again for that one alone, until a conductor of the cell has the key or the deadline ends it.
        """
        check_reports(reports)
        self.pace.hurry_for()
        settled = self._settle(reports)
        verdicts = self._give_verdicts(reports, settled.outcomes)
        # a build that asks for secrets has some, and a task may have none
        granted = [
            r.instance_uuid
            for r, v in zip(reports, verdicts, strict=True)
            if v.accepted
            and r.wants_secrets
            and (r.kind is ReportKind.ACCEPT or (r.kind is ReportKind.BEGIN and r.instance_uuid in settled.kept_secrets))
        ]
        if not granted:
            return verdicts
        verdicts, lost = release_secrets(self._vault, verdicts, granted, settled.kept_secrets)
        if lost:
            self._give_up([r for r in reports if r.instance_uuid in lost])
        return verdicts

    def build_instances(self, context: RequestContext, reports: Sequence[Report]) -> list[Verdict]:
        """Retry failed builds on their next alternate in this cell, in order, or end them as ERROR with the history of attempts.

        Raises errors.CellUnavailable while the rows may be those of a backup: the build may have ended well since, on another host.
        """
        check_reports(reports)
        self.pace.hurry_for()
        if closed := self.marks.read_mark():
            raise errors.CellUnavailable(closed)
        outcomes = self._settle(reports).outcomes
        self.resend_orders([uuid for uuid, outcome in outcomes.items() if _is_rescheduled(outcome)])
        return self._give_verdicts(reports, outcomes)

    def holdings(self, context: RequestContext, host: str) -> list[Holding]:
        """The instances that this cell's records place on a host."""
        return self._database.read(instances.list_holdings, checked_name("host", host))

    def report_state(self, context: RequestContext, host: str, binary: str, version: int, stopping: bool = False) -> None:
        """A heartbeat. Builds that a stopping host has not accepted move to their alternates at once."""
        self.report_states(context, [host], binary, version, stopping)

    def report_states(
        self, context: RequestContext, hosts: Sequence[str], binary: str, version: int, stopping: bool = False
    ) -> None:
        """The same of several hosts, in one transaction."""
        for host in hosts:
            check_service(host, binary, version)
        machine = checked_machine(context)
        beats = [Beat(host=host, binary=binary, version=version, stopping=stopping, machine=machine) for host in hosts]
        if self._gathered is not None and not stopping:
            self._gathered.add_beats(beats)
            return
        foreign = self._heartbeat(beats)
        ask_to_introduce(self._sender, foreign)
        if stopping:
            self.move_off(context, [host for host in hosts if host not in foreign])

    def introduce(
        self, context: RequestContext, host: str, binary: str, about: About, uptime: float, *, identified: bool = False
    ) -> None:
        """An agent that has started describes itself. ``identified``: the broker confirms that it is the host's agent.

        This removes the host's unknown guests from the records: the agent reports them again afterwards. An introduction that
        the records have already changes nothing. Raises errors.Misconfigured if the releases of the agent and of this conductor
        cannot work together, errors.HostNameTaken while another machine runs as the host.
        """
        check_service(host, binary, about.version)
        releases.check_agent(host, about.messages)
        about = checked_about(about, uptime)
        beat = Beat(host=host, binary=binary, version=about.version, machine=checked_machine(context))
        if self._database.read(services.is_introduced, beat, about, uptime, identified=identified):
            return
        admission = self._database.write(_introduce_agent, beat, about, uptime, self._down_time, identified=identified)
        if not admission.is_admitted:
            refusal = two_machines_text(host, admission.other or "", about.machine)
            LOG.log(logging.WARNING if admission.is_new else logging.DEBUG, "%s", refusal)
            raise errors.HostNameTaken(refusal)
        if admission.other is not None:
            LOG.warning("machine %s runs as host %s from now on, and %s does no more", about.machine, host, admission.other)
            ask_to_introduce(self._sender, [host])

    def unknown_guests(self, context: RequestContext, host: str, guests: Sequence[UnknownGuest]) -> None:
        """An agent reports the guests it holds that have no record in this cell."""
        self._database.write(unknown_guests.replace_guests, checked_name("host", host), guests)

    def move_off(self, context: RequestContext, hosts: Sequence[str]) -> int:
        """Move builds that wait for these hosts, whose agents are stopping, to their next alternates. Return how many moved."""
        rows = {movable.uuid: movable for movable in self._database.read(instances.list_movable, hosts)}
        if not rows or self.marks.read_mark():
            return 0
        now = self._database.current_time()

        def write(uuids: Sequence[str]) -> dict[str, Outcome]:
            return self._database.write(instances.transition_rows, uuids, lambda row: _host_stopping(row, rows[row.uuid], now), now)

        done = self.aside.run("stopping hosts", write, sorted(rows))
        outcomes = {uuid: outcome for result in done.results for uuid, outcome in result.items()}
        measure_transitions(outcomes.values(), now)
        moved = [uuid for uuid, outcome in outcomes.items() if _is_rescheduled(outcome)]
        self.resend_orders(moved)
        return len(moved)

    def update_resource_stats(self, context: RequestContext, node: ComputeNode) -> None:
        """Store what a node offers and uses, and write a feed event if it changed.

        Raises errors.Invalid for impossible numbers, errors.Conflict if newer ones of the node are stored.
        """
        stats.check_stats(node)
        if self._database.write(compute_nodes.store_node, node, self._database.current_time(), self._limits) is None:
            raise errors.Conflict(f"stats of host {node.host}, node {node.node} are ignored: newer ones are stored already")

    def resend_orders(self, uuids: Iterable[str]) -> None:
        """Send the current orders of these instances to the hosts in their rows."""
        if instance_uuids := list(uuids):
            # the sweep handles unreadable rows
            send_orders(self._sender, self._database.read(instances.orders_of, instance_uuids).orders)

    # -- inside --------------------------------------------------------------------------------------------------------------

    def _give_up(self, reports: Sequence[Report]) -> None:
        """End builds whose secrets are lost: no host can build them. Instances that were deleted meanwhile do not change."""
        now = self._database.current_time()
        failure = Failure(kind=FailureClass.REQUEST, error="SecretsLost", message=LOST, at=now)
        self._settle([msgspec.structs.replace(r, kind=ReportKind.FAILED, failure=failure) for r in reports])
        for report in reports:
            LOG.error("instance %s: %s", report.instance_uuid, LOST)

    def _write(self, groups: Sequence[Sequence[Report]]) -> list[Settled | Exception]:
        """Write all reports together, one per instance; a second report on an instance goes into the next transaction.

        If a report cannot be written, only its own caller gets an error.
        """
        results: list[Settled | Exception] = [Settled() for _ in groups]
        remaining = [(index, report) for index, group in enumerate(groups) for report in group]
        while remaining:
            first: dict[str, tuple[int, Report]] = {}
            for index, report in remaining:
                first.setdefault(report.instance_uuid, (index, report))
            reports = {uuid: report for uuid, (_, report) in first.items()}
            settled = self._settle_each(reports)
            for uuid, (index, _) in first.items():
                if isinstance(result := results[index], Settled):
                    if uuid in settled.faults:
                        results[index] = settled.faults[uuid]
                        continue
                    result.outcomes[uuid] = settled.outcomes[uuid]
                    if uuid in settled.kept_secrets:
                        result.kept_secrets[uuid] = settled.kept_secrets[uuid]
            remaining = [(index, report) for index, report in remaining if first[report.instance_uuid][1] is not report]
        return results

    def _settle_each(self, reports: Mapping[str, Report]) -> Settled:
        """Write these reports, by instance UUID. A report that cannot be written is retried in a minimal form, if it has one."""
        now = self._database.current_time()
        settled = Settled()
        closed = self.marks.read_mark() if any(report.kind is ReportKind.BEGIN for report in reports.values()) else ""
        faults = dict(isolate_failures(partial(self._write_reports, settled, reports, now, closed), list(reports)).failed)
        if faults:
            failures = {uuid: _without_text(reports[uuid], now) for uuid in faults if reports[uuid].kind is ReportKind.FAILED}
            ends = [uuid for uuid in faults if reports[uuid].kind is ReportKind.GONE]
            again = dict(isolate_failures(partial(self._write_reports, settled, failures, now, closed), list(failures)).failed)
            again |= dict(isolate_failures(lambda ending: self._end_deletes(ending, reports, settled), ends).failed)
            others = {u: e for u, e in faults.items() if reports[u].kind not in (ReportKind.FAILED, ReportKind.GONE)}
            self.aside.note_failed(REPORTS, again | others)
            settled.faults.update({uuid: _report_refusal(reports[uuid], error) for uuid, error in (again | others).items()})
        if self.aside.holds_letters:
            self.aside.note_succeeded(REPORTS, settled.outcomes)
        measure_transitions(settled.outcomes.values(), now)
        return settled

    def _write_reports(
        self, settled: Settled, reports: Mapping[str, Report], now: float, closed: str, uuids: Sequence[str]
    ) -> None:
        """Write those of ``reports`` that are about ``uuids``, and enter what comes of them into ``settled``."""
        outcomes, kept_secrets = self._database.write(apply_reports, {uuid: reports[uuid] for uuid in uuids}, now, closed)
        settled.outcomes.update(outcomes)
        settled.kept_secrets.update(kept_secrets)

    def _end_deletes(self, uuids: Sequence[str], reports: Mapping[str, Report], settled: Settled) -> None:
        """End deletes that were carried out and cannot be written in full."""
        for uuid in uuids:
            report = reports[uuid]
            done = self._database.write(minimal_end.end_if_gone, uuid, report.host, report.attempt, self._database.current_time())
            settled.outcomes[uuid] = Refused(reason="its delete has ended" if done else "not being deleted there", done=done)

    def _write_heartbeats(self, groups: Sequence[Sequence[Beat]]) -> list[list[str] | Exception]:
        """Returns for each group the hosts whose heartbeats came from machines that were not admitted."""
        foreign = self._database.write(
            services.admitted_heartbeats, list(dict.fromkeys(beat for beats in groups for beat in beats))
        )
        return [[beat.host for beat in beats if beat in foreign] for beats in groups]

    def _give_verdicts(self, reports: Sequence[Report], outcomes: Mapping[str, Outcome]) -> list[Verdict]:
        """The verdicts on these reports, in their order. Logs both, and the fault of a build that ended in ERROR."""
        verdicts = [_make_verdict(report, outcomes[report.instance_uuid]) for report in reports]
        for report, verdict in zip(reports, verdicts, strict=True):
            outcome = outcomes[report.instance_uuid]
            row = outcome.row if isinstance(outcome, Change) else None
            about = (report.instance_uuid, request_of(row.batch_id) if row is not None else None)
            subject = report.kind if verdict.accepted else f"{report.kind} refused"
            why = verdict.reason if not verdict.accepted else report.failure.message if report.failure else ""
            log_step(LOG, subject, *about, cell=self._sender.name, host=report.host, attempt=report.attempt, note=why)
            if row is not None and row.state is State.ERROR:
                log_step(LOG, "error", *about, cell=self._sender.name, note=row.fault or "")
        return verdicts


def apply_reports(
    tx: CellTransaction, reports: Mapping[str, Report], now: float, closed: str = ""
) -> tuple[dict[str, Outcome], dict[str, Kept]]:
    """Apply these reports, by instance UUID. Returns the outcomes, and the stored secrets of what was granted.

    ``closed``: why no task may begin now; empty if one may.
    """
    task_of = partial(tasks.read_task, tx)
    outcomes = instances.carry_out(tx, reports, lambda row: decide_report(row, reports[row.uuid], now, task_of, closed), now)
    _note_tasks(tx, reports, outcomes)
    instances.append_changes(tx, outcomes.values(), now)
    accepted = [uuid for uuid, report in reports.items() if report.wants_secrets and _make_verdict(report, outcomes[uuid]).accepted]
    begun = [uuid for uuid in accepted if reports[uuid].kind is ReportKind.BEGIN]
    kept_secrets = tasks.secrets_of(tx, begun) if begun else {}
    granted = [uuid for uuid in accepted if reports[uuid].kind is ReportKind.ACCEPT]
    if not granted:
        return outcomes, kept_secrets
    batches = {o.row.uuid: o.row.batch_id for o in outcomes.values() if isinstance(o, Change) and o.row.batch_id is not None}
    return outcomes, kept_secrets | secrets.of_builds(tx, granted, batches)


def _note_tasks(tx: CellTransaction, reports: Mapping[str, Report], outcomes: Mapping[str, Outcome]) -> None:
    """Write which start of an agent was granted a task, and forget tasks that are over."""
    changed = {
        u: outcome.row for u, outcome in outcomes.items() if isinstance(outcome, Change) and reports[u].kind in _TASK_REPORTS
    }
    running = {uuid: reports[uuid].builder for uuid, row in changed.items() if row.task_state is TaskState.RUNNING}
    if running:
        tasks.record_granted(tx, running)
    done = [uuid for uuid, row in changed.items() if row.task_state is TaskState.DONE]
    if done:
        tasks.record_connected(tx, done)
    learned: set[str] = set()  # the report of a guest has told the row of a later task: the one that it has lost track of is over
    for uuid, outcome in outcomes.items():
        last_task = reports[uuid].last_task if reports[uuid].kind is ReportKind.ACTIVE else 0
        if last_task > 0 and isinstance(outcome, Change) and outcome.row.task_number == last_task:
            learned.add(uuid)
    if over := (changed.keys() - running.keys()) | learned:
        tasks.forget_tasks(tx, over)


def decide_report(
    row: Instance, report: Report, now: float, task_of: Callable[[str], Task | None] = lambda uuid: None, closed: str = ""
) -> Outcome:
    """The transition a report asks for. ``task_of``: reads the task of an instance whose row is locked. ``closed``: as above."""
    if report.kind in _TASK_REPORTS:
        about = (row, report.host, report.fence, report.attempt, report.task)
        if report.kind is ReportKind.BEGIN:
            task = task_of(row.uuid)
            begun = lifecycle.begin_task(*about, report.builder, task, restores=report.restores, makes_drive=report.wants_secrets)
            return Refused(reason=closed, later=True) if closed and (isinstance(begun, Change) or begun.done) else begun
        failed = report.kind is ReportKind.TASK_FAILED
        fault = report.failure.message if report.failure else "The host gave no reason."
        return lifecycle.task_over(*about, fault if failed else None, report.stored)
    if report.kind is ReportKind.POWER:
        who = (report.host, report.fence, report.attempt, report.builder)
        reason = report.failure.message if report.failure else "The host gave no reason."
        return lifecycle.powered_off(row, *who, report.task, reason)
    if report.kind is ReportKind.ACCEPT:
        return lifecycle.accept_order(row, report.host, report.fence, report.attempt, report.builder)
    if report.kind is ReportKind.ACTIVE:
        who = (report.host, report.fence, report.attempt, report.builder)
        power = Power(report.power) if report.power in set(Power) else None
        return lifecycle.confirm_active(row, *who, now, confirmed=report.confirmed, last_task=report.last_task, power=power)
    if report.kind is ReportKind.GONE:
        return lifecycle.confirm_gone(row, report.host, report.attempt, now)
    failure = report.failure or Failure(kind=FailureClass.HOST, error="Unknown", message="The host gave no reason.", at=now)
    builder = report.builder
    if row.builder is not None and builder_digest.is_same(builder, row.builder, row.uuid):
        builder = row.builder  # the agent knows and reports only its digest
    return lifecycle.fail_attempt(row, report.host, report.fence, report.attempt, builder, failure)


def _introduce_agent(
    tx: CellTransaction, beat: Beat, about: About, uptime: float, down_time: float, *, identified: bool
) -> HostAdmission:
    admission = services.admit(tx, beat, Machine(id=beat.machine, name=about.machine), down_time)
    if admission.is_admitted:
        services.introduce_service(tx, beat, about, uptime, identified=identified)
        unknown_guests.forget_guests(tx, beat.host)
    return admission


def _without_text(report: Report, now: float) -> Report:
    """The failure report without the host's message."""
    kind = report.failure.kind if report.failure is not None else FailureClass.HOST
    failure = Failure(kind=kind, error="BuildFailed", message=NOT_STORED, at=now)
    return msgspec.structs.replace(report, failure=failure)


def _report_refusal(report: Report, error: Exception) -> errors.SuperconductorError:
    return errors.Invalid(f"report {report.kind} of instance {report.instance_uuid} cannot be stored: {reason_of(error)}")


def _host_stopping(row: Instance, read: DueRow, now: float) -> Outcome:
    failure = Failure(kind=FailureClass.STOPPING, error="HostStopping", message=f"Host {read.host} takes no more orders", at=now)
    return lifecycle.host_stopping(row, read.attempt, failure)


def _make_verdict(report: Report, outcome: Outcome) -> Verdict:
    if isinstance(outcome, Change):
        failed = report.kind is ReportKind.BEGIN and outcome.row.task_state is TaskState.FAILED
        reason = outcome.row.task_fault or "" if failed else ""
        return Verdict(instance_uuid=report.instance_uuid, accepted=not failed, reason=reason)
    known = outcome.known and not outcome.keep
    return Verdict(
        instance_uuid=report.instance_uuid,
        accepted=outcome.done,
        reason=outcome.reason,
        known=known,
        keep=outcome.keep,
        later=outcome.later,
    )


def _is_rescheduled(outcome: Outcome) -> bool:
    return isinstance(outcome, Change) and outcome.row.state is State.SCHEDULED


def measure_transitions(outcomes: Iterable[Outcome], now: float) -> None:
    """Measure transitions of builds made at ``now``: durations of steps, retries on other hosts, and ended builds."""
    for outcome in outcomes:
        if not isinstance(outcome, Change) or outcome.row.task_number:  # tasks change the row, and are no builds
            continue
        row = outcome.row
        with contextlib.suppress(TypeError):  # SQLite allows non-numbers in a column of times
            match row.state:
                case State.BUILDING:
                    metrics.STAGE["grant"].observe(max(0.0, now - row.changed_at))
                case State.ACTIVE:
                    metrics.STAGE["build"].observe(max(0.0, now - row.changed_at))
                    metrics.BOOT.observe(max(0.0, now - row.created_at))
                    metrics.ENDED.labels("active").inc()
                case State.SCHEDULED if row.history:
                    metrics.RETRIES.labels(row.history[-1].failure.kind).inc()
                case State.ERROR if row.rolled_back is None:
                    metrics.ENDED.labels("error").inc()
