"""Doorbells of the super conductor: they say that there is work in the API database, and lose nothing if they are lost."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Protocol

from objects import errors
from objects.context import RequestContext
from rpc.arguments import Id, Ids
from rpc.server import TopicServer
from rpc.transport import Bus
from service.rate_limited_log import RateLimitedLog

LOG = logging.getLogger(__name__)

TOPIC = "super-conductor"


class SuperConductorEndpoint(Protocol):
    """What a super conductor serves. All are hints: they may come never, twice, or late."""

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


class SuperConductorClient:
    """Rings. No method raises: whoever rings has committed already, and a sweep finds what was not heard."""

    def __init__(self, bus: Bus) -> None:
        self._client = bus.client(TOPIC)
        self._complaints = RateLimitedLog(LOG)

    def schedule_and_build_instances(self, context: RequestContext, batch_id: str) -> None:
        """A batch was accepted."""
        self._ring(context, "schedule_and_build_instances", batch_id=batch_id)

    def schedule_and_build_batches(self, context: RequestContext, batch_ids: Sequence[str]) -> None:
        """Several were accepted in one moment."""
        self._ring(context, "schedule_and_build_batches", batch_ids=list(batch_ids))

    def delete_instances(self, context: RequestContext, uuids: Sequence[str]) -> None:
        """Servers were deleted at the API level; their cells do not know it yet."""
        self._ring(context, "delete_instances", uuids=list(uuids))

    def operate(self, context: RequestContext, uuids: Sequence[str]) -> None:
        """Operations wait for their next steps."""
        self._ring(context, "operate", uuids=list(uuids))

    def _ring(self, context: RequestContext, method: str, **arguments: object) -> None:
        try:
            self._client.cast(context, method, **arguments)
        except errors.SuperconductorError as error:
            text = "%s (%s) was not sent; a sweep will find its work: %s"
            self._complaints(str(error), logging.WARNING, text, method, context.request_id, error)
        except Exception:
            LOG.exception("%s (%s) could not be sent; a sweep will find its work", method, context.request_id)


def serve(bus: Bus, server: str, endpoint: SuperConductorEndpoint, *, threads: int = 16) -> TopicServer:
    """Serve the super conductor's topic with ``endpoint``."""
    return bus.serve(TOPIC, server, [endpoint], threads=threads, interface=SuperConductorEndpoint, shared_name=True)
