"""The contents of images at ``/image``. For an upload the image is created first, then its content is sent."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any
from uuid import uuid4

import falcon

from api.http import call as calls
from api.http import schemas
from api.http.microversions import Version
from api.http.rate_limit import RequestRateLimit
from api.http.validation import Validator, read_body
from api.http.versions import answer
from api.images.tags import checked_tags
from api.lookup.project_images import SHOWN, ProjectImages, document, missing
from api.opts import ApiSettings
from db.api.servers import server_images
from db.api.servers.server_images import UPLOADED, ServerImage, UploadedImage
from db.sql.engine import ApiDatabase
from images.files import CHUNK_SIZE
from images.record import ImageRecord
from objects import errors
from objects.stored_image import ACTIVE

CONTENT_TYPE = "application/octet-stream"
UPLOADS_PER_S, UPLOAD_BURST = 1.0, 20
"""Images that a project creates on average, and at once, in each process."""


class ImageUploads:
    """An image is private to the project of the caller who created it."""

    def __init__(self, settings: ApiSettings, images: ProjectImages, database: ApiDatabase) -> None:
        self._rate = RequestRateLimit(UPLOADS_PER_S, UPLOAD_BURST)
        self._settings = settings
        self._images = images
        self._database = database
        self._validator = Validator(schemas.image())

    def schema(self, version: Version) -> schemas.Schema:
        """The schema of the body of a new image."""
        return self._validator.schema(version)

    def create(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Create an image that waits for its content.

        Raises errors.NotFound without an image store, errors.OverQuota, and TooFast.
        """
        call = calls.of(req)
        body = read_body(req, self._settings.max_body_size)
        self._validator.check(body)
        self._images.store  # noqa: B018 - it raises errors.NotFound if there is none
        asked = UploadedImage(
            name=body.get("name") or "",
            owner=call.context.project_id,
            min_disk=body.get("min_disk", 0),
            min_ram=body.get("min_ram", 0),
            disk_format=body.get("disk_format"),
            tags=checked_tags(body.get("tags", [])),
            properties=_properties(body),
        )
        image_id, now = str(uuid4()), self._database.now()
        self._rate.take(asked.owner)
        self._database.write(server_images.add_upload, image_id, asked, self._settings.image_limits, now)
        made = ServerImage(
            image_id=image_id, project_id=asked.owner, server_uuid=UPLOADED, complete=False, asked=asked, created_at=now
        )
        resp.location = f"{call.prefix}/image/v2/images/{image_id}"
        answer(resp, document(made.stored), 201)

    def on_put_content(self, req: falcon.Request, resp: falcon.Response, image_id: str) -> None:
        """Store the content of an image that waits for it.

        Raises errors.NotFound, also for an image that was deleted meanwhile, and errors.Conflict if it has its content.
        """
        call = calls.of(req)
        kind = (req.content_type or "").split(";")[0].strip().lower()
        if kind != CONTENT_TYPE:
            raise falcon.HTTPUnsupportedMediaType(description=f"Content-Type: {kind[:40]!r} is not {CONTENT_TYPE}")
        known = self._images.get_row(call, image_id)
        if known is None:
            raise missing(image_id)
        if known.complete or not known.is_uploaded:
            raise errors.Conflict(f"Image {image_id} does not wait for its content.")
        try:
            stored = self._store(image_id, known.asked, _chunks(req))
        except errors.Conflict:
            # Somebody was faster, or was killed before its row was complete: what is stored counts, and the row says so now.
            self._complete(known, self._images.store.about(image_id))
            raise
        if not self._complete(known, stored):
            raise missing(image_id)
        resp.status = 204

    def on_get_content(self, req: falcon.Request, resp: falcon.Response, image_id: str) -> None:
        """Send the content. An image that waits for it has none, and its answer is 204, as in the Image API.

        Raises errors.NotFound, and errors.Forbidden for the disk of a shelved server, which may be incomplete without its base.
        """
        image = self._images.get_image(calls.of(req), image_id)
        if image["status"] != ACTIVE:
            resp.status = 204
            return
        if image["protected"]:
            raise errors.Forbidden(f"Image {image_id} is the disk of a shelved server, which only an unshelve reads.")
        self._images.store.about(image_id)  # before the answer begins: it raises if the store is away, or has lost the image
        resp.content_type = CONTENT_TYPE
        resp.set_stream(self._images.store.chunks(image_id), image["size"])

    def _complete(self, image: ServerImage, stored: ImageRecord) -> bool:
        """Whether the image has not been deleted meanwhile."""
        complete = partial(server_images.complete_upload, checksum=stored.checksum)
        return self._database.write(complete, image, stored.content, self._database.now())

    def _store(self, image_id: str, asked: UploadedImage, content: Iterator[bytes]) -> ImageRecord:
        return self._images.store.add(
            content,
            name=asked.name,
            image_id=image_id,
            disk_format=asked.disk_format,
            min_disk=asked.min_disk,
            min_ram=asked.min_ram,
            properties=asked.properties,
            tags=asked.tags,
            owner=asked.owner,
        )


def _chunks(req: falcon.Request) -> Iterator[bytes]:
    while chunk := req.bounded_stream.read(CHUNK_SIZE):
        yield chunk


def _properties(body: dict[str, Any]) -> dict[str, str]:
    """The fields that the Image API does not define. Raises errors.Invalid for one that is only shown."""
    known = schemas.image()["properties"]
    properties = {name: value for name, value in body.items() if name not in known}
    if taken := sorted(SHOWN & properties.keys()):
        raise errors.Invalid(f"{taken[0]}: every image has this field, which cannot be given")
    return properties
