"""``/os-migrations`` and ``/servers/{id}/migrations``: operations that bring servers to other hosts, for administrators."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from functools import partial
from typing import Any

import falcon

from api.http import call as calls
from api.http import schemas
from api.http.call import Call, send_json
from api.http.microversions import Microversion
from api.http.paging import next_link, page_of
from api.http.validation import VersionedValidator, read_body, validated_by
from api.lookup import server_view
from api.lookup.server_lookup import Finder
from api.opts import ApiSettings
from api.servers.filters import period_of
from db.api.claims.claims import Ledger
from db.api.operations import operations, steps
from db.api.operations.operations import OperationQuery
from db.sql.readable import convert_readable
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
        call = calls.get_call(req)
        _check_names(req, call)
        if (req.get_param("hidden") or "").strip().lower() in ("1", "true", "t", "on", "y", "yes"):
            send_json(resp, {"migrations": []})  # none is ever hidden
            return
        kinds, status = _kinds_of_type(req), req.get_param("status")
        paged = call.has_feature(Microversion.MIGRATION_PAGES)
        page = page_of(req, self._settings.max_limit) if paged else None
        since, before = period_of(req, has_end=call.has_feature(Microversion.CHANGES_BEFORE)) if paged else (None, None)
        query = OperationQuery(
            kinds=kinds,
            server_uuid=req.get_param("instance_uuid"),
            host=req.get_param("host"),
            source_host=req.get_param("source_compute"),
            user_id=req.get_param("user_id") if call.has_feature(Microversion.MIGRATION_OWNERS) else None,
            project_id=req.get_param("project_id") if call.has_feature(Microversion.MIGRATION_OWNERS) else None,
            changed_since=since,
            changed_before=before,
            include_ended=True,
            marker=page.marker if page is not None else None,
            limit=self._settings.max_limit if page is None else page.limit + 1,
        )
        migrations = self._read(query, status) if kinds else []
        shown = migrations if page is None else migrations[: page.limit]
        document: dict[str, Any] = {"migrations": convert_readable(shown, partial(_list_entry, call=call), _describe_operation)}
        if page is not None and shown and len(migrations) > page.limit:
            document["migrations_links"] = [next_link(req, "os-migrations", shown[-1].uuid)]
        send_json(resp, document)

    def _read(self, query: OperationQuery, status: str | None) -> list[Operation]:
        """A page of those with this status, which is made of several columns. Raises errors.Invalid for an unknown marker."""
        matching: list[Operation] = []
        while True:
            page = self._database.read(operations.list_, query)
            matching += [operation for operation in page if status in (None, status_of(operation))]
            if status is None or len(page) < query.limit or len(matching) >= query.limit:
                return matching[: query.limit]
            query = query.page_after(page[-1].uuid)


class ServerMigrations:
    """The live migration of a server while it is under way, and with the suffix ``one`` by its ID, or its UUID."""

    def __init__(self, settings: ApiSettings, ledger: Ledger, finder: Finder) -> None:
        self._settings = settings
        self._ledger = ledger
        self._finder = finder
        self._validator = VersionedValidator([((2, 22), schemas.force_complete())])

    def on_get(self, req: falcon.Request, resp: falcon.Response, server_id: str) -> None:
        call = calls.get_call(req)
        server = self._finder.get_server(server_id, call)
        send_json(
            resp,
            {
                "migrations": convert_readable(
                    self._list_live_migrations(server.uuid), partial(_in_progress, call=call), _describe_operation
                )
            },
        )

    def on_get_one(self, req: falcon.Request, resp: falcon.Response, server_id: str, migration: str) -> None:
        call = calls.get_call(req)
        operation = self._find_live_migration(self._finder.get_server(server_id, call).uuid, migration)
        send_json(resp, {"migration": _in_progress(operation, call)})

    def on_delete_one(self, req: falcon.Request, resp: falcon.Response, server_id: str, migration: str) -> None:
        """Give it up. Raises errors.Invalid for one that has gone too far: its server arrives any moment."""
        call = calls.get_call(req)
        operation = self._find_live_migration(self._finder.get_server(server_id, call).uuid, migration)
        database, why = self._ledger.database, f"Given up by the user {call.context.user_id}."
        if not steps.abort_operation(self._ledger, operation.uuid, why).operations:
            [now] = database.read(operations.get, [operation.uuid])
            raise errors.Invalid(
                f"Migration {migration[:80]} of instance {operation.server_uuid} cannot be aborted: it is {status_of(now)}"
            )
        resp.status = 202

    @validated_by("_validator")
    def on_post_action(self, req: falcon.Request, resp: falcon.Response, server_id: str, migration: str) -> None:
        """``force_complete``. Raises errors.NotOffered: agents pause a guest by themselves for the end of its migration."""
        call = calls.get_call(req)
        self._validator.check_body(call.version, read_body(req, self._settings.max_body_size))
        operation = self._find_live_migration(self._finder.get_server(server_id, call).uuid, migration)
        if operation.state is not OperationState.SENDING:
            raise errors.Invalid(
                f"Migration {migration[:80]} of instance {operation.server_uuid} is {status_of(operation)}: only one that is "
                "running"
                " could be completed"
            )
        raise errors.NotOffered("A live migration cannot be forced to complete here. It can be aborted.")

    def _list_live_migrations(self, server_uuid: str) -> Sequence[Operation]:
        opened = self._ledger.database.read(operations.open_for, [server_uuid]).values()
        return [
            operation
            for operation in opened
            if operation.kind is OperationKind.LIVE_MIGRATE and operation.state in _LIVE_IN_PROGRESS
        ]

    def _find_live_migration(self, server_uuid: str, migration: str) -> Operation:
        for operation in self._list_live_migrations(server_uuid):
            if migration in (str(migration_id(operation.uuid)), operation.uuid):
                return operation
        raise errors.NotFound(f"In-progress live migration {migration[:80]} is not found for server {server_uuid}.")


def _check_names(req: falcon.Request, call: Call) -> None:
    """Raises errors.Invalid for a parameter that this version does not have, from the first one on that refuses any."""
    known = [*_FILTERS]
    if not call.has_feature(Microversion.MIGRATION_PAGES):
        return
    known += ["limit", "marker", "changes-since"]
    known += ["changes-before"] if call.has_feature(Microversion.CHANGES_BEFORE) else []
    known += ["user_id", "project_id"] if call.has_feature(Microversion.MIGRATION_OWNERS) else []
    for name in req.params:
        if name not in known:
            raise errors.Invalid(f"{name[:40]}: is not a parameter of this list")


def _kinds_of_type(req: falcon.Request) -> tuple[OperationKind, ...]:
    """The kinds of operations to list; none for a type that there is not."""
    migration_type = req.get_param("migration_type")
    return tuple(kind for kind, name in TYPES.items() if migration_type in (None, name))


def _describe_operation(operation: Operation) -> str:
    return f"Operation {operation.uuid} of instance {operation.server_uuid}"


def _common_fields(operation: Operation, call: Call) -> dict[str, Any]:
    document: dict[str, Any] = {
        "created_at": server_view.format_micro(operation.created_at),
        "updated_at": server_view.format_micro(operation.updated_at),
        "id": migration_id(operation.uuid),
        "status": status_of(operation),
        "source_compute": operation.source_host,
        "source_node": None,
        "dest_compute": operation.target_host,
        "dest_host": None,
        "dest_node": None,
    }
    if call.has_feature(Microversion.MIGRATION_PAGES):
        document["uuid"] = operation.uuid
    if call.has_feature(Microversion.MIGRATION_OWNERS):
        document |= {"user_id": operation.user_id, "project_id": operation.project_id}
    return document


def _list_entry(operation: Operation, call: Call) -> dict[str, Any]:
    document = _common_fields(operation, call) | {"instance_uuid": operation.server_uuid}
    document |= {"old_instance_type_id": None, "new_instance_type_id": None}  # flavors have no numbers here
    if call.has_feature(Microversion.MIGRATION_TYPES):
        document["migration_type"] = TYPES[operation.kind]
        if operation.kind is OperationKind.LIVE_MIGRATE and operation.outcome is None and operation.state in _LIVE_IN_PROGRESS:
            document["links"] = call.item_links(f"servers/{operation.server_uuid}/migrations", str(migration_id(operation.uuid)))
    return document


def _in_progress(operation: Operation, call: Call) -> dict[str, Any]:
    """How far it is, is known on its host only."""
    document = _common_fields(operation, call) | {"server_uuid": operation.server_uuid}
    kinds = ("disk", "memory")
    return document | {f"{kind}_{amount}_bytes": None for kind in kinds for amount in ("processed", "remaining", "total")}
