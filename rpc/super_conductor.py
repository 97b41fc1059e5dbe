"""Doorbells of the super conductor: they say that there is work in the API database, and lose nothing if they are lost.

``QUESTIONS`` are about the guest of a server: its console output, a way to its console, its diagnostics.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Annotated, Protocol

import msgspec

from objects import errors
from objects.console import ConsoleKind, ConsolePlace
from objects.context import RequestContext
from objects.diagnostics import Diagnostics
from rpc.arguments import Id, Ids
from rpc.compute import QUESTIONS, Digest, Lifetime, Lines
from rpc.server import TopicServer
from rpc.transport import Bus
from service.rate_limited_log import RateLimitedLog

LOG = logging.getLogger(__name__)

TOPIC = "super-conductor"

CONDUCTOR_SHARE = 0.8
"""Share of a caller's time that the conductor has, so that what it says arrives in time."""

Seconds = Annotated[float, msgspec.Meta(gt=0.0, le=3600.0)]


class SuperConductorEndpoint(Protocol):
    """What a super conductor serves. All without an answer are hints: they may come never, twice, or late."""

    def schedule_and_build_instances(self, context: RequestContext, batch_id: Id) -> None:
        """The batch was accepted and waits in the build queue."""
        ...

    def schedule_and_build_batches(self, context: RequestContext, batch_ids: Ids) -> None:
        """These batches were accepted in one moment, and wait in the build queue."""
        ...

    def delete_instances(self, context: RequestContext, uuids: Ids) -> None:
        """These bodies of servers were marked deleted at the API level."""
        ...

    def operate(self, context: RequestContext, uuids: Ids) -> None:
        """These operations were accepted, or are to go on."""
        ...

    def console_output(self, context: RequestContext, uuid: Id, lines: Lines | None, timeout: Seconds) -> str:
        """See ``SuperConductorClient.console_output``. ``timeout``: when the answer is of no use any more."""
        ...

    def open_console(
        self, context: RequestContext, uuid: Id, kind: ConsoleKind, path_digest: Digest, lifetime: Lifetime, timeout: Seconds
    ) -> ConsolePlace:
        """See ``SuperConductorClient.open_console``. ``timeout``: as for ``console_output``."""
        ...

    def diagnostics(self, context: RequestContext, uuid: Id, timeout: Seconds) -> Diagnostics:
        """See ``SuperConductorClient.diagnostics``. ``timeout``: as for ``console_output``."""
        ...


class SuperConductorClient:
    """Rings. No ring raises: whoever rings has committed already, and a sweep finds what was not heard."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._client = bus.make_client(TOPIC)
        self._complaints = RateLimitedLog(LOG)

    def schedule_and_build_instances(self, context: RequestContext, batch_id: str) -> None:
        """A batch was accepted."""
        self._cast_hint(context, "schedule_and_build_instances", batch_id=batch_id)

    def schedule_and_build_batches(self, context: RequestContext, batch_ids: Sequence[str]) -> None:
        """Several were accepted in one moment."""
        self._cast_hint(context, "schedule_and_build_batches", batch_ids=list(batch_ids))

    def delete_instances(self, context: RequestContext, uuids: Sequence[str]) -> None:
        """Servers were deleted at the API level; their cells do not know it yet."""
        self._cast_hint(context, "delete_instances", uuids=list(uuids))

    def operate(self, context: RequestContext, uuids: Sequence[str]) -> None:
        """Operations wait for their next steps."""
        self._cast_hint(context, "operate", uuids=list(uuids))

    def console_output(self, context: RequestContext, uuid: str, lines: int | None, timeout: float) -> str:
        """The end of a server's console output: so many lines, or all that is kept if None.

        The answer is waited for up to ``timeout`` seconds. Raises what ``Client.call`` does, errors.NotFound, errors.Conflict if it
        cannot be read, errors.NotOffered if no console is kept.
        """
        client = self._bus.make_client(TOPIC, timeout=timeout)
        return client.call(context, "console_output", str, uuid=uuid, lines=lines, timeout=timeout * CONDUCTOR_SHARE)

    def open_console(
        self, context: RequestContext, uuid: str, kind: ConsoleKind, path_digest: str, lifetime: float, timeout: float
    ) -> ConsolePlace:
        """Open a way to the console of a server for whoever shows the access path with this digest, for ``lifetime`` seconds.

        The answer is waited for up to ``timeout`` seconds. Raises what ``console_output`` does, errors.NotOffered if the server has
        no such console.
        """
        client = self._bus.make_client(TOPIC, timeout=timeout)
        arguments = {"uuid": uuid, "kind": kind, "path_digest": path_digest, "lifetime": lifetime}
        return client.call(context, "open_console", ConsolePlace, **arguments, timeout=timeout * CONDUCTOR_SHARE)

    def diagnostics(self, context: RequestContext, uuid: str, timeout: float) -> Diagnostics:
        """What the hypervisor knows of a server's guest.

        The answer is waited for up to ``timeout`` seconds. Raises what ``console_output`` does, errors.NotOffered if the host's
        driver tells no diagnostics.
        """
        client = self._bus.make_client(TOPIC, timeout=timeout)
        return client.call(context, "diagnostics", Diagnostics, uuid=uuid, timeout=timeout * CONDUCTOR_SHARE)

    def _cast_hint(self, context: RequestContext, method: str, **arguments: object) -> None:
        try:
            self._client.cast(context, method, **arguments)
        except errors.SuperconductorError as error:
            text = "%s (%s) was not sent; a sweep will find its work: %s"
            self._complaints(str(error), logging.WARNING, text, method, context.request_id, error)
        except Exception:
            LOG.exception("%s (%s) could not be sent; a sweep will find its work", method, context.request_id)


def serve_topic(bus: Bus, server: str, endpoint: SuperConductorEndpoint, *, threads: int = 16) -> TopicServer:
    """Serve the super conductor's topic with ``endpoint``."""
    return bus.serve_topic(
        TOPIC, server, [endpoint], threads=threads, interface=SuperConductorEndpoint, shared_name=True, apart=QUESTIONS
    )
