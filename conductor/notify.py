"""Send the notifications in the outboxes. Conductors do it, in threads of their own, so that it delays nothing else."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable, Sequence
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from cells.registry import CellRegistry
from db import outbox
from db.sql.connection import Connection
from db.sql.engine import Database
from objects import errors, payload
from objects.payload import Subject
from rpc.notifier import Notifier
from service.notifications import NotificationSettings
from service.periodic import Every, Periodic
from service.rate_limited_log import RateLimitedLog

LOG = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

NOTICE_PAGE_SIZE = 200
NOTICE_LEASE_S = 60.0
"""Seconds for which one sender leases a page. It stops sending after half of that, as a broker may be slow."""
SEND_INTERVAL_S = 1.0
PUBLISHER = socket.gethostname()
"""Publisher host of notifications that no agent causes."""


class Place(Protocol):
    """A database, or a cell with its timeouts."""

    def current_time(self) -> float: ...

    def read(self, fn: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T: ...

    def write(self, fn: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T: ...


class NotificationSender:
    """Sends from one outbox. Several may run for it: each leases a page at a time, and the next one sends what it leaves."""

    def __init__(self, place: Callable[[], Place], kind: outbox.Kind, notifier: Notifier, keep: float) -> None:
        """``place``: called for every page. ``keep``: seconds after which unsent notifications are dropped."""
        self._place = place
        self._kind = kind
        self._notifier = notifier
        self._keep = keep
        self._drop_now = Every(min(60.0, keep))
        self._complaints = RateLimitedLog(LOG)

    def send(self) -> bool:
        """Send a page; returns whether there may be more to send at once."""
        place = self._place()
        if self._drop_now():
            self._drop_old(place)
        if place.read(outbox.is_empty, self._kind):
            return False
        now = place.current_time()
        page = place.write(outbox.take_notices, self._kind, now, now + NOTICE_LEASE_S, NOTICE_PAGE_SIZE)
        if not page:
            return False
        subjects = place.read(outbox.subjects_of, self._kind, [waiting.notice for waiting in page])
        sent = self._send_page(page, subjects)
        place.write(outbox.finish_notices, self._kind, sent, [waiting.id for waiting in page[len(sent) :]])
        return len(sent) == NOTICE_PAGE_SIZE

    def _send_page(self, page: Sequence[outbox.NumberedNotice], subjects: dict[str, Subject]) -> list[int]:
        """Send in order until the bus fails or half the lease is over. Returns the IDs of those sent or dropped."""
        sent: list[int] = []
        end = time.monotonic() + NOTICE_LEASE_S / 2
        for waiting in page:
            notice = waiting.notice
            subject = subjects.get(notice.subject, Subject())
            try:
                self._notifier.send(payload.make_context(subject), payload.make_message(notice, subject, PUBLISHER))
            except errors.SuperconductorError as error:
                self._complaints(str(error), logging.WARNING, "notifications wait to be sent: %s", error)
                break
            except Exception as error:  # noqa: BLE001 - it can never be sent and must not block later ones; it is logged
                text = "a notification of %s cannot be sent and is dropped: %s: %s"
                self._complaints("odd", logging.ERROR, text, notice.event_type, type(error).__name__, error)
            sent.append(waiting.id)
            if time.monotonic() > end:
                break
        return sent

    def _drop_old(self, place: Place) -> None:
        dropped = place.write(outbox.drop_notices, self._kind, place.current_time() - self._keep)
        if dropped:
            LOG.warning("%d notifications were dropped: they could not be sent for %.0f s", dropped, self._keep)


class NotificationService:
    """The senders of one process, each in its own thread; none if notifications are off.

    Raises Misconfigured if a driver or the bus cannot be used.
    """

    def __init__(
        self, settings: NotificationSettings, bus_url: str, places: Sequence[tuple[str, outbox.Kind, Callable[[], Place]]]
    ) -> None:
        """``places``: name, kind and maker of each outbox's database. ``bus_url``: the process's own bus."""
        self._notifier = Notifier(settings, bus_url) if settings.is_on else None
        self._threads: list[Periodic] = []
        if self._notifier is not None:
            senders = [(name, NotificationSender(place, kind, self._notifier, settings.keep)) for name, kind, place in places]
            self._threads = [Periodic(f"notifications-{name}", SEND_INTERVAL_S, sender.send) for name, sender in senders]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        for thread in self._threads:
            thread.stop()
        if self._notifier is not None:
            self._notifier.close()


def of_api_level(settings: NotificationSettings, bus_url: str, database: Database, registry: CellRegistry) -> NotificationService:
    """Notifications of the API level, and of servers in cell0, which has no conductor."""
    return NotificationService(settings, bus_url, [("api", "api", lambda: database), ("cell0", "cell", lambda: registry.cell0)])


def of_cell(settings: NotificationSettings, bus_url: str, database: Database) -> NotificationService:
    """Notifications of a cell."""
    return NotificationService(settings, bus_url, [(database.name, "cell", lambda: database)])
