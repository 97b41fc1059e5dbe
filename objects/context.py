"""Who asks, and under which request."""

from __future__ import annotations

from objects.base import Object


class RequestContext(Object, frozen=True, kw_only=True):
    """The identity that travels with a request. It carries no database and no transport."""

    request_id: str
    project_id: str = ""
    user_id: str = ""
    is_admin: bool = False
