"""Send build and delete orders to hosts. The cell's sweeps send a lost order again within seconds."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import ParamSpec, Protocol, TypeVar

from conductor.placement import context_of
from db.cell.instances import Order
from db.cell.tasks import DueTask
from objects import errors
from objects.build import BuildOrder, BuildOrders, DeleteOrder, Origin
from objects.context import RequestContext
from objects.move import MoveKind
from objects.task import Power, TaskOrder
from objects.text import FAULT_SIZE, NAME_LENGTH, clean_text
from rpc.compute import ComputeClient, HostOrders
from service import metrics
from service.bisect import isolate_failures
from service.logs import log_step
from service.rate_limited_log import RateLimitedLog

LOG = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")


CONTEXT = RequestContext(request_id="req-machines", is_admin=True)
CASTS_AT_ONCE = 100
"""Casts sent in one group: the broker confirms them while the next are sent, so none is waited for alone."""


class OrderSender(Protocol):
    """Sends orders: a cell with its timeouts and circuit breaker, or a cell conductor's own bus.

    ``complaints``: rate-limited log of this sender's errors.
    """

    compute: ComputeClient | None
    complaints: RateLimitedLog

    @property
    def name(self) -> str: ...

    def send(self, fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T: ...


class Recipient(Protocol):
    """The fields of a delete order: an instance, and the host of its guest."""

    @property
    def uuid(self) -> str: ...

    @property
    def host(self) -> str | None: ...

    @property
    def fence(self) -> int: ...

    @property
    def attempt(self) -> int: ...


@metrics.STAGE["order"].time()
def send_orders(to: OrderSender, orders: Iterable[Order], *, apart: bool = False) -> dict[str, Exception]:
    """Send one cast per host and batch, in the requester's context. The sweep sends orders that could not be sent now.

    ``apart``: one cast per order, so that an order that its host cannot read does not affect others. Returns the errors of orders
    that the bus will never accept, by instance UUID.
    """
    groups: dict[tuple[str, str, str], list[Order]] = defaultdict(list)
    for order in orders:
        groups[order.instance.host or "", order.spec.batch_id, order.instance.uuid if apart else ""].append(order)
    casts = []
    for (host, *_), members in groups.items():
        spec = members[0].spec
        message = BuildOrders(spec=spec, orders=tuple(_build_order(order) for order in members))
        casts.append(HostOrders(context_of(spec), host, message))
        for order in members:
            row = order.instance
            log_step(LOG, "ordered", row.uuid, spec.request_id, cell=to.name, host=host, attempt=row.attempt)
    return _cast_all(to, casts)


def send_deletes(
    to: OrderSender, context: RequestContext, rows: Iterable[Recipient], *, builds_only: bool = False
) -> dict[str, Exception]:
    """Send one cast per host. ``builds_only``: end builds only; if the guest already runs, its agent asks the cell about it.

    Returns the errors of orders that the bus will never accept, by instance UUID.
    """
    by_host: dict[str, list[DeleteOrder]] = defaultdict(list)
    for row in rows:
        order = DeleteOrder(instance_uuid=row.uuid, attempt=row.attempt, fence=row.fence, builds_only=builds_only)
        by_host[row.host or ""].append(order)
    return _cast_all(to, [HostOrders(context, host, orders) for host, orders in by_host.items()])


def send_tasks(to: OrderSender, context: RequestContext, tasks: Iterable[DueTask]) -> dict[str, Exception]:
    """Send one cast per host. Returns the errors of orders that the bus will never accept, by instance UUID."""
    by_host: dict[str, list[TaskOrder]] = defaultdict(list)
    for task in tasks:
        if task.order is not None:
            by_host[task.host].append(task.order)
            about = (task.instance_uuid, task.order.request_id)
            log_step(LOG, f"{task.order.kind} ordered", *about, cell=to.name, host=task.host, state=task.order.power)
    return _cast_all(to, [HostOrders(context, host, orders) for host, orders in by_host.items()])


def ask_to_introduce(to: OrderSender, hosts: Iterable[str]) -> None:
    """Ask the agents that listen as these hosts to introduce themselves again: another machine may have the name of theirs."""
    if to.compute is None or not (asked := sorted(hosts)):
        return
    try:
        to.send(to.compute.introduce_again, CONTEXT, asked)
    except errors.Transient as error:
        text = "%s: %d agents were not asked to introduce themselves; they are with a later heartbeat: %s"
        to.complaints(f"{to.name}: {error}", logging.WARNING, text, to.name, len(asked), error)


def _cast_all(to: OrderSender, casts: Sequence[HostOrders]) -> dict[str, Exception]:
    """Send the casts in groups. If the bus is down, stop at once: the sweep sends the rest.

    If the broker refuses an order, because it is too large for example, the others are sent nonetheless.
    """
    if to.compute is None:
        raise RuntimeError(f"{to.name} has no bus to send orders to")
    compute = to.compute
    refused: dict[str, Exception] = {}
    for first in range(0, len(casts), CASTS_AT_ONCE):
        group = casts[first : first + CASTS_AT_ONCE]
        try:
            done = isolate_failures(lambda host_orders: to.send(compute.send_orders, host_orders), group)
        except errors.Transient as error:
            text = "%s: orders for %d hosts were not sent; the sweep will send them: %s"
            to.complaints(f"{to.name}: {error}", logging.WARNING, text, to.name, len(casts) - first, error)
            break
        for cast, refusal in done.failed:
            text = clean_text(str(refusal), FAULT_SIZE)
            host = clean_text(cast.host, NAME_LENGTH)
            to.complaints(text, logging.ERROR, "%s: order for host %s was not sent: %s", to.name, host, text)
            orders = cast.orders.orders if isinstance(cast.orders, BuildOrders) else cast.orders
            refused |= {order.instance_uuid: refusal for order in orders}
    return refused


def _build_order(order: Order) -> BuildOrder:
    row, move = order.instance, order.spec.move
    # the disk of an evacuated server cannot be reached: its twin gets a new one from the image
    # and that of a server that is migrated live comes with it
    copied = move is not None and move.kind is not MoveKind.EVACUATE and row.power is not Power.INCOMING
    return BuildOrder(
        instance_uuid=row.uuid,
        name=order.name,
        host=row.host or "",
        node=row.node or "",
        fence=row.fence,
        attempt=row.attempt,
        limits=row.limits,
        server_uuid=row.server_uuid,
        power=row.power,
        ports=row.ports,
        origin=Origin(instance_uuid=move.instance_uuid, host=move.source_host, image_id=move.image_id, image_hash=move.image_hash)
        if move is not None and copied
        else None,
    )
