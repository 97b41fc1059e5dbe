"""Messages that nobody can read are set aside: in a dead-letter queue of their virtual host, where an operator can look at them.

A queue's own ``x-dead-letter-exchange`` would be an argument of every queue, and a queue that exists keeps the arguments it was
made with. So the process that refuses a message puts it there and acknowledges it, which works on every queue of a running
deployment.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from objects.text import one_line
from rpc.drivers.frames import Delivery
from service import metrics
from service.rate_limited_log import RateLimitedLog
from service.threads import start_daemon

LOG = logging.getLogger(__name__)

QUEUE = "superconductor-dead-letters"
"""The dead-letter queue of a virtual host."""

DEAD_LETTERS_LIMIT = 1000
DEAD_LETTERS_BYTES = 64 * 1024 * 1024
DEAD_LETTERS_AGE_S = 7 * 24 * 3600
"""Number, bytes and age of the messages that the queue keeps. Beyond that it drops the oldest."""

ARGUMENTS = {
    "x-max-length": DEAD_LETTERS_LIMIT,
    "x-max-length-bytes": DEAD_LETTERS_BYTES,
    "x-message-ttl": DEAD_LETTERS_AGE_S * 1000,
}

BODY_BYTES_LIMIT = 65536
"""Number of bytes kept of a refused body."""

WAITING_LIMIT = 100
"""Number of refused messages that may wait to be put there. The others are only counted."""

PAUSE_S = 0.05
"""Seconds between two dead letters, so that a flood of junk does not become a flood of dead letters."""


class RefusedMessage(NamedTuple):
    """A refused message: the beginning of its body, and what is known of it."""

    body: bytes
    headers: dict[str, Any]


class RefusedMessages:
    """Complains of messages that were refused, counts them, and has ``publish`` put them aside, in a thread of its own.

    A message that is still to be put aside when the process ends is lost.
    """

    def __init__(self, publish: Callable[[RefusedMessage], None]) -> None:
        self._publish = publish
        self._complaints = RateLimitedLog(LOG)
        self._waiting: queue.Queue[RefusedMessage | None] = queue.Queue(WAITING_LIMIT)
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None

    def __call__(self, arrival: Delivery, queue_name: str, kind: str, why: str) -> None:
        """Never raises. ``kind``: one of few words, which tells what is the same."""
        topic = _topic_of_queue(queue_name)
        metrics.REFUSED.labels(topic, kind).inc()
        sender = one_line(str(arrival.properties.get("user_id") or "a user that it does not name"), 100)
        text = "A message of %d bytes in the queue %s cannot be read and is set aside in %s: %s (it was sent by %s)"
        self._complaints(f"{topic}: {kind}", logging.WARNING, text, arrival.size, queue_name, QUEUE, why, sender)
        headers = {"queue": queue_name, "reason": why, "size": arrival.size, "refused-at": int(time.time())}
        try:
            self._waiting.put_nowait(RefusedMessage(arrival.body[:BODY_BYTES_LIMIT], headers))
        except queue.Full:
            return
        with self._starting:
            if self._thread is None:
                self._thread = start_daemon("rabbit-refused", self._run)

    def stop(self) -> None:
        try:
            self._waiting.put_nowait(None)
        except queue.Full:
            LOG.debug("%d refused messages were not set aside", WAITING_LIMIT)

    def _run(self) -> None:
        while (refused := self._waiting.get()) is not None:
            try:
                self._publish(refused)
            except Exception as error:  # noqa: BLE001 - the broker may refuse it for any reason: the message is refused anyway
                text = "A refused message could not be put into the queue %s: %s"
                self._complaints(f"put aside: {type(error).__name__}", logging.WARNING, text, QUEUE, error)
            time.sleep(PAUSE_S)


def _topic_of_queue(queue_name: str) -> str:
    """What a queue is of: the names of servers and processes in it would make a metric of each."""
    if queue_name.startswith("reply_"):
        return "reply"
    return queue_name.partition(".")[0].partition("_fanout")[0]
