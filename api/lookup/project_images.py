"""The images that a caller sees: those of the operator, and those of the caller's projects, as the Image API shows them.

``/image`` and ``/v2.1/images`` are two views of them.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cmp_to_key, partial
from itertools import islice
from typing import Any

import msgspec

from api.http.call import Call
from api.http.paging import Page
from api.http.validation import is_uuid
from db.api.servers import images, server_images, snapshots
from db.api.servers.images import ImageQuery, Place, SortKey, place_of
from db.api.servers.server_images import ServerImage
from db.api.servers.snapshots import ShelvedSnapshot
from db.sql.engine import ApiDatabase
from images.store import NOT_CONFIGURED, FolderStore
from objects import errors
from objects.base import Object
from objects.stored_image import ImageDetails, StoredImage
from objects.utc import to_utc

OWNER = "superconductor"
"""Owner of the operator's images. Client libraries fail at an image without one."""

BY_UUID = (
    "name the image by its uuid as the block device that boots first "
    "(openstack server create --block-device uuid=UUID,source_type=image,destination_type=local,boot_index=0)."
)
"""What to do about an image that is elsewhere."""

ROWS_READ_AT_LEAST = 100
"""Images that each further statement of a list reads, where the page is smaller: filters may leave most of them out."""

Document = dict[str, Any]


class ImageListing(Object, frozen=True, kw_only=True):
    """What of the images a caller sees, and in which order.

    ``names``, ``ids``, ``owners``: see ``ImageQuery``; they only spare rows, and ``is_listed`` decides.
    """

    order: tuple[SortKey, ...]
    is_listed: Callable[[Document], bool]
    names: tuple[str, ...] | None = None
    ids: tuple[str, ...] | None = None
    owners: tuple[str, ...] | None = None


