"""The actions that make images of servers: ``createImage``, and ``createBackup`` with its rotation."""

from __future__ import annotations

from typing import Any

import falcon

from api.http import policies, schemas
from api.http.call import Call, send_json
from api.http.microversions import Microversion
from api.http.validation import checked_metadata
from api.lookup.server_lookup import Finder
from api.servers.actions import ServerAction
from api.servers.operate import Operations
from db.api.operations import accepting
from images.store import FolderStore
from objects import errors
from objects.operation import OperationArgs, OperationKind
from objects.task import NewImage

DEFAULT_BACKUP_TYPE = "backup"
"""For clients that send an empty one, such as ``openstack server backup create`` without ``--type``."""


class ImageActions:
    """Each answers 202 with the image's id once the operation is stored, whose UUID it is. The image is shown from then on."""

    def __init__(self, operations: Operations, finder: Finder, store: FolderStore | None) -> None:
        """``store``: None if none is configured."""
        self._operations = operations
        self._finder = finder
        self._store = store

    def server_actions(self) -> tuple[ServerAction, ...]:
        return (
            ServerAction(name="createImage", rule=policies.CREATE_IMAGE, versions=schemas.CREATE_IMAGE, run=self._create_image),
            ServerAction(name="createBackup", rule=policies.CREATE_BACKUP, versions=schemas.CREATE_BACKUP, run=self._create_backup),
        )

    def _create_image(self, call: Call, server_id: str, value: dict[str, Any], resp: falcon.Response) -> None:
        image = self._new_image(call, server_id, value, {"image_type": "snapshot"})
        operation = self._operations.make_image(call, server_id, OperationKind.CREATE_IMAGE, OperationArgs(image=image))
        _send_image(call, resp, operation.uuid)

    def _create_backup(self, call: Call, server_id: str, value: dict[str, Any], resp: falcon.Response) -> None:
        """With a rotation of 0 the backup is removed as soon as it is complete, so no location is told."""
        kind, rotation = value["backup_type"] or DEFAULT_BACKUP_TYPE, int(value["rotation"])
        image = self._new_image(call, server_id, value, {"image_type": "backup", "backup_type": kind}, kind, rotation)
        operation = self._operations.make_image(call, server_id, OperationKind.CREATE_BACKUP, OperationArgs(image=image))
        _send_image(call, resp, operation.uuid, located=rotation > 0)

    def _new_image(
        self, call: Call, server_id: str, value: dict[str, Any], typed: dict[str, str], backup_type: str = "", rotation: int = 0
    ) -> NewImage:
        """The image of this value. Its properties are those of the server's image, and say what it was made of.

        Those of the caller count where both name one.
        """
        metadata: dict[str, str] = value.get("metadata", {})
        if not call.has_feature(Microversion.IMAGE_LIMITS_GONE):
            checked_metadata(metadata, self._operations.limits_in_force(call)["metadata_items"])
        current = self._finder.find_server(server_id, call)
        base = (
            accepting.current_spec(current.spec, current.server).image if current.spec is not None else current.server.rebuilt_from
        )
        known = {"instance_uuid": current.server.uuid, "user_id": call.context.user_id, "owner_id": current.server.project_id}
        known |= typed | {"image_location": "snapshot", "image_state": "available"} | ({"base_image_ref": base.id} if base else {})
        return NewImage(
            name=value["name"],
            owner=current.server.project_id,
            min_disk=current.spec.flavor.root_gb if current.spec is not None else 0,
            min_ram=self._min_ram(base.id if base else None),
            properties=(base.properties if base else {}) | known | metadata,
            backup_type=backup_type,
            rotation=rotation,
        )

    def _min_ram(self, image_id: str | None) -> int:
        """What an image of the store needs; 0 for one that is elsewhere."""
        if self._store is None or image_id is None:
            return 0
        try:
            return self._store.get_record(image_id).min_ram
        except (errors.NotFound, errors.ServiceUnavailable):
            return 0


def _send_image(call: Call, resp: falcon.Response, image_id: str, *, located: bool = True) -> None:
    if call.has_feature(Microversion.IMAGE_IDS):
        send_json(resp, {"image_id": image_id}, 202)
        return
    resp.status = 202
    if located:
        resp.set_header("Location", f"{call.prefix}/image/v2/images/{image_id}")
