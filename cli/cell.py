"""``superconductor cell``: register, change, check and delete cells."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from cells import administration
from cells.administration import CellChange, NewCell
from cells.cell import Cell
from cli.base import ActionLister, ActionShow, Admin, AdminLister, AdminShow, Row, Table
from db import host_mappings
from db.connection import Connection
from objects import errors
from objects.cell import CellMapping, CellState
from objects.mask import mask_url

if TYPE_CHECKING:  # what it imports is not needed for listing cells
    from cells.registry import CellRegistry


class CellCreate(ActionShow):
    """Register a cell. Running processes use it within seconds; its hosts are mapped by 'host discover'.

    Its schema is applied first, so a database that cannot be used is refused and nothing is saved. With --state the database
    and the transport default to a file of that folder and to the embedded bus.

    Examples:
      superconductor cell create east --database-connection mysql://sc:PASSWORD@db-east/sc --transport-url rabbit://sc:PASSWORD@mq-east/sc
      superconductor cell create cell0 --cell0 --database-connection mysql://sc:PASSWORD@db-api/sc_cell0
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("name", metavar="NAME", help="name of the cell: letters, digits, '.', '_' and '-'")
        parser.add_argument("--database-connection", metavar="URL", help="URL of the cell's database")
        parser.add_argument("--transport-url", metavar="URL", default="", help="URL of the cell's bus; none for cell0")
        parser.add_argument("--cell0", action="store_true", help="create cell0, which holds what never got a host")
        parser.add_argument("--disabled", action="store_true", help="let it take no builds yet")
        parser.add_argument(
            "--sync", action=argparse.BooleanOptionalAction, default=True, help="apply the schema to its database (default: yes)"
        )

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[tuple[str, ...], Row]:
        new = NewCell(
            name=parsed_args.name,
            database_url=parsed_args.database_connection or self._default_database(parsed_args.name),
            transport_url=parsed_args.transport_url or self._default_transport(parsed_args.name, parsed_args.cell0),
            cell0=parsed_args.cell0,
            state=CellState.DISABLED if parsed_args.disabled else CellState.ENABLED,
        )
        prepare = sync_schema if parsed_args.sync else None
        return _shown(administration.create_cell(self.deployment.api_database, new, prepare, local=self.deployment.local))

    def _default_database(self, name: str) -> str:
        if self.deployment.state is None:
            raise errors.Invalid(f"Cell {name!r} needs a database: give --database-connection URL")
        return f"sqlite:///{self.deployment.state / name}.db"

    def _default_transport(self, name: str, cell0: bool) -> str:
        return "" if cell0 or self.deployment.state is None else f"embedded://{name}/"


class CellUpdate(ActionShow):
    """Change a cell's name or addresses under running processes, which follow within seconds. What is not given stays.

    The new database is looked at first, and one that cannot be used, or has not the schema of this version, is refused. Keep the
    old credentials valid until the processes have followed.

    Example: superconductor cell update east --transport-url rabbit://sc:NEW@mq-east/sc
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("cell", metavar="CELL", help="name or UUID")
        parser.add_argument("--name", metavar="NAME", help="its new name")
        parser.add_argument("--database-connection", metavar="URL", help="its database's new URL")
        parser.add_argument("--transport-url", metavar="URL", help="its bus's new URL")
        parser.add_argument(
            "--check", action=argparse.BooleanOptionalAction, default=True, help="try what is new before it is saved (default: yes)"
        )

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[tuple[str, ...], Row]:
        change = CellChange(
            name=parsed_args.name, database_url=parsed_args.database_connection, transport_url=parsed_args.transport_url
        )
        if change == CellChange():
            raise errors.Invalid("Nothing to change: give --name, --database-connection or --transport-url")
        prepare = try_out if parsed_args.check else None
        database, local = self.deployment.api_database, self.deployment.local
        return _shown(administration.change_cell(database, parsed_args.cell, change, prepare, local=local))


class _SetState(Admin):
    """A command that gives cells another state."""

    state: CellState

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("cells", metavar="CELL", nargs="+", help="name or UUID")

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        change = CellChange(state=self.state)
        self.each(parsed_args.cells, lambda cell: administration.change_cell(self.deployment.api_database, cell, change))


class CellEnable(_SetState):
    """Let cells take new servers again.

    Example: superconductor cell enable east
    """

    state = CellState.ENABLED


class CellDisable(_SetState):
    """Let cells take no new servers. What is there goes on, and builds that were placed there already are finished.

    Example: superconductor cell disable east west
    """

    state = CellState.DISABLED


class CellDrain(_SetState):
    """Let cells take no new servers, because they are to be emptied; it is shown as their state.

    Example: superconductor cell drain east
    """

    state = CellState.DRAINING


class CellDelete(ActionLister):
    """Forget cells in which nothing lives. Their databases are left alone.

    With --offline a cell whose database is lost for good is removed with everything that the API level knows to be in it, and an
    account of that is shown: servers are deleted, builds go elsewhere or end in ERROR, hosts, claims and quota are given back.
    Guests that still run on its hosts are left to you. Interrupted, it is completed by running it again. Exit status 1 if a cell
    was refused.

    Examples:
      superconductor cell delete east --with-hosts
      superconductor cell delete east --offline --dry-run -f json
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("cells", metavar="CELL", nargs="+", help="name or UUID")
        parser.add_argument("--with-hosts", action="store_true", help="also forget which hosts belong to it")
        parser.add_argument("--offline", action="store_true", help="remove a cell that is lost for good; refused if it answers")
        parser.add_argument("--dry-run", action="store_true", help="with --offline: do nothing, only show the account")

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        if parsed_args.dry_run and not parsed_args.offline:
            raise errors.Invalid("--dry-run goes with --offline: without it, nothing is deleted that there could be an account of")
        rows: list[Row] = []

        def delete(cell: str) -> None:
            if parsed_args.offline:
                rows.extend(self._remove(cell, dry_run=parsed_args.dry_run))
            else:
                administration.delete_cell(self.deployment.api_database, cell, with_hosts=parsed_args.with_hosts)

        self.each(parsed_args.cells, delete)
        return ("Cell", "Kind", "ID", "Name", "Project", "State", "Host", "Claim", "Outcome"), rows

    def produce_output(self, parsed_args: argparse.Namespace, column_names: Sequence[str], data: Iterable[Sequence[Any]]) -> int:
        """The account, unless all was refused."""
        rows = list(data)
        return super().produce_output(parsed_args, column_names, rows) if parsed_args.offline and (rows or not self.status) else 0

    def _remove(self, name: str, *, dry_run: bool) -> Iterator[Row]:
        from cells import removal, template
        from db.claims import Ledger

        database = self.deployment.api_database
        mapping = administration.deletable(database, name)
        template.expand(mapping, self.deployment.local)  # what cannot be asked from here may well be alive
        try:
            silence = removal.silence_of(self.deployment.registry.get(mapping.uuid))
        except errors.CellUnavailable as error:  # its URL cannot be used at all
            silence = str(error)
        account = removal.remove(Ledger(database, "cell delete"), mapping, dead=silence is not None, dry_run=dry_run)
        if silence is not None:
            self.warn(f"{silence}; it {'would be' if dry_run else 'was'} removed as lost")
        for e in account:
            yield mapping.name, e.kind, e.id, e.name, e.project, e.state, e.host, e.amounts, e.outcome


