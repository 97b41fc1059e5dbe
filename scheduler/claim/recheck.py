"""Check whether hosts still take servers that have claims on them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from objects.group import GroupPolicy
from objects.inventory import Slot
from scheduler.engine import engine
from scheduler.engine.criteria import Criteria
from scheduler.engine.job import Job, PlanContext
from scheduler.framework.filter import Filter
from scheduler.framework.hosts import Hosts
from scheduler.framework.members import NOBODY, Members
from scheduler.table.host_table import HostTable


def refusal_of_image(table: HostTable, driver: Criteria, moment: PlanContext, job: Job, inventory: int) -> str | None:
    """Why a host does not run the image of the job's spec; empty if it does. None: the host is not in the table.

    Needs the table's lock. The instance is on the host and keeps its claim, so only the filters that read images run, and of those
    none that counts amounts.
    """
    row = table.find_inventory(inventory)
    if row is None:
        return None
    request = job.make_request(table, moment)
    hosts = Hosts(table, request, np.array([row]), -1)
    mask, counts = engine.narrow_hosts([one for one in driver.filters if _judges_image(one)], hosts, request)
    return "" if mask[0] else counts[-1].reason


def _judges_image(one: Filter) -> bool:
    reads = one.reads if one.reads is not None else one.applies_when
    return "image" in reads and "amounts" not in reads


def refusing_hosts(
    table: HostTable,
    driver: Criteria,
    moment: PlanContext,
    job: Job,
    claimed: Sequence[tuple[str, int, str]],
    slots: Sequence[Slot],
) -> tuple[str, ...]:
    """The hosts that would not be chosen for the job's instances now, in order. Needs the table's lock.

    A host counts without the claim that is asked about: all filters run, those of amounts and of groups too.

    ``claimed``: uuid, inventory and host of each instance that has a claim. ``slots``: of the job's group.
    """
    request, group = job.make_request(table, moment), job.spec.group
    if group is not None and group.policy is not GroupPolicy.AFFINITY:  # members of an affinity group have their host already
        own_uuids = {uuid for uuid, _, _ in claimed}
        request.members = Members(slots).view_without([slot for slot in slots if slot.instance_uuid in own_uuids])
    refusing: dict[str, None] = {}
    for _, inventory, host in claimed:
        if host in refusing:
            continue
        row, before = table.find_inventory(inventory), request.members.undo_mark
        if request.members is not NOBODY:
            request.members.add_member(host, job.spec.fault_domain)
        if row is None or not engine.fitting_rows(driver, table, request, np.array([row]), -1)[0]:
            refusing[host] = None
            request.members.give_back(before)
    return tuple(refusing)
