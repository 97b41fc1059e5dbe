"""Parse the query string of a server list: project, states and filters."""

from __future__ import annotations

import falcon

from api.http import policies
from api.http.call import Call
from api.http.microversions import Microversion
from api.http.paging import Page, unpack_position
from api.lookup import server_view
from api.servers import filters
from api.servers.filters import Filters, read_boolean
from api.servers.sorting import kind_of, sort_of
from db.api.servers.listing import ServerQuery
from objects import errors

_PHASES = {status: phase for phase, status in server_view.STATUSES.items()}
_OTHER_STATUSES = frozenset({server_view.UNKNOWN_STATUS})
"""Statuses of the Compute API that no server here ever has: a list filtered by one is empty."""


def server_query(req: falcon.Request, call: Call, page: Page) -> ServerQuery | None:
    """The query; None if the answer can only be empty. It asks for one more item than the page, to detect a next page.

    Raises errors.Invalid and errors.Forbidden, naming the parameter.
    """
    _check_names(req, call)
    project = _listed_project(req, call)
    sort = sort_of(req, call)
    phases = _listed_phases(req, call)
    given_filters = filters.filters_of(req, call)
    if phases is None or given_filters is None or page.limit == 0:
        return None
    by_change = given_filters["changed_since"] is not None or given_filters["changed_before"] is not None
    life = _deleted_filter(req, call, phases, by_change)
    if life is None:
        return None
    position = None
    if page.marker is not None and page.position is not None:
        position = unpack_position(page.position, [(key, kind_of(key)) for key, _ in sort])
    fields = given_filters | life | {"project_id": project, "phases": tuple(sorted(phases))}
    return ServerQuery(**fields, sort=sort, limit=page.limit + 1, marker=page.marker, position=position)


def _check_names(req: falcon.Request, call: Call) -> None:
    """Ignore unknown parameters in versions that allow them, and refuse those that are known but not offered in all versions."""
    for name in req.params:
        if name in filters.NOT_OFFERED or name.startswith("_"):
            raise errors.Invalid(f"{name[:40]}: lists cannot be filtered by it")
        if name not in filters.KNOWN and call.has_feature(Microversion.QUERY_CHECKED):
            raise errors.Invalid(f"{name[:40]}: is not a parameter of this list")


def _listed_project(req: falcon.Request, call: Call) -> str | None:
    """The project to list; None: all. Without all_tenants it is the caller's own, as in the Compute API, whichever one is named."""
    if not read_boolean(req, "all_tenants"):
        return call.context.project_id
    if not call.is_allowed(policies.ALL_TENANTS):
        raise errors.Forbidden("all_tenants: only an administrator may list the servers of all projects")
    return filters.value_of(req, "project_id")


def _listed_phases(req: falcon.Request, call: Call) -> frozenset[str] | None:
    """The phases to list; empty means all. None: no server can be in such a phase."""
    conditions = [condition for condition in (_of_status(req, call), *filters.phases_of(req)) if condition is not None]
    if not conditions:
        return frozenset()
    return frozenset(set.intersection(*conditions)) or None


def _of_status(req: falcon.Request, call: Call) -> set[str] | None:
    statuses = [status.upper() for status in req.get_param_as_list("status") or ()]
    for status in statuses:
        if status not in _PHASES and status not in _OTHER_STATUSES and call.has_feature(Microversion.STATUS_CHECKED):
            raise errors.Invalid(f"status: {status[:40]!r} is not a status of a server")
    if "DELETED" in statuses and not call.is_allowed(policies.ALL_TENANTS):
        raise errors.Forbidden("status: only an administrator may list deleted servers")
    return {str(_PHASES[status]) for status in statuses if status in _PHASES} if statuses else None


def _deleted_filter(req: falcon.Request, call: Call, phases: frozenset[str], by_change: bool) -> Filters | None:
    """Whether to list deleted servers, or only those; None: no server can match.

    Lists by time of change include deleted servers for every caller. An administrator may override this, and list deleted servers
    without it.
    """
    said = req.get_param("deleted") if call.is_allowed(policies.ALL_TENANTS) else None
    # an invalid value counts as false, as in the Compute API
    wants_deleted = said is not None and said.strip().lower() in filters.TRUE
    if "deleted" in phases and not call.is_allowed(policies.ALL_TENANTS):
        phases -= {"deleted"}
        if not phases:
            return None
    if wants_deleted or phases == {"deleted"}:
        return {"only_deleted": True} if not phases or "deleted" in phases else None
    if "deleted" in phases:
        return {"include_deleted": True}
    return {"include_deleted": by_change and said is None}
