"""Notify the conductors of new work, so that requests never wait for the bus."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, Protocol

from objects.context import RequestContext
from service.batching import RoundBatcher

LOG = logging.getLogger(__name__)

QUEUED_RINGS_LIMIT = 1000
"""Maximum number of rings queued while the bus is slow. Further ones are dropped: the conductors' sweeps find the rows."""
RING_INTERVAL_S = 0.02
"""Minimum seconds between two rings."""
RINGS_PER_MESSAGE = 50
"""Maximum number of rings in one message."""


class WakeupTarget(Protocol):
    """The interface of ``rpc.super_conductor.SuperConductorClient`` that sends the messages."""

    def schedule_and_build_instances(self, context: RequestContext, batch_id: str) -> None: ...

    def schedule_and_build_batches(self, context: RequestContext, batch_ids: Sequence[str]) -> None: ...

    def delete_instances(self, context: RequestContext, uuids: Sequence[str]) -> None: ...

    def operate(self, context: RequestContext, uuids: Sequence[str]) -> None: ...


class WakeupCall(NamedTuple):
    """A notification of a waiting batch, or of bodies to be deleted, or of an operation."""

    context: RequestContext
    batch_id: str = ""
    deleted: Sequence[str] = ()
    operation: str = ""


class WakeupSender:
    """Sends notifications from a separate thread, which starts with the first one (so after a server has forked).

    The work is already committed. If a request sent the notification itself, a hanging broker would delay every request. Concurrent
    batches share a message: the first is sent at once, those of the next ``RING_INTERVAL_S`` seconds together.
    """

    def __init__(self, bell: WakeupTarget) -> None:
        self._bell = bell
        self._rings: RoundBatcher[WakeupCall] = RoundBatcher(
            "doorbell", self._send_rings, pace=RING_INTERVAL_S, limit=RINGS_PER_MESSAGE, most=QUEUED_RINGS_LIMIT
        )

    def ring_for_batch(self, context: RequestContext, batch_id: str) -> None:
        """This batch waits in the queue."""
        self._rings.add_items([WakeupCall(context, batch_id=batch_id)])

    def ring_for_deleted(self, context: RequestContext, uuids: Sequence[str]) -> None:
        """These bodies must be deleted, and their cells do not know yet."""
        self._rings.add_items([WakeupCall(context, deleted=uuids)])

    def ring_for_operation(self, context: RequestContext, uuid: str) -> None:
        """This operation was accepted, or its user decided about it."""
        self._rings.add_items([WakeupCall(context, operation=uuid)])

    def _send_rings(self, rings: Sequence[WakeupCall]) -> None:
        messages: list[Callable[[], None]] = []
        batches = [ring for ring in rings if ring.batch_id]
        if len(batches) == 1:
            messages.append(partial(self._bell.schedule_and_build_instances, batches[0].context, batches[0].batch_id))
        elif batches:
            batch_ids = [ring.batch_id for ring in batches]
            messages.append(partial(self._bell.schedule_and_build_batches, batches[0].context, batch_ids))
        messages += [partial(self._bell.delete_instances, ring.context, list(ring.deleted)) for ring in rings if ring.deleted]
        if operations := [ring for ring in rings if ring.operation]:
            messages.append(partial(self._bell.operate, operations[0].context, [ring.operation for ring in operations]))
        for send in messages:
            try:
                send()
            except Exception:
                LOG.exception("the super conductors were not notified of a new batch: their sweeps find it")
