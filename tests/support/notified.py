"""Who listens for notifications, on a bus of any kind."""

from __future__ import annotations

import heapq
import threading
from collections.abc import Iterable
from typing import Any

from rpc.transport import open_transport  # before the library: rpc says which backend it takes

# isort: split
import oslo_messaging as om
from oslo_messaging.transport import NotificationTransport


def merge_topics(heard: Iterable[dict[str, Any]]) -> list[str]:
    """The event types of one subject's messages of one outbox, as a consumer orders them: each topic as it came, both by time.

    Failures have a queue of their own, so a failure may come before what had been sent earlier.
    """
    messages = list(heard)
    infos = [message for message in messages if not message["event_type"].endswith(".error")]
    failures = [message for message in messages if message["event_type"].endswith(".error")]
    return [message["event_type"] for message in heapq.merge(infos, failures, key=lambda message: message["timestamp"])]


class Listener:
    """Keeps every message heard on both topics of one name, in the order in which they came."""

    def __init__(self, url: str, topic: str = "notifications") -> None:
        self._lock = threading.Lock()
        self._heard: list[dict[str, Any]] = []
        self._transport = open_transport(url, NotificationTransport)
        self._server = om.get_notification_listener(self._transport, [om.Target(topic=topic)], [self])
        self._server.start(override_pool_size=1)  # with several threads, what comes first may be kept second

    def info(self, context: dict[str, Any], publisher: str, event: str, payload: Any, metadata: dict[str, Any]) -> None:
        message = {"event_type": event, "publisher_id": publisher, "payload": payload, "context": context}
        with self._lock:
            self._heard.append(message | metadata)

    error = info

    def heard(self, subject: str = "") -> list[dict[str, Any]]:
        """All messages, or those that name ``subject`` anywhere."""
        with self._lock:
            return [message for message in self._heard if subject in str(message)]

    def types(self, subject: str = "") -> list[str]:
        return [message["event_type"] for message in self.heard(subject)]

    def close(self) -> None:
        self._server.stop()
        self._server.wait()
        self._transport.cleanup()
