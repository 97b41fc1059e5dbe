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


def remedies(
    table: HostTable,
    driver: SchedulerDriver,
    request: Request,
    wanted: int,
    least: int | None = None,
    flavors: Sequence[Flavor] = (),
) -> Remedies:
    """What would have placed all ``wanted`` instances.

    ``least``: the number of instances that is enough (``min_count``); None: all ``wanted``. ``flavors``: those that the project may
    use, the largest first. Pairs and the flavor are looked for if tenants are told of no single change.

    The table must be as the refusal left it, and is not changed.
    """
    try:
        single = ChangeSearch(table, driver, request, wanted, least or wanted)
        found = single.all()
        if found is None:
            return Remedies(())
        if any(one.is_for_tenants for one in found):
            return Remedies(found)
        pairs = PairSearch(table, driver, single, wanted)
        smallest = None if found else pairs.smallest(for_tenants=False)
        told = smallest
        if found or (smallest is not None and not smallest.is_for_tenants):
            told = pairs.smallest(for_tenants=True)
        largest = largest_flavor(table, driver, single, flavors)
        both = tuple(pair for pair in dict.fromkeys((smallest, told)) if pair is not None)
        return Remedies(found, both, largest.name if largest is not None else "")
    except Exception:  # a site's own filter may fail on a request that no user made; the refusal is valid without remedies
        LOG.exception("batch %s: could not compute what would have been enough", request.spec.batch_id)
        return UNEXAMINED
