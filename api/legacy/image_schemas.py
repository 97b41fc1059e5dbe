"""``/image/v2/schemas``: JSON schemas of what the Image API shows. Libraries like glanceclient make their models of them."""

from __future__ import annotations

from typing import Any

import falcon

from api.http.call import send_json
from objects.stored_image import IMAGE_TAG_LENGTH

_TEXT = {"type": "string"}
_TEXT_OR_NULL = {"type": ["null", "string"]}
_NUMBER = {"type": "integer"}
_NUMBER_OR_NULL = {"type": ["null", "integer"], "readOnly": True}
_READ_ONLY_TEXT = _TEXT | {"readOnly": True}
_READ_ONLY_TEXT_OR_NULL = _TEXT_OR_NULL | {"readOnly": True}

FIELDS: dict[str, dict[str, Any]] = {
    "id": _READ_ONLY_TEXT,
    "name": _TEXT_OR_NULL,
    "owner": _READ_ONLY_TEXT,
    "visibility": _READ_ONLY_TEXT | {"enum": ["public", "private"]},
    "status": _READ_ONLY_TEXT | {"enum": ["queued", "saving", "active"]},
    "protected": {"type": "boolean", "readOnly": True},
    "os_hidden": {"type": "boolean", "readOnly": True},
    "tags": {"type": "array", "items": _TEXT | {"maxLength": IMAGE_TAG_LENGTH}},
    "container_format": {"type": "string", "enum": ["bare"], "readOnly": True},
    "disk_format": {"type": ["null", "string"], "enum": [None, "raw", "qcow2"]},
    "size": _NUMBER_OR_NULL,
    "virtual_size": _NUMBER_OR_NULL,
    "min_disk": _NUMBER,
    "min_ram": _NUMBER,
    "checksum": _READ_ONLY_TEXT_OR_NULL,
    "os_hash_algo": _READ_ONLY_TEXT_OR_NULL,
    "os_hash_value": _READ_ONLY_TEXT_OR_NULL,
    "created_at": _READ_ONLY_TEXT,
    "updated_at": _READ_ONLY_TEXT,
    "self": _READ_ONLY_TEXT,
    "file": _READ_ONLY_TEXT,
    "schema": _READ_ONLY_TEXT,
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
        send_json(resp, IMAGE)

    def on_get_images(self, _: falcon.Request, resp: falcon.Response) -> None:
        send_json(resp, IMAGES)
