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
        self._heard: dict[str, dict[int, float]] = {}
        self._reported: set[str] = set()
        self._since = -math.inf

    def among(self, hosts: Iterable[str]) -> list[str]:
        """Those of the hosts that agents of other cells were heard of."""
        return [host for host in hosts if host in self._heard] if self._heard else []

    def add(self, host: str, cell: int, at: float) -> None:
        """An agent of this host name was heard of in this cell, which has no row of it."""
        self._heard.setdefault(host, {})[cell] = at

    def expire(self, since: float) -> list[str]:
        """Those not heard of since then do not count any more. Returns the names to be judged anew."""
        self._since = since
        names = list(self._heard)
        for host in names:
            self._heard[host] = {cell: at for cell, at in self._heard[host].items() if at > since}
            if not self._heard[host]:
                del self._heard[host]
        return names

    def update(self, host: str, own: int, name: Callable[[int], str]) -> bool:
        """Whether agents of this name report from other cells than ``own``, that of its row; logged when it begins and ends.

        ``name`` tells what a cell is called.
        """
        others = [cell for cell, at in self._heard.get(host, {}).items() if cell != own and at > self._since]
        if bool(others) is (host in self._reported):
            return bool(others)
        if others:
            self._reported.add(host)
            cells = " and ".join(sorted({name(cell) for cell in (own, *others) if cell >= 0}))
            LOG.error("host %s reports from cells %s: no server goes there until one agent stops or is renamed", host, cells)
        else:
            self._reported.discard(host)
            LOG.info("host %s reports from one cell again", host)
        return bool(others)
