"""The images that a caller sees: those of the operator, and those of the caller's projects, as the Image API shows them.

``/image`` and ``/v2.1/images`` are two views of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from api.call import Call
from api.validation import is_uuid
from db.api import server_images, snapshots
from db.api.server_images import ServerImage
from db.api.snapshots import ShelvedSnapshot
from db.sql.engine import ApiDatabase
from images.record import ImageRecord
from images.store import NOT_CONFIGURED, FolderStore
from objects import errors

OWNER = "superconductor"
"""Owner of the operator's images. Client libraries fail at an image without one."""

BY_UUID = (
    "name the image by its uuid as the block device that boots first "
    "(openstack server create --block-device uuid=UUID,source_type=image,destination_type=local,boot_index=0)."
)
"""What to do about an image that is elsewhere."""

QUEUED, SAVING, ACTIVE = "queued", "saving", "active"
"""Of an image that waits for its content, of one that is made of a server, and of one that is complete."""

Document = dict[str, Any]


class ProjectImages:
    """Callers see and change the images of their own project; those whose rule allows other projects too, of every project."""

    def __init__(self, store: FolderStore | None, database: ApiDatabase) -> None:
        """``store``: None if none is configured."""
        self._store = store
        self._database = database

    @property
    def store(self) -> FolderStore:
        """Raises errors.NotFound if none is configured."""
        if self._store is None:
            raise errors.NotFound(f"There is no image service at this address: {NOT_CONFIGURED}, or {BY_UUID}")
        return self._store

    def visible(self, call: Call) -> list[Document]:
        """The images that the caller sees. One of a project is seen as complete once its row says so."""
        records = self.store.list_images()
        known = {image.image_id: image for image in self._database.read(server_images.list_, call.scope)}
        found = [document(each) for each in records if not each.owner or (each.id in known and known[each.id].complete)]
        found += [incomplete(image) for image in known.values() if not image.complete]
        return found + [self._of_shelved(each) for each in self._database.read(snapshots.list_all, call.scope)]

    def one(self, call: Call, image_id: str) -> Document:
        """Raises errors.NotFound, also for an image of another project."""
        known = self.known(call, image_id)
        if known is not None and not known.complete:
            return incomplete(known)
        if known is None and (shelved := self._shelved(call, image_id)) is not None:
            return self._of_shelved(shelved)
        record = self.store.about(image_id)
        if record.owner and known is None:
            raise missing(image_id)
        return document(record)

    def known(self, call: Call, image_id: str) -> ServerImage | None:
        """The row of an image of a project; None: it has none that the caller sees."""
        return self._database.read(server_images.get, image_id, call.scope) if is_uuid(image_id) else None

    def delete(self, call: Call, image_id: str) -> None:
        """Raises errors.NotFound, and errors.Forbidden for an image of the operator, or one that a shelved server needs."""
        now = self._database.now()
        if not is_uuid(image_id) or not self._database.write(server_images.delete, image_id, call.scope, now):
            raise self._refusal(call, image_id, "Images of the operator are deleted with 'superconductor image delete'.")

    def change(self, call: Call, image_id: str, properties: Mapping[str, str], **fields: Any) -> Document:
        """Replace the properties, and the ``fields`` that ``FolderStore.change`` takes.

        Raises errors.NotFound, errors.Conflict for an incomplete image, errors.Forbidden for one of the operator.

        Raises errors.Invalid for the name of a field that every image has.
        """
        if taken := sorted(SHOWN & properties.keys()):
            raise errors.Invalid(f"{taken[0]}: every image has this field, which cannot be changed")
        known = self.known(call, image_id)
        if known is None:
            raise self._refusal(call, image_id, "Images of the operator cannot be changed here.")
        if not known.complete:
            raise errors.Conflict(f"Image {image_id} is not active yet.")
        return document(self.store.change(image_id, properties, **fields))

    def _shelved(self, call: Call, image_id: str) -> ShelvedSnapshot | None:
        return self._database.read(snapshots.get, image_id, call.scope) if is_uuid(image_id) else None

    def _of_shelved(self, snapshot: ShelvedSnapshot) -> Document:
        """Its format is that of its host, and nothing but an unshelve reads it."""
        given = {
            "image_type": "snapshot",
            "instance_uuid": snapshot.server_uuid,
            "user_id": snapshot.user_id,
            "owner_id": snapshot.project_id,
            "base_image_ref": snapshot.base_image or "",
        }
        created_at = _at(snapshot.created_at)
        return given | {
            **_common(snapshot.image_id, f"{snapshot.server_name}-shelved", snapshot.project_id, created_at),
            "protected": True,
            "status": ACTIVE,
            "disk_format": None,
            "size": self.store.size_of_snapshot(snapshot.image_id),
            "virtual_size": None,
            "min_disk": snapshot.min_disk,
            "min_ram": 0,
            "os_hash_algo": None,
            "os_hash_value": None,
        }

    def _refusal(self, call: Call, image_id: str, of_the_operator: str) -> errors.Forbidden | errors.NotFound:
        """For an image that is none of the caller's project, or that of a shelved server."""
        if (shelved := self._shelved(call, image_id)) is not None:
            which = f"Image {image_id} is the disk of the shelved server {shelved.server_uuid}"
            return errors.Forbidden(f"{which}: it goes when that is unshelved or deleted, and cannot be changed.")
        return missing(image_id) if self.store.about(image_id).owner else errors.Forbidden(of_the_operator)


def missing(image_id: str) -> errors.NotFound:
    return errors.NotFound(f"Image {image_id[:80]} is not in the image store.")


def document(image: ImageRecord) -> Document:
    """A complete image."""
    return image.properties | {
        **_common(image.id, image.name, image.owner, image.created_at),
        "updated_at": image.updated_at or image.created_at,
        "status": ACTIVE,
        "disk_format": image.disk_format,
        "size": image.size,
        "virtual_size": image.virtual_size,
        "min_disk": image.min_disk,
        "min_ram": image.min_ram,
        "checksum": image.checksum or None,
        "os_hash_algo": image.hash_algo,
        "os_hash_value": image.hash_value,
    }


def incomplete(image: ServerImage) -> Document:
    """An image of a project before it is complete."""
    asked = image.asked
    return asked.properties | {
        **_common(image.image_id, asked.name, asked.owner, _at(image.created_at)),
        "status": QUEUED if image.is_uploaded else SAVING,
        "disk_format": asked.disk_format,
        "size": None,
        "virtual_size": None,
        "min_disk": asked.min_disk,
        "min_ram": asked.min_ram,
        "os_hash_algo": None,
        "os_hash_value": None,
    }


def _at(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _common(image_id: str, name: str, owner: str, created_at: str) -> Document:
    return {
        "id": image_id,
        "name": name,
        "visibility": "private" if owner else "public",
        "protected": False,
        "os_hidden": False,
        "owner": owner or OWNER,
        "tags": [],
        "container_format": "bare",
        "checksum": None,
        "created_at": created_at,
        "updated_at": created_at,
        "self": f"/v2/images/{image_id}",
        "file": f"/v2/images/{image_id}/file",
        "schema": "/v2/schemas/image",
    }


SHOWN = frozenset(_common("", "", "", "")) | {
    "status", "disk_format", "size", "virtual_size", "min_disk", "min_ram", "os_hash_algo", "os_hash_value"
}  # fmt: skip
"""The fields of every image; everything else is a property."""


def properties_of(image: Document) -> dict[str, str]:
    return {name: value for name, value in image.items() if name not in SHOWN}
