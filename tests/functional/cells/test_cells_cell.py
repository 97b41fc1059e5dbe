"""A Cell: its bulkheads, orders over its bus, and many cells asked at once."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from cells.bulkhead import BulkheadSettings
from cells.cell import Cell
from cells.fan_out import Answered, Unanswered, fan_out
from cells.registry import CellRegistry
from db.cell import services
from db.sql.connection import Connection
from db.sql.engine import CellDatabase
from objects import errors
from objects.build import BuildOrders, DeleteOrder
from objects.cell import CellMapping
from objects.console import ConsoleKind, ConsoleListener
from objects.context import RequestContext
from objects.diagnostics import Diagnostics
from objects.task import TaskOrder
from rpc.compute import HostOrders, serve_topic
from rpc.errors import Unreachable
from rpc.transport import Bus
from tests.support.cell_databases import Cells, cells_on
from tests.support.ground import USUAL

CONTEXT = RequestContext(request_id="req-1")


class Agent:
    """Takes orders and keeps them."""

    def __init__(self) -> None:
        self.deletes: list[DeleteOrder] = []
        self.came = threading.Event()

    def build_instances(self, context: RequestContext, orders: BuildOrders) -> None:
        raise AssertionError("no build was ordered")

    def delete_instances(self, context: RequestContext, orders: Sequence[DeleteOrder]) -> None:
        self.deletes += orders
        self.came.set()

    def do_tasks(self, context: RequestContext, orders: Sequence[TaskOrder]) -> None:
        raise AssertionError("no task was ordered")

    def introduce_again(self, context: RequestContext) -> None:
        raise AssertionError("no introduction was asked for")

    def console_output(self, context: RequestContext, uuid: str, lines: int | None) -> str:
        raise AssertionError("no console was asked for")

    def open_console(
        self, context: RequestContext, uuid: str, kind: ConsoleKind, path_digest: str, lifetime: float
    ) -> ConsoleListener:
        raise AssertionError("no console was asked for")

    def diagnostics(self, context: RequestContext, uuid: str) -> Diagnostics:
        raise AssertionError("no diagnostics were asked for")


@pytest.fixture(params=USUAL)
def cells(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Cells]:
    with cells_on(request.param, tmp_path) as made:
        yield made


def test_a_silent_agent_delays_no_order(tmp_path: Path) -> None:
    """Even if every thread for questions waits for it."""
    patience = BulkheadSettings(threads=1, timeout=30.0)
    mapping = CellMapping(uuid="c1", name="east", database_url=f"sqlite:///{tmp_path}/c.db", transport_url="rabbit://127.0.0.1:1/")
    cell = Cell(mapping, CellDatabase(mapping.database_url, name="east"), Bus(mapping.transport_url), patience)
    asked, let_go = threading.Event(), threading.Event()

    def answer() -> bool:
        asked.set()
        return let_go.wait(30.0)

    asking = threading.Thread(target=cell.ask_agent, args=(answer, 30.0))
    asking.start()
    try:
        assert asked.wait(30.0)
        assert cell.send(lambda: not let_go.is_set())
    finally:
        let_go.set()
        asking.join()
        cell.close()


def test_orders_reach_only_agents_of_the_cell(cells: Cells, registry: CellRegistry) -> None:
    east, west = (registry.get(cells.add(name).uuid) for name in ("east", "west"))
    agents = {}
    for cell in (east, west):
        assert cell._bus is not None
        agents[cell.name] = Agent()
        serve_topic(cell._bus, "same-name", agents[cell.name])
    assert west.compute is not None
    west.send(west.compute.send_orders, [HostOrders(CONTEXT, "same-name", [DeleteOrder(instance_uuid="i-1", attempt=1)])])
    assert agents["west"].came.wait(10)
    assert [order.instance_uuid for order in agents["west"].deletes] == ["i-1"]
    assert agents["east"].deletes == []


def test_a_sick_bus_does_not_close_the_database(cells: Cells, registry: CellRegistry) -> None:
    cells.add("east")
    (cell,) = registry.list_cells()

    def fail() -> None:
        raise Unreachable("bus rabbit://sc:***@mq/east did not take the message")

    for _ in range(2):
        with pytest.raises(errors.CellUnavailable, match="cell 'east': bus rabbit"):
            cell.send(fail)
    with pytest.raises(errors.CellUnavailable, match="has not answered since"):
        cell.send(fail)
    assert cell.read(services.list_all) == []
    assert cell.silent_since is not None, "one of the two is silent"


def test_reads_writes_and_deadlines_reach_one_database(cells: Cells, registry: CellRegistry) -> None:
    cells.add("east")
    (cell,) = registry.list_cells()
    cell.write(services.record_heartbeats, [services.Beat(host="h1", binary="superconductor-compute")], now=5.0)
    cell.with_timeout(20.0).write(services.record_heartbeats, [services.Beat(host="h2", binary="superconductor-compute")], 6.0)
    assert [s.host for s in cell.with_timeout(20.0).read(services.list_all)] == ["h1", "h2"]
    assert cell.with_timeout(20.0).send(str.upper, "sent") == "SENT"


def test_fan_out_answers_for_every_cell_in_order(cells: Cells, registry: CellRegistry) -> None:
    cells.add("a")
    cells.add_unreachable("b", f"sqlite:///{cells.folder}/b.db")
    cells.add("c")
    cells.report("c", "h1")
    answers = fan_out(registry.list_cells(), services.list_all)
    assert [(type(answer), answer.cell.name) for answer in answers] == [(Answered, "a"), (Unanswered, "b"), (Answered, "c")]
    assert [len(answer.value) if isinstance(answer, Answered) else answer.reason[:8] for answer in answers] == [0, "cell 'b'", 1]


def test_fan_out_does_not_hide_query_faults(cells: Cells, registry: CellRegistry) -> None:
    cells.add("a")

    def wrong(tx: Connection) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fan_out(registry.list_cells(), wrong)
