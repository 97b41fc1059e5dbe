"""Claim the addresses that guests have and a restored API database does not know of, before anybody is given one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from cells.cell import Cell
from db.api.servers import addresses, mappings
from db.api.servers.addresses import Contested
from db.api.servers.mappings import ServerQuery
from db.audit import cell_rows
from db.sql.engine import ApiDatabase
from objects.port import Port

PAGE_SIZE = 100
"""Rows whose addresses are claimed in one transaction."""


def claim_in_use(database: ApiDatabase, cells: Sequence[Cell]) -> list[str]:
    """Claim what these cells' rows have for their servers; returns what two servers' guests have, each as a text.

    An address that the API database gave to another server is taken from it if that server's row does not have it: the cells are
    newer than the backup. May be repeated. Raises CellUnavailable.
    """
    contested: list[Contested] = []
    for cell in cells:
        after = ""
        while uuids := cell.read(cell_rows.with_ports_after, after, PAGE_SIZE):
            after = uuids[-1]
            in_use = cell.read(cell_rows.ports_by_row, uuids)
            servers = {server.body_uuid: server.uuid for server in database.read(mappings.of_bodies, in_use)}
            ports_by_server = {servers[body]: ports for body, ports in in_use.items() if body in servers}
            contested += database.write(addresses.take_back, ports_by_server, database.current_time())
    return settle_contested(database, {cell.uuid: cell for cell in cells}, contested)


def settle_contested(database: ApiDatabase, cells: Mapping[str, Cell], contested: Iterable[Contested]) -> list[str]:
    """Give each address to the server whose guest has it; returns what cannot be decided by these cells.

    Raises CellUnavailable.
    """
    undecided = []
    for contest in contested:
        if _may_have(database, cells, contest):
            undecided.append(
                f"{contest.address} belongs to server {contest.holder}, and the guest of server {contest.server} has it too"
            )
        else:
            database.write(addresses.move_contested, contest)
    return undecided


def _may_have(database: ApiDatabase, cells: Mapping[str, Cell], contested: Contested) -> bool:
    """Whether the guest of the holder may have the address: its row says so, or its cell is not among these."""
    for server in database.read(mappings.list_, ServerQuery(uuids=(contested.holder,), limit=1)):
        if server.cell_uuid is None:
            continue
        cell = cells.get(server.cell_uuid)
        if cell is None:
            return True
        if cell.read(cell_rows.with_ports, [server.body_uuid]):
            ports = cell.read(cell_rows.ports_by_row, [server.body_uuid]).get(server.body_uuid, ())
            if (contested.network_uuid, contested.address) in _addresses_of(ports):
                return True
    return False


def _addresses_of(ports: Iterable[Port]) -> set[tuple[str, str]]:
    return {(port.network_id, fixed.address) for port in ports for fixed in port.addresses}
