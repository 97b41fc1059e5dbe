"""Orders on their way to hosts: how they are grouped, what they say, and what becomes of those that cannot be sent."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import ParamSpec, TypeVar

import pytest

from conductor.orders import send_deletes, send_orders, send_tasks
from db.cell.instances import Order
from db.cell.tasks import DueTask
from objects import errors
from objects.build import BuildOrders, DeleteOrder
from objects.context import RequestContext
from objects.flavor import Flavor
from objects.instance import Instance, State
from objects.selection import HostCapacity
from objects.spec import RequestSpec
from objects.task import Power, TaskKind, TaskOrder
from rpc.compute import ComputeClient, HostOrders
from service.rate_limited_log import RateLimitedLog

CONTEXT = RequestContext(request_id="req-1", project_id="p", user_id="u")
LIMITS = HostCapacity(vcpus=64.0, memory_mb=1024.0, disk_gb=10.0)

P = ParamSpec("P")
T = TypeVar("T")


class Recorder(ComputeClient):
    """A client whose casts end in lists. While ``away`` there is no bus; orders for hosts in ``too_large`` no broker would take."""

    def __init__(self) -> None:  # no bus: nothing leaves this process
        self.builds: list[tuple[str, BuildOrders]] = []
        self.deletes: list[tuple[str, Sequence[DeleteOrder]]] = []
        self.tasks: list[tuple[str, list[TaskOrder]]] = []
        self.contexts: list[RequestContext] = []
        self.away = False
        self.too_large: set[str] = set()

    def send_orders(self, orders: Sequence[HostOrders]) -> None:
        if self.away:
            raise errors.CellUnavailable("no way there")
        for context, host, _ in orders:
            if host in self.too_large:
                raise errors.Invalid(f"what {host} is to do is too large")
            self.contexts.append(context)
        for _, host, some in orders:
            if isinstance(some, BuildOrders):
                self.builds.append((host, some))
            else:
                self.deletes.append((host, [order for order in some if isinstance(order, DeleteOrder)]))
                self.tasks.append((host, [order for order in some if isinstance(order, TaskOrder)]))


class Road:
    """A sender as cells and cell conductors are."""

    def __init__(self, compute: ComputeClient | None) -> None:
        self.compute = compute
        self.name = "cell1"
        self.sent = 0
        self.complaints = RateLimitedLog(logging.getLogger(__name__))

    def send(self, fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        self.sent += 1
        return fn(*args, **kwargs)


@pytest.fixture
def compute() -> Recorder:
    return Recorder()


def spec(batch: str) -> RequestSpec:
    flavor = Flavor(flavor_id="1", name="tiny", vcpus=1, memory_mb=512)
    return RequestSpec(batch_id=batch, request_id="req-1", project_id="p", user_id="u", name="web", flavor=flavor)


def row(uuid: str, host: str | None, attempt: int = 1) -> Instance:
    return Instance(
        uuid=uuid, state=State.SCHEDULED, fence=3, attempt=attempt, host=host, node=host and f"{host}-node", limits=LIMITS
    )


def order(uuid: str, host: str, batch: str = "b1") -> Order:
    return Order(instance=row(uuid, host), name=f"web-{uuid}", spec=spec(batch))


def test_one_cast_per_host_and_batch(compute: Recorder) -> None:
    orders = [order("u1", "h1"), order("u2", "h2"), order("u3", "h1"), order("u4", "h1", "b2")]
    send_orders(Road(compute), orders)
    casts = [(host, cast.spec.batch_id, [o.instance_uuid for o in cast.orders]) for host, cast in compute.builds]
    assert casts == [("h1", "b1", ["u1", "u3"]), ("h2", "b1", ["u2"]), ("h1", "b2", ["u4"])]
    assert set(compute.contexts) == {CONTEXT}


def test_an_order_says_all_that_fences_it(compute: Recorder) -> None:
    send_orders(Road(compute), [Order(instance=row("u1", "h1", attempt=2), name="web", spec=spec("b1"))])
    [(_, cast)] = compute.builds
    [sent] = cast.orders
    assert (sent.instance_uuid, sent.name, sent.host, sent.node) == ("u1", "web", "h1", "h1-node")
    assert (sent.fence, sent.attempt, sent.limits) == (3, 2, LIMITS)
    assert cast.spec == spec("b1")


def test_all_casts_of_a_batch_go_out_together(compute: Recorder) -> None:
    road = Road(compute)
    send_orders(road, [order(f"u{number}", f"h{number}") for number in range(150)])
    send_deletes(road, CONTEXT, [row("u1", "h1"), row("u2", "h2")])
    assert (len(compute.builds), len(compute.deletes), road.sent) == (150, 2, 3)


def test_an_unsendable_order_does_not_block_other_hosts(compute: Recorder, caplog: pytest.LogCaptureFixture) -> None:
    compute.too_large = {"h1"}
    road = Road(compute)
    send_orders(road, [order("u1", "h1"), order("u2", "h2")])
    assert [host for host, _ in compute.builds] == ["h2"]
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    assert "cell1: order for host h1 was not sent: what h1 is to do is too large" in caplog.text


def test_unsendable_orders_await_the_sweep(compute: Recorder, caplog: pytest.LogCaptureFixture) -> None:
    """Each send may take seconds, and the cell's sweep has more to do than to wait for a dead bus again and again."""
    compute.away = True
    road = Road(compute)
    send_orders(road, [order(f"u{number}", f"h{number}") for number in range(150)])
    assert road.sent == 1
    send_orders(road, [order("u1", "h1")])
    assert [record.levelno for record in caplog.records] == [logging.WARNING], "said once in a while"
    assert "cell1: orders for 150 hosts were not sent; the sweep will send them: no way there" in caplog.text


def test_deletes_are_grouped_by_host_naming_the_attempt(compute: Recorder) -> None:
    send_deletes(Road(compute), CONTEXT, [row("u1", "h1"), row("u2", "h2", attempt=3), row("u3", "h1")])
    sent = {host: [(d.instance_uuid, d.attempt) for d in deletes] for host, deletes in compute.deletes}
    assert sent == {"h1": [("u1", 1), ("u3", 1)], "h2": [("u2", 3)]}


def test_current_tasks_are_grouped_by_host(compute: Recorder) -> None:
    def due(uuid: str, host: str, number: int | None) -> DueTask:
        if number is None:
            return DueTask(instance_uuid=uuid, host=host, order=None)
        order = TaskOrder(instance_uuid=uuid, fence=3, attempt=1, number=number, kind=TaskKind.POWER, power=Power.OFF)
        return DueTask(instance_uuid=uuid, host=host, order=order)

    send_tasks(Road(compute), CONTEXT, [due("u1", "h1", 1), due("u2", "h2", 2), due("u3", "h1", 3), due("u4", "h3", None)])
    sent = {host: [(task.instance_uuid, task.number) for task in tasks] for host, tasks in compute.tasks}
    assert sent == {"h1": [("u1", 1), ("u3", 3)], "h2": [("u2", 2)]}


def test_nothing_to_send_is_nothing_sent(compute: Recorder) -> None:
    road = Road(compute)
    send_orders(road, [])
    send_deletes(road, CONTEXT, [])
    assert road.sent == 0


def test_a_cell_without_a_bus_is_a_fault() -> None:
    """cell0 has no hosts, so nobody may have an order for one."""
    with pytest.raises(RuntimeError, match="cell1 has no bus"):
        send_orders(Road(None), [order("u1", "h1")])
