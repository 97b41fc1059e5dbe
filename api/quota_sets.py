"""``/os-quota-sets/{project}``: the limits and usage of a project."""

from __future__ import annotations

from typing import Any

import falcon
import msgspec

from api import call as calls
from api import schemas
from api.call import Call
from api.microversions import Since
from api.opts import ApiSettings
from api.validation import Validator, read_body, validated_by
from api.versions import answer
from db.api import quotas
from db.sql.engine import ApiDatabase
from objects import errors
from objects.base import INT32_MAX
from objects.ids import checked_identifier
from objects.quota import RESOURCES, UNLIMITED, OwnLimits, Quota, QuotaLimits

UNCOUNTED = (
    "injected_file_content_bytes",
    "injected_file_path_bytes",
    "injected_files",
    "server_group_members",
    "server_groups",
)
"""Further quotas of the Compute API, which are not counted here."""

NETWORK = ("fixed_ips", "floating_ips", "security_group_rules", "security_groups")
"""Further quotas of its older versions, which are not counted here."""


class QuotaSets:
    """By default callers may read the quotas of their own project; the rest is for administrators."""

    def __init__(self, settings: ApiSettings, database: ApiDatabase) -> None:
        self._settings = settings
        self._database = database
        self._validator = Validator(schemas.quota_update())

    def on_get(self, req: falcon.Request, resp: falcon.Response, project_id: str) -> None:
        call = _call(req, project_id)
        limits = self._read(project_id).own.over(self._settings.quota)
        answer(resp, {"quota_set": {"id": project_id} | self._numbers(limits, call)})

    def on_get_detail(self, req: falcon.Request, resp: falcon.Response, project_id: str) -> None:
        call = _call(req, project_id)
        quota = self._read(project_id)
        used = msgspec.structs.asdict(quota.used)
        shown = {
            name: {"in_use": used.get(name, 0), "limit": limit, "reserved": 0}
            for name, limit in self._numbers(quota.own.over(self._settings.quota), call).items()
        }
        answer(resp, {"quota_set": {"id": project_id} | shown})

    def on_get_defaults(self, req: falcon.Request, resp: falcon.Response, project_id: str) -> None:
        call = _call(req, project_id)
        answer(resp, {"quota_set": {"id": project_id} | self._numbers(self._settings.quota, call)})

    @validated_by("_validator")
    def on_put(self, req: falcon.Request, resp: falcon.Response, project_id: str) -> None:
        call = _call(req, project_id)
        document = read_body(req, self._settings.max_body_size)
        self._validator.check(document)
        body = document["quota_set"]
        force = schemas.BOOLEANS[body.get("force", False)]
        changed = self._database.write(quotas.change, project_id, _limits_in(body), force=force)
        answer(resp, {"quota_set": self._numbers(changed.own.over(self._settings.quota), call)})

    def on_delete(self, req: falcon.Request, resp: falcon.Response, project_id: str) -> None:
        _check(req, project_id)
        self._database.write(quotas.forget, project_id)
        resp.status = 202

    def _read(self, project_id: str) -> Quota:
        return self._database.read(quotas.get, project_id)

    def _numbers(self, limits: QuotaLimits, call: Call) -> dict[str, int]:
        """Every limit of the Compute API in this version, by name."""
        names = UNCOUNTED if call.has(Since.NETWORK_LIMITS_GONE) else (*UNCOUNTED, *NETWORK)
        fixed = {"metadata_items": schemas.METADATA_ITEMS_LIMIT, "key_pairs": self._settings.key_pairs}
        return dict.fromkeys(names, UNLIMITED) | fixed | msgspec.structs.asdict(limits)


def _call(req: falcon.Request, project_id: str) -> Call:
    _check(req, project_id)
    return calls.of(req)


def _check(req: falcon.Request, project_id: str) -> None:
    checked_identifier("project_id", project_id)
    if req.get_param("user_id") is not None:
        raise errors.Invalid("user_id: only projects have quotas, not users")


def _limits_in(body: dict[str, Any]) -> OwnLimits:
    """Raises errors.Invalid: a JSON schema does not compare numbers given as text."""
    limits = {name: int(body[name]) for name in RESOURCES if name in body}
    for name, limit in limits.items():
        if limit > INT32_MAX:
            raise errors.Invalid(f"quota_set.{name}: {limit} is more than the maximum, {INT32_MAX}")
    return OwnLimits(**limits)
