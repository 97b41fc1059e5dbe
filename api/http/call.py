"""The state of an HTTP request that is known before its handler runs, and its answer."""

from __future__ import annotations

import time
from typing import Any, cast

import falcon
import msgspec

from api.http.microversions import Microversion, Version
from api.http.policies import ADMIN, EXPLAIN_ALL
from api.http.policy import Rights
from objects import errors
from objects.base import Object
from objects.context import RequestContext

ANOTHER = ""
"""A placeholder for a project other than the caller's: no project has this ID."""


class Call(Object, frozen=True, kw_only=True):
    """The caller, the microversion, and the prefix of links in the answer.

    ``prefix`` is scheme, host and port. ``project_path`` is ``/{project_id}`` if the request's path has it, so that links keep it.
    ``rule`` guards the handler. ``detailed_faults``: tenants see how many hosts each filter left, and by how much a request was too
    large. ``since``: when the request came (monotonic clock). Whatever is in force by then counts for it, whichever process has
    changed it: caches look whether they have older rows.
    """

    context: RequestContext
    version: Version
    prefix: str
    rights: Rights
    rule: str = ADMIN
    project_path: str = ""
    detailed_faults: bool = False
    since: float = msgspec.field(default_factory=time.monotonic)

    def has_feature(self, feature: Microversion) -> bool:
        return feature.is_in(self.version)

    def is_allowed(self, rule: str, project_id: str | None = None, user_id: str | None = None) -> bool:
        """Whether ``rule`` allows the caller to act on something of this project and user; default: the caller's."""
        return self.rights.is_allowed(rule, project_id, user_id)

    @property
    def sees_fleet(self) -> bool:
        """Whether faults and explanations may show the size and usage of the fleet."""
        return self.detailed_faults or self.is_allowed(EXPLAIN_ALL)

    def after_write(self) -> Call:
        """The same call for what it reads after its own write."""
        return msgspec.structs.replace(self, since=time.monotonic())

    def guarded_by(self, rule: str, project_id: str | None = None) -> Call:
        """The same call with the rule that guards its handler. Raises errors.Forbidden if the rule does not allow it."""
        if not self.is_allowed(rule, project_id):
            raise errors.Forbidden(f"Policy doesn't allow {rule} to be performed.")
        return msgspec.structs.replace(self, rule=rule)

    @property
    def project_scope(self) -> str | None:
        """The project whose servers the caller may name. None, that is any, if the rule also allows other projects."""
        return None if self.is_allowed(self.rule, ANOTHER) else self.context.project_id

    def item_links(self, collection: str, item: str) -> list[dict[str, str]]:
        """The self and bookmark links of an item."""
        path = f"{self.project_path}/{collection}/{item}"
        return [{"rel": "self", "href": f"{self.prefix}/v2.1{path}"}, {"rel": "bookmark", "href": f"{self.prefix}{path}"}]

    def bookmark_link(self, collection: str, item: str) -> dict[str, str]:
        """The link to an item without the API version."""
        return {"rel": "bookmark", "href": f"{self.prefix}{self.project_path}/{collection}/{item}"}

    def build_url(self, path: str) -> str:
        """The URL of ``path``, which follows the version and the project."""
        return f"{self.prefix}/v2.1{self.project_path}/{path}"


def get_call(request: falcon.Request) -> Call:
    """The request's Call, set by the middleware."""
    return cast("Call", request.context.call)


def send_json(resp: falcon.Response, document: Any, status: int = 200) -> None:
    """Send a JSON document."""
    resp.status = status
    resp.content_type = falcon.MEDIA_JSON
    resp.data = msgspec.json.encode(document)
