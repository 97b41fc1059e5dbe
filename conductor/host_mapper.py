"""Map hosts to the cell that they report in, when the API level first hears of them.

An operator may delete a host between its report and its mapping. A delete removes the host from its cell first, and its mapping
last (``db/api/deployment/host_removal.py``). So the cell is asked again after the host was mapped. If it still knows the host, a
later delete finds the mapping; if not, the mapping is removed again.
"""

from __future__ import annotations

import logging
from collections.abc import Collection

from cells.cell import Cell
from cells.registry import CellRegistry
from db.api.deployment import cell_mappings, host_mappings
from db.cell import compute_nodes, services
from db.sql.connection import ApiTransaction
from db.sql.engine import ApiDatabase
from objects import errors
from objects.cell import HostMapping
from objects.process import AGENT_BINARY
from service.rate_limited_log import RateLimitedLog

LOG = logging.getLogger(__name__)


class HostMapper:
    """Maps new hosts of one cell. The first cell that reports a host name keeps it; agents in other cells are logged as errors."""

    def __init__(self, api_database: ApiDatabase, registry: CellRegistry, cell: Cell, *, identified_only: bool = False) -> None:
        """``identified_only``: do not map hosts whose agents share a broker user; an operator must map them."""
        self._identified_only = identified_only
        self._database = api_database
        self._registry = registry
        self._cell = cell
        self._complaints = RateLimitedLog(LOG)

    def map_new(self, hosts: Collection[str]) -> None:
        """Map these hosts of the cell, which are not known to be mapped to it. Safe to run concurrently.

        Raises CellUnavailable if the cell cannot be asked whether it still knows them: they are mapped when it reports them again.
        """
        new = {host for host in hosts if self._home_of(host) is None}
        elsewhere = {host for host in hosts if self._home_of(host) not in (None, self._cell.uuid)}
        if new and self._identified_only:
            new = self._identified_hosts(new)
        if new:
            now = self._database.current_time()
            taken = self._database.write(_add_mappings, self._cell.uuid, new, now)
            if taken is None:
                return
            mapped = new - taken
            elsewhere |= taken
            gone = self._take_back_unknown(mapped, now)
            if staying := sorted(mapped - gone):
                LOG.info("cell %s: %d hosts mapped: %s", self._cell.name, len(staying), _first_names(staying))
        if elsewhere:
            text = "cell %s: hosts report there that are mapped to other cells: %s; see 'superconductor host list'"
            self._complaints(self._cell.name, logging.ERROR, text, self._cell.name, _first_names(sorted(elsewhere)))

    def _identified_hosts(self, hosts: Collection[str]) -> set[str]:
        shown = self._cell.read(services.list_identified, AGENT_BINARY, hosts)
        if unshown := sorted(set(hosts) - shown):
            text = "cell %s: hosts of a shared broker user are not mapped: %s; 'superconductor host discover' maps them, and %s"
            advice = "'superconductor host user HOST' says how to give them broker users"
            self._complaints(f"{self._cell.name}: unshown", logging.WARNING, text, self._cell.name, _first_names(unshown), advice)
        return shown

    def _take_back_unknown(self, mapped: Collection[str], now: float) -> set[str]:
        """Remove the mappings of those just mapped hosts that were deleted meanwhile; return these.

        Raises CellUnavailable, after removing all of these mappings.
        """
        try:
            gone = set(mapped) - self._cell.read(compute_nodes.list_known, mapped)
        except errors.CellUnavailable:
            self._database.write(host_mappings.take_back, self._cell.uuid, mapped, now)
            raise
        if gone:
            self._database.write(host_mappings.take_back, self._cell.uuid, gone, now)
            LOG.info(
                "cell %s: %d hosts are not mapped, as they were deleted: %s", self._cell.name, len(gone), _first_names(sorted(gone))
            )
        return gone

    def _home_of(self, host: str) -> str | None:
        return self._registry.home_of(host)


def _add_mappings(tx: ApiTransaction, cell_uuid: str, hosts: Collection[str], now: float) -> set[str] | None:
    """Map them; return those that are mapped to another cell. None: the cell was just removed, and nothing is mapped."""
    if not cell_mappings.lock_cell(tx, cell_uuid):
        return None
    new = [HostMapping(host=host, cell_uuid=cell_uuid) for host in sorted(hosts)]
    return {mapping.host for mapping in host_mappings.add_mappings(tx, new, now)}


def _first_names(hosts: Collection[str]) -> str:
    named = list(hosts)[:10]
    return ", ".join(named) + (f" and {len(hosts) - len(named)} more" if len(hosts) > len(named) else "")