class CellCheck(AdminLister):
    """Try the database and the bus of cells. Exit status 1 if one of them cannot be used.

    Example: superconductor cell check east
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("cells", metavar="CELL", nargs="*", help="name or UUID; all if none is given")

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        from cells.registry import CellRegistry

        api_database = self.deployment.api_database
        wanted = parsed_args.cells or [mapping.uuid for mapping in administration.list_cells(api_database)]
        mappings = [administration.find_cell(api_database, cell) for cell in wanted]
        registry = CellRegistry(api_database, self.deployment.registry_settings)
        try:
            rows = [self._checked(registry, mapping) for mapping in mappings]
        finally:
            registry.close()
        return ("Cell", "Database", "Bus"), rows

    def _checked(self, registry: CellRegistry, mapping: CellMapping) -> Row:
        try:
            cell = registry.get(mapping.uuid)
        except errors.CellUnavailable as error:
            self.status = 1
            return mapping.name, str(error), ""
        return mapping.name, self._tried(_check_database, cell), "" if mapping.is_cell0 else self._tried(Cell.check_bus, cell)

    def _tried(self, check: Callable[[Cell], object], cell: Cell) -> str:
        try:
            check(cell)
        except errors.SuperconductorError as error:
            self.status = 1
            return str(error)
        return "ok"


class CellList(AdminLister):
    """List the cells; with -v also where their databases and buses are. Passwords are masked.

    Example: superconductor -v cell list -f json
    """

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        database = self.deployment.api_database
        counts = database.read(_hosts_per_cell)
        mappings = administration.list_cells(database)
        if not self.verbose:
            return ("Name", "UUID", "State", "Hosts"), [(m.name, m.uuid, str(m.state), counts.get(m.uuid, 0)) for m in mappings]
        return ("Name", "UUID", "State", "Hosts", "Transport URL", "Database URL"), [
            (m.name, m.uuid, str(m.state), counts.get(m.uuid, 0), mask_url(m.transport_url), mask_url(m.database_url))
            for m in mappings
        ]


class CellShow(AdminShow):
    """Show one cell. Passwords are masked.

    Example: superconductor cell show east
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("cell", metavar="CELL", help="name or UUID")

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[tuple[str, ...], Row]:
        database = self.deployment.api_database
        mapping = administration.find_cell(database, parsed_args.cell)
        columns, values = _shown(mapping)
        return (*columns, "hosts"), (*values, database.read(_hosts_per_cell).get(mapping.uuid, 0))


def sync_schema(mapping: CellMapping) -> None:
    """Apply the cell's schema to the database of the mapping. Raises what keeps it from being used."""
    from db import sync  # with it comes alembic, which listing cells does not need

    sync.sync(mapping.database_url, "cell")


def try_out(mapping: CellMapping) -> None:
    """Raise what keeps the database or the bus of the mapping from being used."""
    from cells.registry import RegistrySettings, open_bus, open_database

    cell = Cell(mapping, open_database(mapping), open_bus(mapping), RegistrySettings().bulkhead)
    try:
        _check_database(cell)
        cell.check_bus()
    finally:
        cell.close()


def _check_database(cell: Cell) -> None:
    from db import ready, sync  # with them comes alembic, which listing cells does not need

    ready.judge(cell.database, "cell", cell.read(sync.version, "cell"))


def _hosts_per_cell(tx: Connection) -> dict[str, int]:
    counts: dict[str, int] = {}
    for mapping in host_mappings.list_all(tx):
        counts[mapping.cell_uuid] = counts.get(mapping.cell_uuid, 0) + 1
    return counts


def _shown(mapping: CellMapping) -> tuple[tuple[str, ...], Row]:
    return ("name", "uuid", "state", "transport_url", "database_url"), (
        mapping.name,
        mapping.uuid,
        str(mapping.state),
        mask_url(mapping.transport_url),
        mask_url(mapping.database_url),
    )
