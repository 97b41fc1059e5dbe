"""Pages of a list: ``limit``, ``marker`` and the link to the next page."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from urllib.parse import parse_qsl, urlencode

import falcon
import msgspec

from api.http import call as calls
from api.http.query_parameters import whole_number
from db.api.servers.listing import Value
from objects import errors, text, typed
from objects.base import INT32_MAX, Object
from objects.stats import MAX_EXACT_FLOAT

_POSITION_PARAMETERS = ("marker", "position")


class Page(Object, frozen=True, kw_only=True):
    """At most ``limit`` items after the marker item, or after ``position``, where that item was when it was listed."""

    limit: int
    marker: str | None = None
    position: str | None = None


class Position(Object, frozen=True, kw_only=True):
    """The position of an item in a list: the names of the sort keys, and the item's value for each."""

    keys: tuple[str, ...]
    values: tuple[Value, ...]


def page_of(req: falcon.Request, most: int) -> Page:
    """The page that the query string asks for; at most ``most`` items. Raises errors.Invalid."""
    limit_text = req.get_param("limit")
    limit = most
    if limit_text is not None:
        limit = min(whole_number("limit", limit_text), most)
    return Page(limit=limit, marker=req.get_param("marker") or None, position=req.get_param("position") or None)


def next_link(req: falcon.Request, path: str, marker: str, position: Position | None = None) -> dict[str, str]:
    """The link to the rest of the list at ``path``, with the same query: after ``marker``, or after its ``position``."""
    query = [(key, value) for key, value in parse_qsl(req.query_string, keep_blank_values=True) if key not in _POSITION_PARAMETERS]
    query.append(("marker", marker))
    if position is not None:
        query.append(("position", base64.urlsafe_b64encode(msgspec.json.encode(position)).decode().rstrip("=")))
    return {"rel": "next", "href": f"{calls.get_call(req).build_url(path)}?{urlencode(query)}"}


def unpack_position(packed: str, keys: Sequence[tuple[str, type]]) -> tuple[Value, ...]:
    """The values in a link's position, for a list with these sort keys and types. Raises errors.Invalid."""
    try:
        position = typed.decode_json(base64.urlsafe_b64decode(packed + "=" * (-len(packed) % 4)), Position)
    except (msgspec.MsgspecError, binascii.Error, ValueError, RecursionError):
        position = None
    fits = position is not None and position.keys == tuple(name for name, _ in keys) and len(position.values) == len(keys)
    if (
        position is None
        or not fits
        or not all(_is_comparable(value, kind) for value, (_, kind) in zip(position.values, keys, strict=True))
    ):
        raise errors.Invalid("position: is not from a link of this list; follow the links unchanged, or omit it")
    return position.values


def _is_comparable(value: Value, kind: type) -> bool:
    """Whether the value can be compared with a column of this type."""
    if isinstance(value, str):
        return kind is str and text.is_safe(value)
    if kind is int:
        return value is None or (isinstance(value, int) and abs(value) <= INT32_MAX)
    return value is None or (kind is float and abs(value) < MAX_EXACT_FLOAT)
