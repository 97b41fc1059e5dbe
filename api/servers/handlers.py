"""``/servers``: boot, list, show, change, delete."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import falcon
import msgspec
from msgspec import UNSET

from api.http import call as calls
from api.http import policies, schemas
from api.http.call import Call, send_json
from api.http.microversions import Microversion, Version
from api.http.paging import Position, next_link, page_of
from api.http.rate_limit import RequestRateLimit
from api.http.validation import UNSAFE, VersionedValidator, canonical_ipv6, read_body, validated_by
from api.lookup import boot_request, server_view
from api.lookup.boot_request import BootRequest
from api.lookup.doorbell import WakeupSender
from api.lookup.hosts import HostWatch
from api.lookup.server_lookup import Finder
from api.lookup.silence import Silences, Silent
from api.opts import ApiSettings
from api.servers.accept import Acceptor
from api.servers.edits import ServerEdits
from api.servers.operate import Operations
from api.servers.query import server_query
from db.api.operations import operations
from db.api.queue.accepting import ClientToken
from db.api.servers import addresses, listing, mappings
from db.api.servers.edits import Edit
from db.api.servers.listing import ServerQuery
from db.sql.connection import ApiTransaction
from db.sql.engine import ApiDatabase
from objects import errors, text
from objects.base import Object
from objects.instance import Server
from objects.port import Port
from objects.spec import RequestSpec, ServerProperties
from objects.text import hostname_of
from service.logs import log_step
from service.vault import Vault

LOG = logging.getLogger(__name__)

MAX_KEY_LENGTH = 255
"""Maximum characters of an ``Idempotency-Key``: a request repeated with the same key gets the servers of the first one."""


class BootServers:
    """``POST /servers``: 202 is safe once the batch is stored; the doorbell only saves waiting for the conductor's next sweep."""

    def __init__(
        self, settings: ApiSettings, pace: RequestRateLimit, acceptor: Acceptor, doorbell: WakeupSender, vault: Vault
    ) -> None:
        self._settings = settings
        self._pace = pace
        self._acceptor = acceptor
        self._vault = vault
        self._doorbell = doorbell
        self._validator = VersionedValidator((since, schemas.create(since)) for since in schemas.CREATE_CHANGES)

    def schema(self, version: Version) -> schemas.Schema:
        """The schema of the body in this version."""
        return self._validator.schema(version)

    def read(self, req: falcon.Request, call: Call) -> tuple[dict[str, Any], BootRequest]:
        """The body as it came, and what it asks for. Raises TooFast, errors.Invalid and what ``read_body`` does."""
        self._pace.count_request(call.context.project_id)
        document = read_body(req, self._settings.max_body_size)
        self._validator.check_body(call.version, document)
        return document, boot_request.parse(document, self._settings.max_servers_per_request)

    def token_of(self, req: falcon.Request, call: Call, document: dict[str, Any]) -> ClientToken | None:
        """The key of a request, bound to its user and its body; None if it has none. Raises errors.Invalid.

        Whitespace and the order of members in a JSON object do not matter. Digests use the vault's keys if there are any: a body
        may hold a password, which database readers could guess from a plain digest. Without keys no body holds one.
        """
        header = req.get_header("Idempotency-Key")
        if header is None:
            return None
        if not 0 < len(header) <= MAX_KEY_LENGTH:
            raise errors.Invalid(f"Idempotency-Key: must have 1 to {MAX_KEY_LENGTH} characters")
        if not text.is_safe(header):
            raise errors.Invalid(f"Idempotency-Key: {UNSAFE}")
        request = json.dumps([call.context.user_id, document], sort_keys=True, separators=(",", ":")).encode()
        keyed = self._vault.list_digests("client-tokens", request)
        return ClientToken(value=header, digests=tuple(keyed) or (f"plain.{hashlib.sha256(request).hexdigest()}",))

    def on_post(self, req: falcon.Request, resp: falcon.Response) -> None:
        call = calls.get_call(req)
        document, boot = self.read(req, call)
        taken = self._acceptor.accept_batch(call, boot, self.token_of(req, call, document))
        accepted = taken.accepted
        for uuid in accepted.uuids:
            log_step(LOG, "replayed" if accepted.replayed else "accepted", uuid, call.context.request_id)
        self._doorbell.ring_for_batch(call.context, accepted.batch_id)
        if boot.wants_reservation:
            send_json(resp, {"reservation_id": server_view.reservation_id(accepted.batch_id)}, 202)
            return
        links = call.item_links("servers", accepted.uuids[0])
        resp.location = links[0]["href"]
        server: dict[str, Any] = {
            "id": accepted.uuids[0],
            "links": links,
            "OS-DCF:diskConfig": boot.disk_config,
            "security_groups": [{"name": name} for name in boot.security_groups],
        }
        if taken.admin_pass is not None:
            server["adminPass"] = taken.admin_pass
        send_json(resp, {"server": server}, 202)


