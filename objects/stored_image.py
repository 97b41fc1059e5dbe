"""Images as the API database knows them, and what a user may change of one."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from objects.base import INT32_MAX, INT64_MAX, Object

IMAGE_TAGS_LIMIT, IMAGE_TAG_LENGTH = 128, 255
"""Tags of an image, and characters of a tag, as the Image API limits them."""

ImageStatus = Literal["queued", "saving", "active"]
QUEUED: ImageStatus = "queued"
SAVING: ImageStatus = "saving"
ACTIVE: ImageStatus = "active"
"""Of an image that waits for its content, of one that is made of a server, and of one that is complete."""

_Bytes = Annotated[int, msgspec.Meta(ge=0, le=INT64_MAX)]
_Time = Annotated[float, msgspec.Meta(ge=0, lt=253402300800)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=INT32_MAX)]


class ImageDetails(Object, frozen=True, kw_only=True):
    """``min_disk``: GiB, ``min_ram``: MiB, which a flavor must have. ``tags``: in order. ``checksum``: the MD5 of an upload; empty:
    not known.
    """

    min_disk: _Count = 0
    min_ram: _Count = 0
    properties: dict[str, str] = {}
    tags: tuple[str, ...] = ()
    checksum: str = ""


class StoredImage(Object, frozen=True, kw_only=True):
    """``project_id``: whose it is; empty: the operator's, for every project.

    ``disk_format``: raw or qcow2; empty: not known. ``size``: bytes of the file; 0: not known. ``virtual_size``: bytes of the disk
    that guests see. ``hash_value``: SHA-512 of the content in hexadecimal digits; empty: not known. Times are seconds since the
    epoch; ``updated_at`` None: never. ``details`` None: only the record in the image store has them. ``protected``: nobody may
    delete it.
    """

    image_id: str
    project_id: str
    name: str
    status: ImageStatus = "active"
    disk_format: str = ""
    size: _Bytes = 0
    virtual_size: _Bytes | None = None
    hash_value: str = ""
    created_at: _Time
    updated_at: _Time | None = None
    details: ImageDetails | None = ImageDetails()
    protected: bool = False
