"""``PATCH /image/v2/images/{id}``: changes of an image of a project, as the Image API takes them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import falcon
import msgspec

from api.http import call as calls
from api.http import schemas
from api.http.call import send_json
from api.http.validation import Validator, checked_metadata
from api.images.tags import checked_tags
from api.lookup.project_images import IMAGE_FIELDS, ProjectImages, properties_of
from api.lookup.quota_limits import LimitsInForce
from api.opts import ApiSettings
from objects import errors, typed
from objects.base import Object

CONTENT_TYPE = "application/openstack-images-v2.1-json-patch"
OLD_CONTENT_TYPE = "application/openstack-images-v2.0-json-patch"
"""Of an earlier draft of JSON patches, which names the operation as the key of the path."""

OPERATIONS_LIMIT = 256
"""Maximum number of changes in one request."""


_Path = Annotated[str, msgspec.Meta(pattern="^/[^/]+$", max_length=600)]


class _Change(Object, frozen=True, kw_only=True):
    """An operation of a JSON patch (RFC 6902). ``path``: of a field or property, such as ``/name``."""

    op: Literal["add", "replace", "remove"]
    path: _Path
    value: Any = None

    @property
    def field_name(self) -> str:
        return self.path[1:]  # no field has a slash or a tilde, which would be escaped


class _OldChange(Object, frozen=True, kw_only=True):
    """The same in the earlier draft: the path of one of the operations, as ``{"add": "/name", "value": "web"}``."""

    add: _Path | None = None
    replace: _Path | None = None
    remove: _Path | None = None
    value: Any = None

    def to_change(self) -> _Change:
        """Raises errors.Invalid."""
        if self.add is not None and self.replace is self.remove is None:
            return _Change(op="add", path=self.add, value=self.value)
        if self.replace is not None and self.add is self.remove is None:
            return _Change(op="replace", path=self.replace, value=self.value)
        if self.remove is not None and self.add is self.replace is None:
            return _Change(op="remove", path=self.remove)
        raise errors.Invalid("The body is not a JSON patch: each change has one of add, replace and remove")


_Changes = Annotated[list[_Change], msgspec.Meta(max_length=OPERATIONS_LIMIT)]
_OldChanges = Annotated[list[_OldChange], msgspec.Meta(max_length=OPERATIONS_LIMIT)]


class ImageChanges:
    """The name, what it needs of a flavor, tags and properties. Other fields may only be given as they are."""

    def __init__(self, settings: ApiSettings, images: ProjectImages, limits: LimitsInForce) -> None:
        self._settings = settings
        self._images = images
        self._limits = limits
        self._validator = Validator(schemas.image_body())

    def change_image(self, req: falcon.Request, resp: falcon.Response, image_id: str) -> None:
        """Raises errors.Invalid, errors.Conflict for a missing property, and what ``ProjectImages.change`` does."""
        call = calls.get_call(req)
        changes = self._read(req)
        before = self._images.get_image(call, image_id)
        changed = _apply_changes(before, changes)
        touched = {change.field_name for change in changes}
        self._validator.check_body({name: changed[name] for name in changed if name in touched or name not in IMAGE_FIELDS})
        for name in sorted(touched & IMAGE_FIELDS - {"name", "min_disk", "min_ram", "tags"}):
            if changed.get(name) != before[name]:
                raise errors.Invalid(f"{name}: cannot be changed")
        limit = self._limits.read_layers(call).in_force["metadata_items"]
        properties = checked_metadata(properties_of(changed), limit)
        fields = {"name": changed["name"] or "", "min_disk": changed["min_disk"], "min_ram": changed["min_ram"]}
        if "tags" in touched:
            fields["tags"] = checked_tags(changed["tags"])
        send_json(resp, self._images.change_image(call, image_id, properties=properties, **fields))

    def _read(self, req: falcon.Request) -> list[_Change]:
        kind = (req.content_type or "").split(";")[0].strip().lower()
        if kind not in (CONTENT_TYPE, OLD_CONTENT_TYPE):
            raise falcon.HTTPUnsupportedMediaType(description=f"Content-Type: {kind[:60]!r} is not {CONTENT_TYPE}")
        raw = req.bounded_stream.read(self._settings.max_body_size + 1)
        if len(raw) > self._settings.max_body_size:
            raise falcon.HTTPContentTooLarge(description=f"The body is larger than {self._settings.max_body_size} bytes.")
        try:
            if kind == OLD_CONTENT_TYPE:
                return [change.to_change() for change in typed.decode_json(raw, _OldChanges)]
            return typed.decode_json(raw, _Changes)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            example = '[{"op": "add", "path": "/NAME", "value": "VALUE"}]'
            raise errors.Invalid(f"The body is not a JSON patch of fields, like {example}: {error}") from error


def _apply_changes(before: dict[str, Any], changes: list[_Change]) -> dict[str, Any]:
    """The image with these changes. Raises errors.Conflict as the Image API does."""
    changed = dict(before)
    for change in changes:
        if change.op != "add" and change.field_name not in changed:
            raise errors.Conflict(f"Property {change.field_name[:80]} does not exist.")
        if change.op != "remove":
            changed[change.field_name] = change.value
        elif change.field_name in IMAGE_FIELDS:
            raise errors.Invalid(f"{change.field_name}: cannot be removed")
        else:
            del changed[change.field_name]
    return changed
