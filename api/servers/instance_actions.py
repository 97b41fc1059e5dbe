"""``/servers/{id}/os-instance-actions``: the requests on a server, with their stages and attempts."""

from __future__ import annotations

import math
from typing import Any

import falcon

from api.http import call as calls
from api.http import policies
from api.http.call import Call, send_json
from api.http.microversions import Microversion
from api.http.paging import Page, next_link, page_of
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
        call = calls.get_call(req)
        if not call.has_feature(Microversion.ACTION_PAGES):
            current = self._find_server(server_id, call)
            send_json(
                resp,
                {
                    "instanceActions": [
                        _summary_entry(action, current, call) for action in reversed(self._finder.list_actions(current))
                    ]
                },
            )
            return
        query = _parse_query(req, call, self._settings.max_limit)
        current = self._find_server(server_id, call)
        every = [
            action for action in reversed(self._finder.list_actions(current)) if query.since <= action.changed_at <= query.before
        ]
        first = 0
        if query.page.marker is not None:
            positions = [position for position, action in enumerate(every) if _request_id(action) == query.page.marker]
            if not positions:
                raise errors.Invalid(f"Marker {query.page.marker[:80]} could not be found.")
            first = positions[-1] + 1
        shown = every[first : first + query.page.limit]
        document: dict[str, Any] = {"instanceActions": [_summary_entry(action, current, call) for action in shown]}
        if shown and len(every) > first + len(shown):
            path = f"servers/{current.server.uuid}/os-instance-actions"
            document["links"] = [next_link(req, path, _request_id(shown[-1]))]
        send_json(resp, document)

    def on_get_one(self, req: falcon.Request, resp: falcon.Response, server_id: str, request_id: str) -> None:
        call = calls.get_call(req)
        current = self._find_server(server_id, call)
        action = next((known for known in self._finder.list_actions(current) if known.request_id == request_id), None)
        if action is None:
            raise errors.NotFound(f"Action for request_id {request_id[:80]} on instance {current.server.uuid} not found")
        document = _summary_entry(action, current, call)
        if call.is_allowed(policies.ACTION_EVENTS) or call.has_feature(Microversion.ACTION_EVENTS):
            document["events"] = [_event_entry(event, current, call) for event in reversed(action.events)]
        send_json(resp, {"instanceAction": document})

    def _find_server(self, server_id: str, call: Call) -> FoundServer:
        return self._finder.find_server(server_id, call, deleted=call.has_feature(Microversion.ACTIONS_OF_DELETED))


class ActionQuery(Object, frozen=True, kw_only=True):
    """A page of the actions that changed from ``since`` to ``before``, in seconds since the epoch."""

    page: Page
    since: float
    before: float


def _parse_query(req: falcon.Request, call: Call, most: int) -> ActionQuery:
    """Raises errors.Invalid for a parameter that this version does not have, and for a wrong value."""
    has_end = call.has_feature(Microversion.CHANGES_BEFORE)
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


def _summary_entry(action: Action, current: FoundServer, call: Call) -> dict[str, Any]:
    server = current.server
    document = {
        "action": action.kind,
        "instance_uuid": server.uuid,
        "request_id": _request_id(action),
        "user_id": action.user_id or server.user_id,
        "project_id": server.project_id,
        "start_time": server_view.format_micro(action.started_at),
        "message": _visible_fault(action.fault, call),
    }
    return (
        document | {"updated_at": server_view.format_micro(action.changed_at)}
        if call.has_feature(Microversion.ACTION_PAGES)
        else document
    )


def _visible_fault(fault: str | None, call: Call) -> str | None:
    """Only administrators see hosts."""
    return fault if fault is None or call.is_allowed(policies.ACTION_DETAILS) else server_view.tenant_fault(fault, call)


def _event_entry(event: Event, current: FoundServer, call: Call) -> dict[str, Any]:
    ended = event.finished_at is not None
    document: dict[str, Any] = {
        "event": event.stage,
        "start_time": server_view.format_micro(event.started_at),
        "finish_time": server_view.format_micro(event.finished_at),
        "result": ("Error" if event.error else "Success") if ended else None,
    }
    if call.has_feature(Microversion.EVENT_HOSTS):
        document["hostId"] = server_view.host_digest(current.server.project_id, event.host)
    if call.is_allowed(policies.ACTION_DETAILS):
        if call.has_feature(Microversion.EVENT_HOSTS):
            document["host"] = event.host or ""
        if call.has_feature(Microversion.EVENT_DETAILS):
            document["details"] = event.message
        document["traceback"] = f"{event.error}: {event.message}" if event.error else None
    return document
