"""Build and delete orders on their way to hosts. A lost order costs seconds: the cell's sweeps send it again."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import ParamSpec, Protocol, TypeVar

from db.instances import Order
from objects import errors
from objects.build import BuildOrder, BuildOrders, DeleteOrder
from objects.context import RequestContext
from objects.instance import Instance
from rpc.compute import ComputeClient
from service import metrics
from service.complaints import Complaints
from service.steps import step

LOG = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")


FAILURES = 3
"""Sends that may fail one after the other before the rest is left to the sweep: each may take as long as a send may."""


class Sender(Protocol):
    """Where orders can be sent: a cell, with its deadlines and breaker, or a cell conductor's own bus.

    ``complaints`` remembers what was said of it already.
    """

    compute: ComputeClient | None
    complaints: Complaints

    @property
    def name(self) -> str: ...

    def send(self, fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T: ...


@metrics.stage("order")
def send_orders(to: Sender, context: RequestContext, orders: Iterable[Order]) -> None:
    """One cast per host and batch. What cannot be sent is left to the sweep; the log tells once in a while."""
    groups: dict[tuple[str, str], list[Order]] = defaultdict(list)
    for order in orders:
        groups[order.instance.host or "", order.spec.batch_id].append(order)
    casts: list[tuple[str, Callable[[], None]]] = []
    for (host, _), members in groups.items():
        message = BuildOrders(spec=members[0].spec, orders=tuple(_build_order(order) for order in members))
        casts.append((host, partial(_client(to).build_instances, context, host, message)))
        for order in members:
            row = order.instance
            step(LOG, "ordered", row.uuid, order.spec.request_id, cell=to.name, host=host, attempt=row.attempt)
    _cast_all(to, casts)


def send_deletes(to: Sender, context: RequestContext, rows: Iterable[Instance]) -> None:
    """One cast per host."""
    by_host: dict[str, list[DeleteOrder]] = defaultdict(list)
    for row in rows:
        by_host[row.host or ""].append(DeleteOrder(instance_uuid=row.uuid, attempt=row.attempt, fence=row.fence))
    _cast_all(to, [(host, partial(_client(to).delete_instances, context, host, some)) for host, some in by_host.items()])


def _client(to: Sender) -> ComputeClient:
    if to.compute is None:
        raise RuntimeError(f"{to.name} has no bus, and so no hosts to send orders to")
    return to.compute


def _cast_all(to: Sender, casts: Sequence[tuple[str, Callable[[], None]]]) -> None:
    """Where one after the other fails it is the bus that is down: whoever sends has more to do than to wait for it so often."""
    failed = 0
    for host, send in casts:
        try:
            to.send(send)
        except errors.SuperconductorError as error:
            text = "%s: order for host %s not sent, the sweep will: %s"
            to.complaints(f"{to.name}: {error}", logging.WARNING, text, to.name, host, error)
            failed += 1
            if failed == FAILURES:
                return
        else:
            failed = 0


def _build_order(order: Order) -> BuildOrder:
    row = order.instance
    return BuildOrder(
        instance_uuid=row.uuid,
        name=order.name,
        host=row.host or "",
        node=row.node or "",
        fence=row.fence,
        attempt=row.attempt,
        limits=row.limits,
    )
