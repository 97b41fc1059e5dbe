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
        now = database.now()
        rows = [
            (
                *(each.uuid, each.server_uuid, str(each.kind), _state(each)),
                *(each.source_host, each.target_host, round(max(0.0, now - each.created_at)), each.frozen or each.fault),
            )
            for each in database.read(operations.list_, query)
        ]
        return ("Operation", "Server", "Kind", "State", "From", "To", "Age", "Fault"), rows


class MoveShow(AdminShow):
    """Show one operation on a server.

    Example: superconductor operation show 0b9c1c5e-7d3c-4d0e-9b57-2f7d7d6f3a10
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("operation", metavar="OPERATION", help="its UUID, as 'operation list' shows it")

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Sequence[Any]]:
        each = _found(self, parsed_args.operation)
        shown: dict[str, Any] = {
            "Operation": each.uuid,
            "Server": each.server_uuid,
            "Kind": str(each.kind),
            "State": _state(each),
            "From": each.source_host,
            "To": each.target_host,
            "Requested Host": each.args.host,
            "Cross Cell": "yes" if each.args.cross_cell else "no",
            "Host Called Dead": "yes" if each.forced else "no",
            "Project": each.project_id,
            "User": each.user_id,
            "Request": each.request_id,
            "Source Body": each.source_uuid,
            "New Body": each.twin_uuid,
            "Created": liveness.moment(each.created_at),
            "Updated": liveness.moment(each.updated_at),
            "Deadline": liveness.moment(each.deadline),
            "Ended": liveness.moment(each.ended_at),
            "Fault": each.fault,
            "Not Compared": each.frozen,
        }
        return tuple(shown), tuple(shown.values())


class _DecideMoves(Admin):
    """A command that decides about operations. ``ending``: what cells are asked about first."""

    ending: ClassVar[Ending | None] = None

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("operations", metavar="OPERATION", nargs="+", help="its UUID, as 'operation list' shows it")

    def decide(self, uuids: Sequence[str], write: Callable[[str], Stepped], refusal: Callable[[Operation], str]) -> None:
        """``write`` for each; ``refusal`` says why an operation was left as it is."""

        def one(uuid: str) -> None:
            operations.refuse_frozen(_found(self, uuid))
            if self.ending is not None:
                last_body.refuse(self.deployment.api_database, self.deployment.registry, self.ending, uuid)
            if not write(uuid).operations:
                raise errors.Conflict(refusal(_found(self, uuid)))

        self.each(uuids, one)

    @property
    def ledger(self) -> Ledger:
        return Ledger(self.deployment.api_database, "move")


class MoveAbort(_DecideMoves):
    """Give moves up. Their servers stay on the hosts where they are, and are started there again if they were stopped for it.

    A move is refused if its server has arrived. Conductors carry it out within seconds; 'operation show' tells when it has ended. A
    live migration may still arrive meanwhile.

    Example: superconductor move abort 0b9c1c5e-7d3c-4d0e-9b57-2f7d7d6f3a10
    """

    ending = Ending.GIVE_UP

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        ledger, why = self.ledger, f"Given up by the operator {user_name()}."
        self.decide(parsed_args.operations, lambda uuid: steps.abort(ledger, uuid, why), _not_abortable)


class MoveConfirm(_DecideMoves):
    """Confirm resizes for their users: what the servers were before is deleted.

    Example: superconductor move confirm 0b9c1c5e-7d3c-4d0e-9b57-2f7d7d6f3a10
    """

    ending = Ending.CONFIRM

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        database, ledger = self.deployment.api_database, self.ledger
        self.decide(parsed_args.operations, lambda uuid: ledger.write(steps.confirm, [uuid], database.now()), _not_waiting)


class MoveRevert(_DecideMoves):
    """Revert resizes for their users: the servers become what they were before. What they have written since is lost.

    Example: superconductor move revert 0b9c1c5e-7d3c-4d0e-9b57-2f7d7d6f3a10
    """

    ending = Ending.POINT_BACK

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        database = self.deployment.api_database
        self.decide(parsed_args.operations, lambda uuid: database.write(steps.revert, [uuid], database.now()), _not_waiting)


def _found(command: Admin, uuid: str) -> Operation:
    found = command.deployment.api_database.read(operations.get, [uuid])
    if not found:
        raise errors.NotFound(f"There is no operation {uuid[:80]!r}: 'operation list --all' shows them")
    return found[0]


def _state(each: Operation) -> str:
    return str(each.state if each.outcome is None else each.outcome)


_ADVICE = {
    OperationState.TASK: "its host carries it out, or the operation ends at its deadline",
    OperationState.SHELVED: "the server is shelved: unshelve it",
    OperationState.SOFT_DELETED: "the server is soft-deleted: restore it",
    OperationState.VERIFY: "the server has arrived: confirm or revert it",
    OperationState.REVERTING: "it is being reverted",
    OperationState.UNDOING: "it is being given up already",
    OperationState.STARTING: "it is about to end",
}


def _not_abortable(each: Operation) -> str:
    why = f"it has ended: {each.outcome}" if each.outcome is not None else _ADVICE.get(each.state, "try again")
    return f"The {each.kind} {each.uuid} in state {each.state} cannot be given up: {why}"


def _not_waiting(each: Operation) -> str:
    return f"The {each.kind} {each.uuid} does not wait for its user: it is in state {_state(each)}"
