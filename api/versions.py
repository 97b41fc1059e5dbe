"""Version documents, which a client reads first, and an identity document for clients that ask for one without an identity
service.
"""

from __future__ import annotations

from typing import Any

import falcon
import msgspec

from api import call, microversions
from objects import errors

UPDATED = "2026-01-01T00:00:00Z"
"""When the set of versions served was last changed."""


def answer(resp: falcon.Response, document: Any, status: int = 200) -> None:
    """Send a JSON document."""
    resp.status = status
    resp.content_type = falcon.MEDIA_JSON
    resp.data = msgspec.json.encode(document)


def _entry(prefix: str) -> dict[str, Any]:
    return {
        "id": "v2.1",
        "status": "CURRENT",
        "version": microversions.text(microversions.MAXIMUM),
        "min_version": microversions.text(microversions.MINIMUM),
        "updated": UPDATED,
        "links": [{"rel": "self", "href": f"{prefix}/v2.1/"}],
    }


class Versions:
    """``GET /``"""

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        answer(resp, {"versions": [_entry(call.of(req).prefix)]})


class ComputeVersion:
    """``GET /v2.1``"""

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        media = {"base": "application/json", "type": "application/vnd.openstack.compute+json;version=2.1"}
        answer(resp, {"version": _entry(call.of(req).prefix) | {"media-types": [media]}})


class IdentityVersion:
    """``GET /identity/v3``: enough for clients that look for an identity service even without authentication."""

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        link = {"rel": "self", "href": f"{call.of(req).prefix}/identity/v3/"}
        answer(resp, {"version": {"id": "v3.14", "status": "stable", "updated": UPDATED, "links": [link]}})


class Extensions:
    """``GET /v2.1/extensions``: there are none."""

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        answer(resp, {"extensions": []})


class NoImages:
    """``/v2.1/images``: clients without a catalog look up images here. Images are at ``/image``."""

    def on_get(self, req: falcon.Request, resp: falcon.Response, image_id: str = "") -> None:
        raise errors.NotFound(
            f"There is no image service at this address: tell the client OS_IMAGE_ENDPOINT_OVERRIDE={call.of(req).prefix}/image, "
            "or name the image by its uuid as the block device that boots first "
            "(openstack server create --block-device uuid=UUID,source_type=image,destination_type=local,boot_index=0)."
        )
