"""What is known of an image beside its bytes."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

import msgspec

from objects.base import INT64_MAX, Object
from objects.stored_image import ImageDetails, StoredImage
from objects.task import StoredContent

Bytes = Annotated[int, msgspec.Meta(ge=1, le=INT64_MAX)]


class ImageRecord(Object, frozen=True, kw_only=True):
    """An image that servers can be built from.

    ``size``: bytes of its file. ``virtual_size``: bytes of the disk that guests see; None: not known before its file is here.
    ``hash_value``: of its file, in hexadecimal digits. ``min_disk``: GiB, ``min_ram``: MiB, which a flavor must have.
    ``owner``: the only project that may use it; empty: every project. ``created_at``: in UTC, ISO 8601.
    ``updated_at``: the same, of the last change of its properties; empty: none. ``checksum``: the MD5 of its file, by which clients
    find a damaged upload; empty: not known. Nothing here trusts it. ``tags``: in order.
    """

    id: str
    name: str
    disk_format: Literal["raw", "qcow2"]
    size: Bytes
    hash_algo: Literal["sha512", "sha256"]
    hash_value: Annotated[str, msgspec.Meta(pattern="^([0-9a-f]{64}|[0-9a-f]{128})$")]
    virtual_size: Bytes | None = None
    min_disk: Annotated[int, msgspec.Meta(ge=0)] = 0
    min_ram: Annotated[int, msgspec.Meta(ge=0)] = 0
    properties: dict[str, str] = msgspec.field(default_factory=dict)
    owner: str = ""
    created_at: str = ""
    updated_at: str = ""
    checksum: str = ""
    tags: tuple[str, ...] = ()

    @property
    def image_details(self) -> ImageDetails:
        return ImageDetails(
            min_disk=self.min_disk, min_ram=self.min_ram, properties=self.properties, tags=self.tags, checksum=self.checksum
        )

    def to_stored(self, project_id: str = "") -> StoredImage:
        """It as a complete image of this project, whatever its record says of that. Empty: of the operator."""
        return StoredImage(
            image_id=self.id,
            project_id=project_id,
            name=self.name,
            disk_format=self.disk_format,
            size=self.size,
            virtual_size=self.virtual_size,
            hash_value=self.hash_value,
            created_at=parse_seconds(self.created_at),
            updated_at=parse_seconds(self.updated_at) or None,
            details=self.image_details,
        )

    @property
    def stored_content(self) -> StoredContent:
        """What the API database keeps of an image of the store, whose hashes are of SHA-512."""
        return StoredContent(
            size=self.size, hash_value=self.hash_value, virtual_size=self.virtual_size, disk_format=self.disk_format
        )


def parse_seconds(at: str) -> float:
    """A time of a record in seconds since the epoch; 0 for what is none: hosts write records, too."""
    try:
        return max(0.0, datetime.fromisoformat(at).timestamp())
    except (ValueError, OverflowError):
        return 0.0
