"""``/flavors/{id}/os-flavor-access``: the projects that may use a flavor that is not public."""

from __future__ import annotations

from typing import Any

import falcon

from api.http import call as calls
from api.http import policies, schemas
from api.http.call import Call, send_json
from api.http.microversions import Microversion
from api.http.validation import Validator, read_body, validated_by
from api.opts import ApiSettings
from api.projects.flavors import flavor_not_found
from db.api.projects import flavors
from db.sql.connection import ApiTransaction
from db.sql.engine import ApiDatabase
from objects import errors
from objects.ids import checked_identifier

ADD = "addTenantAccess"
REMOVE = "removeTenantAccess"


class FlavorAccess:
    """The list, and the actions that change it."""

    def __init__(self, settings: ApiSettings, database: ApiDatabase) -> None:
        self._settings = settings
        self._database = database
        self._add = Validator(schemas.flavor_access(ADD))
        self._remove = Validator(schemas.flavor_access(REMOVE))
        self._actions = {
            ADD: (policies.FLAVOR_ACCESS_ADD, self._add),
            REMOVE: (policies.FLAVOR_ACCESS_REMOVE, self._remove),
        }

    def on_get(self, req: falcon.Request, resp: falcon.Response, flavor_id: str) -> None:
        send_json(resp, _access_document(flavor_id, self._database.read(_granted_projects, flavor_id)))

    @validated_by("_add", "_remove")
    def on_post_action(self, req: falcon.Request, resp: falcon.Response, flavor_id: str) -> None:
        call = calls.get_call(req)
        document = read_body(req, self._settings.max_body_size)
        name = next(iter(document), "")
        if len(document) != 1 or name not in self._actions:
            raise errors.Invalid(f"There is no such action: {name[:80]!r}; give {ADD} or {REMOVE}")
        rule, validator = self._actions[name]
        call.guarded_by(rule)
        validator.check_body(document)
        project_id = checked_identifier("tenant", document[name]["tenant"])
        change = _grant_access if name == ADD else _revoke_access
        send_json(resp, _access_document(flavor_id, self._database.write(change, flavor_id, project_id, call)))


def _granted_projects(tx: ApiTransaction, flavor_id: str) -> list[str]:
    if _is_public(tx, flavor_id):
        raise errors.NotFound("Access list not available for public flavors.")
    return flavors.list_projects(tx, flavor_id)


def _grant_access(tx: ApiTransaction, flavor_id: str, project_id: str, call: Call) -> list[str]:
    if _is_public(tx, flavor_id) and call.has_feature(Microversion.PRIVATE_ACCESS_ONLY):
        raise errors.Conflict("Can not add access to a public flavor.")
    flavors.grant_access(tx, flavor_id, project_id)
    return flavors.list_projects(tx, flavor_id)


def _revoke_access(tx: ApiTransaction, flavor_id: str, project_id: str, _call: Call) -> list[str]:
    _is_public(tx, flavor_id)
    flavors.revoke_access(tx, flavor_id, project_id)
    return flavors.list_projects(tx, flavor_id)


def _is_public(tx: ApiTransaction, flavor_id: str) -> bool:
    """Raises errors.NotFound for a flavor that does not exist."""
    try:
        return flavors.get(tx, flavor_id).is_public
    except errors.NotFound:
        raise flavor_not_found(flavor_id) from None


def _access_document(flavor_id: str, projects: list[str]) -> dict[str, Any]:
    return {"flavor_access": [{"flavor_id": flavor_id, "tenant_id": project_id} for project_id in projects]}
