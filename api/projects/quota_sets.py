"""``/os-quota-sets/{project}``: the limits and usage of a project, and with ``user_id`` of a user in it."""

from __future__ import annotations

import falcon
import msgspec

from api.http import call as calls
from api.http import schemas
from api.http.call import Call
from api.http.microversions import Since
from api.http.query_parameters import refuse_unknown_names
from api.http.validation import VersionedValidator, read_body, validated_by
from api.http.versions import answer
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
        call, user_id = _call(req, project_id)
        quota, user = self._database.read(_quotas, project_id, user_id)
        answer(resp, {"quota_set": {"id": project_id} | self._numbers(quota, user, call)})

    def on_get_detail(self, req: falcon.Request, resp: falcon.Response, project_id: str) -> None:
        call, user_id = _call(req, project_id)
        user = None
        if user_id is None:
            quota, groups = self._database.read(quotas.usage, project_id)
        else:
            quota, user, groups = self._database.read(quotas.of_user, project_id, user_id)
        used = msgspec.structs.asdict(quota.used if user is None else user.used) | {"server_groups": groups}
        numbers = self._numbers(quota, user, call)
        shown = {name: {"in_use": used.get(name, 0), "limit": limit, "reserved": 0} for name, limit in numbers.items()}
        answer(resp, {"quota_set": {"id": project_id} | shown})

    def on_get_defaults(self, req: falcon.Request, resp: falcon.Response, project_id: str) -> None:
        call = calls.of(req)
        checked_identifier("project_id", project_id)
        limits = self._limits.defaults(call)
        names = names_in(call, Since.NETWORK_LIMITS_GONE)
        answer(resp, {"quota_set": {"id": project_id} | {name: limits[name] for name in names}})

    @validated_by("_validator")
    def on_put(self, req: falcon.Request, resp: falcon.Response, project_id: str) -> None:
        call, user_id = _call(req, project_id)
        document = read_body(req, self._settings.max_body_size)
        self._validator.check(call.version, document)
        body = document["quota_set"]
        force = schemas.BOOLEANS[body.get("force", False)]
        given = limits_in_force.given(body, "quota_set")
        user = None
        if user_id is None:
            quota = self._database.write(_change, project_id, given, force=force)
        else:
            limits = self._limits.of(project_id, call)
            quota, user = self._database.write(_change_user, project_id, user_id, given, limits, force=force)
        answer(resp, {"quota_set": self._numbers(quota, user, call.after_write())})

    def on_delete(self, req: falcon.Request, resp: falcon.Response, project_id: str) -> None:
        """Of a project: also the limits of its users."""
        _, user_id = _call(req, project_id)
        self._database.write(_forget, project_id, user_id)
        resp.status = 202

    def _numbers(self, quota: Quota, user: UserQuota | None, call: Call) -> dict[str, int]:
        """Every limit of the Compute API in this version, by name."""
        limits = self._limits.of(quota.project_id, call)
        of_servers = quota.own.over(limits_in_force.of_servers(limits))
        if user is not None:
            limits |= self._limits.of_user(user.project_id, user.user_id, call)
            of_servers = user.own.over(of_servers)
        limits |= msgspec.structs.asdict(of_servers)
        return {name: limits[name] for name in names_in(call, Since.NETWORK_LIMITS_GONE)}


def _quotas(tx: ApiTransaction, project_id: str, user_id: str | None) -> tuple[Quota, UserQuota | None]:
    """The user's, if one is named, without the usage of a user that has no limits."""
    user = None if user_id is None else user_quotas.get(tx, project_id, user_id)
    if user_id is not None and user is None:
        user = UserQuota(project_id=project_id, user_id=user_id)
    return quotas.get(tx, project_id), user


def _change(tx: ApiTransaction, project_id: str, given: dict[str, int], *, force: bool) -> Quota:
    changed = quotas.change(tx, project_id, _of_servers(given), force=force)
    further = _further(given)
    of_users = quota_limits.others(tx, project_id) if further and not force else {}
    for name, limit in further.items():
        check_limit(name, limit, of_users.get(name, 0))
    quota_limits.change(tx, project_id, further)
    return changed


def _change_user(
    tx: ApiTransaction, project_id: str, user_id: str, given: dict[str, int], limits: dict[str, int], *, force: bool
) -> tuple[Quota, UserQuota]:
    """``limits``: those of the project, without its own of servers."""
    defaults = limits_in_force.of_servers(limits)
    changed = quotas.change_user(tx, project_id, user_id, _of_servers(given), defaults, force=force)
    further = _further(given)
    if further and not force:
        others = quota_limits.others(tx, project_id, user_id)
        used = {"server_groups": user_quotas.groups(tx, project_id, user_id)}
        for name, limit in further.items():
            most = limits[name] if limits[name] == UNLIMITED else max(0, limits[name] - others.get(name, 0))
            check_limit(name, limit, used.get(name, 0), most)
    quota_limits.change_user(tx, project_id, user_id, further)
    return changed


def _of_servers(given: dict[str, int]) -> OwnLimits:
    return OwnLimits(**{name: given[name] for name in RESOURCES if name in given})


def _further(given: dict[str, int]) -> dict[str, int]:
    return {name: limit for name, limit in given.items() if name not in RESOURCES}


def _forget(tx: ApiTransaction, project_id: str, user_id: str | None) -> None:
    if user_id is not None:
        quotas.forget_user(tx, project_id, user_id)
        quota_limits.forget_users(tx, project_id, user_id)
        return
    quotas.forget(tx, project_id)
    quotas.forget_users(tx, project_id)
    quota_limits.forget(tx, project_id)
    quota_limits.forget_users(tx, project_id)


def _call(req: falcon.Request, project_id: str) -> tuple[Call, str | None]:
    """Also the user that is named. Raises errors.Invalid for a parameter, project or user that cannot be."""
    call = calls.of(req)
    checked_identifier("project_id", project_id)
    user_id = req.get_param("user_id")
    if user_id is not None:
        checked_identifier("user_id", user_id)
    refuse_unknown_names(req, call, ("user_id",))
    return call, user_id
