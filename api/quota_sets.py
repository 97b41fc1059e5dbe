"""``/os-quota-sets/{project}``: the limits and usage of a project."""

from __future__ import annotations

import falcon
import msgspec

from api import call as calls
from api import quota_limits as limits_in_force
from api import schemas
from api.call import Call
from api.microversions import Since
from api.opts import ApiSettings
from api.query import refuse_unknown_names
from api.quota_limits import LimitsInForce, names_in
from api.validation import VersionedValidator, read_body, validated_by
from api.versions import answer
from db.api import quota_limits, quotas
from db.sql.connection import ApiTransaction
from db.sql.engine import ApiDatabase
from objects import errors
from objects.ids import checked_identifier
from objects.quota import RESOURCES, OwnLimits, Quota


class QuotaSets:
    """By default callers may read the quotas of their own project; the rest is for administrators."""

    def __init__(self, settings: ApiSettings, database: ApiDatabase, limits: LimitsInForce) -> None:
        self._settings = settings
        self._database = database
        self._limits = limits
        self._validator = VersionedValidator((since, schemas.quota_update(since)) for since in schemas.QUOTA_CHANGES)

    def on_get(self, req: falcon.Request, resp: falcon.Response, project_id: str) -> None:
        """Of a user, too: it is its project's limits that apply to it."""
        call = _call(req, project_id, may_name_user=True)
        quota = self._database.read(quotas.get, project_id)
        answer(resp, {"quota_set": {"id": project_id} | self._numbers(quota, call)})

    def on_get_detail(self, req: falcon.Request, resp: falcon.Response, project_id: str) -> None:
        call = _call(req, project_id)
        quota, groups = self._database.read(quotas.usage, project_id)
        used = msgspec.structs.asdict(quota.used) | {"server_groups": groups}
        shown = {
            name: {"in_use": used.get(name, 0), "limit": limit, "reserved": 0} for name, limit in self._numbers(quota, call).items()
        }
        answer(resp, {"quota_set": {"id": project_id} | shown})

    def on_get_defaults(self, req: falcon.Request, resp: falcon.Response, project_id: str) -> None:
        call = calls.of(req)
        checked_identifier("project_id", project_id)
        limits = self._limits.defaults(latest=True)
        names = names_in(call, Since.NETWORK_LIMITS_GONE)
        answer(resp, {"quota_set": {"id": project_id} | {name: limits[name] for name in names}})

    @validated_by("_validator")
    def on_put(self, req: falcon.Request, resp: falcon.Response, project_id: str) -> None:
        call = _call(req, project_id)
        document = read_body(req, self._settings.max_body_size)
        self._validator.check(call.version, document)
        body = document["quota_set"]
        force = schemas.BOOLEANS[body.get("force", False)]
        given = limits_in_force.given(body, "quota_set")
        changed = self._database.write(_change, project_id, given, force=force)
        answer(resp, {"quota_set": self._numbers(changed, call)})

    def on_delete(self, req: falcon.Request, resp: falcon.Response, project_id: str) -> None:
        """A user has no limits of its own that could be deleted."""
        _call(req, project_id, may_name_user=True)
        if req.get_param("user_id") is None:
            self._database.write(_forget, project_id)
        resp.status = 202

    def _numbers(self, quota: Quota, call: Call) -> dict[str, int]:
        """Every limit of the Compute API in this version, by name."""
        limits = self._limits.of(quota.project_id, latest=True)
        limits |= msgspec.structs.asdict(quota.own.over(limits_in_force.of_servers(limits)))
        return {name: limits[name] for name in names_in(call, Since.NETWORK_LIMITS_GONE)}


def _change(tx: ApiTransaction, project_id: str, given: dict[str, int], *, force: bool) -> Quota:
    own = OwnLimits(**{name: given[name] for name in RESOURCES if name in given})
    changed = quotas.change(tx, project_id, own, force=force)
    quota_limits.change(tx, project_id, {name: limit for name, limit in given.items() if name not in RESOURCES})
    return changed


def _forget(tx: ApiTransaction, project_id: str) -> None:
    quotas.forget(tx, project_id)
    quota_limits.forget(tx, project_id)


def _call(req: falcon.Request, project_id: str, *, may_name_user: bool = False) -> Call:
    """Raises errors.Invalid for a parameter or project that cannot be."""
    call = calls.of(req)
    checked_identifier("project_id", project_id)
    user_id = req.get_param("user_id")
    if user_id is not None and may_name_user:
        checked_identifier("user_id", user_id)
    elif user_id is not None:
        raise errors.Invalid("user_id: only projects have quotas, not users")
    refuse_unknown_names(req, call, ("user_id",))
    return call
