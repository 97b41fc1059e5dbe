"""The caller and the request."""

from __future__ import annotations

from objects.base import Object


def request_of(batch_id: str | None) -> str | None:
    """The ID of the request for a batch: the API derives batch IDs from request IDs."""
    return f"req-{batch_id}" if batch_id else None


class RequestContext(Object, frozen=True, kw_only=True):
    """The identity that travels with a request. It carries no database and no transport.

    ``machine``: the ID of the machine whose agent sends the message (``objects.machine``); empty for every other sender.
    """

    request_id: str
    project_id: str = ""
    user_id: str = ""
    is_admin: bool = False
    machine: str = ""
