"""``superconductor cell``: register and show cells."""

from __future__ import annotations

import argparse

from cells import administration
from cells.administration import NewCell
from cli.base import ActionShow, AdminLister, AdminShow, Row, Table
from db import host_mappings
from db.connection import Connection
from objects import errors
from objects.cell import CellMapping
from objects.mask import mask_url


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
            enabled=not parsed_args.disabled,
        )
        prepare = _sync if parsed_args.sync else None
        return _shown(administration.create_cell(self.deployment.api_database, new, prepare))

    def _default_database(self, name: str) -> str:
        if self.deployment.state is None:
            raise errors.Invalid(f"Cell {name!r} needs a database: give --database-connection URL")
        return f"sqlite:///{self.deployment.state / name}.db"

    def _default_transport(self, name: str, cell0: bool) -> str:
        return "" if cell0 or self.deployment.state is None else f"embedded://{name}/"


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


def _sync(mapping: CellMapping) -> None:
    from db import sync  # with it comes alembic, which listing cells does not need

    sync.sync(mapping.database_url, "cell")


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
