"""What is known of one HTTP request before its handler runs."""

from __future__ import annotations

from typing import cast

import falcon

from api.microversions import Since, Version
from objects import errors
from objects.base import Object
from objects.context import RequestContext


class Call(Object, frozen=True, kw_only=True):
    """Who asks, in which microversion, and what links in the answer begin with.

    ``prefix`` is scheme, host and port; ``project_path`` is ``/{project_id}`` where the request's path has it: links keep it.
    """

    context: RequestContext
    version: Version
    prefix: str
    project_path: str = ""

    def has(self, feature: Since) -> bool:
        return feature.holds(self.version)

    @property
    def scope(self) -> str | None:
        """The project whose servers may be named one by one: None, that is any, for an administrator."""
        return None if self.context.is_admin else self.context.project_id

    def require_admin(self, what: str) -> None:
        """Raises errors.Forbidden for anyone else."""
        if not self.context.is_admin:
            raise errors.Forbidden(f"{what}: only an administrator may do this")

    def link(self, collection: str, item: str) -> list[dict[str, str]]:
        """The self and bookmark links of one item."""
        return [{"rel": "self", "href": self.url(f"{collection}/{item}")}, self.bookmark(collection, item)]

    def bookmark(self, collection: str, item: str) -> dict[str, str]:
        """The link to an item without a version."""
        return {"rel": "bookmark", "href": f"{self.prefix}{self.project_path}/{collection}/{item}"}

    def url(self, path: str) -> str:
        """The address of ``path``, which stands behind the version and the project."""
        return f"{self.prefix}/v2.1{self.project_path}/{path}"


def of(request: falcon.Request) -> Call:
    """The request's Call, put there by the middleware."""
    return cast("Call", request.context.call)
