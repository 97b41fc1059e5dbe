"""What a cell's conductor answers to: reports of agents, failed builds, heartbeats and stats. It never calls upward."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping, Sequence

from conductor.orders import Sender, send_orders
from db import compute_nodes, instances, services
from db.engine import Database
from db.services import Beat
from objects import lifecycle
from objects.build import Holding, Report, ReportKind, Verdict
from objects.compute_node import ComputeNode
from objects.context import RequestContext
from objects.instance import Failure, FailureClass, Instance, State
from objects.lifecycle import Change, Outcome
from service.coalesce import Coalescer

LOG = logging.getLogger(__name__)


class CellConductor:
    """The endpoint of topic ``cell-conductor``. Reports of one moment share a transaction."""

    def __init__(self, database: Database, sender: Sender) -> None:
        self._database = database
        self._sender = sender
        self._settle: Coalescer[Sequence[Report], Mapping[str, Outcome]] = Coalescer(self._write)
        self._heartbeat: Coalescer[Beat, None] = Coalescer(self._heartbeats)

    def report(self, context: RequestContext, reports: Sequence[Report]) -> list[Verdict]:
        """Agents say accept, active or gone; the verdicts come in the same order."""
        return self._verdicts(reports, self._settle(reports))

    def build_instances(self, context: RequestContext, reports: Sequence[Report]) -> list[Verdict]:
        """Failed builds: on to the next alternate of this cell, left to right, or ERROR with the attempts' whole history."""
        outcomes = self._settle(reports)
        self.resend(context, [uuid for uuid, outcome in outcomes.items() if _rescheduled(outcome)])
        return self._verdicts(reports, outcomes)

    def holdings(self, context: RequestContext, host: str) -> list[Holding]:
        """What the records of this cell say is on a host."""
        return self._database.read(instances.holdings, host)

    def report_state(self, context: RequestContext, host: str, binary: str, version: int) -> None:
        """A heartbeat."""
        self._heartbeat(Beat(host=host, binary=binary, version=version))

    def update_resource_stats(self, context: RequestContext, node: ComputeNode) -> None:
        """What a node offers and has in use: stored, and told to the feed where it changed."""
        self._database.write(compute_nodes.store, node, time.time())

    def resend(self, context: RequestContext, uuids: Iterable[str]) -> None:
        """Send the orders in force of these instances to the hosts their rows name."""
        if wanted := list(uuids):
            send_orders(self._sender, context, self._database.read(instances.orders, wanted))

    # -- inside --------------------------------------------------------------------------------------------------------------

    def _write(self, groups: Sequence[Sequence[Report]]) -> list[Mapping[str, Outcome] | Exception]:
        """One transaction for every group in which no instance is reported on twice; a second report waits for the next."""
        results: list[dict[str, Outcome]] = [{} for _ in groups]
        left = [(index, report) for index, group in enumerate(groups) for report in group]
        while left:
            first: dict[str, tuple[int, Report]] = {}
            for index, report in left:
                first.setdefault(report.instance_uuid, (index, report))
            outcomes = self._transition({uuid: report for uuid, (_, report) in first.items()})
            for uuid, (index, _) in first.items():
                results[index][uuid] = outcomes[uuid]
            left = [(index, report) for index, report in left if first[report.instance_uuid][1] is not report]
        return list(results)

    def _transition(self, reports: Mapping[str, Report]) -> dict[str, Outcome]:
        now = time.time()
        return self._database.write(instances.transition, reports, lambda row: decide(row, reports[row.uuid], now), now)

    def _heartbeats(self, beats: Sequence[Beat]) -> list[Exception | None]:
        self._database.write(services.heartbeats, list(dict.fromkeys(beats)), time.time())
        return [None] * len(beats)

    def _verdicts(self, reports: Sequence[Report], outcomes: Mapping[str, Outcome]) -> list[Verdict]:
        verdicts = [_verdict(report, outcomes[report.instance_uuid]) for report in reports]
        for report, verdict in zip(reports, verdicts, strict=True):
            level = logging.INFO if verdict.accepted else logging.WARNING
            LOG.log(
                level,
                "instance %s: %s on %s, attempt %d%s",
                report.instance_uuid,
                report.kind,
                report.host,
                report.attempt,
                f" refused: {verdict.reason}" if not verdict.accepted else f": {report.failure.message}" if report.failure else "",
            )
        return verdicts


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


def _verdict(report: Report, outcome: Outcome) -> Verdict:
    if isinstance(outcome, Change):
        return Verdict(instance_uuid=report.instance_uuid, accepted=True)
    return Verdict(instance_uuid=report.instance_uuid, accepted=outcome.done, reason=outcome.reason)


def _rescheduled(outcome: Outcome) -> bool:
    return isinstance(outcome, Change) and outcome.row.state is State.SCHEDULED
