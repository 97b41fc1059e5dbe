"""``/image``: the images of the store as an image service has them, so that clients find them by name.

Everybody sees those that operators added. Those that were made of servers are for the servers' projects, which may delete them.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime
from functools import partial
from operator import itemgetter
from typing import Any
from urllib.parse import parse_qsl, urlencode

import falcon

from api import call
from api.paging import page_of
from api.validation import is_uuid
from api.versions import answer
from db.api import server_images
from db.api.server_images import ServerImage
from db.sql.engine import ApiDatabase
from images.record import ImageRecord
from images.store import NOT_CONFIGURED, FolderStore
from objects import errors

VERSION = "v2.9"
"""Of the Image API: the newest that this subset follows."""
OWNER = "superconductor"
"""Owner of the operator's images. Client libraries fail at an image without one."""

Document = dict[str, Any]

_SORTED = ("name", "id", "size", "disk_format", "created_at", "updated_at", "status", "container_format")
_DIRECTIONS = ("asc", "desc")
_PAGING = ("limit", "marker", "sort", "sort_key", "sort_dir")
_FILTERS = ("id", "name", "disk_format", "status", "visibility", "container_format", "os_hidden", "protected")


class ImageVersions:
    """``GET /image``"""

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        link = {"rel": "self", "href": f"{call.of(req).prefix}/image/v2/"}
        answer(resp, {"versions": [{"id": VERSION, "status": "CURRENT", "links": [link]}]})


class StoreImages:
    """``/image/v2/images``"""

    def __init__(self, store: FolderStore | None, database: ApiDatabase, most: int) -> None:
        """``store``: None if none is configured. ``most``: images of a page."""
        self._store = store
        self._database = database
        self._most = most

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        for name in req.params:
            if name not in _FILTERS + _PAGING:
                raise errors.Invalid(f"{name[:40]}: images cannot be filtered by it")
        page = page_of(req, self._most)
        images = _sorted([image for image in self._visible(call.of(req)) if _is_wanted(req, image)], req)
        ids = [image["id"] for image in images]
        if page.marker is not None and page.marker not in ids:
            raise errors.Invalid(f"marker: image {page.marker[:80]!r} could not be found")
        start = 0 if page.marker is None else ids.index(page.marker) + 1
        shown = images[start : start + page.limit]
        document = {"images": shown, "schema": "/v2/schemas/images", "first": _page(req)}
        if shown and start + page.limit < len(images):
            document["next"] = _page(req, shown[-1]["id"])
        answer(resp, document)

    def on_get_one(self, req: falcon.Request, resp: falcon.Response, image_id: str) -> None:
        """Raises errors.NotFound, also for an image of another project."""
        made = self._made(call.of(req), image_id)
        if made is not None and not made.complete:
            answer(resp, _being_made(made))
            return
        record = self._images().about(image_id)
        if record.owner and made is None:
            raise errors.NotFound(f"Image {image_id[:80]} is not in the image store.")
        answer(resp, _document(record))

    def on_delete_one(self, req: falcon.Request, resp: falcon.Response, image_id: str) -> None:
        """Raises errors.NotFound, and errors.Forbidden for an image of the operator."""
        scope, now = call.of(req).scope, self._database.now()
        if not is_uuid(image_id) or not self._database.write(server_images.delete, image_id, scope, now):
            if self._images().about(image_id).owner:
                raise errors.NotFound(f"Image {image_id[:80]} is not in the image store.")
            raise errors.Forbidden("Images of the operator are deleted with 'superconductor image delete'.")
        resp.status = 204

    def _visible(self, caller: call.Call) -> list[Document]:
        """The images that the caller sees. One that was made of a server is seen once its operation has ended well."""
        records = self._images().list_images()
        made = {image.image_id: image for image in self._database.read(server_images.list_, caller.scope)}
        found = [_document(record) for record in records if not record.owner or (record.id in made and made[record.id].complete)]
        return found + [_being_made(image) for image in made.values() if not image.complete]

    def _made(self, caller: call.Call, image_id: str) -> ServerImage | None:
        return self._database.read(server_images.get, image_id, caller.scope) if is_uuid(image_id) else None

    def _images(self) -> FolderStore:
        if self._store is None:
            raise errors.NotFound(f"There are no images here: {NOT_CONFIGURED}, or name the image by its uuid.")
        return self._store


