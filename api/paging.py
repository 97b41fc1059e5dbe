"""Pages of a list: ``limit``, ``marker`` and the link to the next one."""

from __future__ import annotations

from urllib.parse import parse_qsl, urlencode

import falcon

from api import call as calls
from objects import errors
from objects.base import Object


class Page(Object, frozen=True, kw_only=True):
    """``limit`` items at most, those behind the one that the marker names."""

    limit: int
    marker: str | None = None


def page_of(req: falcon.Request, most: int) -> Page:
    """What the query string asks for, ``most`` items where it names no limit or a larger one. Raises errors.Invalid."""
    given = req.get_param("limit")
    limit = most
    if given is not None:
        if not (given.isascii() and given.isdigit()):
            raise errors.Invalid(f"limit: {given[:40]!r} is not a whole number of 0 or more")
        limit = min(int(given[:9]), most)
    return Page(limit=limit, marker=req.get_param("marker") or None)


def next_link(req: falcon.Request, path: str, marker: str) -> dict[str, str]:
    """The list at ``path``, asked for as it was, from behind ``marker`` on."""
    query = [(key, value) for key, value in parse_qsl(req.query_string, keep_blank_values=True) if key != "marker"]
    return {"rel": "next", "href": f"{calls.of(req).url(path)}?{urlencode([*query, ('marker', marker)])}"}
