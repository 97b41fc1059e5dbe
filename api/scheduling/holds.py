"""``/superconductor/holds``: hosts that are kept for servers which are booted later. Our own extension of the Compute API."""

from __future__ import annotations

import logging
from typing import Any

import falcon

from api.http import call as calls
from api.http import policies
from api.http.call import Call, send_json
from api.http.query_parameters import refuse_unknown_names, whole_number
from api.http.validation import validated_by
from api.lookup.doorbell import WakeupSender
from api.lookup.server_view import format_iso
from api.opts import ApiSettings
from api.scheduling.explanation import batch_of
from api.servers.accept import Acceptor
from api.servers.handlers import BootServers
from db.api.claims.claims import Ledger
from db.api.queue import holds
from db.api.rows import incarnation
from db.api.servers import mappings
from objects import errors
from objects.hold import HeldServer, Hold
from objects.operation import Initiator
from service.logs import log_step

LOG = logging.getLogger(__name__)


class Holds:
    """A hold is a boot whose servers get their hosts now, and are built when the hold is booted. Until then it can be released.

    Callers see the holds of their project, and those of all if the rule allows other projects.
    """

    def __init__(
        self,
        settings: ApiSettings,
        acceptor: Acceptor,
        boot: BootServers,
        ledger: Ledger,
        doorbell: WakeupSender,
    ) -> None:
        self._settings = settings
        self._acceptor = acceptor
        self._boot = boot
        self._ledger = ledger
        self._database = ledger.database
        self._doorbell = doorbell

    @validated_by("_boot")
    def on_post(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Takes the body of ``POST /servers``. ``seconds``: how long to hold."""
        call = calls.get_call(req)
        refuse_unknown_names(req, call, ("seconds",))
        seconds = self._hold_seconds(req)
        document, boot = self._boot.read(req, call)
        taken = self._acceptor.accept_batch(call, boot, self._boot.token_of(req, call, document), seconds)
        accepted = taken.accepted
        for uuid in accepted.uuids:
            log_step(LOG, "replayed" if accepted.replayed else "accepted", uuid, call.context.request_id)
        self._doorbell.ring_for_batch(call.context, accepted.batch_id)
        shown = _hold_document(self._find_hold(call, accepted.batch_id), call)
        if taken.admin_pass is not None:
            shown["adminPass"] = taken.admin_pass
        send_json(resp, {"hold": shown}, 202)

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        call = calls.get_call(req)
        refuse_unknown_names(req, call, ())
        visible = self._database.read(holds.list_all, call.project_scope)
        send_json(resp, {"holds": [_hold_document(hold, call) for hold in visible]})

    def on_get_one(self, req: falcon.Request, resp: falcon.Response, hold_id: str) -> None:
        call = calls.get_call(req)
        send_json(resp, {"hold": _hold_document(self._find_hold(call, hold_id), call)})

    def on_post_boot(self, req: falcon.Request, resp: falcon.Response, hold_id: str) -> None:
        """Build its servers. Their hosts are checked again as for a new claim, and replaced where they would not be chosen now."""
        call = calls.get_call(req)
        if req.content_length:
            raise errors.Invalid("A hold is booted as it was made: send no body.")
        hold = self._find_hold(call, hold_id)
        now = self._database.current_time()
        if not self._database.write(
            incarnation.if_compared, None, holds.boot_hold, hold.id, now, now + self._settings.build_timeout
        ):
            raise self._missing_hold(call, hold_id)
        self._doorbell.ring_for_batch(call.context, hold.id)
        send_json(resp, {"hold": _hold_document(hold, call)}, 202)

    def on_delete_one(self, req: falcon.Request, resp: falcon.Response, hold_id: str) -> None:
        call = calls.get_call(req)
        hold = self._find_hold(call, hold_id)
        initiator = Initiator(request_id=call.context.request_id, user_id=call.context.user_id)
        if not self._ledger.write(
            incarnation.charged_if_compared, None, holds.release_hold, hold.id, self._database.current_time(), initiator
        ):
            raise self._missing_hold(call, hold_id)
        resp.status = 204

    def _hold_seconds(self, req: falcon.Request) -> int:
        longest = self._settings.max_hold_seconds
        if not longest:
            raise errors.Forbidden("Holds are switched off: [api] max_hold_seconds is 0.")
        parameter = req.get_param("seconds")
        seconds = whole_number("seconds", parameter) if parameter is not None else 0
        if not 0 < seconds <= longest:
            raise errors.Invalid(f"seconds: say how long to hold the hosts, from 1 to {longest} ([api] max_hold_seconds)")
        return seconds

    def _find_hold(self, call: Call, hold_id: str) -> Hold:
        """Raises errors.NotFound, and errors.Conflict for one that was booted."""
        batch_id = batch_of(hold_id)
        hold = self._database.read(holds.read, batch_id, call.project_scope) if batch_id else None
        if hold is None:
            raise self._missing_hold(call, hold_id)
        return hold

    def _missing_hold(self, call: Call, hold_id: str) -> errors.SuperconductorError:
        batch_id = batch_of(hold_id)
        servers = self._database.read(mappings.of_batch, batch_id, call.project_scope) if batch_id else []
        if any(not server.deleted for server in servers):
            return errors.Conflict(f"Hold {hold_id[:80]} was booted, or never was a hold: its servers are building or built.")
        return errors.NotFound(f"Hold {hold_id[:80]} could not be found: it was released, it has expired, or it never was.")


def _hold_document(hold: Hold, call: Call) -> dict[str, Any]:
    """Hosts and cells are for those who may read them in explanations."""
    return {
        "id": hold.id,
        "state": str(hold.hold_state),
        "project_id": hold.project_id,
        "user_id": hold.user_id,
        "created_at": format_iso(hold.created_at),
        "expires_at": format_iso(hold.expires_at),
        "servers": [_held_server(server, with_host=call.is_allowed(policies.EXPLAIN_ALL)) for server in hold.servers],
    }


def _held_server(server: HeldServer, *, with_host: bool) -> dict[str, Any]:
    location = {"cell": server.cell, "host": server.host, "node": server.node} if with_host else {}
    return {"id": server.uuid, "name": server.name, "held": server.held, "fault": server.fault} | location
