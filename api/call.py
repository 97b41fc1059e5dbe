"""What is known of one HTTP request before its handler runs."""

from __future__ import annotations

from typing import cast

import falcon
import msgspec

from api.microversions import Since, Version
from api.policies import ADMIN, EXPLAIN_ALL
from api.policy import Rights
from objects.base import Object
from objects.context import RequestContext

ANOTHER = ""
"""Stands for a project that is not the caller's: no project has this id."""


class Call(Object, frozen=True, kw_only=True):
    """Who asks, in which microversion, and what links in the answer begin with.

    ``prefix`` is scheme, host and port; ``project_path`` is ``/{project_id}`` where the request's path has it: links keep it.
    ``rule`` is the one that guards the handler. ``detailed_faults``: tenants read how many hosts each filter left, and by how much
    a request was too large.
    """

    context: RequestContext
    version: Version
    prefix: str
    rights: Rights
    rule: str = ADMIN
    project_path: str = ""
    detailed_faults: bool = False

    def has(self, feature: Since) -> bool:
        return feature.holds(self.version)

    def may(self, rule: str, project_id: str | None = None) -> bool:
        """Whether the caller may do what ``rule`` guards, to what is of ``project_id`` or else of the own project."""
        return self.rights.has(rule, project_id)

    @property
    def sees_fleet(self) -> bool:
        """Whether faults and explanations may say how large and how full the fleet is."""
        return self.detailed_faults or self.may(EXPLAIN_ALL)

    def under(self, rule: str) -> Call:
        """The same call, to something that ``rule`` guards."""
        return msgspec.structs.replace(self, rule=rule)

    @property
    def scope(self) -> str | None:
        """The project whose servers may be named one by one: None, that is any, for whom the rule holds for another's, too."""
        return None if self.may(self.rule, ANOTHER) else self.context.project_id

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
