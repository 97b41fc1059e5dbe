"""``/servers/{id}/tags``: the tags of a server as a whole, and one by one. Since microversion 2.26."""

from __future__ import annotations

from urllib.parse import quote

import falcon

from api.http import call as calls
from api.http import schemas
from api.http.call import Call, send_json
from api.http.microversions import Microversion
from api.http.validation import Validator, read_body, validated_by
from api.opts import ApiSettings
from api.servers.edits import ServerEdits
from db.api.servers.edits import Edit
from objects import errors
from objects.spec import ServerProperties


class Tags:
    """The methods with suffix ``one`` are those of one tag. All changes are refused if the server is locked."""

    def __init__(self, settings: ApiSettings, edits: ServerEdits) -> None:
        self._settings = settings
        self._edits = edits
        self._whole = Validator(schemas.tags_body())
        self._one = Validator(schemas.tag_in_path())

    def on_get(self, req: falcon.Request, resp: falcon.Response, server_id: str) -> None:
        send_json(resp, {"tags": list(self._edits.read(_call_with_tags(req), server_id).tags)})

    @validated_by("_whole")
    def on_put(self, req: falcon.Request, resp: falcon.Response, server_id: str) -> None:
        call = _call_with_tags(req)
        document = read_body(req, self._settings.max_body_size)
        self._whole.check_body(document)
        tags = tuple(dict.fromkeys(document["tags"]))
        self._edits.change_unlocked(call, server_id, lambda current: Edit(tags=tags))
        send_json(resp, {"tags": list(tags)})

    def on_delete(self, req: falcon.Request, resp: falcon.Response, server_id: str) -> None:
        self._edits.change_unlocked(_call_with_tags(req), server_id, lambda current: Edit(tags=()))
        resp.status = 204

    def on_get_one(self, req: falcon.Request, resp: falcon.Response, server_id: str, tag: str) -> None:
        _check_has(self._edits.read(_call_with_tags(req), server_id), server_id, tag)
        resp.status = 204

    def on_put_one(self, req: falcon.Request, resp: falcon.Response, server_id: str, tag: str) -> None:
        """201 for a new tag, 204 for one that the server has."""
        call = _call_with_tags(req)
        self._one.check_body({"tag": tag})

        def with_tag(current: ServerProperties) -> Edit:
            if tag in current.tags:
                return Edit()
            if len(current.tags) >= schemas.TAGS_LIMIT:
                raise errors.Invalid(f"The number of tags exceeded the per-server limit {schemas.TAGS_LIMIT}")
            return Edit(tags=(*current.tags, tag))

        edited = self._edits.change_unlocked(call, server_id, with_tag)
        if tag in edited.before.tags:
            resp.status = 204
            return
        resp.status = 201
        resp.location = call.build_url(f"servers/{server_id}/tags/{quote(tag, safe='')}")

    def on_delete_one(self, req: falcon.Request, resp: falcon.Response, server_id: str, tag: str) -> None:
        def without_tag(current: ServerProperties) -> Edit:
            _check_has(current, server_id, tag)
            return Edit(tags=tuple(other for other in current.tags if other != tag))

        self._edits.change_unlocked(_call_with_tags(req), server_id, without_tag)
        resp.status = 204


def _call_with_tags(req: falcon.Request) -> Call:
    """Raises errors.NotFound in versions without tags."""
    call = calls.get_call(req)
    if not call.has_feature(Microversion.TAGS):
        raise errors.NotFound("Servers have tags since microversion 2.26; set the header OpenStack-API-Version.")
    return call


def _check_has(current: ServerProperties, server_id: str, tag: str) -> None:
    if tag not in current.tags:
        raise errors.NotFound(f"Server {server_id} has no tag {tag[:80]!r}")
