"""Answers whose queue is not there, kept for when it comes back: as after a broker's restart, or when somebody deleted it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from service.rate_limited_log import RateLimitedLog
from service.retry import pause_after
from service.threads import start_daemon

LOG = logging.getLogger(__name__)

QUEUES_LIMIT = 100
"""Number of reply queues that are tried again. A caller that died leaves one for as long as its answers are kept."""

KEPT_BYTES_LIMIT = 16 * 1024 * 1024
"""Maximum size in bytes of all kept answers."""

PAUSE_S, LONGEST_PAUSE_S = 0.25, 4.0
"""Seconds until a queue is tried again: the first pause, which doubles up to the longest."""


class _Answer(NamedTuple):
    body: bytes
    until: float


class _Missing:
    """What is kept for one queue."""

    def __init__(self, now: float) -> None:
        self.answers: list[_Answer] = []
        self.tries = 1
        self.due = now + PAUSE_S


class LateAnswers:
    """Has ``send`` try again, in a thread of its own, so that a message with a wrong reply queue holds up no other.

    ``send`` gets the queue and the answer, and returns whether the queue was there. Bounded: beyond the limits the oldest queue's
    answers are dropped, and whoever waits for one asks again.
    """

    def __init__(self, send: Callable[[str, bytes], bool], patience: float) -> None:
        """``patience``: seconds for which an answer is kept."""
        self._send = send
        self._patience = patience
        self._complaints = RateLimitedLog(LOG)
        self._changed = threading.Condition()
        self._missing: dict[str, _Missing] = {}
        self._size = 0
        self._stopped = False
        self._thread: threading.Thread | None = None

    def add_answer(self, reply_q: str, body: bytes) -> None:
        now = time.monotonic()
        with self._changed:
            if self._stopped:
                return
            missing = self._missing.setdefault(reply_q, _Missing(now))
            missing.answers.append(_Answer(body, now + self._patience))
            self._size += len(body)
            while len(self._missing) > QUEUES_LIMIT or self._size > KEPT_BYTES_LIMIT:
                self._forget_queue(next(iter(self._missing)))
            if self._thread is None:
                self._thread = start_daemon("rabbit-late-answers", self._run)
            self._changed.notify()

    def stop(self) -> None:
        with self._changed:
            self._stopped = True
            self._missing.clear()
            self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._stopped and not (due := self._due_queues(time.monotonic())):
                    soonest = min((missing.due for missing in self._missing.values()), default=None)
                    self._changed.wait(None if soonest is None else max(0.0, soonest - time.monotonic()))
                if self._stopped:
                    return
            for reply_q in due:
                self._try_answers(reply_q)

    def _due_queues(self, now: float) -> list[str]:
        return [reply_q for reply_q, missing in self._missing.items() if missing.due <= now]

    def _try_answers(self, reply_q: str) -> None:
        """Send what is kept for the queue, as long as it is there."""
        while (answer := self._next_answer(reply_q)) is not None:
            try:
                there = self._send(reply_q, answer.body)
            except Exception as error:  # noqa: BLE001 - the broker may be away: retried like a missing queue
                self._complaints(str(error), logging.WARNING, "A late answer could not be sent: %s", error)
                there = False
            with self._changed:
                missing = self._missing.get(reply_q)
                if missing is None:
                    return
                if not there:
                    missing.tries += 1
                    missing.due = time.monotonic() + pause_after(missing.tries, PAUSE_S, LONGEST_PAUSE_S)
                    return
                missing.answers.remove(answer)
                self._size -= len(answer.body)

    def _next_answer(self, reply_q: str) -> _Answer | None:
        """The oldest answer that somebody may wait for."""
        now = time.monotonic()
        with self._changed:
            missing = self._missing.get(reply_q)
            if missing is None:
                return None
            if late := sum(answer.until < now for answer in missing.answers):
                text = "The reply queue %s does not exist: its caller gets no answer"
                self._complaints("gone", logging.WARNING, text, reply_q)
                self._size -= sum(len(answer.body) for answer in missing.answers[:late])
                del missing.answers[:late]
            if not missing.answers:
                del self._missing[reply_q]
                return None
            return missing.answers[0]

    def _forget_queue(self, reply_q: str) -> None:
        self._size -= sum(len(answer.body) for answer in self._missing.pop(reply_q).answers)
