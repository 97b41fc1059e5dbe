"""``/flavors``: the sizes of servers."""

from __future__ import annotations

import uuid
from functools import partial
from typing import Any

import falcon
import msgspec

from api.http import call as calls
from api.http import policies, schemas
from api.http.call import Call, send_json
from api.http.microversions import Microversion
from api.http.paging import Page, next_link, page_of
from api.http.query_parameters import refuse_unknown_names, whole_number
from api.http.validation import Validator, VersionedValidator, read_body, validated_by
from api.lookup.catalog import Catalog
from api.opts import ApiSettings
from db.api.projects import flavors
from db.sql.engine import ApiDatabase
from objects import errors
from objects import flavor as records
from objects.base import INT32_MAX
from objects.flavor import Flavor

_TRUE = ("1", "t", "true", "on", "y", "yes")
_FALSE = ("0", "f", "false", "off", "n", "no")

_PARAMETERS = frozenset({"limit", "marker", "is_public", "minRam", "minDisk", "sort_key", "sort_dir"})

_SORT_KEYS = {
    "description": "description",
    "disabled": "disabled",
    "ephemeral_gb": "ephemeral_gb",
    "flavorid": "flavor_id",
    "is_public": "is_public",
    "memory_mb": "memory_mb",
    "name": "name",
    "root_gb": "root_gb",
    "rxtx_factor": "rxtx_factor",
    "swap": "swap_mb",
    "vcpus": "vcpus",
}
"""Fields of a flavor by the Compute API's name."""

_CONSTANT = "vcpu_weight"
"""The sort key whose value is the same for all flavors here."""


class Flavors:
    """The collection: the short list and the detailed one."""

    def __init__(self, settings: ApiSettings, database: ApiDatabase, catalog: Catalog) -> None:
        self._settings = settings
        self._database = database
        self._catalog = catalog
        self._validator = VersionedValidator((since, schemas.flavor_body(since)) for since in schemas.FLAVOR_CHANGES)

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        call = calls.get_call(req)
        self._send_page(req, resp, "flavors", [(f.flavor_id, _brief_entry(f, call)) for f in self._matching_flavors(req, call)])

    def on_get_detail(self, req: falcon.Request, resp: falcon.Response) -> None:
        call = calls.get_call(req)
        self._send_page(
            req, resp, "flavors/detail", [(f.flavor_id, _detail_entry(f, call)) for f in self._matching_flavors(req, call)]
        )

    @validated_by("_validator")
    def on_post(self, req: falcon.Request, resp: falcon.Response) -> None:
        call = calls.get_call(req)
        document = read_body(req, self._settings.max_body_size)
        self._validator.check_body(call.version, document)
        flavor = _parse_flavor(document["flavor"])
        self._database.write(flavors.create, flavor)
        send_json(resp, {"flavor": _detail_entry(flavor, call)})

    def _matching_flavors(self, req: falcon.Request, call: Call) -> list[Flavor]:
        refuse_unknown_names(req, call, _PARAMETERS)
        matching = self._catalog.list_flavors(call, _is_public(req, call))
        if not call.is_allowed(policies.PRIVATE_FLAVORS):
            matching = [f for f in matching if not f.disabled]
        least_memory, least_disk = _minimum_of(req, "minRam"), _minimum_of(req, "minDisk")
        return _sort_flavors(req, [f for f in matching if f.memory_mb >= least_memory and f.root_gb >= least_disk])

    def _send_page(self, req: falcon.Request, resp: falcon.Response, path: str, entries: list[tuple[str, dict[str, Any]]]) -> None:
        page = page_of(req, self._settings.max_limit)
        ids = [flavor_id for flavor_id, _ in entries]
        start = _start(ids, page)
        shown = entries[start : start + page.limit]
        document: dict[str, Any] = {"flavors": [entry for _, entry in shown]}
        if shown and start + page.limit < len(entries):
            document["flavors_links"] = [next_link(req, path, shown[-1][0])]
        send_json(resp, document)


class OneFlavor:
    """One flavor."""

    def __init__(self, settings: ApiSettings, database: ApiDatabase, catalog: Catalog) -> None:
        self._settings = settings
        self._database = database
        self._catalog = catalog
        self._validator = Validator(schemas.flavor_update())

    def on_get(self, req: falcon.Request, resp: falcon.Response, flavor_id: str) -> None:
        call = calls.get_call(req)
        send_json(resp, {"flavor": _detail_entry(find_visible(self._catalog, flavor_id, call), call)})

    @validated_by("_validator")
    def on_put(self, req: falcon.Request, resp: falcon.Response, flavor_id: str) -> None:
        """Only the description can change."""
        call = calls.get_call(req)
        document = read_body(req, self._settings.max_body_size)
        self._validator.check_body(document)
        description = document["flavor"]["description"]
        send_json(resp, {"flavor": _detail_entry(change_flavor(self._database, flavor_id, description=description), call)})

    def on_delete(self, req: falcon.Request, resp: falcon.Response, flavor_id: str) -> None:
        try:
            self._database.write(flavors.delete, flavor_id)
        except errors.NotFound:
            raise flavor_not_found(flavor_id) from None
        resp.status = 202


def find_visible(catalog: Catalog, flavor_id: str, call: Call) -> Flavor:
    """A flavor that the caller may see. Raises errors.NotFound."""
    flavor = catalog.find_flavor(flavor_id, call)
    if flavor is None:
        raise flavor_not_found(flavor_id)
    return flavor


def flavor_not_found(flavor_id: str) -> errors.NotFound:
    return errors.NotFound(f"Flavor {flavor_id[:80]} could not be found.")


