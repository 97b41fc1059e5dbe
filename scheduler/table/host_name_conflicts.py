"""Hosts of one name in several cells: nobody can tell which of them a server would go to, so it goes to none."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable

LOG = logging.getLogger(__name__)


class HostNameConflicts:
    """When agents were last heard of in cells that are not those of their hosts' rows. Empty, but for mistakes.

    An agent that has stopped, was forced down or is silent for too long does not count any more. Cells are the table's numbers,
    times its clock's seconds.
    """

    def __init__(self) -> None:
        self._reported_at: dict[str, dict[int, float]] = {}
        self._reported: set[str] = set()
        self._since = -math.inf

    def conflicting_hosts(self, hosts: Iterable[str]) -> list[str]:
        """Those of the hosts that agents of other cells were heard of."""
        return [host for host in hosts if host in self._reported_at] if self._reported_at else []

    def add_report(self, host: str, cell: int, at: float) -> None:
        """An agent of this host name was heard of in this cell, which has no row of it."""
        self._reported_at.setdefault(host, {})[cell] = at

    def expire_reports(self, since: float) -> list[str]:
        """Those not heard of since then do not count any more. Returns the names to be judged anew."""
        self._since = since
        names = list(self._reported_at)
        for host in names:
            self._reported_at[host] = {cell: at for cell, at in self._reported_at[host].items() if at > since}
            if not self._reported_at[host]:
                del self._reported_at[host]
        return names

    def update_host(self, host: str, own_cell: int, name: Callable[[int], str]) -> bool:
        """Whether agents of this name report from other cells than ``own_cell``, that of its row; logged when it begins and ends.

        ``name`` tells what a cell is called.
        """
        others = [cell for cell, at in self._reported_at.get(host, {}).items() if cell != own_cell and at > self._since]
        if bool(others) is (host in self._reported):
            return bool(others)
        if others:
            self._reported.add(host)
            cells = " and ".join(sorted({name(cell) for cell in (own_cell, *others) if cell >= 0}))
            LOG.error("host %s reports from cells %s: no server goes there until one agent stops or is renamed", host, cells)
        else:
            self._reported.discard(host)
            LOG.info("host %s reports from one cell again", host)
        return bool(others)
