"""Send notifications by the drivers of oslo.messaging, and know whether they were taken."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import oslo_messaging as om
from oslo_messaging.notify.messaging import MessagingDriver
from oslo_messaging.transport import NotificationTransport

from objects import errors
from rpc import rabbit
from rpc.blocking import Blocking
from rpc.transport import open_transport, private_conf
from service.notifications import NotificationSettings

NOTIFICATION_TIMEOUT_S = 10.0
"""Seconds that a broker may take for one notification."""


class Notifier:
    """Sends to every driver configured. Nothing is connected before the first notification. Raises Misconfigured.

    oslo.messaging's own sends through its messaging drivers too, but logs where they fail, with the payload, and goes on: what
    could not be sent would be lost. Here that is raised.
    """

    def __init__(self, settings: NotificationSettings, bus_url: str) -> None:
        """``bus_url``: where notifications go if they have no bus of their own."""
        url = settings.transport_url or bus_url
        self._transport = open_transport(url, NotificationTransport)
        self._link = None
        if not url.startswith("embedded://"):
            self._link = rabbit.Link(om.TransportURL.parse(private_conf(), url), "of notifications", Blocking())
        self._drivers = [driver for name in settings.drivers for driver in _load_drivers(self._transport, name, settings.topics)]

    def send(self, context: Mapping[str, Any], message: Mapping[str, Any]) -> None:
        """Raises Unreachable where a driver of messages could not hand it to the broker."""
        for driver in self._drivers:
            if isinstance(driver, MessagingDriver):
                self._publish_message(driver, dict(context), dict(message))
            else:
                driver.notify(dict(context), dict(message), message["priority"], rabbit.SEND_RETRIES)

    def _publish_message(self, driver: Any, context: dict[str, Any], message: dict[str, Any]) -> None:
        for topic in driver.topics:
            target = om.Target(topic=f"{topic}.{message['priority'].lower()}")

            def publish_once(target: om.Target = target) -> None:
                self._transport._send_notification(target, context, message, version=driver.version, retry=rabbit.SEND_RETRIES)

            if self._link is None:
                publish_once()
            else:
                self._link.run(publish_once, NOTIFICATION_TIMEOUT_S)

    def close(self) -> None:
        if self._link is not None:
            self._link.close()
        self._transport.cleanup()


def _load_drivers(transport: Any, name: str, topics: Sequence[str]) -> list[Any]:
    """The driver of this name, as oslo.messaging's own notifier loads it. Raises Misconfigured where there is none."""
    library_notifier = om.Notifier(transport, publisher_id="", driver=name, topics=list(topics), retry=rabbit.SEND_RETRIES)
    drivers = [extension.obj for extension in library_notifier._driver_mgr.extensions]
    if not drivers:
        raise errors.Misconfigured(
            f"[oslo_messaging_notifications] driver: no driver is called {name!r}; give messagingv2, routing, log or noop."
        )
    return drivers
