"""``/os-server-external-events``: what other services tell about servers. No server here waits for any of them."""

from __future__ import annotations

from typing import Any

import falcon

from api.http import call as calls
from api.http import schemas
from api.http.call import send_json
from api.http.validation import VersionedValidator, read_body, validated_by
from api.opts import ApiSettings
from db.api.servers import mappings
from db.api.servers.listing import ServerQuery
from db.sql.connection import ApiTransaction
from db.sql.engine import ApiDatabase
from objects.instance import Server


class ExternalEvents:
    """Answers each event by itself. Events of networks are taken and change nothing, as addresses are planned before a build.

    Those of volumes, accelerators and power fail with 422: nothing here has them, and hosts report the power of their guests.
    """

    def __init__(self, settings: ApiSettings, database: ApiDatabase) -> None:
        self._settings = settings
        self._database = database
        self._validator = VersionedValidator([(since, schemas.external_events(since)) for since, _ in schemas.EXTERNAL_EVENTS])

    @validated_by("_validator")
    def on_post(self, req: falcon.Request, resp: falcon.Response) -> None:
        call = calls.get_call(req)
        document = read_body(req, self._settings.max_body_size)
        self._validator.check_body(call.version, document)
        events: list[dict[str, Any]] = document["events"]
        servers = self._database.read(_servers_by_uuid, sorted({event["server_uuid"] for event in events}))
        answered = [event | _event_outcome(event, servers.get(event["server_uuid"])) for event in events]
        send_json(resp, {"events": answered})
        resp.status = 200 if all(event["code"] == 200 for event in answered) else 207


def _servers_by_uuid(tx: ApiTransaction, uuids: list[str]) -> dict[str, Server]:
    """Those that there are, by uuid, in one statement."""
    return {server.uuid: server for server in mappings.list_(tx, ServerQuery(uuids=tuple(uuids), limit=len(uuids)))}


def _event_outcome(event: dict[str, Any], server: Server | None) -> dict[str, Any]:
    if server is None:
        return {"status": "failed", "code": 404}
    if event["name"] in schemas.TAGGED_EVENTS and event.get("tag") is None:
        return {"status": "failed", "code": 400}
    if server.host is None or event["name"] not in schemas.NETWORK_EVENTS:
        return {"status": "failed", "code": 422}
    return {"status": event.get("status", "completed"), "code": 200}