class Servers:
    """The collection: boot, and the short and detailed lists, which use summaries in the API database and ask no cell."""

    def __init__(
        self, settings: ApiSettings, database: ApiDatabase, boot: BootServers, watch: HostWatch, silences: Silences
    ) -> None:
        self._settings = settings
        self._database = database
        self._boot = boot
        self._watch = watch
        self._silences = silences
        self._pace = RequestRateLimit(settings.list_rate, settings.list_burst)

    @validated_by("_boot")
    def on_post(self, req: falcon.Request, resp: falcon.Response) -> None:
        self._boot.on_post(req, resp)

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        call = calls.get_call(req)
        page = self._read_page(req, resp, call, "servers")
        shown = [server_view.summary_document(server, call, unknown=page.is_unknown(server, call)) for server in page.servers]
        send_json(resp, {"servers": shown} | page.links)

    def on_get_detail(self, req: falcon.Request, resp: falcon.Response) -> None:
        call = calls.get_call(req)
        page = self._read_page(req, resp, call, "servers/detail")
        specs = (
            self._database.read_briefly(mappings.specs_by_batch, {server.batch_id for server in page.servers})
            if page.servers
            else {}
        )
        opened = self._database.read_briefly(operations.open_for, {server.uuid for server in page.servers})
        listed = [
            msgspec.structs.replace(listed_server, operation=opened.get(listed_server.uuid)) for listed_server in page.servers
        ]
        ports = self._ports_by_server(listed, specs)
        shown = [
            server_view.down_document(server, call)
            if page.is_unknown(server, call)
            else server_view.detail_document(
                server, specs.get(server.batch_id), call, host_status(self._watch, server, call), ports.get(server.uuid, ())
            )
            for server in listed
        ]
        send_json(resp, {"servers": shown} | page.links)

    def _ports_by_server(self, servers: Sequence[Server], specs: Mapping[str, RequestSpec]) -> dict[str, tuple[Port, ...]]:
        """The network interfaces of these servers, in one statement; none is needed if no server may have any."""
        networked = [server.uuid for server in servers if _may_have_ports(server, specs.get(server.batch_id))]
        return self._database.read_briefly(addresses.ports_of, networked) if networked else {}

    def _read_page(self, req: falcon.Request, resp: falcon.Response, call: Call, path: str) -> _ServerPage:
        self._pace.count_request(call.context.project_id)
        page = page_of(req, self._settings.max_limit)
        query = server_query(req, call, page)
        if query is None:
            return _ServerPage()
        try:
            listed, silent = self._database.read_briefly(self._read, query, self._silences.observed_silences())
        except errors.NotFound as error:
            raise errors.Invalid(str(error)) from error
        if not self._settings.list_records_by_skipping_down_cells:
            self._silences.refuse_silent(call, silent)
        self._silences.name_silent_cells(resp, call, silent)
        shown = tuple(_as_settled(server) for server in listed.servers[: page.limit])
        if len(listed.servers) <= page.limit:
            return _ServerPage(servers=shown, silent=silent)
        position = Position(keys=tuple(key for key, _ in query.sort), values=listed.positions[page.limit - 1])
        links = {"servers_links": [next_link(req, path, shown[-1].uuid, position)]}
        return _ServerPage(servers=shown, links=links, silent=silent)

    def _read(self, tx: ApiTransaction, query: ServerQuery, met: Silent) -> tuple[listing.Listed, dict[str, float]]:
        """Read both in one transaction: the servers, and which cells were silent at that time."""
        return listing.list_page(tx, query), self._silences.read(tx, met, query.project_id)


