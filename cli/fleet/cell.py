"""``superconductor cell``: register and change cells."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from functools import partial

from cells import administration
from cells.administration import CellChange, NewCell
from cells.cell import Cell
from cells.emptying import HostCondition, MoveOrder
from cli.fleet.empty import COLUMNS, EmptyingCommand
from cli.servers.move import user_name
from cli.shared.base import ActionShow, Admin, Row, Table, secret_text
from db.api.deployment.cell_mappings import HasHosts, HasServers, UnfinishedWork
from db.cell import services
from objects import errors
from objects.cell import CellMapping, CellState
from objects.mask import mask_url
from objects.operation import OperationKind
from objects.process import AGENT_BINARY

STATUSES: Mapping[type[errors.SuperconductorError], int] = {
    errors.NotFound: 3,
    HasHosts: 5,
    HasServers: 6,
    UnfinishedWork: 7,
    errors.Conflict: 4,  # after its kinds
}
"""Exit statuses of commands that change cells."""


class CellCreate(ActionShow):
    """Register a cell. Running processes use it within seconds; its hosts are mapped by 'host discover'.

    Its schema is applied and its bus is tried first. If either fails, nothing is saved. With --state the
    database and the transport default to a file of that folder and to the embedded bus. URLs may be templates, with {username},
    {password}, {hostname} and so on from the configuration of each process. @FILE reads a URL from a file, - from standard input,
    which keeps its password off the command line.

    Examples:
      superconductor cell create east --database-connection @east.database --transport-url @east.bus
      superconductor cell create cell0 --cell0 --database-connection @cell0.database
    """

    statuses = STATUSES

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("name", metavar="NAME", help="name of the cell: letters, digits, '.', '_' and '-'")
        parser.add_argument(
            "--database-connection", metavar="URL", type=secret_text, help="URL of the cell's database; @FILE: read it there"
        )
        parser.add_argument(
            "--transport-url", metavar="URL", type=secret_text, default="", help="URL of the cell's bus, likewise; none for cell0"
        )
        parser.add_argument("--cell0", action="store_true", help="create cell0, which holds servers that never got a host")
        parser.add_argument("--disabled", action="store_true", help="create it disabled, so that it takes no builds")
        parser.add_argument(
            "--sync", action=argparse.BooleanOptionalAction, default=True, help="apply the schema to its database (default: yes)"
        )
        parser.add_argument(
            "--check", action=argparse.BooleanOptionalAction, help="try database and bus before it is saved (default: as --sync)"
        )

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[tuple[str, ...], Row]:
        new = NewCell(
            name=parsed_args.name,
            database_url=parsed_args.database_connection or self._default_database(parsed_args.name),
            transport_url=parsed_args.transport_url or self._default_transport(parsed_args.name, parsed_args.cell0),
            cell0=parsed_args.cell0,
            state=CellState.DISABLED if parsed_args.disabled else CellState.ENABLED,
        )
        check = parsed_args.sync if parsed_args.check is None else parsed_args.check

        def prepare_cell(mapping: CellMapping) -> None:
            if parsed_args.sync:
                sync_schema(mapping)
            if check:
                try_out(mapping, database=not parsed_args.sync)

        return show_cell(
            administration.create_cell(self.deployment.api_database, new, prepare_cell, local=self.deployment.local_values)
        )

    def _default_database(self, name: str) -> str:
        if self.deployment.state_folder is None:
            raise errors.Invalid(f"Cell {name!r} needs a database: give --database-connection URL")
        return f"sqlite:///{self.deployment.state_folder / name}.db"

    def _default_transport(self, name: str, cell0: bool) -> str:
        return "" if cell0 or self.deployment.state_folder is None else f"embedded://{name}/"


class CellUpdate(ActionShow):
    """Change a cell's name or URLs. Running processes follow within seconds. Values that are not given do not change.

    The new database is tried first. It is refused if it cannot be used or does not have the schema of this version. Keep the old
    credentials valid until the processes have followed. @FILE reads a URL from a file, - from standard input.

    Example: superconductor cell update east --transport-url @east.bus
    """

    statuses = STATUSES

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("cell", metavar="CELL", help="name or UUID")
        parser.add_argument("--name", metavar="NAME", help="its new name")
        parser.add_argument(
            "--database-connection", metavar="URL", type=secret_text, help="its database's new URL; @FILE: read it there"
        )
        parser.add_argument("--transport-url", metavar="URL", type=secret_text, help="its bus's new URL, likewise")
        parser.add_argument(
            "--check", action=argparse.BooleanOptionalAction, default=True, help="try new URLs before they are saved (default: yes)"
        )

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[tuple[str, ...], Row]:
        change = CellChange(
            name=parsed_args.name, database_url=parsed_args.database_connection, transport_url=parsed_args.transport_url
        )
        if change == CellChange():
            raise errors.Invalid("Nothing to change: give --name, --database-connection or --transport-url")
        prepare = trial_of(change) if parsed_args.check else None
        database, local = self.deployment.api_database, self.deployment.local_values
        return show_cell(administration.change_cell(database, parsed_args.cell, change, prepare, local=local))


class _SetState(Admin):
    """A command that gives cells another state."""

    statuses = STATUSES
    state: CellState

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("cells", metavar="CELL", nargs="+", help="name or UUID")

    def change_state(self, cell: str) -> CellMapping:
        return administration.change_cell(self.deployment.api_database, cell, CellChange(state=self.state))


class _SetStateOnly(_SetState):
    """One that does nothing else."""

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        self.do_each(parsed_args.cells, self.change_state)


class CellEnable(_SetStateOnly):
    """Let cells take new servers again.

    Example: superconductor cell enable east
    """

    state = CellState.ENABLED


class CellDisable(_SetStateOnly):
    """Let cells take no new servers. What is there goes on, and builds that were placed there already are finished.

    Example: superconductor cell disable east west
    """

    state = CellState.DISABLED


class CellDrain(_SetState, EmptyingCommand):
    """Let cells take no new servers, because they are to be emptied; it is shown as their state.

    With --wait, their servers are then moved to other cells: evacuated from dead hosts, migrated from others. Servers that cannot
    be moved are listed with the reason, and the exit status is 1. If the command was interrupted, run it again. 'cell enable'
    lets a cell take servers again.

    Examples:
      superconductor cell drain east
      superconductor cell drain east --wait --jobs 20
    """

    state = CellState.DRAINING

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        super().add_arguments(parser)
        self.add_moving(parser)
        parser.add_argument("--confirm", action="store_true", help="with --wait: confirm resizes that wait for their users")
        parser.add_argument("--live", action="store_true", help="with --wait: migrate running servers live")
        parser.add_argument("--wait", action="store_true", help="move all servers to other cells, and wait for that")

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        remaining: list[Row] = []

        def drain_cell(name: str) -> None:
            mapping = self.change_state(name)
            if parsed_args.wait:
                remaining.extend(self._empty_cell(mapping, parsed_args))

        self.do_each(parsed_args.cells, drain_cell)
        return COLUMNS, remaining

    def _empty_cell(self, mapping: CellMapping, parsed_args: argparse.Namespace) -> list[Row]:
        registry = self.deployment.cell_registry
        cell = registry.get(mapping.uuid)
        hosts = sorted({*registry.hosts_of(cell.uuid), *cell.read(services.list_hosts, AGENT_BINARY)})
        order = MoveOrder(
            kinds={HostCondition.UP: OperationKind.MIGRATE, HostCondition.DEAD: OperationKind.EVACUATE},
            user_id=user_name(),
            cross_cell=True,
            live=parsed_args.live,
            confirm=parsed_args.confirm,
            down_after=parsed_args.down_after,
        )
        return self.empty_hosts(f"Cell '{cell.name}'", cell, hosts, order, parsed_args, whole_cell=True)


def sync_schema(mapping: CellMapping) -> None:
    """Apply the cell's schema to the database of the mapping. Raises what keeps it from being used."""
    from db.sql import sync  # with it comes alembic, which listing cells does not need

    sync.sync_schema(mapping.database_url, "cell")


