"""``/v2.1/images``: the images of the store in the format of the Compute API, for clients without an image service."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

import falcon

from api.http import call as calls
from api.http import schemas
from api.http.call import Call, send_json
from api.http.paging import next_link, page_of
from api.http.query_parameters import whole_number
from api.http.validation import Validator, checked_metadata, read_body, validated_by
from api.lookup.project_images import BY_UUID, Document, ImageListing, ProjectImages, properties_of
from api.lookup.quota_limits import LimitsInForce
from api.opts import ApiSettings
from api.servers.filters import time_of
from objects import errors
from objects.stored_image import ACTIVE, QUEUED, SAVING

_STATUSES = {QUEUED: "SAVING", SAVING: "SAVING", ACTIVE: "ACTIVE"}
_PROGRESS = {QUEUED: 25, SAVING: 50, ACTIVE: 100}
"""As the Compute API has them: nobody measures the progress."""
_MINIMA = (("minRam", "min_ram"), ("minDisk", "min_disk"))


class ComputeImages:
    """Without a suffix the list, ``detail`` the detailed list, ``one`` an image."""

    def __init__(self, images: ProjectImages, most: int) -> None:
        """``most``: images of a page."""
        self._images = images
        self._most = most

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        self._list(req, resp, "images", _brief_entry)

    def on_get_detail(self, req: falcon.Request, resp: falcon.Response) -> None:
        self._list(req, resp, "images/detail", _detailed_entry)

    def on_get_one(self, req: falcon.Request, resp: falcon.Response, image_id: str) -> None:
        """Clients without a catalog look up images here, also those that are elsewhere."""
        call = calls.get_call(req)
        try:
            image = self._images.get_image(call, image_id)
        except errors.NotFound as error:
            raise errors.NotFound(str(error) if BY_UUID in str(error) else f"{error} If it is elsewhere, {BY_UUID}") from None
        send_json(resp, {"image": _detailed_entry(image, call)})

    def on_delete_one(self, req: falcon.Request, resp: falcon.Response, image_id: str) -> None:
        self._images.delete(calls.get_call(req), image_id)
        resp.status = 204

    def _list(self, req: falcon.Request, resp: falcon.Response, path: str, view: Callable[[Document, Call], Document]) -> None:
        """Parameters that are no filter are ignored, as in the Compute API."""
        call = calls.get_call(req)
        shown, has_more = self._images.list_page(call, _parse_listing(req), page_of(req, self._most))
        document: Document = {"images": [view(image, call) for image in shown]}
        if shown and has_more:
            document["images_links"] = [next_link(req, path, shown[-1]["id"])]
        send_json(resp, document)


class ComputeImageMetadata:
    """``/v2.1/images/{id}/metadata``: the properties of an image; the suffix ``item`` is one of them."""

    def __init__(self, settings: ApiSettings, images: ProjectImages, limits: LimitsInForce) -> None:
        self._settings = settings
        self._images = images
        self._limits = limits
        self._whole = Validator(schemas.metadata_body())
        self._item = Validator(schemas.metadata_item())

    def on_get(self, req: falcon.Request, resp: falcon.Response, image_id: str) -> None:
        send_json(resp, {"metadata": self._read(req, image_id)})

    @validated_by("_whole")
    def on_post(self, req: falcon.Request, resp: falcon.Response, image_id: str) -> None:
        metadata = self._read_body(req, self._whole)["metadata"]
        send_json(resp, {"metadata": self._write(req, image_id, self._read(req, image_id) | metadata)})

    @validated_by("_whole")
    def on_put(self, req: falcon.Request, resp: falcon.Response, image_id: str) -> None:
        metadata = self._read_body(req, self._whole)["metadata"]
        send_json(resp, {"metadata": self._write(req, image_id, metadata)})

    def on_get_item(self, req: falcon.Request, resp: falcon.Response, image_id: str, key: str) -> None:
        send_json(resp, {"meta": {key: _metadata_item(self._read(req, image_id), key)}})

    @validated_by("_item")
    def on_put_item(self, req: falcon.Request, resp: falcon.Response, image_id: str, key: str) -> None:
        metadata = self._read_body(req, self._item)["meta"]
        if key not in metadata:
            raise errors.Invalid(f"meta: its key is not the one in the path, {key[:80]!r}")
        self._write(req, image_id, self._read(req, image_id) | metadata)
        send_json(resp, {"meta": metadata})

    def on_delete_item(self, req: falcon.Request, resp: falcon.Response, image_id: str, key: str) -> None:
        current = self._read(req, image_id)
        _metadata_item(current, key)
        self._write(req, image_id, {name: value for name, value in current.items() if name != key})
        resp.status = 204

    def _read(self, req: falcon.Request, image_id: str) -> dict[str, str]:
        return properties_of(self._images.get_image(calls.get_call(req), image_id))

    def _write(self, req: falcon.Request, image_id: str, metadata: dict[str, str]) -> dict[str, str]:
        """The properties of the image from now on. Raises errors.Forbidden for too many."""
        call = calls.get_call(req)
        limit = self._limits.read_layers(call).in_force["metadata_items"]
        return properties_of(self._images.change_image(call, image_id, properties=checked_metadata(metadata, limit)))

    def _read_body(self, req: falcon.Request, validator: Validator) -> dict[str, Any]:
        document = read_body(req, self._settings.max_body_size)
        validator.check_body(document)
        return document


def _metadata_item(metadata: dict[str, str], key: str) -> str:
    if key not in metadata:
        raise errors.NotFound(f"Metadata item {key[:80]!r} was not found")
    return metadata[key]


def _parse_listing(req: falcon.Request) -> ImageListing:
    """The newest first. Raises errors.Invalid for a filter of another form."""
    filters = {name: req.get_param(name) or "" for name in ("name", "status", "server", "type") if name in req.params}
    if "status" in filters:
        filters["status"] = filters["status"].upper()
    if "server" in filters:
        filters["server"] = filters["server"].rpartition("/")[2]  # it may be the address of the server
    least = {key: whole_number(name, text) for name, key in _MINIMA if (text := req.get_param(name))}
    since = time_of(req, "changes-since")

    def is_listed(image: Document) -> bool:
        image_fields = {
            "name": image["name"],
            "status": _STATUSES[image["status"]],
            "server": image.get("instance_uuid"),
            "type": image.get("image_type"),
        }
        return (
            all(image_fields[name] == value for name, value in filters.items())
            and all(image[key] == value for key, value in least.items())
            and (since is None or _timestamp_of(image["updated_at"]) >= since)
        )

    names = (filters["name"],) if "name" in filters else None
    return ImageListing(order=(("created_at", True), ("id", True)), is_listed=is_listed, names=names)


def _timestamp_of(at: str) -> float:
    return datetime.fromisoformat(at).timestamp() if at else 0.0


def _brief_entry(image: Document, call: Call) -> Document:
    links: list[dict[str, str]] = call.item_links("images", image["id"])
    other = {"rel": "alternate", "type": "application/vnd.openstack.image", "href": f"{call.prefix}/image{image['self']}"}
    return {"id": image["id"], "name": image["name"], "links": [*links, other]}


def _detailed_entry(image: Document, call: Call) -> Document:
    properties = properties_of(image)
    document = _brief_entry(image, call) | {
        "minDisk": image["min_disk"],
        "minRam": image["min_ram"],
        "metadata": properties,
        "created": image["created_at"],
        "updated": image["updated_at"],
        "status": _STATUSES[image["status"]],
        "progress": _PROGRESS[image["status"]],
        "OS-EXT-IMG-SIZE:size": image["size"],
    }
    if server := properties.get("instance_uuid"):
        document["server"] = {"id": server, "links": call.item_links("servers", server)}
    return document
