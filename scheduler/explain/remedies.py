"""What would have been enough for a refused request: one change, two together, or another flavor."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from objects.flavor import Flavor
from scheduler.engine.driver import SchedulerDriver
from scheduler.engine.job import UNEXAMINED, Remedies
from scheduler.explain.counterfactual import ChangeSearch
from scheduler.explain.largest_flavor import largest_flavor
from scheduler.explain.pairs import PairSearch
from scheduler.framework.batch_request import Request
from scheduler.table.host_table import HostTable

LOG = logging.getLogger(__name__)


def find_remedies(
    table: HostTable,
    driver: SchedulerDriver,
    request: Request,
    needed_count: int,
    least: int | None = None,
    flavors: Sequence[Flavor] = (),
) -> Remedies:
    """What would have placed all ``needed_count`` instances.

    ``least``: the number of instances that is enough (``min_count``); None: all ``needed_count``. ``flavors``: those that the
    project may use, the largest first. Pairs and the flavor are looked for if tenants are told of no single change.

    The table must be as the refusal left it, and is not changed.
    """
    try:
        single = ChangeSearch(table, driver, request, needed_count, least or needed_count)
        changes = single.all_changes()
        if changes is None:
            return Remedies(())
        if any(one.is_for_tenants for one in changes):
            return Remedies(changes)
        pairs = PairSearch(table, driver, single, needed_count)
        smallest = None if changes else pairs.smallest_pair(for_tenants=False)
        tenant_pair = smallest
        if changes or (smallest is not None and not smallest.is_for_tenants):
            tenant_pair = pairs.smallest_pair(for_tenants=True)
        largest = largest_flavor(table, driver, single, flavors)
        both = tuple(pair for pair in dict.fromkeys((smallest, tenant_pair)) if pair is not None)
        return Remedies(changes, both, largest.name if largest is not None else "")
    except Exception:  # a site's own filter may fail on a request that no user made; the refusal is valid without remedies
        LOG.exception("batch %s: could not compute what would have been enough", request.spec.batch_id)
        return UNEXAMINED
