"""The query string of a list of servers: filters, order, page."""

from __future__ import annotations

import re
from datetime import UTC, datetime

import falcon

from api.call import Call
from api.microversions import Since
from api.paging import Page
from db.mappings import ServerQuery
from objects import errors

_STATES = {"BUILD": "building", "ACTIVE": "active", "ERROR": "error", "DELETED": "deleted"}
_OTHER_STATUSES = frozenset({
    "HARD_REBOOT", "MIGRATING", "PASSWORD", "PAUSED", "REBOOT", "REBUILD", "RESCUE", "RESIZE", "REVERT_RESIZE", "SHELVED",
    "SHELVED_OFFLOADED", "SHUTOFF", "SOFT_DELETED", "SUSPENDED", "UNKNOWN", "VERIFY_RESIZE",
})  # fmt: skip
"""Statuses of the Compute API that no server here ever has: a list by one of them is empty."""

_NOT_OFFERED = frozenset({
    "flavor", "image", "ip", "ip6", "tags", "tags-any", "not-tags", "not-tags-any", "reservation_id", "user_id", "changes-before",
})  # fmt: skip
"""Filters that clients know and that are not offered here: refused, as a list that ignored one would be wrong."""

_TRUE = frozenset({"", "1", "t", "true", "on", "y", "yes"})
_FALSE = frozenset({"0", "f", "false", "off", "n", "no"})
_LONGEST_NAME = 255


def server_query(req: falcon.Request, call: Call, page: Page) -> ServerQuery | None:
    """What is asked for; None if the answer can only be empty. One more than the page is read, to know whether there is a next one.

    Raises errors.Invalid and errors.Forbidden, naming the parameter.
    """
    for name in _NOT_OFFERED:
        if req.get_param(name) is not None:
            raise errors.Invalid(f"{name}: lists cannot be filtered by it")
    states = _states(req, call)
    if states is None or page.limit == 0:
        return None
    since = _changed_since(req)
    deleted = "deleted" in states or (call.context.is_admin and _boolean(req, "deleted"))
    return ServerQuery(
        project_id=_project(req, call),
        name=_name(req),
        states=("deleted",) if deleted and not states else states,
        # Where hosts are is an administrator's business; others get their list as if they had not asked.
        host=(req.get_param("host") or None) if call.context.is_admin else None,
        availability_zone=req.get_param("availability_zone") or None,
        changed_since=since,
        include_deleted=deleted or since is not None,
        uuids=tuple(req.get_param_as_list("uuid") or ()),
        sort=_sort(req, call),
        limit=page.limit + 1,
        marker=page.marker,
    )


def _project(req: falcon.Request, call: Call) -> str | None:
    named = req.get_param("project_id") or req.get_param("tenant_id")
    if not (_boolean(req, "all_tenants") or (named and call.context.is_admin)):
        return call.context.project_id
    if not call.context.is_admin:
        raise errors.Forbidden("all_tenants: only an administrator may list the servers of all projects")
    return named or None


def _states(req: falcon.Request, call: Call) -> tuple[str, ...] | None:
    """States to list, () for all; None: statuses that no server has."""
    given = [status.upper() for status in req.get_param_as_list("status") or ()]
    for status in given:
        if status not in _STATES and status not in _OTHER_STATUSES and call.has(Since.STATUS_CHECKED):
            raise errors.Invalid(f"status: {status[:40]!r} is no status of a server")
    if "DELETED" in given and not call.context.is_admin:
        raise errors.Forbidden("status: only an administrator may list deleted servers")
    states = tuple(_STATES[status] for status in given if status in _STATES)
    return None if given and not states else states


def _name(req: falcon.Request) -> str | None:
    given = req.get_param("name")
    if not given:
        return None
    if len(given) > _LONGEST_NAME:
        raise errors.Invalid(f"name: is too long, {_LONGEST_NAME} is the most")
    try:
        re.compile(given)
    except (re.error, OverflowError, RecursionError) as error:
        raise errors.Invalid(f"name: is not a regular expression: {error}") from error
    return given


def _changed_since(req: falcon.Request) -> float | None:
    given = req.get_param("changes-since")
    if not given:
        return None
    try:
        at = datetime.fromisoformat(given.strip().replace(" ", "+"))  # a plus that was not escaped arrives as a blank
    except ValueError as error:
        raise errors.Invalid(f"changes-since: {given[:40]!r} is not a time like 2026-01-31T12:00:00Z") from error
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()


def _sort(req: falcon.Request, call: Call) -> tuple[tuple[str, str], ...]:
    keys = req.get_param_as_list("sort_key") or []
    directions = req.get_param_as_list("sort_dir") or []
    if len(directions) > max(len(keys), 1):
        raise errors.Invalid("sort_dir: is given more often than sort_key")
    for direction in directions:
        if direction not in ("asc", "desc"):
            raise errors.Invalid(f"sort_dir: {direction[:40]!r} is neither asc nor desc")
    if not call.context.is_admin and ("host" in keys or "node" in keys):
        raise errors.Forbidden("sort_key: only an administrator may sort by host or node")
    keys = keys or ["created_at"]
    directions += ["desc"] * (len(keys) - len(directions))
    return tuple(zip(keys, directions, strict=True))


def _boolean(req: falcon.Request, name: str) -> bool:
    given = req.get_param(name)
    word = "0" if given is None else given.strip().lower()
    if word not in _TRUE | _FALSE:
        raise errors.Invalid(f"{name}: {word[:40]!r} is neither true nor false")
    return word in _TRUE
