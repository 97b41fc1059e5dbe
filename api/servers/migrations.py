"""``/os-migrations`` and ``/servers/{id}/migrations``: operations that bring servers to other hosts, for administrators."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from functools import partial
from typing import Any

import falcon

from api.http import call as calls
from api.http import schemas
from api.http.call import Call
from api.http.microversions import Since
from api.http.paging import next_link, page_of
from api.http.validation import VersionedValidator, read_body, validated_by
from api.http.versions import answer
from api.lookup import server_view
from api.lookup.server_lookup import Finder
from api.opts import ApiSettings
from api.servers.filters import period_of
from db.api.claims.claims import Ledger
from db.api.operations import operations, steps
from db.api.operations.operations import OperationQuery
from db.sql.readable import readable
from objects import errors
from objects.operation import Operation, OperationKind, OperationState, Outcome

TYPES = {
    OperationKind.MIGRATE: "migration",
    OperationKind.RESIZE: "resize",
    OperationKind.LIVE_MIGRATE: "live-migration",
    OperationKind.EVACUATE: "evacuation",
}
"""The operations that are migrations, with their type."""
_UNDER_WAY = {
    OperationState.TASK: "accepted",
    OperationState.PLACING: "preparing",
    OperationState.HOLDING: "migrating",
    OperationState.BUILDING: "post-migrating",
    OperationState.SENDING: "running",
    OperationState.VERIFY: "finished",
    OperationState.REVERTING: "reverting",
    OperationState.UNDOING: "cancelled",
    OperationState.STARTING: "cancelled",
}
"""The status of a migration that has not ended."""
_ENDED = {
    Outcome.GIVEN_UP: "error",
    Outcome.FAILED: "error",
    Outcome.REVERTED: "reverted",
    Outcome.DELETED: "error",
}
_DONE = {OperationKind.LIVE_MIGRATE: "completed", OperationKind.EVACUATE: "done"}
"""The status of one that ended well; others were confirmed."""
_ID_BITS = 53
"""Of an ID: every client can read so large a number."""
_LIVE_IN_PROGRESS = (OperationState.PLACING, OperationState.BUILDING, OperationState.SENDING)
_FILTERS = ("hidden", "host", "instance_uuid", "source_compute", "status", "migration_type")


def migration_id(operation_uuid: str) -> int:
    """The number that the Compute API wants beside the UUID: its first bits."""
    return uuid.UUID(operation_uuid).int >> (128 - _ID_BITS)


def status_of(operation: Operation) -> str:
    """The status in the words of the Compute API."""
    if operation.outcome is None:
        return _UNDER_WAY.get(operation.state, "accepted")
    if operation.outcome is Outcome.DONE:
        return _DONE.get(operation.kind, "confirmed")
    return _ENDED[operation.outcome]


class Migrations:
    """All migrations, for administrators, the newest first."""

    def __init__(self, settings: ApiSettings, ledger: Ledger) -> None:
        self._settings = settings
        self._database = ledger.database

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        call = calls.of(req)
        _check_names(req, call)
        if (req.get_param("hidden") or "").strip().lower() in ("1", "true", "t", "on", "y", "yes"):
            answer(resp, {"migrations": []})  # none is ever hidden
            return
        kinds, wanted = _kinds(req), req.get_param("status")
        paged = call.has(Since.MIGRATION_PAGES)
        page = page_of(req, self._settings.max_limit) if paged else None
        since, before = period_of(req, has_end=call.has(Since.CHANGES_BEFORE)) if paged else (None, None)
        query = OperationQuery(
            kinds=kinds,
            server_uuid=req.get_param("instance_uuid"),
            host=req.get_param("host"),
            source_host=req.get_param("source_compute"),
            user_id=req.get_param("user_id") if call.has(Since.MIGRATION_OWNERS) else None,
            project_id=req.get_param("project_id") if call.has(Since.MIGRATION_OWNERS) else None,
            changed_since=since,
            changed_before=before,
            include_ended=True,
            marker=page.marker if page is not None else None,
            limit=self._settings.max_limit if page is None else page.limit + 1,
        )
        found = self._read(query, wanted) if kinds else []
        shown = found if page is None else found[: page.limit]
        document: dict[str, Any] = {"migrations": readable(shown, partial(_listed, call=call), _named)}
        if page is not None and shown and len(found) > page.limit:
            document["migrations_links"] = [next_link(req, "os-migrations", shown[-1].uuid)]
        answer(resp, document)

    def _read(self, query: OperationQuery, wanted: str | None) -> list[Operation]:
        """A page of those with this status, which is made of several columns. Raises errors.Invalid for an unknown marker."""
        found: list[Operation] = []
        while True:
            page = self._database.read(operations.list_, query)
            found += [each for each in page if wanted in (None, status_of(each))]
            if wanted is None or len(page) < query.limit or len(found) >= query.limit:
                return found[: query.limit]
            query = query.after(page[-1].uuid)


class ServerMigrations:
    """The live migration of a server while it is under way, and with the suffix ``one`` by its ID, or its UUID."""

    def __init__(self, settings: ApiSettings, ledger: Ledger, finder: Finder) -> None:
        self._settings = settings
        self._ledger = ledger
        self._finder = finder
        self._validator = VersionedValidator([((2, 22), schemas.force_complete())])

    def on_get(self, req: falcon.Request, resp: falcon.Response, server_id: str) -> None:
        call = calls.of(req)
        server = self._finder.server(server_id, call)
        answer(resp, {"migrations": readable(self._open(server.uuid), partial(_in_progress, call=call), _named)})

    def on_get_one(self, req: falcon.Request, resp: falcon.Response, server_id: str, migration: str) -> None:
        call = calls.of(req)
        found = self._find(self._finder.server(server_id, call).uuid, migration)
        answer(resp, {"migration": _in_progress(found, call)})

    def on_delete_one(self, req: falcon.Request, resp: falcon.Response, server_id: str, migration: str) -> None:
        """Give it up. Raises errors.Invalid for one that has gone too far: its server arrives any moment."""
        call = calls.of(req)
        found = self._find(self._finder.server(server_id, call).uuid, migration)
        database, why = self._ledger.database, f"Given up by the user {call.context.user_id}."
        if not steps.abort(self._ledger, found.uuid, why).operations:
            [now] = database.read(operations.get, [found.uuid])
            raise errors.Invalid(
                f"Migration {migration[:80]} of instance {found.server_uuid} cannot be aborted: it is {status_of(now)}"
            )
        resp.status = 202

    @validated_by("_validator")
    def on_post_action(self, req: falcon.Request, resp: falcon.Response, server_id: str, migration: str) -> None:
        """``force_complete``. Raises errors.NotOffered: agents pause a guest by themselves for the end of its migration."""
        call = calls.of(req)
        self._validator.check(call.version, read_body(req, self._settings.max_body_size))
        found = self._find(self._finder.server(server_id, call).uuid, migration)
        if found.state is not OperationState.SENDING:
            raise errors.Invalid(
                f"Migration {migration[:80]} of instance {found.server_uuid} is {status_of(found)}: only one that is running"
                " could be completed"
            )
        raise errors.NotOffered("A live migration cannot be forced to complete here. It can be aborted.")

    def _open(self, server_uuid: str) -> Sequence[Operation]:
        found = self._ledger.database.read(operations.open_for, [server_uuid]).values()
        return [each for each in found if each.kind is OperationKind.LIVE_MIGRATE and each.state in _LIVE_IN_PROGRESS]

    def _find(self, server_uuid: str, migration: str) -> Operation:
        for each in self._open(server_uuid):
            if migration in (str(migration_id(each.uuid)), each.uuid):
                return each
        raise errors.NotFound(f"In-progress live migration {migration[:80]} is not found for server {server_uuid}.")


def _check_names(req: falcon.Request, call: Call) -> None:
    """Raises errors.Invalid for a parameter that this version does not have, from the first one on that refuses any."""
    known = [*_FILTERS]
    if not call.has(Since.MIGRATION_PAGES):
        return
    known += ["limit", "marker", "changes-since"]
    known += ["changes-before"] if call.has(Since.CHANGES_BEFORE) else []
    known += ["user_id", "project_id"] if call.has(Since.MIGRATION_OWNERS) else []
    for name in req.params:
        if name not in known:
            raise errors.Invalid(f"{name[:40]}: is not a parameter of this list")


def _kinds(req: falcon.Request) -> tuple[OperationKind, ...]:
    """The kinds of operations to list; none for a type that there is not."""
    asked = req.get_param("migration_type")
    return tuple(kind for kind, name in TYPES.items() if asked in (None, name))


def _named(each: Operation) -> str:
    return f"Operation {each.uuid} of instance {each.server_uuid}"


def _common(each: Operation, call: Call) -> dict[str, Any]:
    document: dict[str, Any] = {
        "created_at": server_view.micro(each.created_at),
        "updated_at": server_view.micro(each.updated_at),
        "id": migration_id(each.uuid),
        "status": status_of(each),
        "source_compute": each.source_host,
        "source_node": None,
        "dest_compute": each.target_host,
        "dest_host": None,
        "dest_node": None,
    }
    if call.has(Since.MIGRATION_PAGES):
        document["uuid"] = each.uuid
    if call.has(Since.MIGRATION_OWNERS):
        document |= {"user_id": each.user_id, "project_id": each.project_id}
    return document


def _listed(each: Operation, call: Call) -> dict[str, Any]:
    document = _common(each, call) | {"instance_uuid": each.server_uuid}
    document |= {"old_instance_type_id": None, "new_instance_type_id": None}  # flavors have no numbers here
    if call.has(Since.MIGRATION_TYPES):
        document["migration_type"] = TYPES[each.kind]
        if each.kind is OperationKind.LIVE_MIGRATE and each.outcome is None and each.state in _LIVE_IN_PROGRESS:
            document["links"] = call.link(f"servers/{each.server_uuid}/migrations", str(migration_id(each.uuid)))
    return document


def _in_progress(each: Operation, call: Call) -> dict[str, Any]:
    """How far it is, is known on its host only."""
    document = _common(each, call) | {"server_uuid": each.server_uuid}
    kinds = ("disk", "memory")
    return document | {f"{kind}_{what}_bytes": None for kind in kinds for what in ("processed", "remaining", "total")}
