"""Batches that may be answered with what fits: between min_count and max_count."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from objects import errors
from objects.group import GroupPolicy
from objects.selection import Selection
from objects.spec import RequestSpec
from scheduler.manager import SchedulerManager
from tests.support import fleet
from tests.support.fleet import CONTEXT, Site
from tests.support.threads import run_threads


def batch(site: Site, count: int, least: int | None, **asked: Any) -> RequestSpec:
    """A batch of one host each on a site whose hosts have room for one."""
    return site.leased(fleet.spec(num_instances=count, min_count=least, **asked), count)


def choose(scheduler: SchedulerManager, asked: RequestSpec) -> list[list[Selection]]:
    return scheduler.select_destinations(CONTEXT, asked, list(asked.fences))


def hosts(answers: list[list[Selection]]) -> list[str]:
    return [answer[0].host for answer in answers if answer]


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """Three servers fit."""
    return Site.on_sqlite(tmp_path, [fleet.node(f"h{n}", vcpus=1) for n in range(3)])


def test_servers_that_fit_are_placed_others_explained(site: Site) -> None:
    asked = batch(site, 5, 2)
    answers = choose(site.scheduler(), asked)
    assert [bool(answer) for answer in answers] == [True, True, True, False, False]
    assert sorted(hosts(answers)) == ["h0", "h1", "h2"]
    assert site.claimed() == dict(zip(asked.fences, hosts(answers), strict=False))
    [decision] = site.decisions()
    assert decision.message.startswith("No valid host was found for instance 4 of 5: of 3 hosts 0 were left by CoreFilter")
    assert [choice.host is None for choice in decision.choices] == [False, False, False, True, True]


def test_claims_are_repeated_under_this_and_next_fence(site: Site) -> None:
    asked = batch(site, 5, 3)
    first = choose(site.scheduler(), asked)
    assert choose(site.scheduler(), asked) == first
    claimed = site.claimed()
    assert sorted(hosts(choose(site.scheduler(), site.refenced(asked)))) == ["h0", "h1", "h2"]
    assert site.claimed() == claimed


def test_fewer_than_the_minimum_are_all_refused(site: Site) -> None:
    for least in (4, 5, None):
        with pytest.raises(errors.NoValidHost, match="for instance 4 of 5"):
            choose(site.scheduler(), batch(site, 5, least))
    assert site.claimed() == {}


def test_where_not_one_fits_the_batch_is_refused(site: Site) -> None:
    choose(site.scheduler(), batch(site, 3, None))
    with pytest.raises(errors.NoValidHost):
        choose(site.scheduler(), batch(site, 5, 1))


def test_what_was_handed_over_before_counts(site: Site) -> None:
    """Two of five have gone to a cell, whose conductor died; of the three left only one fits."""
    asked = batch(site, 5, 3)
    choose(site.scheduler(), batch(site, 2, None))
    uuids = list(asked.fences)[2:]
    answers = site.scheduler().select_destinations(CONTEXT, asked, uuids)
    assert [bool(answer) for answer in answers] == [True, False, False]


def test_handed_over_servers_do_not_satisfy_the_minimum(site: Site) -> None:
    asked = batch(site, 5, 1)
    choose(site.scheduler(), batch(site, 3, None))
    with pytest.raises(errors.NoValidHost):
        site.scheduler().select_destinations(CONTEXT, asked, list(asked.fences)[3:])


def test_hosts_held_for_retries_are_not_waited_for(tmp_path: Path) -> None:
    site = Site.on_sqlite(tmp_path, [fleet.node(f"h{n}") for n in range(8)])
    group, others = fleet.group(GroupPolicy.ANTI_AFFINITY), tuple(f"h{n}" for n in range(1, 8, 2))
    choose(site.scheduler(), batch(site, 2, None, group=group, max_attempts=2, ignore_hosts=others))
    assert sum(slot.held for slot in site.slots()) == 2
    with pytest.raises(errors.Conflict):
        choose(site.scheduler(), batch(site, 6, None, group=group, max_attempts=1))
    assert sorted(hosts(choose(site.scheduler(), batch(site, 6, 2, group=group, max_attempts=1)))) == sorted(others)


def test_a_partial_affinity_group_uses_the_roomiest_host(tmp_path: Path) -> None:
    site = Site.on_sqlite(tmp_path, [fleet.node(f"h{n}", vcpus=vcpus) for n, vcpus in enumerate((3, 4, 2))])
    group = fleet.group(GroupPolicy.AFFINITY)
    answers = choose(site.scheduler(), batch(site, 6, 2, group=group))
    assert hosts(answers) == ["h1"] * 4
    assert [slot.host for slot in site.slots()] == ["h1"] * 4


def test_an_anti_affinity_group_fills_all_available_hosts(site: Site) -> None:
    answers = choose(site.scheduler(), batch(site, 6, 1, group=fleet.group(GroupPolicy.ANTI_AFFINITY)))
    assert sorted(hosts(answers)) == ["h0", "h1", "h2"]


def test_racing_batches_fill_the_fleet_exactly(tmp_path: Path) -> None:
    """Two schedulers, eight callers, batches of five to ten for 60 servers."""
    site = Site.on_sqlite(tmp_path, [fleet.node(f"h{n}", vcpus=5) for n in range(12)])
    schedulers = [site.scheduler(), site.scheduler()]
    asked = [batch(site, 10, 5) for _ in range(9)]
    placed: dict[int, int] = {}

    def ask(n: int) -> None:
        for _ in range(20):
            try:
                placed[n] = len(hosts(choose(schedulers[n % 2], asked[n])))
            except errors.NoValidHost:
                placed[n] = 0
            except errors.Conflict:
                continue
            return

    run_threads([threading.Thread(target=ask, args=(n,)) for n in range(len(asked))])
    assert len(placed) == 9
    assert all(count == 0 or 5 <= count <= 10 for count in placed.values())
    assert sum(placed.values()) == len(site.claimed())
    assert sum(placed.values()) > 55, "less than the least of a batch is left"
    assert site.overfull() == []
