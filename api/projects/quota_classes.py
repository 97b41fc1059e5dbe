"""``/os-quota-class-sets/default``: the limits of projects without limits of their own."""

from __future__ import annotations

import falcon

from api.http import call as calls
from api.http import schemas
from api.http.call import Call, send_json
from api.http.microversions import Microversion
from api.http.validation import VersionedValidator, read_body, validated_by
from api.lookup import quota_limits as limits_in_force
from api.lookup.quota_limits import LimitsInForce, names_in
from api.opts import ApiSettings
from db.api.projects import quota_limits
from db.sql.engine import ApiDatabase
from objects import errors
from objects.ids import checked_identifier

DEFAULT = "default"
"""The only class that is in force."""

_NEWER_NAMES = ("server_groups", "server_group_members")
"""Names that older versions do not show."""


class QuotaClasses:
    """Changes are in force within a second. Projects keep what they have, and their own limits."""

    def __init__(self, settings: ApiSettings, database: ApiDatabase, limits: LimitsInForce) -> None:
        self._settings = settings
        self._database = database
        self._limits = limits
        self._validator = VersionedValidator((since, schemas.quota_class_update(since)) for since in schemas.QUOTA_CLASS_CHANGES)

    def on_get(self, req: falcon.Request, resp: falcon.Response, quota_class: str) -> None:
        """Any class: all have the same limits."""
        checked_identifier("quota_class", quota_class)
        send_json(resp, {"quota_class_set": {"id": quota_class} | self._limits_document(calls.get_call(req))})

    @validated_by("_validator")
    def on_put(self, req: falcon.Request, resp: falcon.Response, quota_class: str) -> None:
        call = calls.get_call(req)
        if quota_class != DEFAULT:
            raise errors.Invalid(f"quota_class: only the class {DEFAULT!r} is in force: projects have no other")
        document = read_body(req, self._settings.max_body_size)
        self._validator.check_body(call.version, document)
        new_limits = limits_in_force.parse_limits(document["quota_class_set"], "quota_class_set")
        self._database.write(quota_limits.change_limits, quota_limits.DEFAULTS, new_limits)
        send_json(resp, {"quota_class_set": self._limits_document(call.after_write())})

    def _limits_document(self, call: Call) -> dict[str, int]:
        limits = self._limits.read_layers(call).defaults
        names = names_in(call, Microversion.NETWORK_CLASSES_GONE)
        hidden = () if call.has_feature(Microversion.NETWORK_CLASSES_GONE) else _NEWER_NAMES
        return {name: limits[name] for name in names if name not in hidden}
