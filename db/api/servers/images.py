"""The complete images in the image store, as the API database has them. A list of images is a page of these rows.

The store is a folder that many hosts write to. So nothing is believed that it says of an image: whose it is, what it is called, and
what it needs are here. A host that builds from an image compares what it reads with the hash that is here, and that came with the
request (``objects.spec.Image``).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple

import msgspec
import sqlalchemy as sa

from db.api.rows.tables import images, server_images
from db.sql import dialect
from db.sql.connection import ApiTransaction
from db.sql.keyed import KeyedDelete
from db.sql.readable import UNREADABLE, convert_readable
from objects import errors, stored, typed
from objects.base import Object
from objects.stored_image import IMAGE_TAGS_LIMIT, ImageDetails, StoredImage

_I = images.c

_GET = sa.select(images).where(_I.image_id == sa.bindparam("image"))
_LOCK = _GET.with_for_update()
_FORGET = KeyedDelete(_I.image_id, returning=[_I.image_id])
_CHANGE = (
    sa.update(images)
    .where(_I.image_id == sa.bindparam("image"))
    .values(name=sa.bindparam("to_name"), details=sa.bindparam("to_details"), updated_at=sa.bindparam("now"))
)
_SET_HASH = (
    sa.update(images)
    .where(_I.image_id == sa.bindparam("image"), _I.hash_value == "")
    .values(
        hash_value=sa.bindparam("to_hash"),
        size=sa.bindparam("to_size"),
        virtual_size=sa.bindparam("to_virtual_size"),
        disk_format=sa.bindparam("to_format"),
    )
)
_WITHOUT_DETAILS = sa.select(_I.image_id).where(_I.details.is_(None)).order_by(_I.image_id)
_COMPLETE = sa.select(server_images.c.image_id, server_images.c.project_id).where(server_images.c.complete == sa.true())
_WITHOUT_ROW = _COMPLETE.outerjoin(images, _I.image_id == server_images.c.image_id).where(_I.image_id.is_(None))

_SORTED: dict[str, sa.ColumnElement[Any]] = {
    "name": _I.name,
    "id": _I.image_id,
    "size": _I.size,
    "disk_format": _I.disk_format,
    "created_at": _I.created_at,
    "updated_at": sa.func.coalesce(_I.updated_at, _I.created_at),
    "status": _I.status,
}
SORT_KEYS = frozenset(_SORTED)

SortKey = tuple[str, bool]
"""One of SORT_KEYS, and whether the greatest is first."""
Place = tuple[str | float, ...]
"""The values of an image for the keys of an order."""


class ImageQuery(Object, frozen=True, kw_only=True):
    """A part of a list. ``project_id``: its images and those of the operator; None: of all projects.

    ``names``, ``ids``, ``owners``: an image has one of these; None: any. ``order``: the last key must be ``id``. ``after``: the
    place before this part; None: it is the first.
    """

    project_id: str | None
    order: tuple[SortKey, ...]
    limit: int
    names: tuple[str, ...] | None = None
    ids: tuple[str, ...] | None = None
    owners: tuple[str, ...] | None = None
    after: Place | None = None


class ImagePart(NamedTuple):
    """``after``: where the next part begins; None: this is the last one."""

    images: list[StoredImage]
    after: Place | None


def place_of(image: StoredImage | sa.Row[Any], order: Sequence[SortKey]) -> Place:
    """The place of an image in this order."""
    values = {
        "name": image.name,
        "id": image.image_id,
        "size": image.size,
        "disk_format": image.disk_format,
        "created_at": image.created_at,
        "updated_at": image.created_at if image.updated_at is None else image.updated_at,
        "status": image.status,
    }
    return tuple(values[key] for key, _ in order)


def list_part(tx: ApiTransaction, query: ImageQuery) -> ImagePart:
    """At most ``limit`` images in order. A row that cannot be read is left out."""
    page = sa.select(_I.image_id).limit(query.limit)
    if query.project_id is not None:
        page = page.where(_I.project_id.in_(("", query.project_id)))
    for column, values in ((_I.name, query.names), (_I.image_id, query.ids), (_I.project_id, query.owners)):
        if values is not None:
            page = page.where(column.in_(values))
    if query.after is not None:
        page = page.where(_is_after(query.order, query.after))
    in_order = [_SORTED[key].desc() if desc else _SORTED[key] for key, desc in query.order]
    chosen = page.order_by(*in_order).subquery()  # details are large, and no database sorts them here
    rows = tx.execute(sa.select(images).join(chosen, chosen.c.image_id == _I.image_id).order_by(*in_order)).all()
    after = place_of(rows[-1], query.order) if len(rows) == query.limit else None
    return ImagePart(convert_readable(rows, _image_from_row, images), after)


def get(tx: ApiTransaction, image_id: str) -> StoredImage | None:
    """One image; None: there is none, or what cannot be read."""
    row = tx.execute(_GET, {"image": image_id}).one_or_none()
    try:
        return None if row is None else _image_from_row(row)
    except UNREADABLE:
        return None


def add_images(tx: ApiTransaction, added: Iterable[StoredImage]) -> None:
    """Note complete images. One that is noted already stays as it is."""
    dialect.insert_new(tx, images, [_image_row(image) for image in added])


def change_image(
    tx: ApiTransaction,
    image_id: str,
    now: float,
    *,
    name: str | None = None,
    min_disk: int | None = None,
    min_ram: int | None = None,
    properties: dict[str, str] | None = None,
    tags: tuple[str, ...] | None = None,
) -> StoredImage:
    """Replace what is not None. Of two changes at once the last one counts. Raises errors.NotFound."""
    image, details = _lock_image(tx, image_id)
    fields = {"min_disk": min_disk, "min_ram": min_ram, "properties": properties, "tags": tags}
    details = msgspec.structs.replace(details, **{field: value for field, value in fields.items() if value is not None})
    return _write(tx, msgspec.structs.replace(image, name=image.name if name is None else name, details=details, updated_at=now))


def add_tag(tx: ApiTransaction, image_id: str, name: str, now: float) -> StoredImage:
    """Give an image a tag, which it may have. Raises errors.NotFound, and errors.OverQuota beyond IMAGE_TAGS_LIMIT."""
    image, details = _lock_image(tx, image_id)
    tags = tuple(sorted({*details.tags, name}))
    if len(tags) > IMAGE_TAGS_LIMIT:
        raise errors.OverQuota(f"Image {image_id} has {IMAGE_TAGS_LIMIT} tags, which is the maximum. Remove one first.")
    return _write(tx, msgspec.structs.replace(image, details=msgspec.structs.replace(details, tags=tags), updated_at=now))


def remove_tag(tx: ApiTransaction, image_id: str, name: str, now: float) -> StoredImage:
    """Raises errors.NotFound, also for a tag that the image does not have."""
    image, details = _lock_image(tx, image_id)
    if name not in details.tags:
        raise errors.NotFound(f"Image {image_id} has no tag {name[:80]!r}.")
    tags = tuple(tag for tag in details.tags if tag != name)
    return _write(tx, msgspec.structs.replace(image, details=msgspec.structs.replace(details, tags=tags), updated_at=now))


def record_hash(tx: ApiTransaction, image: StoredImage) -> None:
    """Note the image, or what its content is if the hash of that is not known."""
    add_images(tx, [image])
    content = {"to_hash": image.hash_value, "to_size": image.size, "to_virtual_size": image.virtual_size}
    tx.execute(_SET_HASH, {"image": image.image_id, "to_format": image.disk_format} | content)


def list_hashed(tx: ApiTransaction) -> set[str]:
    """The images whose hashes are known."""
    return set(tx.execute(sa.select(_I.image_id).where(_I.hash_value != "")).scalars())


def forget_images(tx: ApiTransaction, image_ids: Collection[str]) -> None:
    """These images are deleted."""
    _FORGET(tx, sorted(image_ids))


# -- rows of older releases --------------------------------------------------------------------------------------------------------


def without_details(tx: ApiTransaction) -> list[str]:
    """Images whose rows a process of an older release wrote: only their records in the store say what they need."""
    return list(tx.execute(_WITHOUT_DETAILS).scalars())


def without_row(tx: ApiTransaction) -> dict[str, str]:
    """Complete images of projects that a release without this table made, with their projects."""
    return {row.image_id: row.project_id for row in tx.execute(_WITHOUT_ROW)}


def project_by_image(tx: ApiTransaction) -> dict[str, str]:
    """The complete images of projects, and those that are noted, with their projects; empty: the operator's."""
    noted = tx.execute(sa.select(_I.image_id, _I.project_id))
    return {row.image_id: row.project_id for rows in (tx.execute(_COMPLETE), noted) for row in rows}


