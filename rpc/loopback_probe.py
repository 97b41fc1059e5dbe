"""A server asks itself through the broker: whether what is sent to it still arrives and is handled, all the way."""

from __future__ import annotations

import threading
import time
import uuid
from typing import Protocol

from objects.context import RequestContext
from rpc.arguments import Id
from rpc.client import Client
from service.health import UnderWay

ARRIVAL_VALID_S = 10.0
"""Seconds for which an arrived message counts. Within them no other message is sent."""
ARRIVAL_TIMEOUT_S = 15.0
"""Seconds that a message may take from a server to itself on a busy machine."""

CONTEXT = RequestContext(request_id="req-ping")


class PulseEndpoint(Protocol):
    """What a server offers to itself."""

    def ping(self, context: RequestContext, token: Id) -> None:
        """See ``Pulse.ping``."""
        ...


class Pulse:
    """Sends messages to the server that it is an endpoint of, and sees them arrive. A message is sent only when somebody asks.

    The message takes a queue that only this server reads, by the listener and the threads that serve all its queues. Where several
    servers share a name it is a fan-out, which the others ignore.
    """

    def __init__(self, client: Client, *, fanout: bool, threads: int) -> None:
        """``client``: of this very server; ``threads``: how many handle its messages."""
        self.under_way = UnderWay()
        self._client = client
        self._fanout = fanout
        self._threads = threads
        self._asking = threading.Lock()
        self._token = ""
        self._arrived = threading.Event()
        self._arrived_at = float("-inf")

    def ping(self, context: RequestContext, token: str) -> None:
        """What arrives. Another server's says nothing about this one."""
        del context
        if token == self._token:
            self._arrived.set()

    def find_trouble(self) -> str:
        """Why messages are not handled; empty if they are, or if as many as can be are under way. Raises Unreachable."""
        stuck = self.under_way.describe_trouble("message")
        if stuck:
            return stuck
        with self._asking:
            if time.monotonic() < self._arrived_at + ARRIVAL_VALID_S or self._comes_back():
                return ""
        if self.under_way.count_begun >= self._threads:
            return ""  # it waits for a thread, behind work that is not stuck
        return f"a message that it sent to itself through the broker has not come back within {ARRIVAL_TIMEOUT_S:g} s"

    def _comes_back(self) -> bool:
        self._arrived.clear()
        self._token = uuid.uuid4().hex
        send = self._client.fanout if self._fanout else self._client.cast
        send(CONTEXT, "ping", token=self._token)
        if not self._arrived.wait(ARRIVAL_TIMEOUT_S):
            return False
        self._arrived_at = time.monotonic()
        return True