def change_flavor(database: ApiDatabase, flavor_id: str, **fields: Any) -> Flavor:
    """The flavor with these fields replaced, stored. Raises errors.NotFound and errors.Invalid."""

    def edit_flavor(flavor: Flavor) -> Flavor:
        edited = msgspec.structs.replace(flavor, **fields)
        records.check_flavor(edited)
        return edited

    try:
        return database.write(flavors.change_flavor, flavor_id, edit_flavor)
    except errors.NotFound:
        raise flavor_not_found(flavor_id) from None


def _parse_flavor(body: dict[str, Any]) -> Flavor:
    """The flavor that a body asks for. Raises errors.Invalid."""
    flavor_id = body.get("id")
    flavor = Flavor(
        flavor_id=str(uuid.uuid4()) if flavor_id is None else str(flavor_id),
        name=body["name"],
        vcpus=_parse_size(body, "vcpus", 1),
        memory_mb=_parse_size(body, "ram", 1),
        root_gb=_parse_size(body, "disk", 0),
        ephemeral_gb=_parse_size(body, "OS-FLV-EXT-DATA:ephemeral", 0),
        swap_mb=_parse_size(body, "swap", 0),
        is_public=schemas.BOOLEANS[body.get("os-flavor-access:is_public", True)],
        description=body.get("description"),
        rxtx_factor=float(body.get("rxtx_factor", 1.0)),
    )
    records.check_flavor(flavor)
    return flavor


def _parse_size(body: dict[str, Any], name: str, least: int) -> int:
    """A size. Raises errors.Invalid: a JSON schema does not compare numbers given as text."""
    number = int(body.get(name, 0))
    if not least <= number <= INT32_MAX:
        raise errors.Invalid(f"flavor.{name}: {number} is not a whole number from {least} to {INT32_MAX}")
    return number


def _summary_entry(flavor: Flavor, call: Call) -> dict[str, Any]:
    return {"id": flavor.flavor_id, "name": flavor.name, "links": call.item_links("flavors", flavor.flavor_id)}


def _brief_entry(flavor: Flavor, call: Call) -> dict[str, Any]:
    described = {"description": flavor.description} if call.has_feature(Microversion.FLAVOR_DESCRIPTION) else {}
    return _summary_entry(flavor, call) | described


def _detail_entry(flavor: Flavor, call: Call) -> dict[str, Any]:
    specs = call.has_feature(Microversion.FLAVOR_EXTRA_SPECS) and call.is_allowed(policies.EXTRA_SPECS)
    return (
        _brief_entry(flavor, call)
        | {
            "ram": flavor.memory_mb,
            "disk": flavor.root_gb,
            "vcpus": flavor.vcpus,
            "swap": flavor.swap_mb or (0 if call.has_feature(Microversion.QUERY_CHECKED) else ""),
            "rxtx_factor": flavor.rxtx_factor,
            "OS-FLV-EXT-DATA:ephemeral": flavor.ephemeral_gb,
            "OS-FLV-DISABLED:disabled": flavor.disabled,
            "os-flavor-access:is_public": flavor.is_public,
        }
        | ({"extra_specs": flavor.extra_specs} if specs else {})
    )


def _is_public(req: falcon.Request, call: Call) -> bool | None:
    """The requested kind (None: both). Callers who are not administrators get those that they may use, whatever they ask for."""
    parameter = req.get_param("is_public")
    if not call.is_allowed(policies.PRIVATE_FLAVORS) or parameter is None:
        return True
    word = parameter.strip().lower()
    if word == "none":
        return None
    if word not in _TRUE + _FALSE:
        raise errors.Invalid(f"is_public: {parameter[:40]!r} is neither true, false nor none")
    return word in _TRUE


def _minimum_of(req: falcon.Request, name: str) -> int:
    parameter = req.get_param(name)
    return 0 if parameter is None else whole_number(name, parameter)


def _sort_flavors(req: falcon.Request, matching: list[Flavor]) -> list[Flavor]:
    """By the keys of the query; those that are equal, and all if it names no key, by size. Raises errors.Invalid."""
    keys = req.get_param_as_list("sort_key") or []
    directions = req.get_param_as_list("sort_dir") or []
    for direction in directions:
        if direction not in ("asc", "desc"):
            raise errors.Invalid(f"sort_dir: {direction[:40]!r} is neither asc nor desc")
    if directions and not keys:
        keys = ["flavorid"]
    if len(directions) > len(keys):
        raise errors.Invalid("sort_dir: is given more often than sort_key")
    directions += (directions[:1] or ["asc"]) * (len(keys) - len(directions))
    for key, direction in reversed(list(zip(keys, directions, strict=True))):
        if key == _CONSTANT:
            continue
        if key not in _SORT_KEYS:
            raise errors.Invalid(f"sort_key: {key[:40]!r} is not one of {', '.join((*_SORT_KEYS, _CONSTANT))}")
        matching = sorted(matching, key=partial(_sort_value, _SORT_KEYS[key]), reverse=direction == "desc")
    return matching


def _sort_value(field: str, flavor: Flavor) -> tuple[bool, Any]:
    """The value of a field. A flavor without a description comes before all others."""
    value = getattr(flavor, field)
    return (value is not None, "" if value is None else value)


def _start(ids: list[str], page: Page) -> int:
    if page.marker is None:
        return 0
    if page.marker not in ids:
        raise errors.Invalid(f"marker: flavor {page.marker[:80]!r} could not be found")
    return ids.index(page.marker) + 1
