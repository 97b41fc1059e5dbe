"""Images of projects, made of servers or uploaded: a row says whether one is complete. A complete one is among ``images``, too.

The row of an image of a server is written in the transaction that accepts the operation, whose UUID is that of the image. It is
complete from the end of the operation on, and gone if that does not end well. The row of an upload is complete once its content is
in the image store. Either is gone once the image is deleted. What is in the store without a row is no image, whatever its agent has
written. Images outlive their servers.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import msgspec
import sqlalchemy as sa

from db.api.rows.tables import images as stored_images
from db.api.rows.tables import server_images
from db.api.servers import image_removals, images
from db.sql.connection import ApiTransaction
from db.sql.keyed import KeyedDelete
from db.sql.readable import convert_readable, read_one
from objects import errors, stored
from objects.base import Object
from objects.operation import Operation
from objects.quota import UNLIMITED, ImageLimits
from objects.stored_image import ACTIVE, QUEUED, SAVING, ImageDetails, ImageStatus, StoredImage
from objects.task import NewImage, StoredContent

_I = server_images.c


UPLOADED = ""
"""In place of a server: the image was uploaded."""


class UploadedImage(NewImage, frozen=True, kw_only=True):
    """``disk_format``: as the caller declared it; None: as the content looks. ``tags``: in order."""

    disk_format: str | None = None
    tags: tuple[str, ...] = ()


class ServerImage(Object, frozen=True, kw_only=True):
    """``complete_images`` false: it is being made, or waits for its content. ``created_at``: when it was asked for, in seconds
    since the epoch.
    """

    image_id: str
    project_id: str
    server_uuid: str
    complete: bool
    asked: UploadedImage
    created_at: float

    @property
    def is_uploaded(self) -> bool:
        return self.server_uuid == UPLOADED

    @property
    def as_stored(self) -> StoredImage:
        """It as lists show it before it is complete."""
        return _stored_image_of(self.image_id, self.project_id, self.asked, QUEUED if self.is_uploaded else SAVING, self.created_at)


GIB = 1 << 30

_INSERT = sa.insert(server_images)
_SIZE = sa.select(sa.func.sum(stored_images.c.size)).where(stored_images.c.project_id == sa.bindparam("project"))
_USED = sa.select(sa.func.count().label("images"), _SIZE.scalar_subquery().label("size")).where(
    _I.project_id == sa.bindparam("project")
)
_COMPLETE = (
    sa.update(server_images)
    .where(_I.image_id == sa.bindparam("image"))
    .values(complete=sa.true())
    .execution_options(preserve_rowcount=True)
)
_FORGET = KeyedDelete(_I.image_id, returning=[_I.image_id])
_INCOMPLETE = sa.select(server_images).where(_I.complete == sa.false()).order_by(_I.created_at.desc(), _I.image_id)
_BACKUPS = (
    sa.select(_I.image_id)
    .where(_I.server_uuid == sa.bindparam("server"), _I.backup_type == sa.bindparam("type"), _I.complete == sa.true())
    .order_by(_I.created_at.desc(), _I.image_id.desc())
)


def check_quota(tx: ApiTransaction, project_id: str, limits: ImageLimits) -> None:
    """Raises errors.OverQuota if the project may have no further image. Creates at the same moment may exceed that by a few."""
    row = tx.execute(_USED, {"project": project_id}).one()
    if limits.images != UNLIMITED and row.images >= limits.images:
        raise errors.OverQuota(f"Quota exceeded for images: the project has {row.images} of {limits.images}. Delete one first.")
    used_gb = int(row.size or 0) / GIB
    if limits.gigabytes != UNLIMITED and used_gb >= limits.gigabytes:
        text = (
            f"Quota exceeded for image_gigabytes: the project has {used_gb:.1f} of {limits.gigabytes} GiB. Delete an image first."
        )
        raise errors.OverQuota(text)


def add_images(tx: ApiTransaction, accepted: Sequence[Operation]) -> None:
    """Note the images that these operations make."""
    rows = [
        _image_row(operation.uuid, operation.project_id, operation.server_uuid, operation.args.image, operation.created_at)
        for operation in accepted
        if operation.kind.makes_image and operation.args.image is not None
    ]
    if rows:
        tx.execute(_INSERT, rows)


def add_upload(tx: ApiTransaction, image_id: str, upload: UploadedImage, limits: ImageLimits, now: float) -> None:
    """Note an image whose content will be uploaded. Raises errors.OverQuota."""
    check_quota(tx, upload.owner, limits)
    tx.execute(_INSERT, [_image_row(image_id, upload.owner, UPLOADED, upload, now)])


def complete_upload(tx: ApiTransaction, image: ServerImage, content: StoredContent, now: float, *, checksum: str = "") -> bool:
    """The content is in the store; whether users see the image. One that was deleted meanwhile is removed.

    ``checksum``: its MD5, which clients compare; empty: not known.
    """
    if tx.execute(_COMPLETE, {"image": image.image_id}).rowcount:
        complete = _completed_image(image.as_stored, content, now)
        details = msgspec.structs.replace(complete.details or ImageDetails(), checksum=checksum)
        images.add_images(tx, [msgspec.structs.replace(complete, details=details)])
        return True
    image_removals.add_removals(tx, {image.image_id: None}, now)
    return False


def complete_images(tx: ApiTransaction, done: Sequence[tuple[Operation, StoredContent | None]], now: float) -> None:
    """The images of these operations are complete: users see them, and backups beyond the rotation are removed.

    An image that was deleted meanwhile is removed. With each operation: what its host has written; None: an agent of an older
    release did not tell.
    """
    for operation, content in done:
        image = operation.args.image
        if not operation.kind.makes_image or image is None:
            continue
        if not tx.execute(_COMPLETE, {"image": operation.uuid}).rowcount:
            image_removals.add_removals(tx, {operation.uuid: None}, now)
        else:
            stored_image = _stored_image_of(operation.uuid, image.owner, image, SAVING, operation.created_at)
            images.add_images(tx, [_completed_image(stored_image, content, now)])
        if image.backup_type:
            backups = tx.execute(_BACKUPS, {"server": operation.server_uuid, "type": image.backup_type}).scalars().all()
            remove_images(tx, backups[image.rotation :], now)


def remove_images(tx: ApiTransaction, image_ids: Collection[str], now: float) -> None:
    """Nobody sees these images any more, and they are removed from the store."""
    if image_ids:
        forget_images(tx, image_ids)
        image_removals.add_removals(tx, dict.fromkeys(image_ids), now)


def forget_images(tx: ApiTransaction, image_ids: Collection[str]) -> None:
    """The images are none: their operations have not ended well, or they were deleted."""
    if image_ids:
        _FORGET(tx, sorted(image_ids))
        images.forget_images(tx, image_ids)


def list_incomplete(tx: ApiTransaction, project_id: str | None) -> list[ServerImage]:
    """The images of a project that are being made, or wait for their contents, the newest first; None: of every project."""
    query = _INCOMPLETE if project_id is None else _INCOMPLETE.where(_I.project_id == project_id)
    return convert_readable(tx.execute(query), _image_from_row, server_images)


def get(tx: ApiTransaction, image_id: str, project_id: str | None) -> ServerImage | None:
    """An image of a project; ``project_id`` None: of any."""
    query = sa.select(server_images).where(_I.image_id == image_id)
    row = tx.execute(query if project_id is None else query.where(_I.project_id == project_id)).one_or_none()
    return None if row is None else read_one(row, _image_from_row, server_images)


def delete(tx: ApiTransaction, image_id: str, project_id: str | None, now: float) -> bool:
    """A user deletes an image; whether there was one. One that is made of a server is removed when its host has told its end."""
    existing = get(tx, image_id, project_id)
    if existing is None:
        return False
    forget_images(tx, [image_id])
    if existing.complete or existing.is_uploaded:
        image_removals.add_removals(tx, {image_id: None}, now)
    return True


def _image_row(image_id: str, project_id: str, server_uuid: str, new_image: NewImage, created_at: float) -> dict[str, Any]:
    return {
        "image_id": image_id,
        "project_id": project_id,
        "server_uuid": server_uuid,
        "complete": False,
        "backup_type": new_image.backup_type,
        "asked": stored.dump_value(new_image),
        "created_at": created_at,
    }


def _image_from_row(row: sa.Row[Any]) -> ServerImage:
    new_image = stored.load_or_none(row.asked, UploadedImage) or UploadedImage(name=row.image_id, owner=row.project_id)
    return ServerImage(
        image_id=row.image_id,
        project_id=row.project_id,
        server_uuid=row.server_uuid,
        complete=bool(row.complete),
        asked=new_image,
        created_at=row.created_at,
    )


def _stored_image_of(image_id: str, project_id: str, new_image: NewImage, status: ImageStatus, created_at: float) -> StoredImage:
    disk_format, tags = (new_image.disk_format or "", new_image.tags) if isinstance(new_image, UploadedImage) else ("", ())
    return StoredImage(
        image_id=image_id,
        project_id=project_id,
        name=new_image.name,
        status=status,
        disk_format=disk_format,
        created_at=created_at,
        details=ImageDetails(min_disk=new_image.min_disk, min_ram=new_image.min_ram, properties=new_image.properties, tags=tags),
    )


def _completed_image(image: StoredImage, content: StoredContent | None, now: float) -> StoredImage:
    """It with its content. None: an agent of an older release did not tell what that is."""
    complete = msgspec.structs.replace(image, status=ACTIVE, updated_at=now)
    if content is None:
        return complete
    return msgspec.structs.replace(
        complete,
        disk_format=content.disk_format,
        size=content.size,
        virtual_size=content.virtual_size,
        hash_value=content.hash_value,
    )
