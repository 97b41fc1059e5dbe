"""``/image/v2/schemas``: JSON schemas of what the Image API shows. Libraries like glanceclient make their models of them."""

from __future__ import annotations

from typing import Any

import falcon

from api.http.versions import answer
from objects.stored_image import IMAGE_TAG_LENGTH

_TEXT = {"type": "string"}
_TEXT_OR_NULL = {"type": ["null", "string"]}
_NUMBER = {"type": "integer"}
_NUMBER_OR_NULL = {"type": ["null", "integer"], "readOnly": True}
_SHOWN = _TEXT | {"readOnly": True}
_SHOWN_OR_NULL = _TEXT_OR_NULL | {"readOnly": True}

FIELDS: dict[str, dict[str, Any]] = {
    "id": _SHOWN,
    "name": _TEXT_OR_NULL,
    "owner": _SHOWN,
    "visibility": _SHOWN | {"enum": ["public", "private"]},
    "status": _SHOWN | {"enum": ["queued", "saving", "active"]},
    "protected": {"type": "boolean", "readOnly": True},
    "os_hidden": {"type": "boolean", "readOnly": True},
    "tags": {"type": "array", "items": _TEXT | {"maxLength": IMAGE_TAG_LENGTH}},
    "container_format": {"type": "string", "enum": ["bare"], "readOnly": True},
    "disk_format": {"type": ["null", "string"], "enum": [None, "raw", "qcow2"]},
    "size": _NUMBER_OR_NULL,
    "virtual_size": _NUMBER_OR_NULL,
    "min_disk": _NUMBER,
    "min_ram": _NUMBER,
    "checksum": _SHOWN_OR_NULL,
    "os_hash_algo": _SHOWN_OR_NULL,
    "os_hash_value": _SHOWN_OR_NULL,
    "created_at": _SHOWN,
    "updated_at": _SHOWN,
    "self": _SHOWN,
    "file": _SHOWN,
    "schema": _SHOWN,
}
"""The fields of every image; each property is one more field, which is a string."""

_LINKS = [{"rel": "self", "href": "{self}"}, {"rel": "enclosure", "href": "{file}"}, {"rel": "describedby", "href": "{schema}"}]
IMAGE = {"name": "image", "properties": FIELDS, "additionalProperties": _TEXT, "links": _LINKS}
IMAGES = {
    "name": "images",
    "properties": {"images": {"type": "array", "items": IMAGE}, "first": _TEXT, "next": _TEXT, "schema": _TEXT},
    "links": [{"rel": name, "href": f"{{{name}}}"} for name in ("first", "next")] + [{"rel": "describedby", "href": "{schema}"}],
}


class ImageSchemas:
    """One method for an image, and one for a list of them."""

    def on_get_image(self, _: falcon.Request, resp: falcon.Response) -> None:
        answer(resp, IMAGE)

    def on_get_images(self, _: falcon.Request, resp: falcon.Response) -> None:
        answer(resp, IMAGES)
