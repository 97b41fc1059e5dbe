"""What is known of an image that a request names: whether a server may have it, and what filters and flavors must know of it.

Every door that names an image asks here.
"""

from __future__ import annotations

import time

from api.http import policies
from api.http.call import Call
from db.api.servers import images, server_images
from db.sql.engine import ApiDatabase
from images.record import ImageRecord
from images.store import FolderStore
from objects import errors, extra_specs, numa
from objects.flavor import Flavor
from objects.spec import Image, RequestSpec
from objects.stored_image import StoredImage

GIB = 1 << 30

KNOWN_CACHE_S, UNKNOWN_CACHE_S = 10.0, 1.0
"""Seconds for which an image of the operator is not looked up again in the API database, and those for which one counts as unknown.

Nothing changes of such an image. An operator may delete one and add another of its id: hosts refuse that one until then.
"""
IMAGES_CACHED = 1000

PROPERTIES_LIMIT = 65536
"""Maximum characters of an image's properties, names and values together: each request keeps a copy."""


class ImageNeeds:
    """Hosts judge images that are not in the store. Filters then see the ids of these images only.

    Every method raises errors.Invalid, beginning with the field that names the image, and errors.ServiceUnavailable if the store is
    away: without it nobody knows what the image needs.
    """

    def __init__(self, store: FolderStore | None, database: ApiDatabase) -> None:
        """``store``: None if none is configured."""
        self._store = store
        self._database = database
        self._rows: dict[str, tuple[StoredImage | None, float]] = {}  # by image, and until when that is used

    def at_boot(self, call: Call, image_id: str, flavor: Flavor) -> Image:
        """The image of a new server. Raises errors.Forbidden where policy does not let the caller go without a root disk."""
        field = "server.imageRef"
        image = self.describe_image(image_id, call.context.project_id, flavor, field)
        _refuse_zero_disk(call, flavor, field)
        numa_nodes = image.properties.get(numa.IMAGE_KEY)
        if numa_nodes is not None and not numa.requested_nodes(
            flavor.extra_specs, image.properties, flavor.taken_amounts.vcpus, flavor.taken_amounts.memory_mb
        ):
            raise errors.Invalid(f"{field}: the image asks for {numa_nodes[:40]} NUMA nodes, and the flavor cannot be divided so")
        return image

    def at_rebuild(self, call: Call, image_id: str, project_id: str, spec: RequestSpec) -> Image:
        """The new image of a server of this project and spec, whose claim stays as it is. Raises what ``at_boot`` does."""
        field = "rebuild.imageRef"
        image = self.describe_image(image_id, project_id, spec.flavor, field)
        _refuse_zero_disk(call, spec.flavor, field)
        _refuse_if_larger_than_claimed(image, spec, field)
        _refuse_other_nodes(image, spec, field)
        return image

    def at_rescue(self, call: Call, image_id: str, project_id: str, spec: RequestSpec) -> Image:
        """The image of a rescue system, whose disk may be as large as the root disk of the server.

        Raises errors.Forbidden for one of unknown size where ``at_boot`` does.
        """
        field = "rescue.rescue_image_ref"
        image = self.describe_image(image_id, project_id, spec.flavor, field)
        if not image.disk_gb and (spec.image is None or spec.image.id != image.id):
            _refuse_zero_disk(call, spec.flavor, field)
        _refuse_if_larger_than_claimed(image, spec, field)
        _refuse_other_nodes(image, spec, field)
        return image

    def describe_image(self, image_id: str, project_id: str, flavor: Flavor, field: str) -> Image:
        """The image with what is known of it, for a server of this project and flavor, which must be large enough for it."""
        row = self._find_row(image_id)
        if row is not None and row.project_id not in ("", project_id):
            raise errors.Invalid(f"{field}: image {image_id} could not be found")
        if row is not None and row.details is not None and row.virtual_size is not None:
            details, virtual_size = row.details, row.virtual_size
        else:
            record = self._find_record(image_id, project_id, field)
            if record is None:
                return Image(id=image_id, hash_value=row.hash_value if row is not None else "")
            details, virtual_size = record.image_details, record.virtual_size or 0
        if sum(len(name) + len(value) for name, value in details.properties.items()) > PROPERTIES_LIMIT:
            raise errors.Invalid(f"{field}: the properties of image {image_id} have more than {PROPERTIES_LIMIT} characters")
        try:
            extra_specs.check_image(details.properties)
        except errors.Invalid as error:
            raise errors.Invalid(f"{field}: property {error}") from error
        image = Image(
            id=image_id,
            properties=details.properties,
            disk_gb=-(-virtual_size // GIB),
            min_disk=details.min_disk,
            min_ram=details.min_ram,
            hash_value=row.hash_value if row is not None else "",
        )
        if reason := image.why_not_with(flavor):
            raise errors.Invalid(f"{field}: {reason}")
        return image

    def _find_row(self, image_id: str) -> StoredImage | None:
        """The row of the image; None: the API database does not know it. That of a project may change at any time."""
        now = time.monotonic()
        row, until = self._rows.get(image_id, (None, 0.0))
        if now >= until:
            row = self._database.read(images.get, image_id)
            if row is None or not row.project_id:
                if len(self._rows) >= IMAGES_CACHED:
                    self._rows.clear()
                self._rows[image_id] = row, now + (UNKNOWN_CACHE_S if row is None else KNOWN_CACHE_S)
        return row

    def _find_record(self, image_id: str, project_id: str, field: str) -> ImageRecord | None:
        """What the store says of an image whose row is missing, or of an older release. None: the image is elsewhere."""
        if self._store is None:
            return None
        try:
            record = self._store.get_record(image_id)
        except errors.NotFound:
            record = None
        if record is not None and not record.owner:
            return record
        if record is None and self._store.has_snapshot(image_id):
            raise errors.Invalid(f"{field}: image {image_id} is the disk of a shelved server; unshelve that one")
        known = self._database.read(server_images.get, image_id, None)
        if known is None and record is None:
            return None
        if known is None or known.project_id != project_id:
            raise errors.Invalid(f"{field}: image {image_id} could not be found")
        if not known.complete:
            raise errors.Invalid(f"{field}: image {image_id} is not active: its status is {known.as_stored.status}")
        if record is None:
            raise errors.Invalid(f"{field}: image {image_id} could not be found in the image store")
        return record


def _refuse_zero_disk(call: Call, flavor: Flavor, field: str) -> None:
    """Raises errors.Forbidden. The disk is as large as the image says, which nobody here knows of an image of Glance."""
    if not flavor.root_gb and not call.is_allowed(policies.ZERO_DISK):
        raise errors.Forbidden(f"{field}: policy does not let you build from an image with a flavor whose root disk is 0 GiB")


def _refuse_if_larger_than_claimed(image: Image, spec: RequestSpec, field: str) -> None:
    """Of a server without a root disk in its flavor: its claim has the disk of the image that it was built from."""
    if spec.flavor.root_gb or (spec.image is not None and spec.image.id == image.id):
        return
    claimed = spec.image.disk_gb if spec.image is not None else 0
    if image.disk_gb > claimed:
        raise errors.Invalid(f"{field}: the image has a disk of {image.disk_gb} GiB, and {claimed} are claimed for the server")


def _refuse_other_nodes(image: Image, spec: RequestSpec, field: str) -> None:
    """A server stays on the NUMA nodes of its claim."""
    before, after = spec.numa_nodes, spec.with_image(image).numa_nodes
    if before != after:
        raise errors.Invalid(f"{field}: the image asks for {after or 'unequal'} NUMA nodes, and the server is on {before}")
