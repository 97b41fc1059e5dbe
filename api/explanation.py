"""``GET /servers/{id}/explanation``: why a server went where it is, or nowhere. Ours, not the Compute API's."""

from __future__ import annotations

from typing import Any

import falcon
import msgspec

from api import call as calls
from api import server_view
from api.finding import Finder, Found
from api.versions import answer
from db import decisions
from db.engine import Database
from objects.decision import Choice, Decision
from objects.instance import Attempt, Server

QUEUED = "The request is accepted and waits for its scheduling decision."
DECIDED = "The server was given a host."
UNDECIDED = "No scheduling decision is on record for this server."


class Explanation:
    """A tenant reads a sentence that names no host; an administrator the whole decision and every attempt."""

    def __init__(self, finder: Finder, database: Database) -> None:
        self._finder = finder
        self._database = database

    def on_get(self, req: falcon.Request, resp: falcon.Response, server_id: str) -> None:
        call = calls.of(req)
        found = self._finder.find(server_id, call)
        decision = self._database.read(decisions.latest, found.server.batch_id)
        document: dict[str, Any] = {
            "server_id": found.server.uuid,
            "name": found.server.name,
            "status": server_view.STATUSES[found.server.state],
            "message": _message(found.server, decision),
        }
        if call.context.is_admin:
            document |= _everything(found, decision)
        answer(resp, {"explanation": document})


def _message(server: Server, decision: Decision | None) -> str:
    if server.state == "error" and server.fault:
        return server_view.tenant_fault(server.fault)
    if decision is not None and decision.message:
        return decision.message
    if decision is not None:
        return DECIDED
    return QUEUED if server.cell_uuid is None else UNDECIDED


def _everything(found: Found, decision: Decision | None) -> dict[str, Any]:
    server = found.server
    return {
        "batch_id": server.batch_id,
        "cell_uuid": server.cell_uuid,
        "host": server.host,
        "node": server.node,
        "availability_zone": server.availability_zone,
        "fault": server.fault,
        "decision": _without_siblings(decision, server.uuid),
        "choice": _choice(decision, server.uuid),
        # None: the cell does not answer, so nobody can say
        "attempts": None if found.silent else _attempts(found),
    }


def _without_siblings(decision: Decision | None, uuid: str) -> Decision | None:
    """The decision of the batch, with the choices of its other servers left out."""
    if decision is None:
        return None
    return msgspec.structs.replace(decision, choices=tuple(c for c in decision.choices if c.instance_uuid == uuid))


def _choice(decision: Decision | None, uuid: str) -> Choice | None:
    choices = decision.choices if decision is not None else ()
    return next((choice for choice in choices if choice.instance_uuid == uuid), None)


def _attempts(found: Found) -> list[dict[str, Any]]:
    row = found.row
    if row is None:
        return []
    attempts = [_failed(attempt) for attempt in row.history]
    if found.server.state in ("building", "active", "deleting"):
        attempts.append({"number": row.attempt, "host": row.host, "node": row.node, "outcome": found.server.state})
    return attempts


def _failed(attempt: Attempt) -> dict[str, Any]:
    failure = attempt.failure
    return {
        "number": attempt.number,
        "host": attempt.host,
        "node": attempt.node,
        "outcome": "failed",
        "class": failure.kind,
        "error": failure.error,
        "message": failure.message,
        "at": server_view.iso(failure.at),
    }
