"""Affinity groups as wholes, while others race for the same hosts."""

from __future__ import annotations

import threading
from collections import defaultdict

from objects import errors
from objects.group import GroupPolicy
from objects.spec import RequestSpec
from scheduler.manager import SchedulerManager
from tests.support import fleet
from tests.support.deciding import site_fixture
from tests.support.fleet import CONTEXT, Site
from tests.support.threads import run_threads

HOSTS, ROOM, MEMBERS = 6, 6, 4


site = site_fixture(lambda: [fleet.node(f"h{n}", vcpus=ROOM) for n in range(HOSTS)])


def ask(scheduler: SchedulerManager, asked: RequestSpec) -> None:
    for _ in range(30):
        try:
            scheduler.select_destinations(CONTEXT, asked, list(asked.fences))
        except errors.Conflict:
            continue
        except errors.NoValidHost:
            pass
        return


def test_two_schedulers_place_groups_all_or_nothing(site: Site) -> None:
    """Ten groups of four and sixteen single servers, for hosts with room for six each: each group is on one host, none in part."""
    schedulers = [site.scheduler(), site.scheduler()]
    groups = [site.leased(fleet.spec(group=fleet.group(GroupPolicy.AFFINITY)), MEMBERS) for _ in range(10)]
    singles = [site.leased(fleet.spec()) for _ in range(16)]
    threads = [
        threading.Thread(target=ask, args=(schedulers[n % 2], asked))
        for n, asked in enumerate(one for pair in zip(groups + groups[:6], singles, strict=True) for one in pair)
    ]
    run_threads(threads)
    places: defaultdict[str, list[str]] = defaultdict(list)
    for slot in site.slots():
        places[slot.group_uuid].append(slot.host)
    assert all(len(hosts) == MEMBERS and len(set(hosts)) == 1 for hosts in places.values())
    assert places, "some of them were fast enough"
    used = sorted(row.used_vcpus for row in site.inventories().values())
    left = len(groups) - len(places)
    assert not left or used[0] > ROOM - MEMBERS, "what was refused would not fit anywhere"
    assert site.overfull() == []
