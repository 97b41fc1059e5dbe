"""``superconductor instance``: map instances of a cell, and say of one whether it is where it is mapped."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from typing import Any

from cells import administration
from cells.cell import Cell
from cells.instance_mapping import map_instances
from cli.shared.base import ActionShow, at_least
from db.api.claims.claims import Ledger
from db.api.servers import mappings
from db.audit import cell_rows, servers
from db.audit.servers import Record
from objects import errors
from objects.cell import CELL0_UUID
from objects.instance import State
from objects.instance_row import InstanceRow

EXIT_MORE, EXIT_STUCK = 1, 3
"""Exit status of ``map``: run it again; there is something that running it again does not change."""

FINE, UNMAPPED, NO_CELL, DELETED, NO_ROW, UNKNOWN, DISAGREES = range(7)
"""Exit status of ``verify``."""


class InstanceMap(ActionShow):
    """Map the instances of a cell's database that the API database does not know, as after a restore of the API database.

    Each gets its mapping, request spec, quota and claim back. Instances that are mapped, deleted, or were never handed over to the
    cell are not changed. An instance that is also in another cell is named on standard error and not changed.

    Exit status: 0 done; 1 more is left, run it again; 3 an operator has to decide, or a cell did not answer.

    Example: superconductor instance map east --max-count 1000
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("cell", metavar="CELL", help="name or UUID")
        parser.add_argument("--max-count", metavar="N", type=partial(at_least, 1), help="map at most this many (default: all)")

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Sequence[Any]]:
        registry, database = self.deployment.cell_registry, self.deployment.api_database
        try:
            cell = registry.get(administration.find_cell(database, parsed_args.cell).uuid)
            done = map_instances(registry, Ledger(database, "instance map"), cell, parsed_args.max_count)
        except errors.SuperconductorError as error:
            self.status = EXIT_STUCK
            self.warn_user(str(error))
            return ("Mapped", "More"), (None, None)
        for refused in done.refused:
            self.warn_user(f"{refused}: delete the copy that is wrong, then run this again")
        self.status = EXIT_MORE if done.more else EXIT_STUCK if done.refused else 0
        return ("Mapped", "More"), (done.mapped, "yes" if done.more else "no")


class InstanceVerify(ActionShow):
    """Check whether an instance is in the cell that it is mapped to, with its claim.

    Exit status: 0 it is; 1 it has no mapping; 2 it is mapped to no cell, as it is being built or was deleted before; 3 it is
    deleted and still mapped; 4 its cell has no row of it any more; 5 its cell cannot be asked; 6 it is there, but inconsistent:
    'superconductor verify' shows how, and repairs it.

    Example: superconductor instance verify 6f70656e-7374-4163-8b21-0123456789ab
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("uuid", metavar="UUID", help="UUID of the instance")

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Sequence[Any]]:
        database = self.deployment.api_database
        server = database.read(mappings.get, parsed_args.uuid)
        uuid = parsed_args.uuid if server is None else server.body_uuid  # a server that was moved is another body now
        record = database.read(servers.read_records, [uuid])[1].get(uuid)
        if record is None:
            return self._verdict_row(UNMAPPED, "has no mapping", uuid)
        if record.cell_uuid is None:
            return self._verdict_row(NO_CELL, f"is mapped to no cell: {_without_cell(record)}", uuid)
        try:
            cell = self.deployment.cell_registry.get(record.cell_uuid)
            row = cell.read(cell_rows.read_rows, [uuid]).rows.get(uuid)
        except (errors.CellUnavailable, errors.NotFound) as error:
            return self._verdict_row(UNKNOWN, f"cannot be checked: {error}", uuid)
        if row is None:
            return self._verdict_row(NO_ROW, f"is mapped to cell '{cell.name}', which has no row of it", uuid, cell)
        if record.deleted:
            return self._verdict_row(DELETED, f"is deleted, and still mapped to cell '{cell.name}'", uuid, cell, row)
        if wrong := _list_disagreements(record, row):
            return self._verdict_row(DISAGREES, "; ".join(wrong), uuid, cell, row)
        return self._verdict_row(FINE, f"is in cell '{cell.name}'", uuid, cell, row)

    def _verdict_row(
        self, status: int, verdict: str, uuid: str, cell: Cell | None = None, row: InstanceRow | None = None
    ) -> tuple[Sequence[str], Sequence[Any]]:
        self.status = status
        values = (cell.name if cell else None, str(row.state) if row else None, row.host if row else None)
        return ("ID", "Verdict", "Cell", "State", "Host"), (uuid, verdict, *values)


def _without_cell(record: Record) -> str:
    if record.deleted:
        return "deleted before it had a cell"
    if record.state == "shelved":
        return "it is shelved"
    return "being built" if record.requested else "not queued"


def _list_disagreements(record: Record, row: InstanceRow) -> list[str]:
    """What should agree where nothing is on its way. What changes at this moment may be told: then look again."""
    if row.state is State.DELETED:
        return ["is deleted in its cell, and not at the API level"]
    if row.state in (State.STAGED, State.ERROR, State.DELETING) or record.cell_uuid == CELL0_UUID:
        return []
    if record.claim is None:
        return ["is in its cell, and nothing is claimed for it"]
    if (record.claim.host, record.claim.node) != (row.host, row.node):
        return [f"is on host {row.host}, and claimed for on host {record.claim.host}"]
    return []
