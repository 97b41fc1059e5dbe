"""``superconductor move``: operations on servers, such as migrations, while they are under way and after."""

from __future__ import annotations

import argparse
import getpass
import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar

from cells import administration, last_body
from cells.last_body import Ending
from cli.shared import liveness
from cli.shared.base import Admin, AdminLister, AdminShow, Table, at_least
from db.api.claims.claims import Ledger
from db.api.operations import operations, steps
from db.api.operations.operations import OperationQuery
from db.api.operations.steps import Stepped
from objects import errors
from objects.operation import Operation, OperationState


def user_name() -> str:
    """The name of the person at the keyboard, as far as the system knows it."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # the user has no entry in the password database
        return f"uid {os.getuid()}"


class MoveList(AdminLister):
    """List operations on servers that are under way: moves, and tasks of their hosts such as a stop. The newest first.

    "From" and "To" are hosts. "Age" is in seconds since it was accepted. With --all, operations that have ended are listed too,
    with their outcome as the state: done, failed, given-up (the server is where it was), reverted, deleted.

    Example: superconductor operation list --host east-h1
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--host", metavar="HOST", help="from or to this host")
        parser.add_argument("--cell", metavar="CELL", help="from or to this cell (name or UUID)")
        parser.add_argument("--server", metavar="UUID", help="of this server")
        parser.add_argument("--status", choices=[str(state) for state in OperationState], help="in this state")
        parser.add_argument("--all", action="store_true", help="also those that have ended")
        limit = partial(at_least, 1)
        parser.add_argument("--limit", metavar="N", type=limit, default=1000, help="the newest N (default: 1000)")

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        database = self.deployment.api_database
        state = None if parsed_args.status is None else OperationState(parsed_args.status)
        query = OperationQuery(
            server_uuid=parsed_args.server,
            host=parsed_args.host,
            cell_uuid=None if parsed_args.cell is None else administration.find_cell(database, parsed_args.cell).uuid,
            state=state,
            include_ended=parsed_args.all or state is OperationState.ENDED,
            limit=parsed_args.limit,
        )
        now = database.current_time()
        rows = [
            (
                *(operation.uuid, operation.server_uuid, str(operation.kind), _state_text(operation)),
                *(
                    operation.source_host,
                    operation.target_host,
                    round(max(0.0, now - operation.created_at)),
                    operation.frozen or operation.fault,
                ),
            )
            for operation in database.read(operations.list_, query)
        ]
        return ("Operation", "Server", "Kind", "State", "From", "To", "Age", "Fault"), rows


