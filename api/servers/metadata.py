"""``/servers/{id}/metadata``: the metadata of a server as a whole, and item by item."""

from __future__ import annotations

from typing import Any

import falcon

from api.http import call as calls
from api.http import schemas
from api.http.call import Call, send_json
from api.http.validation import Validator, checked_metadata, read_body, validated_by
from api.lookup.quota_limits import LimitsInForce
from api.opts import ApiSettings
from api.servers.edits import ServerEdits
from db.api.servers.edits import Edit
from objects import errors
from objects.spec import ServerProperties


class MetadataItems:
    """The methods with suffix ``item`` are those of one key. All changes are refused if the server is locked."""

    def __init__(self, settings: ApiSettings, edits: ServerEdits, limits: LimitsInForce) -> None:
        self._settings = settings
        self._edits = edits
        self._limits = limits
        self._whole = Validator(schemas.metadata_body())
        self._item = Validator(schemas.metadata_item())

    def on_get(self, req: falcon.Request, resp: falcon.Response, server_id: str) -> None:
        send_json(resp, {"metadata": self._edits.read(calls.get_call(req), server_id).metadata})

    @validated_by("_whole")
    def on_post(self, req: falcon.Request, resp: falcon.Response, server_id: str) -> None:
        metadata = self._read_body(req, self._whole)["metadata"]
        self._change_metadata(req, resp, server_id, metadata, keep=True)

    @validated_by("_whole")
    def on_put(self, req: falcon.Request, resp: falcon.Response, server_id: str) -> None:
        metadata = self._read_body(req, self._whole)["metadata"]
        self._change_metadata(req, resp, server_id, metadata, keep=False)

    def on_get_item(self, req: falcon.Request, resp: falcon.Response, server_id: str, key: str) -> None:
        metadata = self._edits.read(calls.get_call(req), server_id).metadata
        _check_has(metadata, key)
        send_json(resp, {"meta": {key: metadata[key]}})

    @validated_by("_item")
    def on_put_item(self, req: falcon.Request, resp: falcon.Response, server_id: str, key: str) -> None:
        metadata = self._read_body(req, self._item)["meta"]
        if key not in metadata:
            raise errors.Invalid(f"meta: its key is not the one in the path, {key[:80]!r}")
        call = calls.get_call(req)
        self._edits.change_unlocked(call, server_id, lambda current: self._checked_edit(call, current.metadata | metadata))
        send_json(resp, {"meta": metadata})

    def on_delete_item(self, req: falcon.Request, resp: falcon.Response, server_id: str, key: str) -> None:
        def without_item(current: ServerProperties) -> Edit:
            _check_has(current.metadata, key)
            return Edit(metadata={name: value for name, value in current.metadata.items() if name != key})

        self._edits.change_unlocked(calls.get_call(req), server_id, without_item)
        resp.status = 204

    def _change_metadata(
        self, req: falcon.Request, resp: falcon.Response, server_id: str, metadata: dict[str, str], *, keep: bool
    ) -> None:
        """``keep``: items that are not given stay."""
        call = calls.get_call(req)
        edited = self._edits.change_unlocked(
            call, server_id, lambda current: self._checked_edit(call, (current.metadata if keep else {}) | metadata)
        )
        send_json(resp, {"metadata": edited.after.metadata})

    def _checked_edit(self, call: Call, metadata: dict[str, str]) -> Edit:
        return Edit(metadata=checked_metadata(metadata, self._limits.read_layers(call).in_force["metadata_items"]))

    def _read_body(self, req: falcon.Request, validator: Validator) -> dict[str, Any]:
        document = read_body(req, self._settings.max_body_size)
        validator.check_body(document)
        return document


def _check_has(metadata: dict[str, str], key: str) -> None:
    if key not in metadata:
        raise errors.NotFound(f"Metadata item {key[:80]!r} was not found")
