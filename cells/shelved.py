"""Servers that were shelved after the backup of a restored API database: their cells remember the snapshots.

A server is shelved again if its body is a tombstone, its last task was a snapshot, and the image store has that
(``docs/decisions/0068-a-cell-remembers-what-was-shelved.md``). Everything may be repeated. Everything raises CellUnavailable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from cells.addresses_in_use import settle_contested
from cells.cell import Cell
from cells.instance_mapping import adopt_rows
from db.api.claims import claim_repair
from db.api.claims.claims import Ledger
from db.api.reconcile import operation_repair
from db.api.servers import addresses, mappings
from db.audit import cell_rows, servers
from db.audit.servers import Record
from images.store import FolderStore

PAGE_SIZE = 500
"""Tombstones read at once."""


def adopt_shelved(ledger: Ledger, cell: Cell, images: FolderStore) -> int:
    """Adopt tombstones of shelved servers that the API database has no record of; returns how many.

    Raises ServiceUnavailable if the image store does not answer.
    """
    return sum(
        len(adopt_rows(ledger, cell, uuids)) for uuids in _pages_of_saved(ledger, cell, images, lambda record: record is None)
    )


def shelve_again(ledger: Ledger, cell: Cell, images: FolderStore, cells: Mapping[str, Cell]) -> None:
    """Shelve the servers again whose bodies in this cell were shelved. Raises as ``adopt_shelved``.

    ``cells``: as of ``shelve_servers``.
    """

    def is_live(record: Record | None) -> bool:
        return record is not None and record.cell_uuid == cell.uuid and not record.deleted and not record.hidden

    for uuids in _pages_of_saved(ledger, cell, images, is_live):
        shelve_servers(ledger, cell, uuids, cells)


def _pages_of_saved(
    ledger: Ledger, cell: Cell, images: FolderStore, concerns: Callable[[Record | None], bool]
) -> Iterator[list[str]]:
    """Pages of tombstones whose snapshots are in the image store, of those whose records ``concerns`` chooses."""
    after = ""
    while snapshots := cell.read(cell_rows.shelved_after, after, PAGE_SIZE):
        after = [*snapshots][-1]
        _, records = ledger.database.read(servers.read_records, list(snapshots))
        chosen = {uuid: snapshot for uuid, snapshot in snapshots.items() if concerns(records.get(uuid))}
        if saved := [uuid for uuid, snapshot in chosen.items() if images.has_snapshot(snapshot.image_id)]:
            yield saved


def shelve_servers(ledger: Ledger, cell: Cell, uuids: Sequence[str], cells: Mapping[str, Cell]) -> None:
    """Shelve the servers that are these bodies, with the addresses that their guests had.

    The caller has seen that the image store has the snapshots of these tombstones. ``cells``: those that answer, by uuid.
    """
    database = ledger.database
    snapshots, ports = cell.read(cell_rows.snapshots_of, uuids), cell.read(cell_rows.ports_by_row, uuids)
    done = [
        uuid for uuid in snapshots if ledger.write(operation_repair.shelve_again, uuid, snapshots[uuid], database.current_time())
    ]
    if done:
        database.write(mappings.confirm_deletes, done, database.current_time())
        ledger.write(claim_repair.release_orphans, done)
        known = {server.body_uuid: server.uuid for server in database.read(mappings.of_bodies, done)}
        ports_by_server = {known[body]: ports[body] for body in done if body in ports and body in known}
        settle_contested(database, cells, database.write(addresses.take_back, ports_by_server, database.current_time()))