def fill_details(tx: ApiTransaction, image_id: str, details: ImageDetails, updated_at: float | None, *, name: str = "") -> None:
    """Complete the row of an older release. ``name`` empty: it stays."""
    values: dict[str, Any] = {"details": stored.dump_value(details), "updated_at": updated_at} | ({"name": name} if name else {})
    tx.execute(sa.update(images).where(_I.image_id == image_id, _I.details.is_(None)).values(values))


# ----------------------------------------------------------------------------------------------------------------------------------


def _is_after(order: Sequence[SortKey], place: Place) -> sa.ColumnElement[bool]:
    """Rows that are later in this order."""
    later: list[sa.ColumnElement[bool]] = []
    equal: list[sa.ColumnElement[bool]] = []
    for (key, desc), value in zip(order, place, strict=True):
        column = _SORTED[key]
        later.append(sa.and_(*equal, column < value if desc else column > value))
        equal.append(column == value)
    return sa.or_(*later)


def _lock_image(tx: ApiTransaction, image_id: str) -> tuple[StoredImage, ImageDetails]:
    row = tx.execute(_LOCK, {"image": image_id}).one_or_none()
    if row is None:
        raise errors.NotFound(f"Image {image_id[:80]} is not in the image store.")
    image = _image_from_row(row)
    return image, image.details or ImageDetails()


def _write(tx: ApiTransaction, image: StoredImage) -> StoredImage:
    row = {"image": image.image_id, "to_name": image.name, "to_details": stored.dump_value(image.details), "now": image.updated_at}
    tx.execute(_CHANGE, row)
    return image


def _image_row(image: StoredImage) -> dict[str, Any]:
    return {
        "image_id": image.image_id,
        "project_id": image.project_id,
        "name": image.name,
        "status": image.status,
        "disk_format": image.disk_format,
        "size": image.size,
        "virtual_size": image.virtual_size,
        "hash_value": image.hash_value,
        "created_at": image.created_at,
        "updated_at": image.updated_at,
        "details": None if image.details is None else stored.dump_value(image.details),
    }


def _image_from_row(row: sa.Row[Any]) -> StoredImage:
    """Raises one of UNREADABLE: SQLite takes any value."""
    details = None if row.details is None else stored.load_text(row.details, ImageDetails)
    return typed.convert_data({str(name): value for name, value in row._mapping.items()} | {"details": details}, StoredImage)
