"""The contents of images at ``/image``. For an upload the image is created first, then its content is sent."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any
from uuid import uuid4

import falcon

from api.http import call as calls
from api.http import schemas
from api.http.call import send_json
from api.http.microversions import Version
from api.http.rate_limit import RequestRateLimit
from api.http.validation import Validator, read_body
from api.images.tags import checked_tags
from api.lookup.project_images import IMAGE_FIELDS, ProjectImages, image_document, image_not_found
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
        self._validator = Validator(schemas.image_body())

    def schema(self, version: Version) -> schemas.Schema:
        """The schema of the body of a new image."""
        return self._validator.schema(version)

    def create(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Create an image that waits for its content.

        Raises errors.NotFound without an image store, errors.OverQuota, and TooFast.
        """
        call = calls.get_call(req)
        body = read_body(req, self._settings.max_body_size)
        self._validator.check_body(body)
        self._images.image_store  # noqa: B018 - it raises errors.NotFound if there is none
        upload = UploadedImage(
            name=body.get("name") or "",
            owner=call.context.project_id,
            min_disk=body.get("min_disk", 0),
            min_ram=body.get("min_ram", 0),
            disk_format=body.get("disk_format"),
            tags=checked_tags(body.get("tags", [])),
            properties=_custom_properties(body),
        )
        image_id, now = str(uuid4()), self._database.current_time()
        self._rate.count_request(upload.owner)
        self._database.write(server_images.add_upload, image_id, upload, self._settings.image_limits, now)
        image = ServerImage(
            image_id=image_id, project_id=upload.owner, server_uuid=UPLOADED, complete=False, asked=upload, created_at=now
        )
        resp.location = f"{call.prefix}/image/v2/images/{image_id}"
        send_json(resp, image_document(image.as_stored), 201)

    def on_put_content(self, req: falcon.Request, resp: falcon.Response, image_id: str) -> None:
        """Store the content of an image that waits for it.

        Raises errors.NotFound, also for an image that was deleted meanwhile, and errors.Conflict if it has its content.
        """
        call = calls.get_call(req)
        kind = (req.content_type or "").split(";")[0].strip().lower()
        if kind != CONTENT_TYPE:
            raise falcon.HTTPUnsupportedMediaType(description=f"Content-Type: {kind[:40]!r} is not {CONTENT_TYPE}")
        known = self._images.get_row(call, image_id)
        if known is None:
            raise image_not_found(image_id)
        if known.complete or not known.is_uploaded:
            raise errors.Conflict(f"Image {image_id} does not wait for its content.")
        try:
            stored = self._store_content(image_id, known.asked, _read_chunks(req))
        except errors.Conflict:
            # Somebody was faster, or was killed before its row was complete: what is stored counts, and the row says so now.
            self._complete_upload(known, self._images.image_store.get_record(image_id))
            raise
        if not self._complete_upload(known, stored):
            raise image_not_found(image_id)
        resp.status = 204

    def on_get_content(self, req: falcon.Request, resp: falcon.Response, image_id: str) -> None:
        """Send the content. An image that waits for it has none, and its answer is 204, as in the Image API.

        Raises errors.NotFound, and errors.Forbidden for the disk of a shelved server, which may be incomplete without its base.
        """
        image = self._images.get_image(calls.get_call(req), image_id)
        if image["status"] != ACTIVE:
            resp.status = 204
            return
        if image["protected"]:
            raise errors.Forbidden(f"Image {image_id} is the disk of a shelved server, which only an unshelve reads.")
        # before the answer begins: it raises if the store is away, or has lost the image
        self._images.image_store.get_record(image_id)
        resp.content_type = CONTENT_TYPE
        resp.set_stream(self._images.image_store.read_content(image_id), image["size"])

    def _complete_upload(self, image: ServerImage, stored: ImageRecord) -> bool:
        """Whether the image has not been deleted meanwhile."""
        complete = partial(server_images.complete_upload, checksum=stored.checksum)
        return self._database.write(complete, image, stored.stored_content, self._database.current_time())

    def _store_content(self, image_id: str, upload: UploadedImage, content: Iterator[bytes]) -> ImageRecord:
        return self._images.image_store.add_image(
            content,
            name=upload.name,
            image_id=image_id,
            disk_format=upload.disk_format,
            min_disk=upload.min_disk,
            min_ram=upload.min_ram,
            properties=upload.properties,
            tags=upload.tags,
            owner=upload.owner,
        )


def _read_chunks(req: falcon.Request) -> Iterator[bytes]:
    while chunk := req.bounded_stream.read(CHUNK_SIZE):
        yield chunk


def _custom_properties(body: dict[str, Any]) -> dict[str, str]:
    """The fields that the Image API does not define. Raises errors.Invalid for one that is only shown."""
    known = schemas.image_body()["properties"]
    properties = {name: value for name, value in body.items() if name not in known}
    if taken := sorted(IMAGE_FIELDS & properties.keys()):
        raise errors.Invalid(f"{taken[0]}: every image has this field, which cannot be given")
    return properties