class MoveShow(AdminShow):
    """Show one operation on a server.

    Example: superconductor operation show 0b9c1c5e-7d3c-4d0e-9b57-2f7d7d6f3a10
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("operation", metavar="OPERATION", help="its UUID, as 'operation list' shows it")

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Sequence[Any]]:
        operation = _find_operation(self, parsed_args.operation)
        shown: dict[str, Any] = {
            "Operation": operation.uuid,
            "Server": operation.server_uuid,
            "Kind": str(operation.kind),
            "State": _state_text(operation),
            "From": operation.source_host,
            "To": operation.target_host,
            "Requested Host": operation.args.host,
            "Cross Cell": "yes" if operation.args.cross_cell else "no",
            "Host Called Dead": "yes" if operation.forced else "no",
            "Project": operation.project_id,
            "User": operation.user_id,
            "Request": operation.request_id,
            "Source Body": operation.source_uuid,
            "New Body": operation.twin_uuid,
            "Created": liveness.format_moment(operation.created_at),
            "Updated": liveness.format_moment(operation.updated_at),
            "Deadline": liveness.format_moment(operation.deadline),
            "Ended": liveness.format_moment(operation.ended_at),
            "Fault": operation.fault,
            "Not Compared": operation.frozen,
        }
        return tuple(shown), tuple(shown.values())


class _DecideMoves(Admin):
    """A command that decides about operations. ``ending``: what cells are asked about first."""

    ending: ClassVar[Ending | None] = None

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("operations", metavar="OPERATION", nargs="+", help="its UUID, as 'operation list' shows it")

    def decide_moves(self, uuids: Sequence[str], write: Callable[[str], Stepped], refusal: Callable[[Operation], str]) -> None:
        """``write`` for each; ``refusal`` says why an operation was left as it is."""

        def decide_move(uuid: str) -> None:
            operations.refuse_frozen(_find_operation(self, uuid))
            if self.ending is not None:
                last_body.refuse_last_body(self.deployment.api_database, self.deployment.cell_registry, self.ending, uuid)
            if not write(uuid).operations:
                raise errors.Conflict(refusal(_find_operation(self, uuid)))

        self.do_each(uuids, decide_move)

    @property
    def move_ledger(self) -> Ledger:
        return Ledger(self.deployment.api_database, "move")


class MoveAbort(_DecideMoves):
    """Give moves up. Their servers stay on the hosts where they are, and are started there again if they were stopped for it.

    A move is refused if its server has arrived. Conductors carry it out within seconds; 'operation show' tells when it has ended. A
    live migration may still arrive meanwhile.

    Example: superconductor move abort 0b9c1c5e-7d3c-4d0e-9b57-2f7d7d6f3a10
    """

    ending = Ending.GIVE_UP

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        ledger, why = self.move_ledger, f"Given up by the operator {user_name()}."
        self.decide_moves(parsed_args.operations, lambda uuid: steps.abort_operation(ledger, uuid, why), _not_abortable)


class MoveConfirm(_DecideMoves):
    """Confirm resizes for their users: what the servers were before is deleted.

    Example: superconductor move confirm 0b9c1c5e-7d3c-4d0e-9b57-2f7d7d6f3a10
    """

    ending = Ending.CONFIRM

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        database, ledger = self.deployment.api_database, self.move_ledger
        self.decide_moves(
            parsed_args.operations, lambda uuid: ledger.write(steps.confirm_moves, [uuid], database.current_time()), _not_waiting
        )


class MoveRevert(_DecideMoves):
    """Revert resizes for their users: the servers become what they were before. What they have written since is lost.

    Example: superconductor move revert 0b9c1c5e-7d3c-4d0e-9b57-2f7d7d6f3a10
    """

    ending = Ending.POINT_BACK

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        database = self.deployment.api_database
        self.decide_moves(
            parsed_args.operations, lambda uuid: database.write(steps.revert_moves, [uuid], database.current_time()), _not_waiting
        )


def _find_operation(command: Admin, uuid: str) -> Operation:
    rows = command.deployment.api_database.read(operations.get, [uuid])
    if not rows:
        raise errors.NotFound(f"There is no operation {uuid[:80]!r}: 'operation list --all' shows them")
    return rows[0]


def _state_text(operation: Operation) -> str:
    return str(operation.state if operation.outcome is None else operation.outcome)


_ADVICE = {
    OperationState.TASK: "its host carries it out, or the operation ends at its deadline",
    OperationState.SHELVED: "the server is shelved: unshelve it",
    OperationState.SOFT_DELETED: "the server is soft-deleted: restore it",
    OperationState.VERIFY: "the server has arrived: confirm or revert it",
    OperationState.REVERTING: "it is being reverted",
    OperationState.UNDOING: "it is being given up already",
    OperationState.STARTING: "it is about to end",
}


def _not_abortable(operation: Operation) -> str:
    why = f"it has ended: {operation.outcome}" if operation.outcome is not None else _ADVICE.get(operation.state, "try again")
    return f"The {operation.kind} {operation.uuid} in state {operation.state} cannot be given up: {why}"


def _not_waiting(operation: Operation) -> str:
    return f"The {operation.kind} {operation.uuid} does not wait for its user: it is in state {_state_text(operation)}"
