"""Version documents, which a client reads first, and an identity document for clients that ask for one without an identity
service.
"""

from __future__ import annotations

from typing import Any

import falcon
import msgspec

from api.http import call, microversions
from api.http.validation import COMPUTE_MEDIA_TYPE
from objects import errors

UPDATED = "2026-01-01T00:00:00Z"
"""When the set of versions served was last changed."""


def answer(resp: falcon.Response, document: Any, status: int = 200) -> None:
    """Send a JSON document."""
    resp.status = status
    resp.content_type = falcon.MEDIA_JSON
    resp.data = msgspec.json.encode(document)


V20 = "v2.0"
V21 = "v2.1"
CHOICES = "/v2.0"
"""The path that is answered with 300 and the versions there are."""


def _entry(prefix: str, which: str = V21) -> dict[str, Any]:
    if which == V20:
        links = [{"rel": "self", "href": f"{prefix}/v2/"}]
        return {"id": V20, "status": "SUPPORTED", "version": "", "min_version": "", "updated": UPDATED, "links": links}
    return {
        "id": V21,
        "status": "CURRENT",
        "version": microversions.text(microversions.MAXIMUM),
        "min_version": microversions.text(microversions.MINIMUM),
        "updated": UPDATED,
        "links": [{"rel": "self", "href": f"{prefix}/v2.1/"}],
    }


def _media(which: str) -> dict[str, list[dict[str, str]]]:
    number = "2" if which == V20 else "2.1"
    return {"media-types": [{"base": falcon.MEDIA_JSON, "type": f"{COMPUTE_MEDIA_TYPE};version={number}"}]}


class Versions:
    """``GET /``, and with the suffix ``choices`` the answer to a path with a version of another spelling."""

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        answer(resp, {"versions": [_entry(call.of(req).prefix, which) for which in (V20, V21)]})

    def on_get_choices(self, req: falcon.Request, resp: falcon.Response) -> None:
        entries = {which: _entry(call.of(req).prefix, which) for which in (V20, V21)}
        shown = [{key: each[key] for key in ("id", "status", "links")} | _media(which) for which, each in entries.items()]
        answer(resp, {"choices": shown}, 300)


class ComputeVersion:
    """``GET /v2.1``, with the suffix ``v2`` ``GET /v2``, with the suffix ``one`` the document that is named."""

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        self._answer(req, resp, V21)

    def on_get_v2(self, req: falcon.Request, resp: falcon.Response) -> None:
        self._answer(req, resp, V20)

    def on_get_one(self, req: falcon.Request, resp: falcon.Response, version_id: str) -> None:
        if version_id not in (V20, V21):
            raise errors.NotFound(f"There is no version {version_id[:80]!r} of the Compute API.")
        self._answer(req, resp, version_id)

    def _answer(self, req: falcon.Request, resp: falcon.Response, which: str) -> None:
        answer(resp, {"version": _entry(call.of(req).prefix, which) | _media(which)})


class IdentityVersion:
    """``GET /identity/v3``: enough for clients that look for an identity service even without authentication."""

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        link = {"rel": "self", "href": f"{call.of(req).prefix}/identity/v3/"}
        answer(resp, {"version": {"id": "v3.14", "status": "stable", "updated": UPDATED, "links": [link]}})