def _may_have_ports(server: Server, spec: RequestSpec | None) -> bool:
    """Whether it was booted with interfaces, or may have got some by an operation since."""
    was_operated = bool(server.turn or server.task_number or server.operation is not None)
    return was_operated or spec is None or addresses.has_ports(spec.properties.networks)


class _ServerPage(Object, frozen=True, kw_only=True):
    """The listed servers, the link to the next page, and the cells that do not answer."""

    servers: tuple[Server, ...] = ()
    links: dict[str, Any] = {}  # noqa: RUF012 - copied by msgspec
    silent: dict[str, float] = {}  # noqa: RUF012 - the same

    def is_unknown(self, server: Server, call: Call) -> bool:
        """Whether it is shown as UNKNOWN. A server deleted at the API level is known to be deleted."""
        return call.has_feature(Microversion.DOWN_CELLS) and server.cell_uuid in self.silent and not server.deleted


class OneServer:
    """Show, change and delete one server."""

    def __init__(
        self,
        settings: ApiSettings,
        finder: Finder,
        watch: HostWatch,
        silences: Silences,
        edits: ServerEdits,
        operations: Operations,
    ) -> None:
        self._settings = settings
        self._finder = finder
        self._edits = edits
        self._validator = VersionedValidator((since, schemas.server_update_body(since)) for since in schemas.UPDATE_CHANGES)
        self._watch = watch
        self._silences = silences
        self._operations = operations

    def on_get(self, req: falcon.Request, resp: falcon.Response, server_id: str) -> None:
        call = calls.get_call(req)
        current = self._finder.find_server(server_id, call)
        self._silences.name_silent_cells(resp, call, current.silent)
        if current.silent and call.has_feature(Microversion.DOWN_CELLS):
            send_json(resp, {"server": server_view.down_document(current.server, call, current.spec, current.groups)})
            return
        status = host_status(self._watch, current.server, call)
        send_json(
            resp, {"server": server_view.single_document(current.server, current.spec, call, status, current.ports, current.groups)}
        )

    @validated_by("_validator")
    def on_put(self, req: falcon.Request, resp: falcon.Response, server_id: str) -> None:
        """Change the name and the description, also of a locked server, and answer with the server."""
        call = calls.get_call(req)
        document = read_body(req, self._settings.max_body_size)
        self._validator.check_body(call.version, document)
        edit = edit_of(document["server"])
        self._edits.change_server(call, server_id, partial(keeping_hostname, edit))
        current = self._finder.find_server(server_id, call)
        self._silences.name_silent_cells(resp, call, current.silent)
        status = host_status(self._watch, current.server, call)
        send_json(
            resp,
            {"server": server_view.changed_document(current.server, current.spec, call, status, current.ports, current.groups)},
        )

    def on_delete(self, req: falcon.Request, resp: falcon.Response, server_id: str) -> None:
        self._operations.delete(calls.get_call(req), server_id)
        resp.status = 204


def edit_of(changes: dict[str, Any]) -> Edit:
    """The change of a server in a body, but for its metadata."""
    description = (changes["description"] or "") if "description" in changes else UNSET
    return Edit(
        name=changes.get("name", UNSET),
        description=description,
        hostname=changes.get("hostname", UNSET),
        access_ip_v4=changes.get("accessIPv4", UNSET),
        access_ip_v6=canonical_ipv6(changes["accessIPv6"]) if "accessIPv6" in changes else UNSET,
        auto_disk_config=changes[schemas.DISK_CONFIG] == "AUTO" if schemas.DISK_CONFIG in changes else UNSET,
    )


def keeping_hostname(edit: Edit, server: Server, current: ServerProperties) -> Edit:
    """The edit, with the hostname that the guest was told: a hostname made of the name does not follow a change of the name."""
    if edit.name is UNSET or edit.hostname is not UNSET or current.hostname is not None:
        return edit
    return msgspec.structs.replace(edit, hostname=hostname_of(server.name, server.uuid))


def host_status(watch: HostWatch, server: Server, call: Call) -> str:
    """The host status, read only if it is shown."""
    if not call.is_allowed(policies.HOST_STATUS) or not call.has_feature(Microversion.HOST_STATUS):
        return ""
    return watch.status_of(server.host)


def _as_settled(server: Server) -> Server:
    """Show a deleted server as deleted, even if its cell has not finished the delete."""
    return msgspec.structs.replace(server, state="deleted") if server.deleted else server
