"""``/servers/{id}/os-instance-actions``: the requests on a server, with their stages and attempts."""

from __future__ import annotations

import math
from typing import Any

import falcon

from api.http import call as calls
from api.http import policies
from api.http.call import Call
from api.http.microversions import Since
from api.http.paging import Page, next_link, page_of
from api.http.versions import answer
from api.lookup import server_view
from api.lookup.server_lookup import Finder, FoundServer
from api.opts import ApiSettings
from api.servers.filters import period_of
from objects import errors
from objects.action import Action, Event
from objects.base import Object


class Actions:
    """The list of actions, newest first, and one action by its request ID with its events, also newest first."""

    def __init__(self, settings: ApiSettings, finder: Finder) -> None:
        self._settings = settings
        self._finder = finder

    def on_get(self, req: falcon.Request, resp: falcon.Response, server_id: str) -> None:
        call = calls.of(req)
        if not call.has(Since.ACTION_PAGES):
            found = self._find(server_id, call)
            answer(resp, {"instanceActions": [_summary(each, found, call) for each in reversed(self._finder.actions(found))]})
            return
        asked = _query(req, call, self._settings.max_limit)
        found = self._find(server_id, call)
        every = [each for each in reversed(self._finder.actions(found)) if asked.since <= each.changed_at <= asked.before]
        first = 0
        if asked.page.marker is not None:
            places = [place for place, each in enumerate(every) if _request_id(each) == asked.page.marker]
            if not places:
                raise errors.Invalid(f"Marker {asked.page.marker[:80]} could not be found.")
            first = places[-1] + 1
        shown = every[first : first + asked.page.limit]
        document: dict[str, Any] = {"instanceActions": [_summary(each, found, call) for each in shown]}
        if shown and len(every) > first + len(shown):
            path = f"servers/{found.server.uuid}/os-instance-actions"
            document["links"] = [next_link(req, path, _request_id(shown[-1]))]
        answer(resp, document)

    def on_get_one(self, req: falcon.Request, resp: falcon.Response, server_id: str, request_id: str) -> None:
        call = calls.of(req)
        found = self._find(server_id, call)
        action = next((each for each in self._finder.actions(found) if each.request_id == request_id), None)
        if action is None:
            raise errors.NotFound(f"Action for request_id {request_id[:80]} on instance {found.server.uuid} not found")
        document = _summary(action, found, call)
        if call.may(policies.ACTION_EVENTS) or call.has(Since.ACTION_EVENTS):
            document["events"] = [_event(event, found, call) for event in reversed(action.events)]
        answer(resp, {"instanceAction": document})

    def _find(self, server_id: str, call: Call) -> FoundServer:
        return self._finder.find(server_id, call, deleted=call.has(Since.ACTIONS_OF_DELETED))


class ActionQuery(Object, frozen=True, kw_only=True):
    """A page of the actions that changed from ``since`` to ``before``, in seconds since the epoch."""

    page: Page
    since: float
    before: float


def _query(req: falcon.Request, call: Call, most: int) -> ActionQuery:
    """Raises errors.Invalid for a parameter that this version does not have, and for a wrong value."""
    has_end = call.has(Since.CHANGES_BEFORE)
    for name in req.params:
        if name not in ("limit", "marker", "changes-since") and not (has_end and name == "changes-before"):
            raise errors.Invalid(f"{name[:40]}: is not a parameter of this list")
    since, before = period_of(req, has_end=has_end)
    return ActionQuery(
        page=page_of(req, most), since=-math.inf if since is None else since, before=math.inf if before is None else before
    )


def _request_id(action: Action) -> str:
    """Empty for what nobody asked for."""
    return action.request_id or ""


def _summary(action: Action, found: FoundServer, call: Call) -> dict[str, Any]:
    server = found.server
    document = {
        "action": action.kind,
        "instance_uuid": server.uuid,
        "request_id": _request_id(action),
        "user_id": action.user_id or server.user_id,
        "project_id": server.project_id,
        "start_time": server_view.micro(action.started_at),
        "message": _fault(action.fault, call),
    }
    return document | {"updated_at": server_view.micro(action.changed_at)} if call.has(Since.ACTION_PAGES) else document


def _fault(fault: str | None, call: Call) -> str | None:
    """Only administrators see hosts."""
    return fault if fault is None or call.may(policies.ACTION_DETAILS) else server_view.tenant_fault(fault, call)


def _event(event: Event, found: FoundServer, call: Call) -> dict[str, Any]:
    ended = event.finished_at is not None
    document: dict[str, Any] = {
        "event": event.stage,
        "start_time": server_view.micro(event.started_at),
        "finish_time": server_view.micro(event.finished_at),
        "result": ("Error" if event.error else "Success") if ended else None,
    }
    if call.has(Since.EVENT_HOSTS):
        document["hostId"] = server_view.host_digest(found.server.project_id, event.host)
    if call.may(policies.ACTION_DETAILS):
        if call.has(Since.EVENT_HOSTS):
            document["host"] = event.host or ""
        if call.has(Since.EVENT_DETAILS):
            document["details"] = event.message
        document["traceback"] = f"{event.error}: {event.message}" if event.error else None
    return document
