"""Rows of images that a release without them has left to the records in the image store. Lists show rows only."""

from __future__ import annotations

import logging

import msgspec

from db.api.servers import images
from db.sql.engine import ApiDatabase
from images.record import ImageRecord, parse_seconds
from images.store import FolderStore
from objects import errors
from objects.stored_image import ImageDetails, StoredImage
from service.rate_limited_log import RateLimitedLog

_COMPLAINTS = RateLimitedLog(logging.getLogger(__name__))


def complete_rows(database: ApiDatabase, store: FolderStore) -> None:
    """Complete rows of older releases, and those of projects' images that have none. Nothing changes whose an image is.

    While the store is away, they stay for a later round.
    """
    for image_id in database.read(images.without_details):
        try:
            record = store.get_record(image_id)
        except errors.NotFound:
            database.write(images.fill_details, image_id, ImageDetails(), None)
        except errors.ServiceUnavailable as error:
            _COMPLAINTS(image_id, logging.WARNING, "image %s is shown without its properties: %s", image_id, error)
        else:
            database.write(
                images.fill_details, image_id, record.image_details, parse_seconds(record.updated_at) or None, name=record.name
            )
    for image_id, project_id in database.read(images.without_row).items():
        try:
            added = _without_hash(store.get_record(image_id).to_stored(project_id))
        except errors.NotFound:
            continue
        except errors.ServiceUnavailable as error:
            _COMPLAINTS(image_id, logging.WARNING, "image %s is not in lists yet: %s", image_id, error)
        else:
            database.write(images.add_images, [added])


def missing_images(database: ApiDatabase, store: FolderStore) -> list[tuple[ImageRecord, str]]:
    """The images in the store whose hashes the API database does not know, and their projects; empty: the operator's.

    One whose record names a project that does not know it is none: a host may have written it. Raises errors.ServiceUnavailable.
    """
    hashed, projects = database.read(images.list_hashed), database.read(images.project_by_image)
    unhashed = [record for record in store.list_images() if record.id not in hashed] if store.is_there() else []
    return [(record, projects.get(record.id, "")) for record in unhashed if record.id in projects or not record.owner]


def _without_hash(image: StoredImage) -> StoredImage:
    """Hosts do not compare its content: nobody has read that now."""
    return msgspec.structs.replace(image, hash_value="")
