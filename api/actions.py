"""``/servers/{id}/os-instance-actions``: the requests on a server, with their stages and attempts."""

from __future__ import annotations

from typing import Any

import falcon

from api import call as calls
from api import policies, server_view
from api.call import Call
from api.finding import Finder, FoundServer
from api.microversions import Since
from api.versions import answer
from objects import errors
from objects.action import Action, Event


class Actions:
    """The list of actions, newest first, and one action by its request ID with its events, also newest first."""

    def __init__(self, finder: Finder) -> None:
        self._finder = finder

    def on_get(self, req: falcon.Request, resp: falcon.Response, server_id: str) -> None:
        call = calls.of(req)
        found = self._find(server_id, call)
        answer(resp, {"instanceActions": [_summary(action, found, call) for action in reversed(self._finder.actions(found))]})

    def on_get_one(self, req: falcon.Request, resp: falcon.Response, server_id: str, request_id: str) -> None:
        call = calls.of(req)
        found = self._find(server_id, call)
        action = next((each for each in self._finder.actions(found) if each.request_id == request_id), None)
        if action is None:
            raise errors.NotFound(f"Action for request_id {request_id[:80]} on instance {found.server.uuid} not found")
        document = _summary(action, found, call)
        if call.may(policies.ACTION_EVENTS) or call.has(Since.ACTION_EVENTS):
            document["events"] = [_event(event, call) for event in reversed(action.events)]
        answer(resp, {"instanceAction": document})

    def _find(self, server_id: str, call: Call) -> FoundServer:
        return self._finder.find(server_id, call, deleted=call.has(Since.ACTIONS_OF_DELETED))


def _summary(action: Action, found: FoundServer, call: Call) -> dict[str, Any]:
    server = found.server
    return {
        "action": action.kind,
        "instance_uuid": server.uuid,
        "request_id": action.request_id,
        "user_id": server.user_id,
        "project_id": server.project_id,
        "start_time": server_view.micro(action.started_at),
        "message": _fault(action.fault, call),
    }


def _fault(fault: str | None, call: Call) -> str | None:
    """Only administrators see hosts."""
    return fault if fault is None or call.may(policies.ACTION_DETAILS) else server_view.tenant_fault(fault, call)


def _event(event: Event, call: Call) -> dict[str, Any]:
    ended = event.finished_at is not None
    document: dict[str, Any] = {
        "event": event.stage,
        "start_time": server_view.micro(event.started_at),
        "finish_time": server_view.micro(event.finished_at),
        "result": ("Error" if event.error else "Success") if ended else None,
    }
    if call.may(policies.ACTION_DETAILS):
        document["host"] = event.host
        document["traceback"] = f"{event.error}: {event.message}" if event.error else None
    return document
