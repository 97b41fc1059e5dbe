"""``superconductor cell``: show cells, and how they are."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from math import inf
from typing import TYPE_CHECKING

from cells import administration
from cli.fleet.cell import STATUSES, show_cell
from cli.shared.base import AdminLister, AdminShow, Row, Table, at_least
from cli.shared.deployment import Deployment
from db.api.deployment import host_mappings, silences
from db.sql.connection import ApiTransaction
from objects import errors
from objects.cell import CellMapping
from objects.mask import mask_url

if TYPE_CHECKING:  # what it imports is not needed for listing cells
    from cells.health import Answer, Health
    from db.sql.engine import ApiDatabase


class CellList(AdminLister):
    """List the cells; with -v also where their databases and buses are. Passwords are masked.

    With --health every cell is asked, all at the same time: whether its database and its bus answer, and after how many
    milliseconds, its schema, its hosts that were heard of in the last --down-after seconds. "Since" is when a part was first found
    not to answer, as the conductors have noted and the API, where that can be asked, tells. Exit status 1 if a cell is not well.

    Examples:
      superconductor -v cell list -f json
      superconductor cell list --health
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--health", action="store_true", help="ask every cell for its health")
        parser.add_argument("--down-after", metavar="SECONDS", type=partial(at_least, 1), default=60, help="default: 60")
        parser.add_argument("--endpoint", metavar="URL", help="where the API is (default: as for 'status')")

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        if parsed_args.health:
            return self._health_table(parsed_args)
        database = self.deployment.api_database
        counts = database.read(_hosts_per_cell)
        mappings = administration.list_cells(database)
        if not self.is_verbose:
            return ("Name", "UUID", "State", "Hosts"), [(m.name, m.uuid, str(m.state), counts.get(m.uuid, 0)) for m in mappings]
        return ("Name", "UUID", "State", "Hosts", "Transport URL", "Database URL"), [
            (m.name, m.uuid, str(m.state), counts.get(m.uuid, 0), mask_url(m.transport_url), mask_url(m.database_url))
            for m in mappings
        ]

    def _health_table(self, parsed_args: argparse.Namespace) -> Table:
        from cells import health

        mappings = administration.list_cells(self.deployment.api_database)
        health_by_cell = ask_cells(self.deployment, mappings, parsed_args.down_after)
        sick = {uuid for uuid, cell_health in health_by_cell.items() if not cell_health.is_well}
        self.status = int(bool(sick))
        since = _known_since(self.deployment.api_database, parsed_args.endpoint or self.deployment.api_endpoint) if sick else {}
        rows: list[Row] = []
        for mapping in mappings:
            cell_health = health_by_cell[mapping.uuid]
            bus = cell_health.bus or health.Answer()
            at = since.get(mapping.uuid) or cell_health.since if mapping.uuid in sick else None
            rows.append(
                (
                    *(
                        mapping.name,
                        str(mapping.state),
                        cell_health.database.trouble or "ok",
                        _to_milliseconds(cell_health.database),
                        cell_health.schema,
                    ),
                    *(bus.trouble or ("ok" if cell_health.bus else ""), _to_milliseconds(bus)),
                    *(None if at is None else datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),),
                    *(cell_health.hosts_up, cell_health.hosts),
                )
            )
        columns = ("Name", "State", "Database", "Database ms", "Schema", "Bus", "Bus ms", "Since", "Hosts Up", "Hosts")
        return columns, rows


class CellShow(AdminShow):
    """Show one cell. Passwords are masked.

    Example: superconductor cell show east
    """

    statuses = STATUSES

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("cell", metavar="CELL", help="name or UUID")

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[tuple[str, ...], Row]:
        database = self.deployment.api_database
        mapping = administration.find_cell(database, parsed_args.cell)
        columns, values = show_cell(mapping)
        return (*columns, "hosts"), (*values, database.read(_hosts_per_cell).get(mapping.uuid, 0))


class CellCheck(AdminLister):
    """Try the databases and the buses of cells, all at the same time. Exit status 1 if one of them cannot be used.

    Example: superconductor cell check east
    """

    statuses = STATUSES

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("cells", metavar="CELL", nargs="*", help="name or UUID; all if none is given")

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        database = self.deployment.api_database
        named_cells = [administration.find_cell(database, cell) for cell in parsed_args.cells]
        mappings = named_cells or administration.list_cells(database)
        health_by_cell = ask_cells(self.deployment, mappings)
        self.status = int(not all(cell_health.is_well for cell_health in health_by_cell.values()))
        return ("Cell", "Database", "Bus"), [(mapping.name, *_answer_texts(health_by_cell[mapping.uuid])) for mapping in mappings]


def ask_cells(deployment: Deployment, mappings: Sequence[CellMapping], down_after: float = 60.0) -> Mapping[str, Health]:
    """The health of each of these cells, by its uuid. One whose URL cannot be used is not well either."""
    from cells import health
    from cells.registry import CellRegistry

    registry = CellRegistry(deployment.api_database, deployment.registry_settings)
    health_by_cell: dict[str, Health] = {}
    try:
        cells = []
        for mapping in mappings:
            try:
                cells.append(registry.get(mapping.uuid))
            except (errors.CellUnavailable, errors.NotFound) as error:
                health_by_cell[mapping.uuid] = health.Health(database=health.Answer(trouble=str(error)), bus=None)
        health_by_cell |= {
            cell.uuid: cell_health for cell, cell_health in zip(cells, health.look_at_cells(cells, down_after), strict=True)
        }
    finally:
        registry.close()
    return health_by_cell


def _answer_texts(health: Health) -> tuple[str, str]:
    return health.database.trouble or "ok", "" if health.bus is None else health.bus.trouble or "ok"


def _to_milliseconds(answer: Answer) -> float | None:
    return None if answer.seconds is None else round(answer.seconds * 1000, 1)


def _known_since(database: ApiDatabase, endpoint: str) -> dict[str, float]:
    """By who asks for longer than this command: the conductors, who note it of databases, and the API, where that can be asked."""
    from cli.shared.http import read_views

    seen = {uuid: view["silent_since"] for uuid, view in read_views(endpoint).items() if view.get("silent_since") is not None}
    noted = {silence.cell_uuid: silence.since for silence in database.read(silences.read)}
    return {uuid: min(since.get(uuid, inf) for since in (seen, noted)) for uuid in seen | noted}


def _hosts_per_cell(tx: ApiTransaction) -> dict[str, int]:
    counts: dict[str, int] = {}
    for mapping in host_mappings.list_all(tx):
        counts[mapping.cell_uuid] = counts.get(mapping.cell_uuid, 0) + 1
    return counts
