"""``/image``: the images of the store as an image service has them, read-only, so that clients find them by name."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any
from urllib.parse import parse_qsl, urlencode

import falcon

from api import call
from api.paging import page_of
from api.versions import answer
from images.record import ImageRecord
from images.store import NOT_CONFIGURED, FolderStore
from objects import errors

VERSION = "v2.9"
"""Of the Image API: the newest that this subset follows."""
OWNER = "superconductor"
"""Owner of all images, since they are the operator's. Client libraries fail at an image without one."""

_CONSTANT = {"status": "active", "visibility": "public", "container_format": "bare", "os_hidden": "false", "protected": "false"}
"""What is true of every image here. A list may be filtered by it."""
_SORTED: dict[str, Callable[[ImageRecord], Any]] = {
    "name": lambda image: image.name,
    "id": lambda image: image.id,
    "size": lambda image: image.size,
    "disk_format": lambda image: image.disk_format,
    "created_at": lambda image: image.created_at,
    "updated_at": lambda image: image.created_at,
    "status": lambda _: 0,
    "container_format": lambda _: 0,
}
_DIRECTIONS = ("asc", "desc")
_PAGING = ("limit", "marker", "sort", "sort_key", "sort_dir")
_FILTERS = ("id", "name", "disk_format", *_CONSTANT)


class ImageVersions:
    """``GET /image``"""

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        link = {"rel": "self", "href": f"{call.of(req).prefix}/image/v2/"}
        answer(resp, {"versions": [{"id": VERSION, "status": "CURRENT", "links": [link]}]})


class StoreImages:
    """``/image/v2/images``"""

    def __init__(self, store: FolderStore | None, most: int) -> None:
        """``store``: None if none is configured. ``most``: images of a page."""
        self._store = store
        self._most = most

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        for name in req.params:
            if name not in _FILTERS + _PAGING:
                raise errors.Invalid(f"{name[:40]}: images cannot be filtered by it")
        page = page_of(req, self._most)
        images = _sorted([image for image in self._images().list_images() if _is_wanted(req, image)], req)
        ids = [image.id for image in images]
        if page.marker is not None and page.marker not in ids:
            raise errors.Invalid(f"marker: image {page.marker[:80]!r} could not be found")
        start = 0 if page.marker is None else ids.index(page.marker) + 1
        shown = images[start : start + page.limit]
        document = {"images": [_document(image) for image in shown], "schema": "/v2/schemas/images", "first": _page(req)}
        if shown and start + page.limit < len(images):
            document["next"] = _page(req, shown[-1].id)
        answer(resp, document)

    def on_get_one(self, req: falcon.Request, resp: falcon.Response, image_id: str) -> None:
        answer(resp, _document(self._images().about(image_id)))

    def _images(self) -> FolderStore:
        if self._store is None:
            raise errors.NotFound(f"There are no images here: {NOT_CONFIGURED}, or name the image by its uuid.")
        return self._store


def _is_wanted(req: falcon.Request, image: ImageRecord) -> bool:
    values = {**_CONSTANT, "id": image.id, "name": image.name, "disk_format": image.disk_format}
    return all(values[name] in _choices(req, name) for name in _FILTERS if name in req.params)


def _choices(req: falcon.Request, name: str) -> Collection[str]:
    """The values that an image may have: one, or several after ``in:``. Raises errors.Invalid if it is given twice."""
    given = [value for key, value in parse_qsl(req.query_string, keep_blank_values=True) if key == name]
    if len(given) != 1:
        raise errors.Invalid(f"{name}: give it once; several values are in:ONE,TWO")
    value = given[0].lower() if name in ("os_hidden", "protected") else given[0]
    if not value.startswith("in:"):
        return (value,)
    return [each.strip('"') for each in value.removeprefix("in:").split(",")]


def _sorted(images: list[ImageRecord], req: falcon.Request) -> list[ImageRecord]:
    """In the order of ``sort``, or of ``sort_key`` and ``sort_dir``; the newest first by default. Raises errors.Invalid."""
    keys = [key.strip().partition(":") for given in req.get_param_as_list("sort") or () for key in given.split(",")]
    pairs = [(key, direction or "desc") for key, _, direction in keys]
    if not pairs:
        named, ways = req.get_param_as_list("sort_key") or ["created_at"], req.get_param_as_list("sort_dir") or ["desc"]
        pairs = [(key, ways[min(number, len(ways) - 1)]) for number, key in enumerate(named)]
    for key, direction in pairs:
        if key not in _SORTED or direction not in _DIRECTIONS:
            raise errors.Invalid(f"sort: {f'{key}:{direction}'[:80]!r} is not one of {', '.join(_SORTED)} with :asc or :desc")
    images.sort(key=lambda image: image.id)
    for key, direction in reversed(pairs):
        images.sort(key=_SORTED[key], reverse=direction == "desc")
    return images


def _page(req: falcon.Request, marker: str = "") -> str:
    query = [(key, value) for key, value in parse_qsl(req.query_string, keep_blank_values=True) if key != "marker"]
    query += [("marker", marker)] if marker else []
    return f"/v2/images?{urlencode(query)}" if query else "/v2/images"


def _document(image: ImageRecord) -> dict[str, Any]:
    return image.properties | {
        "id": image.id,
        "name": image.name,
        "status": "active",
        "visibility": "public",
        "protected": False,
        "os_hidden": False,
        "owner": OWNER,
        "tags": [],
        "disk_format": image.disk_format,
        "container_format": "bare",
        "size": image.size,
        "virtual_size": image.virtual_size,
        "min_disk": image.min_disk,
        "min_ram": image.min_ram,
        "checksum": None,
        "os_hash_algo": image.hash_algo,
        "os_hash_value": image.hash_value,
        "created_at": image.created_at,
        "updated_at": image.created_at,
        "self": f"/v2/images/{image.id}",
        "file": f"/v2/images/{image.id}/file",
        "schema": "/v2/schemas/image",
    }
