"""``/image``: the images of the store as an image service has them, so that clients find them by name.

Everybody sees those that operators added. Those that were uploaded or made of servers are for their project, which may delete them.
"""

from __future__ import annotations

from urllib.parse import parse_qsl, urlencode

import falcon

from api.http import call
from api.http.call import send_json
from api.http.paging import page_of
from api.http.validation import validated_by
from api.images.changes import ImageChanges
from api.images.uploads import ImageUploads
from api.lookup.project_images import OWNER, Document, ImageListing, ProjectImages
from db.api.servers.images import SORT_KEYS, SortKey
from objects import errors

VERSION = "v2.9"
"""Of the Image API: the newest that this subset follows."""

_SORTED = ("name", "id", "size", "disk_format", "created_at", "updated_at", "status", "container_format")
_DIRECTIONS = ("asc", "desc")
_PAGING = ("limit", "marker", "sort", "sort_key", "sort_dir")
_NO_FILTERS = ("member_status", "size_min", "size_max", "changes-since")
"""Filters of the Image API that are not served; every other parameter is a field or a property of an image."""
_TRUTHS = ("os_hidden", "protected")


class ImageVersions:
    """``GET /image``"""

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        link = {"rel": "self", "href": f"{call.get_call(req).prefix}/image/v2/"}
        send_json(resp, {"versions": [{"id": VERSION, "status": "CURRENT", "links": [link]}]})


class StoreImages:
    """``/image/v2/images``"""

    def __init__(self, images: ProjectImages, uploads: ImageUploads, changes: ImageChanges, most: int) -> None:
        """``most``: images of a page."""
        self._images = images
        self._uploads = uploads
        self._changes = changes
        self._most = most

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        for name in _NO_FILTERS:
            if name in req.params:
                raise errors.Invalid(f"{name}: images cannot be filtered by it")
        shown, has_more = self._images.list_page(call.get_call(req), _parse_listing(req), page_of(req, self._most))
        document = {"images": shown, "schema": "/v2/schemas/images", "first": _page_link(req)}
        if shown and has_more:
            document["next"] = _page_link(req, shown[-1]["id"])
        send_json(resp, document)

    @validated_by("_uploads")
    def on_post(self, req: falcon.Request, resp: falcon.Response) -> None:
        self._uploads.create(req, resp)

    def on_get_one(self, req: falcon.Request, resp: falcon.Response, image_id: str) -> None:
        send_json(resp, self._images.get_image(call.get_call(req), image_id))

    def on_patch_one(self, req: falcon.Request, resp: falcon.Response, image_id: str) -> None:
        self._changes.change_image(req, resp, image_id)

    def on_get_tasks(self, req: falcon.Request, resp: falcon.Response, image_id: str) -> None:
        """An upload is no task: it is over with its request."""
        self._images.get_image(call.get_call(req), image_id)
        send_json(resp, {"tasks": []})

    def on_delete_one(self, req: falcon.Request, resp: falcon.Response, image_id: str) -> None:
        self._images.delete(call.get_call(req), image_id)
        resp.status = 204


def _parse_listing(req: falcon.Request) -> ImageListing:
    """Raises errors.Invalid for filters and sort keys that are none."""
    filters = {name: _parse_choices(req, name) for name in req.params if name not in _PAGING and name != "tag"}
    tags = frozenset(req.get_param_as_list("tag") or ())

    def is_listed(image: Document) -> bool:
        return tags.issubset(image["tags"]) and all(
            name in image and _as_text(image[name]) in values for name, values in filters.items()
        )

    owners = filters.get("owner")
    return ImageListing(
        order=_parse_order(req),
        is_listed=is_listed,
        names=filters.get("name"),
        ids=filters.get("id"),
        owners=None if owners is None else tuple("" if owner == OWNER else owner for owner in owners),
    )


def _as_text(value: object) -> str:
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _parse_choices(req: falcon.Request, name: str) -> tuple[str, ...]:
    """The values that an image may have: one, or several after ``in:``. Raises errors.Invalid if it is given twice."""
    values = [value for key, value in parse_qsl(req.query_string, keep_blank_values=True) if key == name]
    if len(values) != 1:
        raise errors.Invalid(f"{name}: give it once; several values are in:ONE,TWO")
    value = values[0].lower() if name in _TRUTHS else values[0]
    if not value.startswith("in:"):
        return (value,)
    return tuple(choice.strip('"') for choice in value.removeprefix("in:").split(","))


def _parse_order(req: falcon.Request) -> tuple[SortKey, ...]:
    """That of ``sort``, or of ``sort_key`` and ``sort_dir``; the newest first by default. Raises errors.Invalid."""
    keys = [key.strip().partition(":") for sort_text in req.get_param_as_list("sort") or () for key in sort_text.split(",")]
    pairs = [(key, direction or "desc") for key, _, direction in keys]
    if not pairs:
        named, ways = req.get_param_as_list("sort_key") or ["created_at"], req.get_param_as_list("sort_dir") or ["desc"]
        pairs = [(key, ways[min(number, len(ways) - 1)]) for number, key in enumerate(named)]
    for key, direction in pairs:
        if key not in _SORTED or direction not in _DIRECTIONS:
            raise errors.Invalid(f"sort: {f'{key}:{direction}'[:80]!r} is not one of {', '.join(_SORTED)} with :asc or :desc")
    order: dict[str, bool] = {}
    for key, direction in (*pairs, ("id", pairs[0][1])):
        if key in SORT_KEYS and "id" not in order:  # all images are in containers of the same format
            order.setdefault(key, direction == "desc")
    return tuple(order.items())


def _page_link(req: falcon.Request, marker: str = "") -> str:
    query = [(key, value) for key, value in parse_qsl(req.query_string, keep_blank_values=True) if key != "marker"]
    query += [("marker", marker)] if marker else []
    return f"/v2/images?{urlencode(query)}" if query else "/v2/images"
