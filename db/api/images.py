"""The images in the image store as the API database knows them: whoever wrote one said what it is.

The store is a folder that many hosts write to. So a host that builds from an image compares what it reads with the hash that is
here, and that came with the request (``objects.spec.Image``).
"""

from __future__ import annotations

from collections.abc import Collection

import sqlalchemy as sa

from db.api.tables import images
from db.sql import dialect
from db.sql.connection import ApiTransaction
from db.sql.keyed import KeyedDelete
from objects.base import Object
from objects.task import StoredContent

_I = images.c

ACTIVE = "active"


class KnownImage(Object, frozen=True, kw_only=True):
    """``project_id``: whose it is; empty: the operator's. ``hash_value``: the SHA-512 of its content in hexadecimal digits."""

    project_id: str
    hash_value: str


_GET = sa.select(_I.project_id, _I.hash_value).where(_I.image_id == sa.bindparam("image"))
_FORGET = KeyedDelete(_I.image_id, returning=[_I.image_id])


def add(tx: ApiTransaction, image_id: str, project_id: str, name: str, content: StoredContent, now: float) -> None:
    """Note what an image is. ``project_id``: whose it is; empty: the operator's. One that is noted already stays as it is."""
    row = {
        "image_id": image_id,
        "project_id": project_id,
        "name": name,
        "status": ACTIVE,
        "disk_format": content.disk_format,
        "size": content.size,
        "virtual_size": content.virtual_size,
        "hash_value": content.hash_value,
        "created_at": now,
    }
    dialect.insert_new(tx, images, [row])


def get(tx: ApiTransaction, image_id: str) -> KnownImage | None:
    """What is noted of an image; None: nothing, or what cannot be read."""
    row = tx.execute(_GET, {"image": image_id}).one_or_none()
    if row is None or not isinstance(row.project_id, str) or not isinstance(row.hash_value, str):  # SQLite takes any value
        return None
    return KnownImage(project_id=row.project_id, hash_value=row.hash_value)


def known(tx: ApiTransaction) -> set[str]:
    """The images that are noted."""
    return set(tx.execute(sa.select(_I.image_id)).scalars())


def forget(tx: ApiTransaction, image_ids: Collection[str]) -> None:
    """These images are deleted."""
    _FORGET(tx, sorted(image_ids))
