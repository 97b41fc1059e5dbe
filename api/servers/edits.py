"""What a tenant may change of a server without an operation: read and edited in the API database, and in no cell."""

from __future__ import annotations

from collections.abc import Callable

from api.http import policies
from api.http.call import Call
from api.http.validation import is_uuid
from api.lookup.server_lookup import server_not_found
from db.api.servers import edits, mappings
from db.api.servers.edits import Decide, Edit, Edited
from db.sql.connection import ApiTransaction
from db.sql.engine import ApiDatabase
from objects.instance import Server
from objects.server_name import NameScope
from objects.spec import ServerProperties


class ServerEdits:
    """Every method raises errors.NotFound if the server is unknown, deleted or not the caller's."""

    def __init__(self, database: ApiDatabase, unique_names: NameScope) -> None:
        self._database = database
        self._unique_names = unique_names

    def read(self, call: Call, server_id: str) -> ServerProperties:
        """The server's properties with all edits."""
        stored = self._database.read(_read, server_id, call.project_scope) if is_uuid(server_id) else None
        if stored is None:
            raise server_not_found(server_id)
        return stored

    def change_server(self, call: Call, server_id: str, decide: Decide) -> Edited:
        """Edit the server as ``decide`` says, locked or not. Raises what that raises."""
        edited = None
        if is_uuid(server_id):
            edited = self._database.write(
                edits.change_server,
                server_id,
                decide,
                project_id=call.project_scope,
                now=self._database.current_time(),
                unique_names=self._unique_names,
            )
        if edited is None:
            raise server_not_found(server_id)
        return edited

    def change_unlocked(self, call: Call, server_id: str, decide: Callable[[ServerProperties], Edit]) -> Edited:
        """The same, but raises errors.Conflict if the server is locked and the caller may not ignore that."""
        ignored = call.is_allowed(policies.IGNORE_LOCK)

        def unless_locked(server: Server, current: ServerProperties) -> Edit:
            edits.check_lock(server.uuid, server.locked_by, ignored=ignored)
            return decide(current)

        return self.change_server(call, server_id, unless_locked)


def _read(tx: ApiTransaction, uuid: str, project_id: str | None) -> ServerProperties | None:
    server = mappings.get(tx, uuid, project_id)
    if server is None or server.deleted:
        return None
    spec = mappings.specs_by_batch(tx, [server.batch_id]).get(server.batch_id)
    return server.current_properties(spec.properties if spec is not None else ServerProperties())
