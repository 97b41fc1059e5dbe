"""Map hosts to the cell that they report in, when the API level first hears of them."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Sequence

from cells.cell import Cell
from cells.registry import CellRegistry
from db import cell_mappings, host_mappings
from db.connection import Connection
from db.engine import Database
from objects.cell import HostMapping
from service.complaints import Complaints

LOG = logging.getLogger(__name__)


class Newcomers:
    """Hosts of one cell. The first cell that a host name is heard of in keeps it; agents elsewhere are complained of."""

    def __init__(self, api_database: Database, registry: CellRegistry, cell: Cell) -> None:
        self._database = api_database
        self._registry = registry
        self._cell = cell
        self._complaints = Complaints(LOG)

    def __call__(self, hosts: Collection[str]) -> None:
        """These hosts of the cell are not mapped to it, as far as is known. Safe beside others who do the same."""
        new = [HostMapping(host=host, cell_uuid=self._cell.uuid) for host in sorted(hosts) if self._home(host) is None]
        elsewhere = {host for host in hosts if self._home(host) not in (None, self._cell.uuid)}
        if new:
            taken = self._database.write(_add, self._cell.uuid, new)
            if taken is None:
                return
            mapped = [mapping.host for mapping in new if mapping.host not in taken]
            elsewhere |= taken
            if mapped:
                LOG.info("cell %s: %d hosts mapped: %s", self._cell.name, len(mapped), _some(mapped))
        if elsewhere:
            text = "cell %s: hosts report there that are mapped to other cells: %s; see 'superconductor host list'"
            self._complaints(self._cell.name, logging.ERROR, text, self._cell.name, _some(sorted(elsewhere)))

    def _home(self, host: str) -> str | None:
        return self._registry.home_of(host)


def _add(tx: Connection, cell_uuid: str, new: Sequence[HostMapping]) -> set[str] | None:
    """Map them; return those that another cell has. None: the cell was removed a moment ago, and gets no hosts any more."""
    if not cell_mappings.hold(tx, cell_uuid):
        return None
    return {mapping.host for mapping in host_mappings.add(tx, new, time.time())}


def _some(hosts: Collection[str]) -> str:
    named = list(hosts)[:10]
    return ", ".join(named) + (f" and {len(hosts) - len(named)} more" if len(hosts) > len(named) else "")
