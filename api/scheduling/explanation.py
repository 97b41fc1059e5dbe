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
from api.http.call import Call
from api.http.versions import answer
from api.lookup import server_view
from api.lookup.server_lookup import Finder, FoundServer, about
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
        call = calls.of(req)
        found = self._finder.find(server_id, call)
        by_body = self._database.read(_decisions, found.server)
        made = _latest(found.server, by_body)
        document = _summary(found.server, made, call) | _remedies(made, call)
        if call.may(policies.EXPLAIN_ALL):
            document |= _everything(found, [decision for some in by_body.values() for decision in some])
        answer(resp, {"explanation": document})


class RequestExplanation:
    """``GET /superconductor/requests/{id}/explanation``: by the ID of the request that asked for servers, or by reservation ID.

    The servers are described as in lists: no cell is asked.
    """

    def __init__(self, database: ApiDatabase) -> None:
        self._database = database

    def on_get(self, req: falcon.Request, resp: falcon.Response, request_id: str) -> None:
        call = calls.of(req)
        batch_id = batch_of(request_id)
        servers = self._database.read(mappings.of_batch, batch_id, call.scope) if batch_id else []
        if batch_id is None or not servers:
            raise errors.NotFound(f"Request {request_id[:80]} has no known servers.")
        made = self._database.read(decisions.of_batch, batch_id)
        spec = self._database.read(mappings.specs, [batch_id]).get(batch_id)
        moves = spec is not None and spec.move is not None  # then all are about one body, which its server may not be any more
        document: dict[str, Any] = {
            "request_id": spec.request_id if spec else None,
            "reservation_id": server_view.reservation_id(batch_id),
            "servers": [_summary(server, made if moves else about(made, server.uuid), call) for server in servers],
            **_remedies(made, call),
        }
        if call.may(policies.EXPLAIN_ALL):
            document["decisions"] = _whole(made)
        answer(resp, {"explanation": document})


def _decisions(tx: ApiTransaction, server: Server) -> dict[str, list[Decision]]:
    """The decisions about each body of the server, by body, in the order of the bodies; the latest EXPLAINED_BODIES of these."""
    twins = [each.twin_uuid for each in operations.of_server(tx, server.uuid) if each.twin_uuid is not None]
    bodies = mappings.of_bodies(tx, {server.uuid, server.body_uuid, *twins[:EXPLAINED_BODIES]})
    return {
        body.body_uuid: about(decisions.of_batch(tx, body.batch_id), body.body_uuid)
        for body in sorted(bodies, key=lambda body: body.turn)
    }


def _latest(server: Server, by_body: Mapping[str, list[Decision]]) -> list[Decision]:
    """The decisions about the body that is shown. A shelved one has none; of it they are about its last unshelve, if any."""
    latest = list(by_body)[-1] if server.is_shelved else server.body_uuid
    return by_body.get(latest, [])


def batch_of(request_id: str) -> str | None:
    """The batch of a request ID (``req-UUID``), a reservation ID (``r-HEX``) or a batch uuid."""
    try:
        return str(UUID(request_id.removeprefix("req-").removeprefix("r-")))
    except ValueError:
        return None


def _summary(server: Server, made: Sequence[Decision], call: Call) -> dict[str, Any]:
    return {
        "server_id": server.uuid,
        "name": server.name,
        "status": server_view.status_of(server),
        "message": _message(server, made, call),
    }


def _message(server: Server, made: Sequence[Decision], call: Call) -> str:
    if server.state == "error" and server.fault:
        return server_view.tenant_fault(server.fault, call)
    if made and made[-1].waits and server.state == "building":
        return WAITS
    if made:
        found = any(choice.host for choice in made[-1].choices)
        if found and server.is_shelved:
            return SHELVED
        return DECIDED if found else server_view.tenant_fault(made[-1].message, call)
    if server.is_shelved:
        return SHELVED
    return QUEUED if server.cell_uuid is None else UNDECIDED


def _remedies(made: Sequence[Decision], call: Call) -> dict[str, Any]:
    """What would have been enough, in words for tenants. ``would_have_fitted`` is None if it was not examined or not needed."""
    latest = made[-1] if made else None
    return {
        "would_have_fitted": None if latest is None or latest.relaxations is None else _words(latest.relaxations, call),
        "would_have_fitted_together": _words(latest.pairs, call)[:1] if latest is not None else [],
        "largest_flavor": (latest.largest_flavor if latest is not None else "") or None,
        "unread_hints": latest.unread_hints if latest is not None else (),
    }


def _words(changes: Sequence[Relaxation | RelaxationPair], call: Call) -> list[str]:
    """With amounts only for callers who may know how full hosts are."""
    told = [each for each in changes if each.is_for_tenants]
    return list(dict.fromkeys(each.words if call.sees_fleet else each.plain_words for each in told))


def _everything(found: FoundServer, made: Sequence[Decision]) -> dict[str, Any]:
    server = found.server
    return {
        "request_id": found.spec.request_id if found.spec else None,
        "reservation_id": server_view.reservation_id(server.boot_batch_id or server.batch_id),
        "cell_uuid": server.cell_uuid,
        "host": server.host,
        "node": server.node,
        "availability_zone": server.availability_zone,
        "fault": server.fault,
        "decisions": _whole(made),
        # None: unknown, because the cell does not answer
        "attempts": None if found.silent else _attempts(found),
    }


def _whole(made: Sequence[Decision]) -> list[dict[str, Any]]:
    """With the fields that a record leaves out."""
    return [msgspec.structs.asdict(each) for each in made]


def _attempts(found: FoundServer) -> list[dict[str, Any]]:
    row = found.row
    if row is None:
        return []
    attempts = [_failed(attempt) for attempt in row.history]
    if found.server.state in ("building", "active", "deleting", "rolling-back"):
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
