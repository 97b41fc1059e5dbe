"""Survey the hosts for a request: the one entry to the cache of surveys, to slow filters and to the rule of affinity groups."""

from __future__ import annotations

from collections import Counter

import numpy as np

from objects.decision import FilterCount
from scheduler.engine import engine
from scheduler.engine.capacity import count_takes
from scheduler.engine.criteria import Criteria
from scheduler.engine.survey import AskedSingly, FleetSurvey, Survey, weigh_hosts
from scheduler.framework.batch_request import Request
from scheduler.framework.hosts import Hosts
from scheduler.table.arrays import Ints, Mask
from scheduler.table.host_table import HostTable

NAME = "WholeGroup"
REASON = "no room for all members of the affinity group together"
SPARSE_DIVISOR = 2
"""If fewer than one in this many hosts pass the filters, only these are copied and weighed."""


def survey(table: HostTable, driver: Criteria, request: Request, count: int = 1, *, within: Ints | None = None) -> Survey:
    """Filter and weigh the fleet, or the rows ``within``, for ``count`` instances. A kept survey of the fleet spares the pass.

    The first members of an affinity group get only hosts that take all of them, because later members must join them. The survey
    asks the filters of one host at a time later, best host first.
    """
    surveyed = survey_singly(table, driver, request, within)
    return _for_whole_group(table, driver, request, surveyed, count + request.companions) if request.founds_group else surveyed


def survey_singly(table: HostTable, driver: Criteria, request: Request, within: Ints | None = None) -> Survey:
    """The same for each instance by itself.

    A pass weighs all hosts if most pass the filters, and ignores the others: that is cheaper than copying those that passed.
    """
    chain = driver.chain_for(request)
    surveyed = driver.shapes.cached_survey(table, chain, request, shuffle=driver.shuffle) if within is None else None
    if surveyed is None:
        hosts = Hosts(table, request, within)
        mask, counts = engine.narrow_hosts(chain.at_once, hosts, request)
        passing: Mask | None = mask
        if (counts[-1].after if counts else mask.size) * SPARSE_DIVISOR < mask.size:
            rows: Ints = mask.nonzero()[0]
            hosts, passing = Hosts(table, request, rows if within is None else within[rows]), None
        scores, parts = weigh_hosts(chain.weighers, hosts, request, passing)
        surveyed = FleetSurvey(hosts, passing, scores, parts, counts, request.seed if driver.shuffle else None)
    return AskedSingly(surveyed, table, request, chain.singly) if chain.singly else surveyed


def _for_whole_group(table: HostTable, driver: Criteria, request: Request, surveyed: Survey, count: int) -> Survey:
    """Keep the hosts that take all ``count`` instances; if there is none, the hosts that take the most.

    If no single node takes all, the nodes of one host are added up.
    """
    rows = surveyed.passing_rows
    if count < 2 or not rows.size:
        return surveyed
    enough = engine.fitting_rows(driver, table, request, rows, count - 1)
    if not enough.any():
        room = count_takes(table, driver, request, rows, count - 1)
        enough = _roomiest_hosts(table, rows, room, count) if table.hosts_have_several_nodes else room == room.max()
    chosen = surveyed if enough.all() else survey_singly(table, driver, request, rows[enough])
    counted = FilterCount(name=NAME, before=rows.size, after=int(np.count_nonzero(enough)), reason=REASON)
    chosen.filter_counts = (*surveyed.filter_counts, counted)
    return chosen


def _roomiest_hosts(table: HostTable, rows: Ints, room: Ints, count: int) -> Mask:
    """The rows of the hosts that take ``count`` instances, or else the most; ``room``: instances that each of ``rows`` takes."""
    of_host: Counter[str] = Counter()
    for row, amount in zip(rows.tolist(), room.tolist(), strict=True):
        of_host[table.hosts[row].lower()] += amount
    best = min(count, max(of_host.values()))
    return np.array([of_host[table.hosts[row].lower()] >= best for row in rows.tolist()], dtype=np.bool_)
