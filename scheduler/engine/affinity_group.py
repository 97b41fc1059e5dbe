"""Find hosts with room for all first members of an affinity group."""

from __future__ import annotations

from collections import Counter

import numpy as np

from objects.decision import FilterCount
from scheduler.engine import engine
from scheduler.engine.capacity import takes
from scheduler.engine.criteria import Criteria
from scheduler.engine.survey import Survey
from scheduler.framework.batch_request import Request
from scheduler.table.arrays import Ints, Mask
from scheduler.table.host_table import HostTable

NAME = "WholeGroup"
REASON = "no room for all members of the affinity group together"


def survey(table: HostTable, driver: Criteria, request: Request, count: int, within: Ints | None = None) -> Survey:
    """Survey hosts for ``count`` instances. For the first members of an affinity group, only hosts that take all of them."""
    found = engine.survey(table, driver, request, within)
    return together(table, driver, request, found, count + request.companions) if request.founding else found


def together(table: HostTable, driver: Criteria, request: Request, found: Survey, count: int) -> Survey:
    """Keep the hosts that take all ``count`` instances; if there is none, the hosts that take the most.

    For the first members of an affinity group, because later members must join them. If no single node takes all, the nodes of
    one host are added up.
    """
    if count < 2:
        return found
    rows = found.rows
    if not rows.size:
        return found
    enough = engine.fits(driver, table, request, rows, count - 1)
    if not enough.any():
        room = takes(table, driver, request, rows, count - 1)
        enough = _roomiest(table, rows, room, count) if table.hosts_have_several_nodes else room == room.max()
    chosen = found if enough.all() else engine.survey(table, driver, request, rows[enough])
    counted = FilterCount(name=NAME, before=rows.size, after=int(np.count_nonzero(enough)), reason=REASON)
    chosen.recount((*found.counts, counted))
    return chosen


def _roomiest(table: HostTable, rows: Ints, room: Ints, count: int) -> Mask:
    """The rows of the hosts that take ``count`` instances, or else the most; ``room``: instances that each of ``rows`` takes."""
    of_host: Counter[str] = Counter()
    for row, amount in zip(rows.tolist(), room.tolist(), strict=True):
        of_host[table.hosts[row].lower()] += amount
    best = min(count, max(of_host.values()))
    return np.array([of_host[table.hosts[row].lower()] >= best for row in rows.tolist()], dtype=np.bool_)
