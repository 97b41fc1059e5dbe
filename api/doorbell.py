"""Tell the conductors that there is work, without a request ever waiting for the bus."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Sequence
from typing import Protocol

from objects.context import RequestContext

LOG = logging.getLogger(__name__)

WAITING = 1000
"""Rings kept while the bus is slow. Beyond that they are dropped: whoever could not keep up has sweeps that find the rows."""


class Bell(Protocol):
    """What rings: ``rpc.super_conductor.SuperConductorClient``."""

    def schedule_and_build_instances(self, context: RequestContext, batch_id: str) -> None: ...

    def delete_instances(self, context: RequestContext, uuids: Sequence[str]) -> None: ...


class Doorbell:
    """Rings from a thread of its own, started with the first ring (so after a server has forked).

    What is rung for is committed already. A broker that hangs would otherwise hold up every request for as long as a send may take.
    """

    def __init__(self, bell: Bell) -> None:
        self._bell = bell
        self._rings: queue.Queue[Callable[[], None]] = queue.Queue(WAITING)
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None

    def accepted(self, context: RequestContext, batch_id: str) -> None:
        """This batch waits in the queue."""
        self._ring(lambda: self._bell.schedule_and_build_instances(context, batch_id))

    def deleted(self, context: RequestContext, uuid: str) -> None:
        """This server is to go, and its cell does not know yet."""
        self._ring(lambda: self._bell.delete_instances(context, [uuid]))

    def _ring(self, ring: Callable[[], None]) -> None:
        try:
            self._rings.put_nowait(ring)
        except queue.Full:
            LOG.debug("the bus is slow: left to the sweeps")
        if self._thread is None:
            with self._starting:
                if self._thread is None:
                    self._thread = threading.Thread(target=self._run, name="doorbell", daemon=True)
                    self._thread.start()

    def _run(self) -> None:
        while True:
            ring = self._rings.get()
            try:
                ring()
            except Exception:
                LOG.exception("a doorbell could not be rung: left to the sweeps")
