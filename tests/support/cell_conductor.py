"""A cell without a database: a real endpoint on a real bus whose rows are in memory and move as ``objects.lifecycle`` allows.

It does for an agent what the project's cell conductor does, and can be told to misbehave: to lose answers, to hold them back.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Sequence

import msgspec

from compute.main import VERSION
from objects import errors, lifecycle
from objects.build import BuildOrder, BuildOrders, DeleteOrder, Holding, Report, ReportKind, Verdict
from objects.compute_node import ComputeNode
from objects.context import RequestContext
from objects.feed import EventKind
from objects.flavor import Flavor
from objects.instance import Failure, FailureClass, Instance, State
from objects.process import About
from objects.selection import HostCapacity, Selection
from objects.spec import RequestSpec, ServerProperties
from objects.unknown_guest import UnknownGuest
from rpc.cell_conductor import serve_topic
from rpc.compute import ComputeClient, HostOrders
from rpc.transport import Bus
from service.periodic import wait_until

CONTEXT = RequestContext(request_id="req-test")
PATIENCE = 90.0
"""Seconds that a test waits for what must come."""

AWAY = errors.DatabaseUnavailable("The database of the cell is away.")
FLAVOR = Flavor(flavor_id="1", name="tiny", vcpus=1, memory_mb=512, root_gb=1)


class DatabaselessConductor:
    """A cell conductor that admits every agent, and whose database is away: it answers nothing else."""

    def __init__(self, bus: Bus) -> None:
        self._server = serve_topic(bus, "conductor-1", self)

    def stop(self) -> None:
        self._server.stop()

    def report(self, context: RequestContext, reports: Sequence[Report]) -> list[Verdict]:
        raise AWAY

    def build_instances(self, context: RequestContext, reports: Sequence[Report]) -> list[Verdict]:
        raise AWAY

    def holdings(self, context: RequestContext, host: str) -> list[Holding]:
        raise AWAY

    def update_resource_stats(self, context: RequestContext, node: ComputeNode) -> None:
        raise AWAY

    def report_state(self, context: RequestContext, host: str, binary: str, version: int, stopping: bool = False) -> None:
        pass

    def report_states(
        self, context: RequestContext, hosts: Sequence[str], binary: str, version: int, stopping: bool = False
    ) -> None:
        pass

    def introduce(self, context: RequestContext, host: str, binary: str, about: About, uptime: float) -> None:
        pass

    def unknown_guests(self, context: RequestContext, host: str, guests: Sequence[UnknownGuest]) -> None:
        raise AWAY


class MemoryCell:
    """Rows, the endpoint over them, and what a test does in the cell's name."""

    def __init__(self, bus: Bus) -> None:
        self.rows: dict[str, Instance] = {}
        self.specs: dict[str, RequestSpec] = {}
        self.messages: Counter[str] = Counter()
        self.reports: list[Report] = []
        self.stats: list[ComputeNode] = []
        self.heartbeats: Counter[str] = Counter()
        self.stopping: dict[str, bool] = {}
        self.introduced: dict[str, About] = {}
        self.refusal = ""
        """Why agents cannot be worked with."""
        self.unknown: dict[str, list[UnknownGuest]] = {}
        self.lose_answers = 0
        """So many answers to reports are lost after their reports have taken effect."""
        self.hold: Callable[[Report], None] | None = None
        """Called for each report after it has taken effect, before the answer: may wait."""
        self._compute = ComputeClient(bus)
        self._bus = bus
        self._lock = threading.RLock()
        self._server = serve_topic(bus, "conductor-1", self)

    def stop(self) -> None:
        self._server.stop()

    def start_again(self) -> None:
        self._server = serve_topic(self._bus, "conductor-2", self)

    # -- the endpoint ---------------------------------------------------------------------------------------------------

    def report(self, context: RequestContext, reports: Sequence[Report]) -> list[Verdict]:
        assert not [report for report in reports if report.kind is ReportKind.FAILED], "failures belong to build_instances"
        return self._answer("report", reports)

    def build_instances(self, context: RequestContext, reports: Sequence[Report]) -> list[Verdict]:
        assert not [report for report in reports if report.kind is not ReportKind.FAILED], "build_instances is for failures"
        return self._answer("build_instances", reports)

    def holdings(self, context: RequestContext, host: str) -> list[Holding]:
        with self._lock:
            self.messages["holdings"] += 1
            held = (State.SCHEDULED, State.BUILDING, State.ACTIVE, State.DELETING)
            return [
                Holding(instance_uuid=row.uuid, state=row.state, fence=row.fence, attempt=row.attempt, builder=row.builder)
                for row in self.rows.values()
                if row.host == host and row.state in held
            ]

    def update_resource_stats(self, context: RequestContext, node: ComputeNode) -> None:
        self.messages["update_resource_stats"] += 1
        self.stats.append(node)

    def report_state(self, context: RequestContext, host: str, binary: str, version: int, stopping: bool = False) -> None:
        assert (binary, version) == ("superconductor-compute", VERSION)
        self.heartbeats[host] += 1
        self.stopping[host] = stopping

    def report_states(
        self, context: RequestContext, hosts: Sequence[str], binary: str, version: int, stopping: bool = False
    ) -> None:
        self.messages["report_states"] += 1
        for host in hosts:
            self.report_state(context, host, binary, version, stopping)

    def introduce(self, context: RequestContext, host: str, binary: str, about: About, uptime: float) -> None:
        assert (binary, uptime >= 0.0) == ("superconductor-compute", True)
        if self.refusal:
            raise errors.Misconfigured(self.refusal)
        self.introduced[host] = about

    def unknown_guests(self, context: RequestContext, host: str, guests: Sequence[UnknownGuest]) -> None:
        self.messages["unknown_guests"] += 1
        self.unknown[host] = list(guests)

    # -- what a test does in the cell's name ----------------------------------------------------------------------------

    def stage(
        self,
        host: str,
        *alternates: str,
        count: int = 1,
        outcome: str = "",
        flavor: Flavor = FLAVOR,
        limits: HostCapacity | None = None,
    ) -> list[str]:
        """Rows as ``hand_over`` leaves them: STAGED under fence 1."""
        metadata = {"simulated:outcome": outcome} if outcome else {}
        spec = RequestSpec(
            batch_id=str(uuid.uuid4()),
            request_id="req-1",
            project_id="p",
            user_id="u",
            name="server",
            flavor=flavor,
            num_instances=count,
            properties=ServerProperties(metadata=metadata),
        )
        rest = tuple(Selection(host=name, node=name, cell_uuid="cell", limits=limits) for name in alternates)
        uuids = [str(uuid.uuid4()) for _ in range(count)]
        with self._lock:
            for one in uuids:
                row = Instance(uuid=one, state=State.STAGED, fence=1, host=host, node=host, alternates=rest, limits=limits)
                self.rows[one], self.specs[one] = row, spec
        return uuids

    def order(self, *uuids: str, **changes: object) -> None:
        """Cast the orders in force: one message per batch and host. ``changes`` make them stale or wrong."""
        groups: dict[tuple[str, str], list[BuildOrder]] = {}
        for one in uuids:
            row = self.rows[one]
            fields: dict[str, object] = {"host": row.host, "node": row.node, "fence": row.fence, "attempt": row.attempt}
            order = BuildOrder(instance_uuid=one, name="server", limits=row.limits, **{**fields, **changes})  # type: ignore[arg-type]  # a test's shorthand
            groups.setdefault((self.specs[one].batch_id, row.host or ""), []).append(order)
        for (_, host), orders in groups.items():
            spec = self.specs[orders[0].instance_uuid]
            self._compute.send_orders([HostOrders(CONTEXT, host, BuildOrders(spec=spec, orders=tuple(orders)))])

    def boot(self, host: str, *alternates: str, count: int = 1, outcome: str = "", flavor: Flavor = FLAVOR) -> list[str]:
        uuids = self.stage(host, *alternates, count=count, outcome=outcome, flavor=flavor)
        self.order(*uuids)
        return uuids

    def boot_active(self, host: str) -> str:
        """One server that runs there."""
        (one,) = self.boot(host)
        self.wait(State.ACTIVE, one)
        return one

    def delete(self, one: str) -> None:
        """As the API level does: the row first, then the order where a guest may be."""
        with self._lock:
            row = self._move(one, lifecycle.delete(self.rows[one], time.time()))
        if row.state is State.DELETING and row.host:
            self._compute.send_orders([HostOrders(CONTEXT, row.host, [DeleteOrder(instance_uuid=one, attempt=row.attempt)])])

    def mark_deleting(self, one: str) -> None:
        """A delete whose order is lost."""
        with self._lock:
            self._move(one, lifecycle.delete(self.rows[one], time.time()))

    def sweep(self) -> bool:
        """Send again what is not acknowledged: orders and deletes. Returns False, to be said within a wait."""
        with self._lock:
            rows = list(self.rows.values())
        for row in rows:
            if row.state is State.SCHEDULED:
                self.order(row.uuid)
            if row.state is State.DELETING and row.host:
                self._compute.send_orders(
                    [HostOrders(CONTEXT, row.host, [DeleteOrder(instance_uuid=row.uuid, attempt=row.attempt)])]
                )
        return False

    def accept_for(self, one: str, builder: str) -> bool:
        """What an agent start that died later had got: BUILDING under its name."""
        row = self.rows[one]
        with self._lock:
            return (
                self._move(one, lifecycle.accept_order(row, row.host or "", row.fence, row.attempt, builder)).state
                is State.BUILDING
            )

    def lose_active(self, one: str) -> None:
        """As if ``active`` had never been heard."""
        with self._lock:
            self.rows[one] = msgspec.structs.replace(self.rows[one], state=State.BUILDING)

    def call_dead(self, one: str) -> None:
        """The dead-host sweep, wrongly or not; the order to the next host is left to ``sweep``."""
        failure = Failure(kind=FailureClass.HOST, error="HostDown", message="", at=0.0)
        with self._lock:
            self._move(one, lifecycle.host_dead(self.rows[one], self.rows[one].attempt, failure))

    def time_out(self, one: str) -> None:
        """The deadline sweep; the order to the host to end the build is lost."""
        failure = Failure(kind=FailureClass.DEADLINE, error="BuildTimeout", message="timed out in building", at=0.0)
        with self._lock:
            self._move(one, lifecycle.end_overdue(self.rows[one], self.rows[one].attempt, failure))

    # -- what a test waits for ------------------------------------------------------------------------------------------

    def state(self, one: str) -> State:
        return self.rows[one].state

    def wait(self, state: State, *uuids: str) -> None:
        assert wait_until(lambda: all(self.state(one) is state for one in uuids), PATIENCE), [self.rows[one] for one in uuids]

    def wait_report(self, kind: ReportKind, one: str, times: int = 1) -> None:
        assert wait_until(lambda: self.count(kind, one) >= times, PATIENCE), (kind, self.reports)

    def count(self, kind: ReportKind, one: str) -> int:
        return sum(report.kind is kind and report.instance_uuid == one for report in list(self.reports))

    # -- inside ---------------------------------------------------------------------------------------------------------

    def _answer(self, method: str, reports: Sequence[Report]) -> list[Verdict]:
        with self._lock:
            self.messages[method] += 1
            verdicts = [self._judge(report) for report in reports]
            lost = self.lose_answers > 0
            self.lose_answers -= lost
        for report in reports:
            if self.hold is not None:
                self.hold(report)
        if lost:
            raise errors.CellUnavailable("The test lost this answer.")
        return verdicts

    def _judge(self, report: Report) -> Verdict:
        self.reports.append(report)
        row = self.rows.get(report.instance_uuid)
        if row is None:
            return Verdict(instance_uuid=report.instance_uuid, accepted=False, reason="unknown", known=False)
        who = (report.host, report.fence, report.attempt, report.builder)
        outcome: lifecycle.Outcome
        match report.kind:
            case ReportKind.ACCEPT:
                outcome = lifecycle.accept_order(row, *who)
            case ReportKind.ACTIVE:
                outcome = lifecycle.confirm_active(row, *who, time.time(), confirmed=report.confirmed)
            case ReportKind.GONE:
                outcome = lifecycle.confirm_gone(row, report.host, report.attempt, time.time())
            case ReportKind.FAILED:
                assert report.failure is not None
                outcome = lifecycle.fail_attempt(row, *who, report.failure)
            case _:
                raise AssertionError("this cell orders no tasks")
        if isinstance(outcome, lifecycle.Refused):
            return Verdict(
                instance_uuid=row.uuid, accepted=outcome.done, reason=outcome.reason, known=not outcome.keep, keep=outcome.keep
            )
        self._move(row.uuid, outcome)
        if outcome.event is EventKind.MOVED:
            self.order(row.uuid)
        return Verdict(instance_uuid=row.uuid, accepted=True)

    def _move(self, one: str, outcome: lifecycle.Outcome) -> Instance:
        if isinstance(outcome, lifecycle.Change):
            began = outcome.row.state is State.BUILDING
            self.rows[one] = msgspec.structs.replace(outcome.row, building_at=time.time()) if began else outcome.row
        return self.rows[one]
