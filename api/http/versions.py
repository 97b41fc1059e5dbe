"""Version documents, which a client reads first, and an identity document for clients that ask for one without an identity
service.
"""

from __future__ import annotations

from typing import Any

import falcon

from api.http import call, microversions
from api.http.call import send_json
from api.http.validation import COMPUTE_MEDIA_TYPE
from objects import errors

UPDATED = "2026-01-01T00:00:00Z"
"""When the set of versions served was last changed."""


V20 = "v2.0"
V21 = "v2.1"
CHOICES = "/v2.0"
"""The path that is answered with 300 and the versions there are."""


def _version_entry(prefix: str, version_id: str = V21) -> dict[str, Any]:
    if version_id == V20:
        links = [{"rel": "self", "href": f"{prefix}/v2/"}]
        return {"id": V20, "status": "SUPPORTED", "version": "", "min_version": "", "updated": UPDATED, "links": links}
    return {
        "id": V21,
        "status": "CURRENT",
        "version": microversions.format_version(microversions.MAXIMUM),
        "min_version": microversions.format_version(microversions.MINIMUM),
        "updated": UPDATED,
        "links": [{"rel": "self", "href": f"{prefix}/v2.1/"}],
    }


def _media_types(version_id: str) -> dict[str, list[dict[str, str]]]:
    number = "2" if version_id == V20 else "2.1"
    return {"media-types": [{"base": falcon.MEDIA_JSON, "type": f"{COMPUTE_MEDIA_TYPE};version={number}"}]}


class Versions:
    """``GET /``, and with the suffix ``choices`` the answer to a path with a version of another spelling."""

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        send_json(resp, {"versions": [_version_entry(call.get_call(req).prefix, version_id) for version_id in (V20, V21)]})

    def on_get_choices(self, req: falcon.Request, resp: falcon.Response) -> None:
        entries = {version_id: _version_entry(call.get_call(req).prefix, version_id) for version_id in (V20, V21)}
        shown = [
            {key: entry[key] for key in ("id", "status", "links")} | _media_types(version_id)
            for version_id, entry in entries.items()
        ]
        send_json(resp, {"choices": shown}, 300)


class ComputeVersion:
    """``GET /v2.1``, with the suffix ``v2`` ``GET /v2``, with the suffix ``one`` the document that is named."""

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        self._send_version(req, resp, V21)

    def on_get_v2(self, req: falcon.Request, resp: falcon.Response) -> None:
        self._send_version(req, resp, V20)

    def on_get_one(self, req: falcon.Request, resp: falcon.Response, version_id: str) -> None:
        if version_id not in (V20, V21):
            raise errors.NotFound(f"There is no version {version_id[:80]!r} of the Compute API.")
        self._send_version(req, resp, version_id)

    def _send_version(self, req: falcon.Request, resp: falcon.Response, version_id: str) -> None:
        send_json(resp, {"version": _version_entry(call.get_call(req).prefix, version_id) | _media_types(version_id)})


class IdentityVersion:
    """``GET /identity/v3``: enough for clients that look for an identity service even without authentication."""

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        link = {"rel": "self", "href": f"{call.get_call(req).prefix}/identity/v3/"}
        send_json(resp, {"version": {"id": "v3.14", "status": "stable", "updated": UPDATED, "links": [link]}})
