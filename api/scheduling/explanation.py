"""Explain the placement of a server, or of the servers of a request. This is our own extension of the Compute API.

A tenant reads sentences that name no host and no cell; an administrator sees every decision and every attempt. A server that was
moved has decisions about each of its bodies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

import falcon
import msgspec

from api.http import call as calls
from api.http import policies
from api.http.call import Call, send_json
from api.lookup import server_view
from api.lookup.server_lookup import Finder, FoundServer, decisions_about
from db.api.claims import decisions
from db.api.operations import operations
from db.api.servers import mappings
from db.sql.connection import ApiTransaction
from db.sql.engine import ApiDatabase
from objects import errors
from objects.decision import Decision
from objects.instance import Attempt, Server
from objects.relaxation import Relaxation, RelaxationPair

EXPLAINED_BODIES = 20
"""Moves of a server whose decisions are shown, beside the first and the one that it is."""

QUEUED = "The request is accepted and waits for its scheduling decision."
DECIDED = "The server was given a host."
WAITS = "The request waits for hosts that cannot take it now, and is tried again until its deadline."
SHELVED = "The server is shelved: it is on no host."
UNDECIDED = "No scheduling decision is on record for this server."


class Explanation:
    """``GET /servers/{id}/explanation``"""

    def __init__(self, finder: Finder, database: ApiDatabase) -> None:
        self._finder = finder
        self._database = database

    def on_get(self, req: falcon.Request, resp: falcon.Response, server_id: str) -> None:
        call = calls.get_call(req)
        current = self._finder.find_server(server_id, call)
        by_body = self._database.read(_decisions_by_body, current.server)
        latest_decisions = _latest_decisions(current.server, by_body)
        document = _summary_entry(current.server, latest_decisions, call) | _remedies_document(latest_decisions, call)
        if call.is_allowed(policies.EXPLAIN_ALL):
            document |= _administrator_fields(current, [decision for of_body in by_body.values() for decision in of_body])
        send_json(resp, {"explanation": document})


class RequestExplanation:
    """``GET /superconductor/requests/{id}/explanation``: by the ID of the request that asked for servers, or by reservation ID.

    The servers are described as in lists: no cell is asked.
    """

    def __init__(self, database: ApiDatabase) -> None:
        self._database = database

    def on_get(self, req: falcon.Request, resp: falcon.Response, request_id: str) -> None:
        call = calls.get_call(req)
        batch_id = batch_of(request_id)
        servers = self._database.read(mappings.of_batch, batch_id, call.project_scope) if batch_id else []
        if batch_id is None or not servers:
            raise errors.NotFound(f"Request {request_id[:80]} has no known servers.")
        batch_decisions = self._database.read(decisions.of_batch, batch_id)
        spec = self._database.read(mappings.specs_by_batch, [batch_id]).get(batch_id)
        moves = spec is not None and spec.move is not None  # then all are about one body, which its server may not be any more
        document: dict[str, Any] = {
            "request_id": spec.request_id if spec else None,
            "reservation_id": server_view.reservation_id(batch_id),
            "servers": [
                _summary_entry(server, batch_decisions if moves else decisions_about(batch_decisions, server.uuid), call)
                for server in servers
            ],
            **_remedies_document(batch_decisions, call),
        }
        if call.is_allowed(policies.EXPLAIN_ALL):
            document["decisions"] = _decision_documents(batch_decisions)
        send_json(resp, {"explanation": document})


def _decisions_by_body(tx: ApiTransaction, server: Server) -> dict[str, list[Decision]]:
    """The decisions about each body of the server, by body, in the order of the bodies; the latest EXPLAINED_BODIES of these."""
    twins = [operation.twin_uuid for operation in operations.of_server(tx, server.uuid) if operation.twin_uuid is not None]
    bodies = mappings.of_bodies(tx, {server.uuid, server.body_uuid, *twins[:EXPLAINED_BODIES]})
    return {
        body.body_uuid: decisions_about(decisions.of_batch(tx, body.batch_id), body.body_uuid)
        for body in sorted(bodies, key=lambda body: body.turn)
    }


def _latest_decisions(server: Server, by_body: Mapping[str, list[Decision]]) -> list[Decision]:
    """The decisions about the body that is shown. A shelved one has none; of it they are about its last unshelve, if any."""
    latest = list(by_body)[-1] if server.is_shelved else server.body_uuid
    return by_body.get(latest, [])


def batch_of(request_id: str) -> str | None:
    """The batch of a request ID (``req-UUID``), a reservation ID (``r-HEX``) or a batch uuid."""
    try:
        return str(UUID(request_id.removeprefix("req-").removeprefix("r-")))
    except ValueError:
        return None


def _summary_entry(server: Server, body_decisions: Sequence[Decision], call: Call) -> dict[str, Any]:
    return {
        "server_id": server.uuid,
        "name": server.name,
        "status": server_view.status_of(server),
        "message": _status_message(server, body_decisions, call),
    }


def _status_message(server: Server, body_decisions: Sequence[Decision], call: Call) -> str:
    if server.state == "error" and server.fault:
        return server_view.tenant_fault(server.fault, call)
    if body_decisions and body_decisions[-1].waits and server.state == "building":
        return WAITS
    if body_decisions:
        is_placed = any(choice.host for choice in body_decisions[-1].choices)
        if is_placed and server.is_shelved:
            return SHELVED
        return DECIDED if is_placed else server_view.tenant_fault(body_decisions[-1].message, call)
    if server.is_shelved:
        return SHELVED
    return QUEUED if server.cell_uuid is None else UNDECIDED


def _remedies_document(body_decisions: Sequence[Decision], call: Call) -> dict[str, Any]:
    """What would have been enough, in words for tenants. ``would_have_fitted`` is None if it was not examined or not needed."""
    latest = body_decisions[-1] if body_decisions else None
    return {
        "would_have_fitted": None if latest is None or latest.relaxations is None else _remedy_words(latest.relaxations, call),
        "would_have_fitted_together": _remedy_words(latest.pairs, call)[:1] if latest is not None else [],
        "largest_flavor": (latest.largest_flavor if latest is not None else "") or None,
        "unread_hints": latest.unread_hints if latest is not None else (),
    }


def _remedy_words(changes: Sequence[Relaxation | RelaxationPair], call: Call) -> list[str]:
    """With amounts only for callers who may know how full hosts are."""
    for_tenants = [change for change in changes if change.is_for_tenants]
    return list(dict.fromkeys(change.as_text if call.sees_fleet else change.plain_words for change in for_tenants))


def _administrator_fields(current: FoundServer, all_decisions: Sequence[Decision]) -> dict[str, Any]:
    server = current.server
    return {
        "request_id": current.spec.request_id if current.spec else None,
        "reservation_id": server_view.reservation_id(server.boot_batch_id or server.batch_id),
        "cell_uuid": server.cell_uuid,
        "host": server.host,
        "node": server.node,
        "availability_zone": server.availability_zone,
        "fault": server.fault,
        "decisions": _decision_documents(all_decisions),
        # None: unknown, because the cell does not answer
        "attempts": None if current.silent else _attempt_entries(current),
    }


def _decision_documents(all_decisions: Sequence[Decision]) -> list[dict[str, Any]]:
    """With the fields that a record leaves out."""
    return [msgspec.structs.asdict(decision) for decision in all_decisions]


def _attempt_entries(current: FoundServer) -> list[dict[str, Any]]:
    row = current.row
    if row is None:
        return []
    attempts = [_failed_attempt(attempt) for attempt in row.history]
    if current.server.state in ("building", "active", "deleting", "rolling-back"):
        attempts.append({"number": row.attempt, "host": row.host, "node": row.node, "outcome": current.server.state})
    return attempts


def _failed_attempt(attempt: Attempt) -> dict[str, Any]:
    failure = attempt.failure
    return {
        "number": attempt.number,
        "host": attempt.host,
        "node": attempt.node,
        "outcome": "failed",
        "class": failure.kind,
        "error": failure.error,
        "message": failure.message,
        "at": server_view.format_iso(failure.at),
    }
