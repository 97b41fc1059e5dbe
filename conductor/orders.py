"""Build and delete orders on their way to hosts. A lost order costs seconds: the cell's sweeps send it again."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import ParamSpec, Protocol, TypeVar

from conductor.placed import context_of
from db.instances import Order
from objects import errors
from objects.build import BuildOrder, BuildOrders, DeleteOrder
from objects.context import RequestContext
from objects.instance import Instance
from rpc.compute import ComputeClient, HostOrders
from service import metrics
from service.complaints import Complaints
from service.steps import step

LOG = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")


TOGETHER = 100
"""Casts that are sent in one go: the broker confirms them while the next are on their way, and nobody waits for each."""


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
def send_orders(to: Sender, orders: Iterable[Order]) -> None:
    """One cast per host and batch, in the name of who asked for it. What cannot be sent is left to the sweep."""
    groups: dict[tuple[str, str], list[Order]] = defaultdict(list)
    for order in orders:
        groups[order.instance.host or "", order.spec.batch_id].append(order)
    casts = []
    for (host, _), members in groups.items():
        spec = members[0].spec
        message = BuildOrders(spec=spec, orders=tuple(_build_order(order) for order in members))
        casts.append(HostOrders(context_of(spec), host, message))
        for order in members:
            row = order.instance
            step(LOG, "ordered", row.uuid, spec.request_id, cell=to.name, host=host, attempt=row.attempt)
    _cast_all(to, casts)


def send_deletes(to: Sender, context: RequestContext, rows: Iterable[Instance]) -> None:
    """One cast per host."""
    by_host: dict[str, list[DeleteOrder]] = defaultdict(list)
    for row in rows:
        by_host[row.host or ""].append(DeleteOrder(instance_uuid=row.uuid, attempt=row.attempt, fence=row.fence))
    _cast_all(to, [HostOrders(context, host, some) for host, some in by_host.items()])


def _cast_all(to: Sender, casts: Sequence[HostOrders]) -> None:
    """Where it fails, it is the bus that is down: the rest is left to the sweep, without waiting for it again and again."""
    groups = (casts[first : first + TOGETHER] for first in range(0, len(casts), TOGETHER))
    all(_cast(to, group) for group in groups)


def _cast(to: Sender, casts: Sequence[HostOrders]) -> bool:
    """Send these; one that is too large for a broker is no reason not to send the others. Whether the bus takes messages."""
    if to.compute is None:
        raise RuntimeError(f"{to.name} has no bus, and so no hosts to send orders to")
    try:
        to.send(to.compute.order, casts)
    except errors.Invalid as refusal:
        if len(casts) > 1:
            return all(_cast(to, [each]) for each in casts)
        to.complaints(str(refusal), logging.ERROR, "%s: order for host %s not sent: %s", to.name, casts[0].host, refusal)
    except errors.SuperconductorError as error:
        text = "%s: orders for %d hosts not sent, the sweep will: %s"
        to.complaints(f"{to.name}: {error}", logging.WARNING, text, to.name, len(casts), error)
        return False
    return True


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