class ProjectImages:
    """Callers see and change the images of their own project; those whose rule allows other projects too, of every project.

    Rows of the API database decide what is seen. What the records in the store say of their owners is not read.
    """

    def __init__(self, store: FolderStore | None, database: ApiDatabase) -> None:
        """``store``: None if none is configured."""
        self._store = store
        self._database = database

    @property
    def image_store(self) -> FolderStore:
        """Raises errors.NotFound if none is configured."""
        return self._require_store()

    def _require_store(self) -> FolderStore:
        if self._store is None:
            raise errors.NotFound(f"There is no image service at this address: {NOT_CONFIGURED}, or {BY_UUID}")
        return self._store

    def list_page(self, call: Call, listing: ImageListing, page: Page) -> tuple[list[Document], bool]:
        """The images of this page, and whether there are more. Raises errors.Invalid for a marker that the caller does not see."""
        self._require_store()
        after = None
        if page.marker is not None:
            marker = self._find_visible(call, page.marker)
            if marker is None:
                raise errors.Invalid(f"marker: image {page.marker[:80]!r} could not be found")
            after = place_of(marker, listing.order)
        compare = partial(_compare_places, listing.order)
        others = [image for image in self._list_others(call) if after is None or compare(place_of(image, listing.order), after) > 0]

        def sort_key(image: StoredImage) -> Any:
            return cmp_to_key(compare)(place_of(image, listing.order))

        in_order = heapq.merge(self._list_complete(call, listing, page, after), sorted(others, key=sort_key), key=sort_key)
        documents = list(islice(filter(listing.is_listed, map(image_document, in_order)), page.limit + 1))
        return documents[: page.limit], len(documents) > page.limit

    def get_image(self, call: Call, image_id: str) -> Document:
        """Raises errors.NotFound, also for an image of another project."""
        self._require_store()
        image = self._find_visible(call, image_id)
        if image is None:
            raise image_not_found(image_id)
        return image_document(image)

    def get_row(self, call: Call, image_id: str) -> ServerImage | None:
        """The row of an image of a project; None: it has none that the caller sees."""
        return self._database.read(server_images.get, image_id, call.project_scope) if is_uuid(image_id) else None

    def delete(self, call: Call, image_id: str) -> None:
        """Raises errors.NotFound, and errors.Forbidden for an image of the operator, or one that a shelved server needs."""
        now = self._database.current_time()
        if not is_uuid(image_id) or not self._database.write(server_images.delete, image_id, call.project_scope, now):
            raise self._refusal_error(call, image_id, "Images of the operator are deleted with 'superconductor image delete'.")

    def change_image(self, call: Call, image_id: str, **fields: Any) -> Document:
        """Replace the ``fields`` that ``db.api.servers.images.change_image`` takes.

        Raises errors.NotFound, errors.Conflict for an incomplete image, errors.Forbidden for one of the operator, and
        errors.Invalid for the name of a field that every image has.
        """
        if taken := sorted(IMAGE_FIELDS & fields.get("properties", {}).keys()):
            raise errors.Invalid(f"{taken[0]}: every image has this field, which cannot be changed")
        self._check_changeable(call, image_id)
        return self._record_change(self._database.write(images.change_image, image_id, self._database.current_time(), **fields))

    def add_tag(self, call: Call, image_id: str, name: str) -> None:
        """Give an image a tag. Raises what ``change_image`` does, and errors.OverQuota for too many."""
        self._check_changeable(call, image_id)
        self._record_change(self._database.write(images.add_tag, image_id, name, self._database.current_time()))

    def remove_tag(self, call: Call, image_id: str, name: str) -> None:
        """Raises what ``change_image`` does, and errors.NotFound for a tag that the image does not have."""
        self._check_changeable(call, image_id)
        self._record_change(self._database.write(images.remove_tag, image_id, name, self._database.current_time()))

    def _find_visible(self, call: Call, image_id: str) -> StoredImage | None:
        """An image that the caller sees."""
        if not is_uuid(image_id):
            return None
        image = self._database.read(images.get, image_id)
        if image is not None:
            return self._with_details(image) if call.project_scope is None or image.project_id in ("", call.project_scope) else None
        row = self.get_row(call, image_id)
        if row is not None:
            return None if row.complete else row.as_stored
        shelved = self._find_shelved(call, image_id)
        return None if shelved is None else self._of_shelved(shelved)

    def _list_complete(self, call: Call, listing: ImageListing, page: Page, after: Place | None) -> Iterator[StoredImage]:
        """The complete images after this place, in order."""
        limit = page.limit + 1
        while True:
            query = ImageQuery(
                project_id=call.project_scope,
                order=listing.order,
                limit=limit,
                names=listing.names,
                ids=listing.ids,
                owners=listing.owners,
                after=after,
            )
            part = self._database.read(images.list_part, query)
            yield from map(self._with_details, part.images)
            if part.after is None:
                return
            after, limit = part.after, max(limit, ROWS_READ_AT_LEAST)

    def _list_others(self, call: Call) -> list[StoredImage]:
        """The incomplete images, and those of shelved servers. Their number is limited by quotas of the project."""
        incomplete = [image.as_stored for image in self._database.read(server_images.list_incomplete, call.project_scope)]
        return incomplete + [self._of_shelved(snapshot) for snapshot in self._database.read(snapshots.list_all, call.project_scope)]

    def _with_details(self, image: StoredImage) -> StoredImage:
        """What a super conductor or an agent of an older release has not told, from the record in the store."""
        if image.details is not None and image.size:
            return image
        try:
            record = self.image_store.get_record(image.image_id).to_stored(image.project_id)
        except (errors.NotFound, errors.ServiceUnavailable):
            return image
        if image.details is None:
            image = msgspec.structs.replace(image, name=record.name, details=record.details)
        if image.size:
            return image
        return msgspec.structs.replace(image, size=record.size, virtual_size=record.virtual_size, disk_format=record.disk_format)

    def _check_changeable(self, call: Call, image_id: str) -> None:
        known = self.get_row(call, image_id)
        if known is None:
            raise self._refusal_error(call, image_id, "Images of the operator cannot be changed here.")
        if not known.complete:
            raise errors.Conflict(f"Image {image_id} is not active yet.")

    def _record_change(self, changed: StoredImage) -> Document:
        """Have the record in the store say the same, which operators and processes of an older release read."""
        self.image_store.change_record(changed.image_id, changed.name, changed.details or ImageDetails())
        return image_document(changed)

    def _find_shelved(self, call: Call, image_id: str) -> ShelvedSnapshot | None:
        return self._database.read(snapshots.get, image_id, call.project_scope) if is_uuid(image_id) else None

    def _of_shelved(self, snapshot: ShelvedSnapshot) -> StoredImage:
        """Its format is that of its host, and nothing but an unshelve reads it."""
        properties = {
            "image_type": "snapshot",
            "instance_uuid": snapshot.server_uuid,
            "user_id": snapshot.user_id,
            "owner_id": snapshot.project_id,
            "base_image_ref": snapshot.base_image or "",
        }
        return StoredImage(
            image_id=snapshot.image_id,
            project_id=snapshot.project_id,
            name=f"{snapshot.server_name}-shelved",
            size=self.image_store.size_of_snapshot(snapshot.image_id) or 0,
            created_at=snapshot.created_at,
            details=ImageDetails(min_disk=snapshot.min_disk, properties=properties),
            protected=True,
        )

    def _refusal_error(self, call: Call, image_id: str, of_the_operator: str) -> errors.Forbidden | errors.NotFound:
        """For an image that is none of the caller's project, or that of a shelved server."""
        if (shelved := self._find_shelved(call, image_id)) is not None:
            subject = f"Image {image_id} is the disk of the shelved server {shelved.server_uuid}"
            return errors.Forbidden(f"{subject}: it goes when that is unshelved or deleted, and cannot be changed.")
        return image_not_found(image_id) if self._find_visible(call, image_id) is None else errors.Forbidden(of_the_operator)