def _is_wanted(req: falcon.Request, image: Document) -> bool:
    return all(_as_text(image[name]) in _choices(req, name) for name in _FILTERS if name in req.params)


def _as_text(value: str | bool | None) -> str:
    return str(value).lower() if isinstance(value, bool) else value or ""


def _choices(req: falcon.Request, name: str) -> Collection[str]:
    """The values that an image may have: one, or several after ``in:``. Raises errors.Invalid if it is given twice."""
    given = [value for key, value in parse_qsl(req.query_string, keep_blank_values=True) if key == name]
    if len(given) != 1:
        raise errors.Invalid(f"{name}: give it once; several values are in:ONE,TWO")
    value = given[0].lower() if name in ("os_hidden", "protected") else given[0]
    if not value.startswith("in:"):
        return (value,)
    return [each.strip('"') for each in value.removeprefix("in:").split(",")]


def _sorted(images: list[Document], req: falcon.Request) -> list[Document]:
    """In the order of ``sort``, or of ``sort_key`` and ``sort_dir``; the newest first by default. Raises errors.Invalid."""
    keys = [key.strip().partition(":") for given in req.get_param_as_list("sort") or () for key in given.split(",")]
    pairs = [(key, direction or "desc") for key, _, direction in keys]
    if not pairs:
        named, ways = req.get_param_as_list("sort_key") or ["created_at"], req.get_param_as_list("sort_dir") or ["desc"]
        pairs = [(key, ways[min(number, len(ways) - 1)]) for number, key in enumerate(named)]
    for key, direction in pairs:
        if key not in _SORTED or direction not in _DIRECTIONS:
            raise errors.Invalid(f"sort: {f'{key}:{direction}'[:80]!r} is not one of {', '.join(_SORTED)} with :asc or :desc")
    images.sort(key=itemgetter("id"))
    for key, direction in reversed(pairs):
        images.sort(key=partial(_order, key), reverse=direction == "desc")
    return images


def _order(key: str, image: Document) -> tuple[bool, Any]:
    """One that is being made has no size and no format yet, and comes first."""
    return image[key] is not None, image[key]


def _page(req: falcon.Request, marker: str = "") -> str:
    query = [(key, value) for key, value in parse_qsl(req.query_string, keep_blank_values=True) if key != "marker"]
    query += [("marker", marker)] if marker else []
    return f"/v2/images?{urlencode(query)}" if query else "/v2/images"


def _document(image: ImageRecord) -> Document:
    return image.properties | {
        **_common(image.id, image.name, image.owner, image.created_at),
        "status": "active",
        "disk_format": image.disk_format,
        "size": image.size,
        "virtual_size": image.virtual_size,
        "min_disk": image.min_disk,
        "min_ram": image.min_ram,
        "os_hash_algo": image.hash_algo,
        "os_hash_value": image.hash_value,
    }


def _being_made(image: ServerImage) -> Document:
    """The image of a server before it is complete."""
    asked = image.asked
    created_at = datetime.fromtimestamp(image.created_at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return asked.properties | {
        **_common(image.image_id, asked.name, asked.owner, created_at),
        "status": "saving",
        "disk_format": None,
        "size": None,
        "virtual_size": None,
        "min_disk": asked.min_disk,
        "min_ram": asked.min_ram,
        "os_hash_algo": None,
        "os_hash_value": None,
    }


def _common(image_id: str, name: str, owner: str, created_at: str) -> Document:
    return {
        "id": image_id,
        "name": name,
        "visibility": "private" if owner else "public",
        "protected": False,
        "os_hidden": False,
        "owner": owner or OWNER,
        "tags": [],
        "container_format": "bare",
        "checksum": None,
        "created_at": created_at,
        "updated_at": created_at,
        "self": f"/v2/images/{image_id}",
        "file": f"/v2/images/{image_id}/file",
        "schema": "/v2/schemas/image",
    }
