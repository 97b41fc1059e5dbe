"""``GET /flavors``: the sizes of servers."""

from __future__ import annotations

from typing import Any

import falcon

from api import call as calls
from api import policies
from api.call import Call
from api.catalog import Catalog
from api.numbers import whole_number
from api.opts import ApiSettings
from api.paging import Page, next_link, page_of
from api.versions import answer
from objects import errors
from objects.flavor import Flavor

_TRUE = ("1", "t", "true", "on", "y", "yes")
_FALSE = ("0", "f", "false", "off", "n", "no")


class Flavors:
    """The collection: the short list and the detailed one."""

    def __init__(self, settings: ApiSettings, catalog: Catalog) -> None:
        self._settings = settings
        self._catalog = catalog

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        call = calls.of(req)
        self._answer(req, resp, "flavors", [(f.flavor_id, _summary(f, call)) for f in self._wanted(req, call)])

    def on_get_detail(self, req: falcon.Request, resp: falcon.Response) -> None:
        call = calls.of(req)
        self._answer(req, resp, "flavors/detail", [(f.flavor_id, _detail(f, call)) for f in self._wanted(req, call)])

    def _wanted(self, req: falcon.Request, call: Call) -> list[Flavor]:
        public = _is_public(req, call)
        found = [f for f in self._catalog.flavors(call) if public is None or f.is_public is public]
        least_memory, least_disk = _least(req, "minRam"), _least(req, "minDisk")
        return [f for f in found if f.memory_mb >= least_memory and f.root_gb >= least_disk]

    def _answer(self, req: falcon.Request, resp: falcon.Response, path: str, entries: list[tuple[str, dict[str, Any]]]) -> None:
        page = page_of(req, self._settings.max_limit)
        ids = [flavor_id for flavor_id, _ in entries]
        start = _start(ids, page)
        shown = entries[start : start + page.limit]
        document: dict[str, Any] = {"flavors": [entry for _, entry in shown]}
        if shown and start + page.limit < len(entries):
            document["flavors_links"] = [next_link(req, path, shown[-1][0])]
        answer(resp, document)


class OneFlavor:
    """One flavor and its extra specs."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    def on_get(self, req: falcon.Request, resp: falcon.Response, flavor_id: str) -> None:
        call = calls.of(req)
        answer(resp, {"flavor": _detail(self._find(flavor_id, call), call)})

    def on_get_extra_specs(self, req: falcon.Request, resp: falcon.Response, flavor_id: str) -> None:
        answer(resp, {"extra_specs": self._find(flavor_id, calls.of(req)).extra_specs})

    def _find(self, flavor_id: str, call: Call) -> Flavor:
        flavor = self._catalog.flavor(flavor_id, call)
        if flavor is None:
            raise errors.NotFound(f"Flavor {flavor_id[:80]} could not be found.")
        return flavor


def _summary(flavor: Flavor, call: Call) -> dict[str, Any]:
    return {"id": flavor.flavor_id, "name": flavor.name, "links": call.link("flavors", flavor.flavor_id)}


def _detail(flavor: Flavor, call: Call) -> dict[str, Any]:
    return _summary(flavor, call) | {
        "ram": flavor.memory_mb,
        "disk": flavor.root_gb,
        "vcpus": flavor.vcpus,
        "swap": flavor.swap_mb or "",
        "rxtx_factor": 1.0,
        "OS-FLV-EXT-DATA:ephemeral": flavor.ephemeral_gb,
        "OS-FLV-DISABLED:disabled": flavor.disabled,
        "os-flavor-access:is_public": flavor.is_public,
    }


def _is_public(req: falcon.Request, call: Call) -> bool | None:
    """The requested kind (None: both). Callers who are not administrators always get the public flavors."""
    given = req.get_param("is_public")
    if not call.may(policies.PRIVATE_FLAVORS) or given is None:
        return True
    word = given.strip().lower()
    if word == "none":
        return None
    if word not in _TRUE + _FALSE:
        raise errors.Invalid(f"is_public: {given[:40]!r} is neither true, false nor none")
    return word in _TRUE


def _least(req: falcon.Request, name: str) -> int:
    given = req.get_param(name)
    return 0 if given is None else whole_number(name, given)


def _start(ids: list[str], page: Page) -> int:
    if page.marker is None:
        return 0
    if page.marker not in ids:
        raise errors.Invalid(f"marker: flavor {page.marker[:80]!r} could not be found")
    return ids.index(page.marker) + 1
