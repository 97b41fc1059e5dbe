"""What a cell's conductor answers to: reports of agents, failed builds, heartbeats and stats. It never calls upward."""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from conductor.measure import measure
from conductor.orders import Sender, send_orders
from conductor.release import LOST, Release
from db import compute_nodes, instances, secrets, services
from db.connection import Connection
from db.engine import Database
from db.secrets import Kept
from db.services import Beat
from objects import errors, lifecycle, stats
from objects.build import Holding, Report, ReportKind, Verdict
from objects.compute_node import ComputeNode
from objects.context import RequestContext, request_of
from objects.instance import Failure, FailureClass, Instance, State
from objects.lifecycle import Change, Outcome
from objects.process import About
from service.coalesce import Coalescer
from service.steps import step
from service.vault import Vault

LOG = logging.getLogger(__name__)

REPORTS_WINDOW = 0.03
"""Seconds that reports wait at most for others to share their transaction, where several have come together lately."""


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class Settled:
    """What became of the reports of one call, by instance, and what is kept in confidence for those that were granted."""

    outcomes: dict[str, Outcome] = dataclasses.field(default_factory=dict)
    kept: dict[str, Kept] = dataclasses.field(default_factory=dict)


class CellConductor:
    """The endpoint of topic ``cell-conductor``. Reports of one moment share a transaction."""

    def __init__(self, database: Database, sender: Sender, vault: Vault | None = None) -> None:
        self._database = database
        self._sender = sender
        self._release = Release(vault or Vault())
        self._settle: Coalescer[Sequence[Report], Settled] = Coalescer(self._write, window=REPORTS_WINDOW, patient=False)
        self._heartbeat: Coalescer[Beat, None] = Coalescer(self._heartbeats)

    def report(self, context: RequestContext, reports: Sequence[Report]) -> list[Verdict]:
        """Agents say accept, active or gone; the verdicts come in the same order.

        Raises errors.Misconfigured where no key opens the secrets of a build that was accepted. Nothing is spawned without an
        answer; the agent asks again, alone, until this or another conductor of the cell has the key, or the deadline ends it.
        """
        settled = self._settle(reports)
        verdicts = self._verdicts(reports, settled.outcomes)
        granted = [r.instance_uuid for r, v in zip(reports, verdicts, strict=True) if v.accepted and r.wants_secrets]
        if not granted:
            return verdicts
        released = self._release.of(granted, settled.kept)
        if released.lost:
            self._give_up([r for r in reports if r.instance_uuid in released.lost])
        return [released.attached(verdict) for verdict in verdicts]

    def build_instances(self, context: RequestContext, reports: Sequence[Report]) -> list[Verdict]:
        """Failed builds: on to the next alternate of this cell, left to right, or ERROR with the attempts' whole history."""
        outcomes = self._settle(reports).outcomes
        self.resend([uuid for uuid, outcome in outcomes.items() if _rescheduled(outcome)])
        return self._verdicts(reports, outcomes)

    def holdings(self, context: RequestContext, host: str) -> list[Holding]:
        """What the records of this cell say is on a host."""
        return self._database.read(instances.holdings, host)

    def report_state(self, context: RequestContext, host: str, binary: str, version: int, stopping: bool = False) -> None:
        """A heartbeat. Orders that a stopping host has not accepted go on to other hosts at once."""
        self._heartbeat(Beat(host=host, binary=binary, version=version, stopping=stopping))
        if stopping:
            self.move_off(context, [host])

    def introduce(self, context: RequestContext, host: str, binary: str, about: About, uptime: float) -> None:
        """An agent that has started says what it is."""
        self._database.write(services.introduce, Beat(host=host, binary=binary), about, uptime)

    def move_off(self, context: RequestContext, hosts: Sequence[str]) -> int:
        """Builds that wait for these hosts, whose agents are stopping, go on to their next alternates. Return how many did."""
        rows = {row.uuid: row for row in self._database.read(instances.on_hosts, hosts, [State.SCHEDULED]) if row.alternates}
        if not rows:
            return 0
        now = time.time()
        outcomes = self._database.write(instances.transition, rows, lambda row: _stopping(row, rows[row.uuid], now), now)
        measure(outcomes.values(), now)
        moved = [uuid for uuid, outcome in outcomes.items() if _rescheduled(outcome)]
        self.resend(moved)
        return len(moved)

    def update_resource_stats(self, context: RequestContext, node: ComputeNode) -> None:
        """What a node offers and has in use: stored, and told to the feed where it changed.

        Raises errors.Invalid for numbers that cannot be, errors.Conflict where newer ones of the node are known.
        """
        stats.check(node)
        if self._database.write(compute_nodes.store, node, time.time()) is None:
            raise errors.Conflict(f"stats of {node.host}, {node.node}: newer ones are known already, these are ignored")

    def resend(self, uuids: Iterable[str]) -> None:
        """Send the orders in force of these instances to the hosts their rows name."""
        if wanted := list(uuids):
            send_orders(self._sender, self._database.read(instances.orders, wanted))

    # -- inside --------------------------------------------------------------------------------------------------------------

    def _give_up(self, reports: Sequence[Report]) -> None:
        """Builds whose secrets are gone: no host can build them. One that was deleted meanwhile is left as it is."""
        now = time.time()
        failure = Failure(kind=FailureClass.REQUEST, error="SecretsLost", message=LOST, at=now)
        self._settle([msgspec.structs.replace(r, kind=ReportKind.FAILED, failure=failure) for r in reports])
        for report in reports:
            LOG.error("instance %s: %s", report.instance_uuid, LOST)

    def _write(self, groups: Sequence[Sequence[Report]]) -> list[Settled | Exception]:
        """One transaction for every group in which no instance is reported on twice; a second report waits for the next."""
        results = [Settled() for _ in groups]
        left = [(index, report) for index, group in enumerate(groups) for report in group]
        while left:
            first: dict[str, tuple[int, Report]] = {}
            for index, report in left:
                first.setdefault(report.instance_uuid, (index, report))
            reports = {uuid: report for uuid, (_, report) in first.items()}
            now = time.time()
            outcomes, kept = self._database.write(transition, reports, now)
            measure(outcomes.values(), now)
            for uuid, (index, _) in first.items():
                results[index].outcomes[uuid] = outcomes[uuid]
                if uuid in kept:
                    results[index].kept[uuid] = kept[uuid]
            left = [(index, report) for index, report in left if first[report.instance_uuid][1] is not report]
        return list(results)

    def _heartbeats(self, beats: Sequence[Beat]) -> list[Exception | None]:
        self._database.write(services.heartbeats, list(dict.fromkeys(beats)))
        return [None] * len(beats)

    def _verdicts(self, reports: Sequence[Report], outcomes: Mapping[str, Outcome]) -> list[Verdict]:
        verdicts = [_verdict(report, outcomes[report.instance_uuid]) for report in reports]
        for report, verdict in zip(reports, verdicts, strict=True):
            self._say(report, verdict, outcomes[report.instance_uuid])
        return verdicts

    def _say(self, report: Report, verdict: Verdict, outcome: Outcome) -> None:
        """What was reported, and where that ends the build: how."""
        row = outcome.row if isinstance(outcome, Change) else None
        about = (report.instance_uuid, request_of(row.batch_id) if row is not None else None)
        what = report.kind if verdict.accepted else f"{report.kind} refused"
        why = verdict.reason if not verdict.accepted else report.failure.message if report.failure else ""
        step(LOG, what, *about, cell=self._sender.name, host=report.host, attempt=report.attempt, note=why)
        if row is not None and row.state is State.ERROR:
            step(LOG, "error", *about, cell=self._sender.name, note=row.fault or "")


