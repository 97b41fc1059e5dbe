"""Map hosts to the cell that they report in, when the API level first hears of them.

What tells of a host was read before it is mapped, and an operator may have deleted the host since. Who deletes a host has its cell
forget it first and its mapping last (``db/api/host_removal.py``). So the cell is asked once more after the host was mapped: if it
still knows the host, a delete that comes finds the mapping; if not, the mapping is taken back.
"""

from __future__ import annotations

import logging
from collections.abc import Collection

from cells.cell import Cell
from cells.discovery import AGENT
from cells.registry import CellRegistry
from db.api import cell_mappings, host_mappings
from db.cell import compute_nodes, services
from db.sql.connection import ApiTransaction
from db.sql.engine import ApiDatabase
from objects import errors
from objects.cell import HostMapping
from service.rate_limited_log import RateLimitedLog

LOG = logging.getLogger(__name__)


class Newcomers:
    """Hosts of one cell. The first cell that a host name is heard of in keeps it; agents elsewhere are complained of."""

    def __init__(self, api_database: ApiDatabase, registry: CellRegistry, cell: Cell, *, identified_only: bool = False) -> None:
        """``identified_only``: leave hosts whose agents share a broker user to an operator."""
        self._identified_only = identified_only
        self._database = api_database
        self._registry = registry
        self._cell = cell
        self._complaints = RateLimitedLog(LOG)

    def __call__(self, hosts: Collection[str]) -> None:
        """These hosts of the cell are not mapped to it, as far as is known. Safe beside others who do the same.

        Raises CellUnavailable where the cell cannot be asked whether it still knows them: they are mapped when it tells again.
        """
        new = {host for host in hosts if self._home(host) is None}
        elsewhere = {host for host in hosts if self._home(host) not in (None, self._cell.uuid)}
        if new and self._identified_only:
            new = self._identified(new)
        if new:
            now = self._database.now()
            taken = self._database.write(_add, self._cell.uuid, new, now)
            if taken is None:
                return
            mapped = new - taken
            elsewhere |= taken
            gone = self._take_back_unknown(mapped, now)
            if staying := sorted(mapped - gone):
                LOG.info("cell %s: %d hosts mapped: %s", self._cell.name, len(staying), _some(staying))
        if elsewhere:
            text = "cell %s: hosts report there that are mapped to other cells: %s; see 'superconductor host list'"
            self._complaints(self._cell.name, logging.ERROR, text, self._cell.name, _some(sorted(elsewhere)))

    def _identified(self, hosts: Collection[str]) -> set[str]:
        shown = self._cell.read(services.identified, AGENT, hosts)
        if unshown := sorted(set(hosts) - shown):
            text = "cell %s: hosts of a shared broker user are not mapped: %s; 'superconductor host discover' maps them, and %s"
            advice = "'superconductor host user HOST' says how to give them broker users"
            self._complaints(f"{self._cell.name}: unshown", logging.WARNING, text, self._cell.name, _some(unshown), advice)
        return shown

    def _take_back_unknown(self, mapped: Collection[str], now: float) -> set[str]:
        """Of the hosts that were mapped just now, those that were deleted meanwhile: their mappings go as they came."""
        try:
            gone = set(mapped) - self._cell.read(compute_nodes.known, mapped)
        except errors.CellUnavailable:
            self._database.write(host_mappings.take_back, self._cell.uuid, mapped, now)
            raise
        if gone:
            self._database.write(host_mappings.take_back, self._cell.uuid, gone, now)
            LOG.info("cell %s: %d hosts are not mapped, as they were deleted: %s", self._cell.name, len(gone), _some(sorted(gone)))
        return gone

    def _home(self, host: str) -> str | None:
        return self._registry.home_of(host)


def _add(tx: ApiTransaction, cell_uuid: str, hosts: Collection[str], now: float) -> set[str] | None:
    """Map them; return those that another cell has. None: the cell was removed a moment ago, and gets no hosts any more."""
    if not cell_mappings.hold(tx, cell_uuid):
        return None
    new = [HostMapping(host=host, cell_uuid=cell_uuid) for host in sorted(hosts)]
    return {mapping.host for mapping in host_mappings.add(tx, new, now)}


def _some(hosts: Collection[str]) -> str:
    named = list(hosts)[:10]
    return ", ".join(named) + (f" and {len(hosts) - len(named)} more" if len(hosts) > len(named) else "")
