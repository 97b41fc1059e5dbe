"""One cell with its conductor, on a real database and a real bus, and hosts that only listen."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from conductor.cell_conductor import CellConductor
from conductor.sweep_cell import CellSweep
from db.cell import feed, instances, staging
from objects import lifecycle
from objects.build import BuildOrders, DeleteOrder, Report, ReportKind, Verdict
from objects.console import ConsoleKind, ConsoleListener
from objects.context import RequestContext
from objects.diagnostics import Diagnostics, GuestState
from objects.feed import EventKind
from objects.instance import Failure, FailureClass, Instance, State
from objects.selection import Selection
from objects.spec import RequestSpec
from objects.task import TaskOrder
from rpc.compute import serve_topic
from rpc.transport import Bus
from service.periodic import wait_until
from tests.support import fleet
from tests.support.ground import Ground
from tests.support.world import PATIENCE, Sender

CONTEXT = RequestContext(request_id="req-test")
SPEC = fleet.spec()
ALTERNATES = tuple(Selection(host=host, node=host, cell_uuid="c1") for host in ("h2", "h3"))
NO_DISK = Failure(kind=FailureClass.HOST, error="BuildFailed", message="no disk", at=5.0)


class Host:
    """An agent that only listens."""

    def __init__(self, bus: Bus, name: str) -> None:
        self.orders: list[tuple[str, int]] = []
        self.specs: list[RequestSpec] = []
        self.deletes: list[tuple[str, int]] = []
        self.tasks: list[tuple[str, int]] = []
        """Instance and number."""
        self.introductions = 0
        """How often it was asked to introduce itself."""
        self.server = serve_topic(bus, name, self)

    def build_instances(self, context: RequestContext, orders: BuildOrders) -> None:
        self.orders += [(order.instance_uuid, order.attempt) for order in orders.orders]
        self.specs.append(orders.spec)

    def delete_instances(self, context: RequestContext, orders: Sequence[DeleteOrder]) -> None:
        self.deletes += [(order.instance_uuid, order.attempt) for order in orders]

    def do_tasks(self, context: RequestContext, orders: Sequence[TaskOrder]) -> None:
        self.tasks += [(order.instance_uuid, order.number) for order in orders]

    def introduce_again(self, context: RequestContext) -> None:
        self.introductions += 1

    def console_output(self, context: RequestContext, uuid: str, lines: int | None) -> str:
        return f"{uuid} {lines}"

    def open_console(
        self, context: RequestContext, uuid: str, kind: ConsoleKind, path_digest: str, lifetime: float
    ) -> ConsoleListener:
        return ConsoleListener(address="127.0.0.1", port=6000)

    def diagnostics(self, context: RequestContext, uuid: str) -> Diagnostics:
        return Diagnostics(state=GuestState.RUNNING)


class Site:
    """One cell, on the ground given; on a SQLite file where a folder is given. ``bus``: another than the ground's."""

    def __init__(self, place: Path | Ground, bus: Bus | None = None) -> None:
        place = Ground("lite", place) if isinstance(place, Path) else place
        self.ground = place
        self.database = place.open("cell1")
        self.bus = bus = bus or Bus(place.bus("cell1"))
        self.sender = Sender("cell1", bus)
        self.conductor = CellConductor(self.database, self.sender)
        self.hosts = {name: Host(bus, name) for name in ("h1", "h2", "h3")}

    def close(self) -> None:
        self.bus.close()
        self.database.dispose_connections()

    def sweep(self, *, age: float = -1.0, down_time: float = 0.0, feed_age: float = 3600.0) -> CellSweep:
        return CellSweep(self.database, self.sender, self.conductor, resend_age=age, down_time=down_time, feed_age=feed_age)

    def stage(self, *uuids: str, host: str = "h1", deadline: float = 1e12, alternates: Sequence[Selection] = ALTERNATES) -> None:
        rows = [
            Instance(uuid=u, state=State.STAGED, fence=1, host=host, node=host, alternates=tuple(alternates), deadline=deadline)
            for u in uuids
        ]
        news = [staging.NewInstance(instance=row, name=row.uuid, launch_index=0, created_at=1.0) for row in rows]
        assert self.database.write(staging.stage_instances, SPEC, news, 1.0) == list(uuids)

    def activate(self, *uuids: str) -> None:
        self.database.write(instances.transition_rows, uuids, lambda row: lifecycle.activate_row(row, 1, cell0=False), 2.0)

    def state(self, uuid: str) -> tuple[str, str | None, int]:
        """State, host and attempt."""
        row = self.database.read(instances.get, uuid)
        assert row is not None
        return row.state.value, row.host, row.attempt

    def report(self, *reports: Report) -> list[Verdict]:
        return self.conductor.report(CONTEXT, list(reports))

    def build(self, *uuids: str, active: bool = True) -> None:
        """STAGED builds of h1 begin, and end well."""
        kinds = (ReportKind.ACCEPT, ReportKind.ACTIVE)[: 1 + active]
        for kind in kinds:
            assert all(verdict.accepted for verdict in self.report(*(said(kind, uuid) for uuid in uuids)))

    def ordered(self) -> dict[str, list[tuple[str, int]]]:
        return {name: host.orders for name, host in self.hosts.items() if host.orders}

    def wait_for_orders(self, expected: dict[str, list[tuple[str, int]]]) -> None:
        """Whatever the order in which they came: groups are sent beside each other."""

        def same() -> bool:
            return {host: sorted(orders) for host, orders in self.ordered().items()} == {h: sorted(o) for h, o in expected.items()}

        assert wait_until(same, PATIENCE), self.ordered()

    def events(self) -> list[tuple[str, EventKind]]:
        return [(event.key, event.kind) for event in self.database.read(feed.read, 0, 1000).events]


def said(kind: ReportKind, uuid: str, host: str = "h1", attempt: int = 1, failure: Failure | None = None) -> Report:
    return Report(kind=kind, instance_uuid=uuid, host=host, fence=1, attempt=attempt, builder=f"{host}:a", failure=failure)


def site_fixture(grounds: Sequence[str], *, embedded: bool = False, prepare: Callable[[Site], object] | None = None) -> object:
    """A fixture: a ``Site`` on each of these grounds. ``prepare`` runs before the test."""

    @pytest.fixture(params=grounds)
    def site(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Site]:
        place = Ground(request.param, tmp_path, embedded=embedded)
        made = Site(place)
        if prepare is not None:
            prepare(made)
        yield made
        place.end(made.close, place.release)

    return site
