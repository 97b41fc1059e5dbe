"""``/os-quota-sets/{project}``: the limits and usage of a project, and with ``user_id`` of a user in it."""

from __future__ import annotations

import falcon
import msgspec

from api.http import call as calls
from api.http import schemas
from api.http.call import Call, send_json
from api.http.microversions import Microversion
from api.http.query_parameters import refuse_unknown_names
from api.http.validation import VersionedValidator, read_body, validated_by
from api.lookup import quota_limits as limits_in_force
from api.lookup.quota_limits import LimitsInForce, names_in
from api.opts import ApiSettings
from db.api.projects import quota_limits, quotas, user_quotas
from db.sql.connection import ApiTransaction
from db.sql.engine import ApiDatabase
from objects.ids import checked_identifier
from objects.quota import RESOURCES, UNLIMITED, OwnLimits, Quota, UserQuota, check_limit


class QuotaSets:
    """By default callers may read the quotas of their own project; the rest is for administrators."""

    def __init__(self, settings: ApiSettings, database: ApiDatabase, limits: LimitsInForce) -> None:
        self._settings = settings
        self._database = database
        self._limits = limits
        self._validator = VersionedValidator((since, schemas.quota_update(since)) for since in schemas.QUOTA_CHANGES)

    def on_get(self, req: falcon.Request, resp: falcon.Response, project_id: str) -> None:
        call, user_id = _call_and_user(req, project_id)
        quota, user = self._database.read(_read_quotas, project_id, user_id)
        send_json(resp, {"quota_set": {"id": project_id} | self._limits_by_name(quota, user, call)})

    def on_get_detail(self, req: falcon.Request, resp: falcon.Response, project_id: str) -> None:
        call, user_id = _call_and_user(req, project_id)
        user = None
        if user_id is None:
            quota, groups = self._database.read(quotas.read_usage, project_id)
        else:
            quota, user, groups = self._database.read(quotas.of_user, project_id, user_id)
        used = msgspec.structs.asdict(quota.used if user is None else user.used) | {"server_groups": groups}
        numbers = self._limits_by_name(quota, user, call)
        shown = {name: {"in_use": used.get(name, 0), "limit": limit, "reserved": 0} for name, limit in numbers.items()}
        send_json(resp, {"quota_set": {"id": project_id} | shown})

    def on_get_defaults(self, req: falcon.Request, resp: falcon.Response, project_id: str) -> None:
        call = calls.get_call(req)
        checked_identifier("project_id", project_id)
        limits = self._limits.read_layers(call).defaults
        names = names_in(call, Microversion.NETWORK_LIMITS_GONE)
        send_json(resp, {"quota_set": {"id": project_id} | {name: limits[name] for name in names}})

    @validated_by("_validator")
    def on_put(self, req: falcon.Request, resp: falcon.Response, project_id: str) -> None:
        call, user_id = _call_and_user(req, project_id)
        document = read_body(req, self._settings.max_body_size)
        self._validator.check_body(call.version, document)
        body = document["quota_set"]
        force = schemas.BOOLEANS[body.get("force", False)]
        new_limits = limits_in_force.parse_limits(body, "quota_set")
        user = None
        if user_id is None:
            quota = self._database.write(_change_quota, project_id, new_limits, force=force)
        else:
            limits = self._limits.read_layers(call, project_id).of_project
            quota, user = self._database.write(_change_user, project_id, user_id, new_limits, limits, force=force)
        send_json(resp, {"quota_set": self._limits_by_name(quota, user, call.after_write())})

    def on_delete(self, req: falcon.Request, resp: falcon.Response, project_id: str) -> None:
        """Of a project: also the limits of its users."""
        _, user_id = _call_and_user(req, project_id)
        self._database.write(_forget_limits, project_id, user_id)
        resp.status = 202

    def _limits_by_name(self, quota: Quota, user: UserQuota | None, call: Call) -> dict[str, int]:
        """Every limit of the Compute API in this version, by name."""
        layers = self._limits.read_layers(call, quota.project_id, None if user is None else user.user_id)
        limits = layers.of_project
        of_servers = quota.own.over_defaults(limits_in_force.of_servers(limits))
        if user is not None:
            limits |= layers.of_user
            of_servers = user.own.over_defaults(of_servers)
        limits |= msgspec.structs.asdict(of_servers)
        return {name: limits[name] for name in names_in(call, Microversion.NETWORK_LIMITS_GONE)}


def _read_quotas(tx: ApiTransaction, project_id: str, user_id: str | None) -> tuple[Quota, UserQuota | None]:
    """The user's, if one is named, without the usage of a user that has no limits."""
    user = None if user_id is None else user_quotas.get(tx, project_id, user_id)
    if user_id is not None and user is None:
        user = UserQuota(project_id=project_id, user_id=user_id)
    return quotas.get(tx, project_id), user


def _change_quota(tx: ApiTransaction, project_id: str, new_limits: dict[str, int], *, force: bool) -> Quota:
    changed = quotas.change_limits(tx, project_id, _of_servers(new_limits), force=force)
    further = _further_limits(new_limits)
    of_users = quota_limits.other_limits(tx, project_id) if further and not force else {}
    for name, limit in further.items():
        check_limit(name, limit, of_users.get(name, 0))
    quota_limits.change_limits(tx, project_id, further)
    return changed


def _change_user(
    tx: ApiTransaction, project_id: str, user_id: str, new_limits: dict[str, int], limits: dict[str, int], *, force: bool
) -> tuple[Quota, UserQuota]:
    """``limits``: those of the project, without its own of servers."""
    defaults = limits_in_force.of_servers(limits)
    changed = quotas.change_user(tx, project_id, user_id, _of_servers(new_limits), defaults, force=force)
    further = _further_limits(new_limits)
    if further and not force:
        others = quota_limits.other_limits(tx, project_id, user_id)
        used = {"server_groups": user_quotas.count_groups(tx, project_id, user_id)}
        for name, limit in further.items():
            most = limits[name] if limits[name] == UNLIMITED else max(0, limits[name] - others.get(name, 0))
            check_limit(name, limit, used.get(name, 0), most)
    quota_limits.change_user(tx, project_id, user_id, further)
    return changed


def _of_servers(new_limits: dict[str, int]) -> OwnLimits:
    return OwnLimits(**{name: new_limits[name] for name in RESOURCES if name in new_limits})


def _further_limits(new_limits: dict[str, int]) -> dict[str, int]:
    return {name: limit for name, limit in new_limits.items() if name not in RESOURCES}


def _forget_limits(tx: ApiTransaction, project_id: str, user_id: str | None) -> None:
    if user_id is not None:
        quotas.forget_user(tx, project_id, user_id)
        quota_limits.forget_users(tx, project_id, user_id)
        return
    quotas.forget_limits(tx, project_id)
    quotas.forget_users(tx, project_id)
    quota_limits.forget_limits(tx, project_id)
    quota_limits.forget_users(tx, project_id)


def _call_and_user(req: falcon.Request, project_id: str) -> tuple[Call, str | None]:
    """Also the user that is named. Raises errors.Invalid for a parameter, project or user that cannot be."""
    call = calls.get_call(req)
    checked_identifier("project_id", project_id)
    user_id = req.get_param("user_id")
    if user_id is not None:
        checked_identifier("user_id", user_id)
    refuse_unknown_names(req, call, ("user_id",))
    return call, user_id
