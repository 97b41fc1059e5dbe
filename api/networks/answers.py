"""Answers of ``/network``: a page of a collection, filtered by the query, or one resource of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from urllib.parse import parse_qsl, urlencode

import falcon

from api.http import call as calls
from api.http.call import send_json
from api.http.paging import page_of
from api.lookup.ports import Document
from objects import errors

_PAGING = ("fields", "limit", "marker", "sort_key", "sort_dir", "page_reverse")
_ALL_PROJECTS = "all_projects"
"""No field: what Skyline adds to requests of administrators, who see all projects here in any case, as in Neutron."""


def answer_all(req: falcon.Request, resp: falcon.Response, name: str, documents: Iterable[Document], most: int) -> None:
    """Those that pass the filters of the query, by name and ID, a page of at most ``most``. Raises errors.Invalid."""
    page = page_of(req, most)
    filters = {key: req.get_param_as_list(key) or [] for key in req.params if key not in (*_PAGING, _ALL_PROJECTS)}
    matching = sorted(
        (entry for entry in documents if _passes_filters(entry, filters)), key=lambda entry: (entry.get("name", ""), entry["id"])
    )
    ids = [entry["id"] for entry in matching]
    if page.marker is not None and page.marker not in ids:
        raise errors.Invalid(f"marker: {page.marker[:80]!r} could not be found")
    start = 0 if page.marker is None else ids.index(page.marker) + 1
    fields = req.get_param_as_list("fields")
    shown = matching[start : start + page.limit]
    document: Document = {name: [_only_fields(entry, fields) for entry in shown]}
    if shown and len(matching) > start + page.limit:
        document[f"{name}_links"] = [_next_link(req, shown[-1]["id"])]
    send_json(resp, document)


def answer_one(req: falcon.Request, resp: falcon.Response, name: str, documents: Iterable[Document], resource_id: str) -> None:
    """The one with this ID. Raises errors.NotFound."""
    for document in documents:
        if document["id"] == resource_id:
            send_json(resp, {name: _only_fields(document, req.get_param_as_list("fields"))})
            return
    raise resource_not_found(name, resource_id)


def resource_not_found(name: str, resource_id: str) -> errors.NotFound:
    """There is no resource of this ID; ``name``: of what kind."""
    return errors.NotFound(f"{name.capitalize()} {resource_id[:80]} could not be found.")


def _passes_filters(document: Document, filters: Mapping[str, list[str]]) -> bool:
    """Whether each field that is named has one of the values. Raises errors.Invalid for a field that there is not."""
    for key, values in filters.items():
        if key not in document:
            raise errors.Invalid(f"{key[:40]}: is not a field to filter by; there are {', '.join(sorted(document))}")
        field_value = document[key]
        if key == "tags":  # all of them, several to a value
            passes = set(field_value).issuperset(tag for value in values for tag in value.split(","))
        elif key == "fixed_ips":
            passes = _has_addresses(field_value, values)
        elif isinstance(field_value, list):
            passes = not set(field_value).isdisjoint(values)
        else:
            passes = _text_of(field_value) in [value.lower() if value.lower() in ("true", "false") else value for value in values]
        if not passes:
            return False
    return True


def _has_addresses(fixed_ips: Sequence[Mapping[str, str | None]], conditions: Sequence[str]) -> bool:
    """``conditions``: each as ``ip_address=10.0.0.9``; of each name one value at least must hold. Raises errors.Invalid."""
    by_name: dict[str, list[str]] = {}
    for condition in conditions:
        name, _, value = condition.partition("=")
        by_name.setdefault(name, []).append(value)
    for name, values in by_name.items():
        if name == "ip_address_substr":
            passes = any(value in (condition["ip_address"] or "") for condition in fixed_ips for value in values)
        elif name in ("ip_address", "subnet_id"):
            passes = any(condition[name] in values for condition in fixed_ips)
        else:
            raise errors.Invalid(f"fixed_ips: {name[:40]!r} is not one of ip_address, ip_address_substr, subnet_id")
        if not passes:
            return False
    return True


def _text_of(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else "" if value is None else str(value)


def _only_fields(document: Document, fields: list[str] | None) -> Document:
    return document if not fields else {name: value for name, value in document.items() if name in fields}


def _next_link(req: falcon.Request, marker: str) -> dict[str, str]:
    query = [(key, value) for key, value in parse_qsl(req.query_string, keep_blank_values=True) if key != "marker"]
    return {"rel": "next", "href": f"{calls.get_call(req).prefix}{req.path}?{urlencode([*query, ('marker', marker)])}"}
