"""Tell the conductors that there is work, without a request ever waiting for the bus."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, Protocol

from objects.context import RequestContext
from service.batching import RoundBatcher

LOG = logging.getLogger(__name__)

WAITING = 1000
"""Rings kept while the bus is slow. Beyond that they are dropped: whoever could not keep up has sweeps that find the rows."""
PACE = 0.02
"""Seconds from one ring to the next, at least."""
TOGETHER = 50
"""Rings that may be one."""


class Bell(Protocol):
    """What rings: ``rpc.super_conductor.SuperConductorClient``."""

    def schedule_and_build_instances(self, context: RequestContext, batch_id: str) -> None: ...

    def schedule_and_build_batches(self, context: RequestContext, batch_ids: Sequence[str]) -> None: ...

    def delete_instances(self, context: RequestContext, uuids: Sequence[str]) -> None: ...


class Ring(NamedTuple):
    """One of the two is given: a batch that waits, or a server that is to go."""

    context: RequestContext
    batch_id: str = ""
    deleted: str = ""


class Doorbell:
    """Rings from a thread of its own, started with the first ring (so after a server has forked).

    What is rung for is committed already. A broker that hangs would otherwise hold up every request for as long as a send may take.
    The batches of one moment share a ring: the first rings at once, and those that come within ``PACE`` after it are rung together.
    """

    def __init__(self, bell: Bell) -> None:
        self._bell = bell
        self._rings: RoundBatcher[Ring] = RoundBatcher("doorbell", self._ring, pace=PACE, limit=TOGETHER, most=WAITING)

    def accepted(self, context: RequestContext, batch_id: str) -> None:
        """This batch waits in the queue."""
        self._rings.add([Ring(context, batch_id=batch_id)])

    def deleted(self, context: RequestContext, uuid: str) -> None:
        """This server is to go, and its cell does not know yet."""
        self._rings.add([Ring(context, deleted=uuid)])

    def _ring(self, rings: Sequence[Ring]) -> None:
        batches = [ring for ring in rings if ring.batch_id]
        if len(batches) == 1:
            self._safely(lambda: self._bell.schedule_and_build_instances(batches[0].context, batches[0].batch_id))
        elif batches:
            ids = [ring.batch_id for ring in batches]
            self._safely(lambda: self._bell.schedule_and_build_batches(batches[0].context, ids))
        for ring in rings:
            if ring.deleted:
                self._safely(partial(self._bell.delete_instances, ring.context, [ring.deleted]))

    def _safely(self, ring: Callable[[], None]) -> None:
        try:
            ring()
        except Exception:
            LOG.exception("a doorbell could not be rung: left to the sweeps")
