"""``/os-server-groups``: groups of servers, and where their members may run relative to each other."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

import falcon

from api.http import call as calls
from api.http import policies, schemas
from api.http.call import Call, send_json
from api.http.microversions import Microversion
from api.http.query_parameters import whole_number
from api.http.validation import VersionedValidator, read_body, validated_by
from api.lookup.quota_limits import LimitsInForce
from api.opts import ApiSettings
from db.api.claims import server_groups
from db.sql.connection import ApiTransaction
from db.sql.engine import ApiDatabase
from objects import errors
from objects.group import GroupPolicy, ServerGroup
from objects.quota import UNLIMITED

QUERY = frozenset({"all_projects", "limit", "offset"})


class ServerGroups:
    """Those of the caller's project; an administrator may ask for all. Methods with suffix ``one`` are of one group."""

    def __init__(self, settings: ApiSettings, database: ApiDatabase, limits: LimitsInForce) -> None:
        self._settings = settings
        self._limits = limits
        self._database = database
        self._validator = VersionedValidator((since, schemas.server_group(since)) for since in schemas.SERVER_GROUP_CHANGES)

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Like in Nova, ``all_projects`` changes nothing for a caller who may not list them."""
        call = calls.get_call(req)
        unknown = next((name for name in req.params if name not in QUERY), None)
        if unknown is not None and call.has_feature(Microversion.QUERY_CHECKED):
            raise errors.Invalid(f"{unknown[:40]}: is not a parameter of this list")
        everything = "all_projects" in req.params and call.is_allowed(policies.GROUP_LIST_ALL)
        limit = whole_number("limit", req.get_param("limit") or "0") or self._settings.max_limit
        offset = whole_number("offset", req.get_param("offset") or "0")
        project_id = None if everything else call.context.project_id
        groups, members = self._database.read(_read_page, project_id, min(limit, self._settings.max_limit), offset)
        send_json(resp, {"server_groups": [_group_document(group, members[group.uuid], call) for group in groups]})

    @validated_by("_validator")
    def on_post(self, req: falcon.Request, resp: falcon.Response) -> None:
        call = calls.get_call(req)
        document = read_body(req, self._settings.max_body_size)
        self._validator.check_body(call.version, document)
        body = document["server_group"]
        policy = GroupPolicy(body["policy"] if call.has_feature(Microversion.GROUP_RULES) else body["policies"][0])
        rules = body.get("rules", {})
        if rules and policy is not GroupPolicy.ANTI_AFFINITY:
            raise errors.Invalid("server_group.rules: Only anti-affinity policy supports rules.")
        group = ServerGroup(
            uuid=str(uuid.uuid4()),
            name=body["name"],
            project_id=call.context.project_id,
            user_id=call.context.user_id,
            policy=policy,
            max_server_per_host=int(rules.get("max_server_per_host", 1)),
            max_server_per_rack=int(rules["max_server_per_rack"]) if "max_server_per_rack" in rules else None,
        )
        limits = self._limits.read_layers(call)
        name = "server_groups"
        self._database.write(server_groups.create, group, limits.of_project[name], limits.of_user.get(name, UNLIMITED))
        send_json(resp, {"server_group": _group_document(group, (), call)})

    def on_get_one(self, req: falcon.Request, resp: falcon.Response, group_id: str) -> None:
        call = calls.get_call(req)
        group, members = self._database.read(_read_group, group_id, call.project_scope)
        send_json(resp, {"server_group": _group_document(group, members, call)})

    def on_delete_one(self, req: falcon.Request, resp: falcon.Response, group_id: str) -> None:
        self._database.write(_delete, group_id, calls.get_call(req).project_scope)
        resp.status = 204


def _read_page(
    tx: ApiTransaction, project_id: str | None, limit: int, offset: int
) -> tuple[list[ServerGroup], dict[str, list[str]]]:
    groups = server_groups.list_page(tx, project_id, limit, offset)
    return groups, server_groups.list_members(tx, [group.uuid for group in groups])


def _read_group(tx: ApiTransaction, uuid: str, project_id: str | None) -> tuple[ServerGroup, list[str]]:
    group = _find_group(tx, uuid, project_id)
    return group, server_groups.list_members(tx, [group.uuid])[group.uuid]


def _delete(tx: ApiTransaction, uuid: str, project_id: str | None) -> None:
    server_groups.delete(tx, _find_group(tx, uuid, project_id).uuid)


def _find_group(tx: ApiTransaction, uuid: str, project_id: str | None) -> ServerGroup:
    """``project_id``: the only one whose groups the caller may name. Raises errors.NotFound."""
    group = server_groups.get(tx, uuid)
    if project_id not in (None, group.project_id):
        raise errors.NotFound(f"Instance group {group.uuid} could not be found.")
    return group


def _group_document(group: ServerGroup, members: Sequence[str], call: Call) -> dict[str, Any]:
    shown: dict[str, Any] = {"id": group.uuid, "name": group.name, "members": list(members)}
    if call.has_feature(Microversion.GROUP_RULES):
        rules = {"max_server_per_host": group.max_server_per_host} if group.max_server_per_host != 1 else {}
        if group.max_server_per_rack is not None:
            rules["max_server_per_rack"] = group.max_server_per_rack
        shown |= {"policy": str(group.policy), "rules": rules}
    else:
        shown |= {"policies": [str(group.policy)], "metadata": {}}
    return shown | (
        {"project_id": group.project_id, "user_id": group.user_id} if call.has_feature(Microversion.GROUP_OWNERS) else {}
    )
