"""``superconductor host evacuate|drain``: move the servers off a host."""

from __future__ import annotations

import argparse

from cells import host_service
from cells.cell import Cell
from cells.emptying import HostCondition, MoveOrder, conditions_by_host, destination_cell
from cells.host_service import HostChange
from cli.fleet.empty import COLUMNS, EmptyingCommand
from cli.servers.move import user_name
from cli.shared.base import Table
from db.api.claims.claims import Ledger
from db.cell import services
from objects import errors
from objects.operation import OperationKind
from objects.process import AGENT_BINARY


class _OfOneHost(EmptyingCommand):
    """A command that empties one host."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("host", metavar="HOST", help="name of the host")
        self.add_moving(parser)
        self.add_destination(parser)

    def read_condition(self, cell: Cell, parsed_args: argparse.Namespace) -> HostCondition:
        """Raises NotFound for a host that has never reported."""
        condition = conditions_by_host(cell.read(services.list_seen, AGENT_BINARY), parsed_args.down_after).get(parsed_args.host)
        if condition is None:
            raise errors.NotFound(f"Host {parsed_args.host!r} has never reported in cell '{cell.name}': see 'host list'")
        return condition

    def change_host(self, cell: Cell, host: str, change: HostChange) -> None:
        """Tell the cell something about the host, and the schedulers with it."""
        host_service.change_agent(cell, Ledger(self.deployment.api_database, "host"), host, change)

    def build_order(
        self,
        cell: Cell,
        condition: HostCondition,
        kind: OperationKind,
        parsed_args: argparse.Namespace,
        *,
        live: bool = False,
        confirm: bool = False,
    ) -> MoveOrder:
        """Raises errors.Invalid for a destination that cannot be."""
        to_cell = None
        if parsed_args.to == parsed_args.host:
            raise errors.Invalid(f"--to: {parsed_args.to!r} is the host to be emptied")
        if parsed_args.to is not None:
            to_cell = destination_cell(self.deployment.cell_registry, parsed_args.to, cell, cross_cell=parsed_args.cross_cell)
        return MoveOrder(
            kinds={condition: kind},
            user_id=user_name(),
            to=parsed_args.to,
            to_cell=to_cell,
            cross_cell=parsed_args.cross_cell,
            live=live,
            confirm=confirm,
            down_after=parsed_args.down_after,
        )


class HostEvacuate(_OfOneHost):
    """Start the servers of a dead host on other hosts. Locked servers are moved too.

    The host must be dead: called so by 'host set --down' or --dead, or silent while other hosts of its cell report. First make
    sure that its guests do not run any more. Servers that could not be moved are listed with the reason, and the exit status is 1.
    If the command was interrupted, run it again.

    Example: superconductor host evacuate east-h1 --dead
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("--dead", action="store_true", help="call the host dead first, as 'host set --down' does")

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        host, cell = parsed_args.host, self.deployment.cell_registry.of_host(parsed_args.host)
        order = self.build_order(cell, HostCondition.DEAD, OperationKind.EVACUATE, parsed_args)
        if parsed_args.dead:
            self.change_host(cell, host, HostChange(forced_down=True))
        condition = self.read_condition(cell, parsed_args)
        if condition is not HostCondition.DEAD:
            so = "up" if condition is HostCondition.UP else "silent, as all hosts of its cell are"
            raise errors.Conflict(f"Host {host!r} is {so}: make sure that its guests do not run any more, then give --dead")
        return COLUMNS, self.empty_hosts(f"Host '{host}'", cell, [host], order, parsed_args)


class HostDrain(_OfOneHost):
    """Disable a host, and migrate its servers to other hosts. A server is off while its disk is copied, unless --live is given.

    Locked servers are migrated too. Paused and suspended servers cannot be migrated, and resized servers wait for their users
    unless --confirm is given. They are listed with the reason, and the exit status is 1. If the command was interrupted, run it
    again. 'host enable' lets the host take servers again.

    Example: superconductor host drain east-h1 --jobs 4
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("--live", action="store_true", help="migrate running and paused servers live")
        parser.add_argument("--confirm", action="store_true", help="confirm resizes that wait for their users")

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        host, cell = parsed_args.host, self.deployment.cell_registry.of_host(parsed_args.host)
        wishes = {"live": parsed_args.live, "confirm": parsed_args.confirm}
        order = self.build_order(cell, HostCondition.UP, OperationKind.MIGRATE, parsed_args, **wishes)
        condition = self.read_condition(cell, parsed_args)
        if condition is HostCondition.DEAD:
            raise errors.Conflict(f"Host {host!r} is dead, and cannot send its servers: use 'host evacuate'")
        if condition is HostCondition.SILENT:
            raise errors.Conflict(f"Host {host!r} is silent, as all hosts of its cell are: see 'cell check'")
        if not cell.read(services.get, host, AGENT_BINARY).disabled:
            self.change_host(cell, host, HostChange(disabled=True, reason="draining"))
        return COLUMNS, self.empty_hosts(f"Host '{host}'", cell, [host], order, parsed_args)