def _compare_places(order: Sequence[SortKey], one: Place, other: Place) -> int:
    pairs: Iterable[tuple[SortKey, Any, Any]] = zip(order, one, other, strict=True)
    for (_, desc), value, other_value in pairs:
        if value != other_value:
            return -1 if (value < other_value) != desc else 1
    return 0


def image_not_found(image_id: str) -> errors.NotFound:
    return errors.NotFound(f"Image {image_id[:80]} is not in the image store.")


def image_document(image: StoredImage) -> Document:
    details = image.details or ImageDetails()
    return details.properties | {
        "id": image.image_id,
        "name": image.name,
        "visibility": "private" if image.project_id else "public",
        "protected": image.protected,
        "os_hidden": False,
        "owner": image.project_id or OWNER,
        "status": image.status,
        "tags": list(details.tags),
        "disk_format": image.disk_format or None,
        "container_format": "bare",
        "size": image.size or None,
        "virtual_size": image.virtual_size,
        "min_disk": details.min_disk,
        "min_ram": details.min_ram,
        "checksum": details.checksum or None,
        "os_hash_algo": "sha512" if image.hash_value else None,
        "os_hash_value": image.hash_value or None,
        "created_at": _format_time(image.created_at),
        "updated_at": _format_time(image.created_at if image.updated_at is None else image.updated_at),
        "self": f"/v2/images/{image.image_id}",
        "file": f"/v2/images/{image.image_id}/file",
        "schema": "/v2/schemas/image",
    }


def _format_time(seconds: float) -> str:
    return to_utc(seconds).strftime("%Y-%m-%dT%H:%M:%SZ")


IMAGE_FIELDS = frozenset(image_document(StoredImage(image_id="", project_id="", name="", created_at=0.0)))
"""The fields of every image; everything else is a property."""


def properties_of(image: Document) -> dict[str, str]:
    return {name: value for name, value in image.items() if name not in IMAGE_FIELDS}