def transition(tx: Connection, reports: Mapping[str, Report], now: float) -> tuple[dict[str, Outcome], dict[str, Kept]]:
    """What these reports, by instance, come to; and of those that are granted with secrets, what is kept of these."""
    outcomes = instances.transition(tx, reports, lambda row: decide(row, reports[row.uuid], now), now)
    granted = [uuid for uuid, report in reports.items() if report.wants_secrets and _verdict(report, outcomes[uuid]).accepted]
    if not granted:
        return outcomes, {}
    batches = {o.row.uuid: o.row.batch_id for o in outcomes.values() if isinstance(o, Change) and o.row.batch_id is not None}
    return outcomes, secrets.of_builds(tx, granted, batches)


def decide(row: Instance, report: Report, now: float) -> Outcome:
    """The transition a report asks for."""
    if report.kind is ReportKind.ACCEPT:
        return lifecycle.accept(row, report.host, report.fence, report.attempt, report.builder)
    if report.kind is ReportKind.ACTIVE:
        return lifecycle.active(row, report.host, report.fence, report.attempt, report.builder, now)
    if report.kind is ReportKind.GONE:
        return lifecycle.gone(row, report.host, report.attempt, now)
    failure = report.failure or Failure(kind=FailureClass.HOST, error="Unknown", message="The host gave no reason.", at=now)
    return lifecycle.failed(row, report.host, report.fence, report.attempt, report.builder, failure)


def _stopping(row: Instance, read: Instance, now: float) -> Outcome:
    failure = Failure(kind=FailureClass.STOPPING, error="HostStopping", message=f"Host {read.host} takes no more orders", at=now)
    return lifecycle.host_stopping(row, read.attempt, failure)


def _verdict(report: Report, outcome: Outcome) -> Verdict:
    if isinstance(outcome, Change):
        return Verdict(instance_uuid=report.instance_uuid, accepted=True)
    return Verdict(instance_uuid=report.instance_uuid, accepted=outcome.done, reason=outcome.reason, known=outcome.known)


def _rescheduled(outcome: Outcome) -> bool:
    return isinstance(outcome, Change) and outcome.row.state is State.SCHEDULED
