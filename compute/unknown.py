"""Report to the cell the guests that its records do not account for, so that operators can list and adopt them."""

from __future__ import annotations

import time

from compute.driver import ComputeDriver, Guest
from compute.guests import Guests
from objects import errors
from objects.context import RequestContext
from objects.text import clean_text
from objects.unknown_guest import REASON_SIZE, REPORTED_LIMIT, UnknownGuest
from rpc.cell_conductor import CellConductorClient


class UnknownGuestsSender:
    """Sends all such guests when they change, and every ``full_interval`` seconds, as the cell's database may have been
    restored.

    Without any it sends nothing, which is the usual case: when an agent starts, the cell forgets its earlier list.
    """

    def __init__(
        self, client: CellConductorClient, context: RequestContext, guests: Guests, driver: ComputeDriver, full_interval: float
    ) -> None:
        self._client = client
        self._context = context
        self._guests = guests
        self._driver = driver
        self._full_interval = full_interval
        self._sent: tuple[UnknownGuest, ...] = ()
        self._full_at = 0.0

    def send(self) -> None:
        """Send the list if due. Raises the errors of the call and of the driver; the next call then sends the same again."""
        unaccounted = self._guests.list_unaccounted()[:REPORTED_LIMIT]
        now_here = {guest.uuid: guest for guest in self._driver.guests()} if unaccounted else {}
        unknown_guests = tuple(_unknown_guest(now_here.get(guest.uuid, guest), reason) for guest, reason in unaccounted)
        now = time.monotonic()
        if unknown_guests == self._sent and (not unknown_guests or now < self._full_at):
            return
        try:
            self._client.unknown_guests(self._context, self._guests.host, unknown_guests)
        except errors.Unsupported:
            """A conductor of an older release keeps no such list: the agent's log has it."""
        self._sent, self._full_at = unknown_guests, now + self._full_interval


def _unknown_guest(guest: Guest, reason: str) -> UnknownGuest:
    return UnknownGuest(
        uuid=guest.uuid,
        name=clean_text(guest.name, REASON_SIZE),
        node=guest.node,
        fence=guest.fence,
        attempt=guest.attempt,
        builder=guest.builder,
        vcpus=guest.vcpus,
        memory_mb=guest.memory_mb,
        disk_gb=guest.disk_gb,
        reason=clean_text(reason, REASON_SIZE),
        batch_id=guest.batch_id,
        image_id=guest.image_id,
        resources=guest.resources,
        power=guest.power,
        server_uuid="" if guest.server_uuid == guest.uuid else guest.server_uuid,
        project_id=guest.project_id,
        user_id=guest.user_id,
        ports=guest.ports,
        last_task=guest.last_task,
    )
