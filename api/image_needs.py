"""What an image needs of the flavor of a new or rebuilt server, as far as the image store knows it."""

from __future__ import annotations

from images.store import FolderStore
from objects import errors
from objects.flavor import Flavor
from objects.spec import Image

GIB = 1 << 30


class ImageNeeds:
    """Images that are elsewhere, or in a store that is away, are judged by the host."""

    def __init__(self, store: FolderStore | None) -> None:
        """``store``: None if none is configured."""
        self._store = store

    def check(self, image: Image, flavor: Flavor, project_id: str, field: str = "server.imageRef") -> Image:
        """The same image. ``field``: what names it in the request.

        Raises errors.Invalid if it is another project's, or if the flavor is too small for it. A root disk of 0 GiB takes any.
        """
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