def prepare_new(mapping: CellMapping) -> None:
    """Apply the schema and try the bus. Raises what keeps them from being used."""
    sync_schema(mapping)
    try_out(mapping, database=False)


def trial_of(change: CellChange) -> Callable[[CellMapping], None]:
    """What tries the URLs that a change gives anew: a cell whose database is away can still be renamed, or get another bus."""
    return partial(try_out, database=change.database_url is not None, bus=change.transport_url is not None)


def try_out(mapping: CellMapping, *, database: bool = True, bus: bool = True) -> None:
    """Raise what keeps the database or the bus of the mapping from being used."""
    if not (database or bus):
        return
    from cells.registry import RegistrySettings, open_bus, open_database

    cell = Cell(mapping, open_database(mapping), open_bus(mapping), RegistrySettings().bulkhead)
    try:
        if database:
            _check_database(cell)
        if bus:
            cell.check_bus()
    finally:
        cell.close()


def _check_database(cell: Cell) -> None:
    from db.sql import ready, sync  # with them comes alembic, which listing cells does not need

    ready.judge_schema(cell.database, "cell", cell.read(sync.schema_version, "cell"))


def show_cell(mapping: CellMapping) -> tuple[tuple[str, ...], Row]:
    return ("name", "uuid", "state", "transport_url", "database_url"), (
        mapping.name,
        mapping.uuid,
        str(mapping.state),
        mask_url(mapping.transport_url),
        mask_url(mapping.database_url),
    )
