"""Accept operations on servers: power, moves, and what a user decides about a resize."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec

from api.http import policies
from api.http.call import Call
from api.http.validation import is_uuid
from api.lookup import quota_limits
from api.lookup.boot_secrets import BootSecretsPolicy
from api.lookup.catalog import Catalog
from api.lookup.catch_up import CatchUp
from api.lookup.doorbell import WakeupSender
from api.lookup.hosts import HostWatch
from api.lookup.public_keys import named_public_key
from api.lookup.quota_limits import LimitsInForce
from api.lookup.server_lookup import server_not_found
from api.opts import ApiSettings
from api.servers.interruption import Interruption, is_left_to_accept
from cells import last_body
from cells.last_body import Ending
from cells.registry import CellRegistry
from db.api.claims.claims import Ledger
from db.api.operations import accepting as operation_accept
from db.api.operations import operations, shelving, steps
from db.api.operations.accepting import NewOperation
from db.api.queue import builds
from db.api.rows import finalized, incarnation
from db.api.servers import edits, mappings
from db.api.servers.edits import Decide
from db.cell import services
from db.cell.services import SeenService
from db.sql.connection import ApiTransaction
from images.store import NOT_CONFIGURED
from objects import errors
from objects.flavor import Flavor
from objects.instance import Server
from objects.network import PortRequest
from objects.operation import (
    SINCE,
    WITHOUT_HOST,
    Initiator,
    Operation,
    OperationArgs,
    OperationKind,
    OperationState,
    allows_operation,
)
from objects.process import AGENT_BINARY
from objects.server_name import NameScope
from objects.spec import BootSecrets, RequestSpec
from objects.task import TaskState
from service.logs import log_step
from service.periodic import wait_until

LOG = logging.getLogger(__name__)

NOTHING = OperationArgs()

END_WAIT_S = 5.0
"""Seconds that a request waits for the end of the operation before it, if that is soon over.

