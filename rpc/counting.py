"""Count what is sent on a bus, for benchmarks and tests. A ``Bus`` tells its observer, if it has one, of every message."""

from __future__ import annotations

import enum
import threading
from collections import Counter
from collections.abc import Callable


class MessageKind(enum.StrEnum):
    CALL = "call"  # two messages: the question and its answer
    CAST = "cast"
    FANOUT = "fanout"  # one message, as many copies as there are servers


Observer = Callable[[str, str, MessageKind], None]
"""Called with topic, method and kind before a message is sent, in the sender's thread."""


class MessageCounter:
    """An observer that counts. One may watch several buses."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[tuple[str, str, MessageKind]] = Counter()

    def __call__(self, topic: str, method: str, kind: MessageKind) -> None:
        with self._lock:
            self._counts[topic, method, kind] += 1

    def counts_by_method(self) -> dict[tuple[str, str, MessageKind], int]:
        """How many were sent so far, by (topic, method, kind); a call counts once."""
        with self._lock:
            return dict(self._counts)

    def count_messages(self) -> int:
        """How many messages that makes on the bus; a call counts twice, for its answer."""
        return sum(number * (2 if kind is MessageKind.CALL else 1) for (_, _, kind), number in self.counts_by_method().items())

    def reset_counts(self) -> None:
        with self._lock:
            self._counts.clear()
