"""What an image needs of the flavor of a new or rebuilt server, as far as the image store knows it."""

from __future__ import annotations

import time

import msgspec

from db.api import images
from db.api.images import KnownImage
from db.sql.engine import ApiDatabase
from images.store import FolderStore
from objects import errors
from objects.flavor import Flavor
from objects.spec import Image

GIB = 1 << 30

KNOWN_CACHE_S, UNKNOWN_CACHE_S = 10.0, 1.0
"""Seconds for which an image is not looked up again in the API database, and those for which it counts as unknown there.

The content of an image never changes. An operator may delete one and add another of its id: hosts refuse that one until then.
"""
IMAGES_CACHED = 1000


class ImageNeeds:
    """Images that are elsewhere, or in a store that is away, are judged by the host."""

    def __init__(self, store: FolderStore | None, database: ApiDatabase) -> None:
        """``store``: None if none is configured."""
        self._store = store
        self._database = database
        self._known: dict[str, tuple[KnownImage | None, float]] = {}  # by image, and until when that is used

    def check(self, image: Image, flavor: Flavor, project_id: str, field: str = "server.imageRef") -> Image:
        """The same image, with the hash that its content must have. ``field``: what names it in the request.

        Raises errors.Invalid if it is another project's, or if the flavor is too small for it. A root disk of 0 GiB takes any.
        """
        known = self._find(image.id)
        if known is not None:
            image = msgspec.structs.replace(image, hash_value=known.hash_value)
            if known.project_id not in ("", project_id):  # whatever its record says now
                raise errors.Invalid(f"{field}: image {image.id} could not be found")
        if self._store is None:
            return image
        try:
            record = self._store.about(image.id)
        except (errors.NotFound, errors.ServiceUnavailable):
            return image
        if record.owner not in ("", project_id):
            raise errors.Invalid(f"{field}: image {image.id} could not be found")
        if flavor.memory_mb < record.min_ram:
            raise errors.Invalid(f"{field}: the image needs {record.min_ram} MiB of memory, the flavor has {flavor.memory_mb}")
        disk = max(record.min_disk, -(-(record.virtual_size or 0) // GIB))
        if 0 < flavor.root_gb < disk:
            raise errors.Invalid(f"{field}: the image needs a disk of {disk} GiB, the flavor has {flavor.root_gb}")
        return image

    def hash_of(self, image_id: str) -> str:
        """The hash that the content of this image must have; empty: the API database does not know it."""
        known = self._find(image_id)
        return known.hash_value if known is not None else ""

    def _find(self, image_id: str) -> KnownImage | None:
        now = time.monotonic()
        known, until = self._known.get(image_id, (None, 0.0))
        if now >= until:
            if len(self._known) >= IMAGES_CACHED:
                self._known.clear()
            known = self._database.read(images.get, image_id)
            self._known[image_id] = known, now + (UNKNOWN_CACHE_S if known is None else KNOWN_CACHE_S)
        return known