The cell's answer comes with the next read of its feed.
"""


P = ParamSpec("P")
Accept = Callable[Concatenate["Operations", Call, str, OperationKind, P], Operation]


def _await_open_operation(accept: Accept[P]) -> Accept[P]:
    """Before it is refused because of an open operation that is soon over, await that one, and accept once more.

    Clients send one change of interfaces after the other, and a rebuild right after an os-resetState.
    """

    @wraps(accept)
    def accept_awaiting(
        self: Operations, call: Call, server_id: str, kind: OperationKind, /, *args: P.args, **kwargs: P.kwargs
    ) -> Operation:
        try:
            return accept(self, call, server_id, kind, *args, **kwargs)
        except errors.NotCompared:
            raise
        except errors.Conflict:
            opened = self.find_open_operation(server_id)
            # if none is open, it may have ended since
            if opened is not None and not (_is_soon_over(opened, kind) and self.wait_until_ended(opened)):
                raise
        return accept(self, call, server_id, kind, *args, **kwargs)

    return accept_awaiting


def _is_soon_over(opened: Operation, kind: OperationKind) -> bool:
    """Whether ``opened`` is worth awaiting before an operation of this kind."""
    return not opened.unreadable and (
        opened.kind is OperationKind.FAIL or (kind.changes_interfaces and opened.kind.changes_interfaces)
    )


class Operations:
    """Each is stored with its uuid before the answer; conductors carry it out. A cell is asked whether the server's host is up,
    and about a server that seems to be building.
    """

    def __init__(
        self,
        settings: ApiSettings,
        ledger: Ledger,
        registry: CellRegistry,
        catalog: Catalog,
        limits: LimitsInForce,
        watch: HostWatch,
        doorbell: WakeupSender,
        boot_secrets: BootSecretsPolicy,
    ) -> None:
        self._settings = settings
        self._ledger = ledger
        self._database = ledger.database
        self._registry = registry
        self._catalog = catalog
        self._limits = limits
        self._watch = watch
        self._doorbell = doorbell
        self._boot_secrets = boot_secrets
        self._catch_up = CatchUp(ledger, registry, settings.cell_timeout)
        self._interruption = Interruption(ledger, doorbell)

    @_await_open_operation
    def accept_operation(
        self,
        call: Call,
        server_id: str,
        kind: OperationKind,
        args: OperationArgs = NOTHING,
        flavor: Flavor | None = None,
        decide: Decide | None = None,
        secrets: BootSecrets | None = None,
        port: PortRequest | None = None,
        body_uuid: str | None = None,
    ) -> Operation:
        """Store the operation, and with it the edit that ``decide`` makes, and the ``secrets`` of its guest, sealed.

        ``port``: the interface that is attached. ``body_uuid``: the body whose host the caller has judged.

        Raises errors.NotFound, errors.Conflict, errors.Forbidden, errors.Invalid and errors.OverQuota.
        """
        if kind in SINCE:
            self._database.read(finalized.check, f"Cannot '{kind}' instance {server_id}", SINCE[kind])
        server = self._find_server(call, server_id)
        self._catch_up.apply_build(server)
        destination_cell = self._cell_of(args.host)
        if kind not in WITHOUT_HOST and server.state == "active":
            self._refuse_if_down(call, server_id, kind, server.cell_uuid, server.host)
        is_long = kind.is_move or kind.makes_image or kind in (OperationKind.REBUILD, OperationKind.SHELVE)
        patience = self._settings.move_timeout if is_long else self._settings.task_timeout
        if kind is OperationKind.SOFT_DELETE:
            patience = self._settings.reclaim_instance_interval
        now = self._database.current_time()
        operation_uuid = str(uuid.uuid4())
        # so that the request ID leads to the decision, as that of a boot does
        batch_id = call.context.request_id.removeprefix("req-") if kind.is_move else None
        requested = NewOperation(
            uuid=operation_uuid,
            server_uuid=server_id,
            kind=kind,
            scope=call.project_scope,
            user_id=call.context.user_id,
            request_id=call.context.request_id,
            deadline=now + patience,
            args=args,
            body_uuid=body_uuid or server.body_uuid,  # whose host was judged
            overrides_lock=kind.makes_image or call.is_allowed(policies.IGNORE_LOCK),  # an image changes nothing of the server
            flavor=flavor,
            twin_uuid=str(uuid.uuid4()) if kind.is_move else None,
            batch_id=batch_id,
            destination_cell=destination_cell,
            limits=quota_limits.of_servers(self._limits.read_layers(call).defaults),
            sealed=self._boot_secrets.seal_secrets(batch_id or operation_uuid, secrets) if secrets else None,
            port=port,
            image_limits=self._settings.image_limits,
        )
        operation = self._database.write(_accept_edited, requested, decide, now, self._settings.unique_server_names)
        log_step(LOG, f"{kind} accepted", server_id, call.context.request_id)
        if kind.is_move:
            self._doorbell.ring_for_batch(call.context, requested.batch_id or "")
        else:
            self._doorbell.ring_for_operation(call.context, operation.uuid)
        return operation

    def evacuate_server(self, call: Call, server_id: str, args: OperationArgs, secrets: BootSecrets | None) -> None:
        """Boot the server on another host, as its own is dead. An open operation ends first, and that may bring it off its host.

        Raises what ``accept_operation`` does, and errors.Invalid if the host is in use.
        """
        server = self._find_server(call, server_id)
        self._refuse_unless_dead(server)
        edits.check_lock(server_id, server.locked_by, ignored=call.is_allowed(policies.IGNORE_LOCK))
        opened = self.find_open_operation(server_id)
        if opened is not None and not is_left_to_accept(opened):
            source_is_down = self._is_down(self._cell_with(opened.source_host), opened.source_host)
            ended = self._interruption.end_operation(call, opened, source_is_down=source_is_down, to=args.host)
            if ended and self._find_server(call, server_id).body_uuid != server.body_uuid:
                LOG.info("instance %s: the end of its %s has brought it off host '%s'", server_id, opened.kind, server.host)
                return
        self.accept_operation(call, server_id, OperationKind.EVACUATE, args, secrets=secrets, body_uuid=server.body_uuid)

    def reset_state(self, call: Call, server_id: str, kind: OperationKind) -> None:
        """RESET or FAIL. A task that is open is given up first, as at its deadline: the cell is asked, and not the host.

        Raises what ``accept_operation`` does, and errors.Conflict if the operation is none in place, or does not end in time.
        """
        try:
            self.accept_operation(call, server_id, kind)
        except errors.NotCompared:
            raise
        except errors.Conflict:
            opened = self.find_open_operation(server_id)
            # FAIL, which only a cell carries out, has been awaited
            if opened is None or opened.unreadable or opened.kind is OperationKind.FAIL:
                raise
            if opened.state not in (OperationState.TASK, OperationState.STARTING):
                raise
            self._database.write(steps.time_out, [opened.uuid], self._database.current_time())
            self._doorbell.ring_for_operation(call.context, opened.uuid)
            if not self.wait_until_ended(opened):
                raise
            LOG.info("instance %s: its %s was ended by os-resetState", server_id, opened.kind)
            if kind is OperationKind.FAIL or self._find_server(call, server_id).task_state is TaskState.FAILED:
                self.accept_operation(call, server_id, kind)

    def find_open_operation(self, server_id: str) -> Operation | None:
        """The open operation of the server."""
        return self._database.read(operations.open_for, [server_id]).get(server_id)

    def wait_until_ended(self, opened: Operation) -> bool:
        """Whether the operation ends within ``END_WAIT_S``."""

        def has_ended() -> bool:
            current = self.find_open_operation(opened.server_uuid)
            return current is None or current.uuid != opened.uuid

        return wait_until(has_ended, END_WAIT_S, pause=0.05)

    def built_as(self, call: Call, server_id: str) -> tuple[Server, RequestSpec | None]:
        """The server and the request that its body was built by; None: that cannot be read. Raises errors.NotFound."""
        server = self._find_server(call, server_id)
        return server, self._database.read(mappings.specs_by_batch, [server.batch_id]).get(server.batch_id)

    def shelve_server(self, call: Call, server_id: str) -> None:
        """The server leaves its host once a snapshot of it is complete. Raises errors.Conflict if nobody could store that."""
        if not self._settings.images_folder:
            self._find_server(call, server_id)
            raise errors.Conflict(f"Cannot 'shelve' instance {server_id}: {NOT_CONFIGURED}")
        self.accept_operation(call, server_id, OperationKind.SHELVE)

    def make_image(self, call: Call, server_id: str, kind: OperationKind, args: OperationArgs) -> Operation:
        """An image of the server, under the UUID of the operation. Raises errors.Conflict if nobody could store that."""
        if not self._settings.images_folder:
            raise errors.Conflict(f"Cannot '{kind}' instance {server_id}: {NOT_CONFIGURED}")
        return self.accept_operation(call, server_id, kind, args)

    def offload_server(self, call: Call, server_id: str) -> None:
        """The shelved server leaves its host now. Raises errors.Conflict if it is not shelved on a host."""
        operation = self._in_state(call, server_id, OperationState.SHELVED)
        done = self._ledger.write(shelving.offload_servers, [operation.uuid], self._database.current_time()) if operation else None
        if done is None or not done.operations:
            raise errors.Conflict(f"Cannot 'shelveOffload' instance {server_id}: it is not shelved on a host")
        self._doorbell.ring_for_deleted(call.context, done.deleted)

    def unshelve_server(self, call: Call, server_id: str, args: OperationArgs = NOTHING) -> None:
        """The server is started on its host if it is still there, else it comes to a host that is chosen.

        ``args``: where that must be. Raises errors.Invalid for an unknown zone or host, and errors.Conflict if a zone or a host is
        given for a server that is still on its host.
        """
        operation = self._in_state(call, server_id, OperationState.SHELVED)
        if args != NOTHING:
            zone = args.availability_zone
            if operation is not None:
                raise errors.Conflict(f"Cannot 'unshelve' instance {server_id} to a zone or host before it is SHELVED_OFFLOADED")
            if zone is not None and zone != self._settings.default_availability_zone and not self._catalog.has_zone(zone, call):
                raise errors.Invalid(f"unshelve.availability_zone: zone {zone[:80]!r} could not be found")
            self.accept_operation(call, server_id, OperationKind.UNSHELVE, args)
            return
        if operation is not None:
            self._refuse_if_down(call, server_id, "unshelve", self._cell_with(operation.source_host), operation.source_host)
        if operation is None or not self._start_again(call, operation):
            self.accept_operation(call, server_id, OperationKind.UNSHELVE)
            return
        log_step(LOG, "unshelve accepted", server_id, call.context.request_id)

    def confirm_move(self, call: Call, server_id: str) -> None:
        """The user keeps the server as it is after its move. Raises errors.Conflict if it does not wait for that."""
        operation = self._find_waiting(call, server_id, "confirmResize")
        last_body.refuse_last_body(self._database, self._registry, Ending.CONFIRM, operation.uuid)
        done = self._ledger.write(steps.confirm_moves, [operation.uuid], self._database.current_time())
        if not done.operations:
            raise _not_waiting(server_id, "confirmResize")
        self._doorbell.ring_for_deleted(call.context, done.deleted)

    def revert_move(self, call: Call, server_id: str) -> None:
        """The user wants the server as it was. Raises errors.Conflict if it does not wait for that, or its old host is down."""
        operation = self._find_waiting(call, server_id, "revertResize")
        self._refuse_if_down(call, server_id, "revertResize", self._cell_with(operation.source_host), operation.source_host)
        last_body.refuse_last_body(self._database, self._registry, Ending.POINT_BACK, operation.uuid)
        done = self._database.write(steps.revert_moves, [operation.uuid], self._database.current_time())
        if not done.operations:
            raise _not_waiting(server_id, "revertResize")
        self._doorbell.ring_for_operation(call.context, operation.uuid)

    def restore_server(self, call: Call, server_id: str) -> None:
        """The server, which is soft-deleted, is started on its host. Raises errors.Conflict if it is not."""
        operation = self._in_state(call, server_id, OperationState.SOFT_DELETED)
        if operation is None or not self._start_again(call, operation):
            raise errors.Conflict(f"Cannot 'restore' instance {server_id}: it is not soft-deleted")
        log_step(LOG, "restore accepted", server_id, call.context.request_id)

    def delete(self, call: Call, server_id: str, *, force: bool = False) -> None:
        """Delete the server, whatever it is at. ``force``: at once, although it could be restored otherwise.

        Raises errors.NotFound, and errors.Conflict if it is locked.
        """
        if not is_uuid(server_id):
            raise server_not_found(server_id)
        keeps = bool(self._settings.reclaim_instance_interval) and not force
        if keeps and self._can_be_restored(self._find_server(call, server_id)):
            self.accept_operation(call, server_id, OperationKind.SOFT_DELETE)
            return
        deleted = self._ledger.write(
            incarnation.charged_if_compared,
            None,
            builds.delete,
            server_id,
            project_id=call.project_scope,
            now=self._database.current_time(),
            initiator=Initiator(request_id=call.context.request_id, user_id=call.context.user_id),
            ignores_lock=call.is_allowed(policies.IGNORE_LOCK),
            reclaims=not keeps,  # a second delete must not do what the first one left to the interval
        )
        if deleted is None:
            raise server_not_found(server_id)
        log_step(LOG, "deleted", server_id, call.context.request_id)
        if deleted.bodies:
            self._doorbell.ring_for_deleted(call.context, deleted.bodies)

    def limits_in_force(self, call: Call) -> dict[str, int]:
        """The limits in force for the caller, by the names of quotas; -1: none."""
        return self._limits.read_layers(call).in_force

    def public_key(self, call: Call, name: str) -> str:
        """The text of the caller's key of this name. Raises errors.Invalid for an unknown one."""
        return named_public_key(self._database, call, name, "rebuild")

    def find_flavor(self, call: Call, reference: str) -> Flavor:
        """The flavor of a resize. Raises errors.Invalid for one that cannot be had."""
        flavor = self._catalog.find_flavor(reference, call)
        if flavor is None or flavor.disabled:
            raise errors.Invalid(f"resize.flavorRef: {reference[:80]!r} could not be found")
        return flavor.of_a_server()

    # -- inside ------------------------------------------------------------------------------------------------------------------

    def _find_server(self, call: Call, server_id: str) -> Server:
        server = self._database.read(mappings.get, server_id, call.project_scope) if is_uuid(server_id) else None
        if server is None or server.deleted:
            raise server_not_found(server_id)
        return server

    def _find_waiting(self, call: Call, server_id: str, action: str) -> Operation:
        operation = self._in_state(call, server_id, OperationState.VERIFY)
        if operation is None:
            raise _not_waiting(server_id, action)
        return operation

    def _in_state(self, call: Call, server_id: str, state: OperationState) -> Operation | None:
        """The server's open operation, if it is in this state.

        Raises errors.Conflict for a locked server, and errors.NotCompared for one of a restored database.
        """
        server = self._find_server(call, server_id)
        edits.check_lock(server_id, server.locked_by, ignored=call.is_allowed(policies.IGNORE_LOCK))
        operation = self._database.read(_if_compared, server_id)
        return operation if operation is not None and operation.state is state else None

    def _start_again(self, call: Call, operation: Operation) -> bool:
        """Start the server of the operation on its host. False: the operation is in another state by now."""
        done = self._database.write(steps.start_again, [operation.uuid], operation.state, self._database.current_time())
        if done.operations:
            self._doorbell.ring_for_operation(call.context, operation.uuid)
        return bool(done.operations)

    def _can_be_restored(self, server: Server) -> bool:
        """Whether a delete leaves the server on its host. One without a guest, or with an open operation, does not stay."""
        if server.state != "active" or self._database.read(operations.open_for, [server.uuid]):
            return False
        return allows_operation(OperationKind.SOFT_DELETE, server.power, failed=server.task_state is TaskState.FAILED)

    def _cell_of(self, host: str | None) -> str | None:
        """The cell of a destination. Raises errors.Invalid for a host that is in none."""
        if host is None:
            return None
        try:
            return self._registry.of_host(host).uuid
        except (errors.HostNotMapped, errors.NotFound):
            raise errors.Invalid(f"host: Compute host {host[:80]} could not be found") from None

    def _refuse_unless_dead(self, server: Server) -> None:
        """Raises errors.Invalid while the host of the server is in use, errors.Conflict if nobody can tell."""
        if server.host is None or server.cell_uuid is None:
            return  # refused for its state, under a lock
        try:
            agent = self._agent_of(server.cell_uuid, server.host)
        except (errors.CellUnavailable, errors.NotFound) as error:
            raise errors.Conflict(f"Cannot 'evacuate' instance {server.uuid}: its cell does not answer: {error}") from error
        if agent is not None and self._watch.agent_status(agent) in ("UP", "MAINTENANCE"):
            advice = "evacuate from a host that is down, or that 'host set --down' has called down"
            raise errors.Invalid(f"Compute service of {server.host} is still in use: {advice}")

    def _refuse_if_down(self, call: Call, server_id: str, action: str, cell_uuid: str | None, host: str | None) -> None:
        """Raises errors.Conflict if the host, which would have to do this, is down."""
        if self._is_down(cell_uuid, host):
            name = f"host {host}" if call.is_allowed(policies.ATTRIBUTES) else "its host"
            advice = "wait until it is back, or have an administrator evacuate the server"
            raise errors.Conflict(f"Cannot '{action}' instance {server_id}: {name} is down: {advice}")

    def _is_down(self, cell_uuid: str | None, host: str | None) -> bool:
        """Whether the host is known to be down. Nothing is known while its cell is silent: what is accepted waits for the cell."""
        if cell_uuid is None or host is None:
            return False
        try:
            agent = self._agent_of(cell_uuid, host)
        except (errors.CellUnavailable, errors.NotFound):
            return False
        return agent is not None and self._watch.is_down(agent)

    def _agent_of(self, cell_uuid: str, host: str) -> SeenService | None:
        """The agent of the host as its cell knows it now. Raises errors.CellUnavailable and errors.NotFound."""
        cell = self._registry.get(cell_uuid).with_timeout(self._settings.cell_timeout)
        return next(iter(cell.read(services.list_seen, AGENT_BINARY, host)), None)

    def _cell_with(self, host: str | None) -> str | None:
        """The cell of a host; None if it is in none."""
        try:
            return None if host is None else self._registry.of_host(host).uuid
        except (errors.HostNotMapped, errors.NotFound):
            return None


def _accept_edited(
    tx: ApiTransaction, requested: NewOperation, decide: Decide | None, now: float, unique_names: NameScope
) -> Operation:
    operation = operation_accept.accept_operation(tx, requested, now)
    if decide is not None:
        edits.change_server(tx, requested.server_uuid, decide, project_id=requested.scope, now=now, unique_names=unique_names)
    return operation


def _if_compared(tx: ApiTransaction, server_id: str) -> Operation | None:
    """The open operation of the server. Raises errors.NotCompared."""
    incarnation.refuse_unless_compared(tx)
    operation = operations.open_for(tx, [server_id]).get(server_id)
    operations.refuse_frozen(operation)
    return operation


def _not_waiting(server_id: str, action: str) -> errors.Conflict:
    return errors.Conflict(f"Cannot '{action}' instance {server_id}: it is not waiting for a resize to be confirmed")
