"""``/flavors/{id}/os-extra_specs``: what a flavor asks of hosts and guests beside its size."""

from __future__ import annotations

from typing import Any

import falcon
import msgspec

from api.http import call as calls
from api.http import schemas
from api.http.call import send_json
from api.http.validation import Validator, read_body, validated_by
from api.lookup.catalog import Catalog
from api.opts import ApiSettings
from api.projects.flavors import find_visible, flavor_not_found
from db.api.projects import flavors
from db.sql.engine import ApiDatabase
from objects import errors
from objects import flavor as records
from objects.flavor import Flavor


class FlavorExtraSpecs:
    """The methods with suffix ``one`` are those of one key. Servers that exist keep the extra specs that they were booted with."""

    def __init__(self, settings: ApiSettings, database: ApiDatabase, catalog: Catalog) -> None:
        self._settings = settings
        self._database = database
        self._catalog = catalog
        self._several = Validator(schemas.extra_specs())
        self._one = Validator(schemas.extra_spec())

    def on_get(self, req: falcon.Request, resp: falcon.Response, flavor_id: str) -> None:
        send_json(resp, {"extra_specs": find_visible(self._catalog, flavor_id, calls.get_call(req)).extra_specs})

    @validated_by("_several")
    def on_post(self, req: falcon.Request, resp: falcon.Response, flavor_id: str) -> None:
        """Extra specs that are not given stay."""
        document = read_body(req, self._settings.max_body_size)
        self._several.check_body(document)
        send_json(resp, {"extra_specs": self._set_specs(flavor_id, document["extra_specs"])})

    def on_get_one(self, req: falcon.Request, resp: falcon.Response, flavor_id: str, key: str) -> None:
        specs = find_visible(self._catalog, flavor_id, calls.get_call(req)).extra_specs
        if key not in specs:
            raise _has_none(flavor_id, key)
        send_json(resp, {key: specs[key]})

    @validated_by("_one")
    def on_put_one(self, req: falcon.Request, resp: falcon.Response, flavor_id: str, key: str) -> None:
        document = read_body(req, self._settings.max_body_size)
        self._one.check_body(document)
        if key not in document:
            raise errors.Invalid(f"Request body and URI mismatch: the body has not the key {key[:80]!r}")
        send_json(resp, self._set_specs(flavor_id, document))

    def on_delete_one(self, req: falcon.Request, resp: falcon.Response, flavor_id: str, key: str) -> None:
        def without_spec(flavor: Flavor) -> Flavor:
            if key not in flavor.extra_specs:
                raise _has_none(flavor_id, key)
            remaining = {name: value for name, value in flavor.extra_specs.items() if name != key}
            return msgspec.structs.replace(flavor, extra_specs=remaining)

        self._database.write(flavors.change_flavor, flavor_id, without_spec)

    def _set_specs(self, flavor_id: str, values: dict[str, Any]) -> dict[str, str]:
        """Returns what was set: numbers as text. Raises errors.NotFound and errors.Invalid."""
        added = {key: str(value) for key, value in values.items()}

        def with_them(flavor: Flavor) -> Flavor:
            specs = flavor.extra_specs | added
            records.check_specs(specs)
            return msgspec.structs.replace(flavor, extra_specs=specs)

        try:
            self._database.write(flavors.change_flavor, flavor_id, with_them)
        except errors.NotFound:
            raise flavor_not_found(flavor_id) from None
        return added


def _has_none(flavor_id: str, key: str) -> errors.NotFound:
    return errors.NotFound(f"Flavor {flavor_id[:80]} has no extra specs with key {key[:80]}.")
