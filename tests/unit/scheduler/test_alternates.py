"""Alternates: who gets which, and how many."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest

from objects.group import GroupPolicy
from scheduler.engine import engine
from scheduler.engine.alternates import Alternates
from scheduler.engine.surveying import survey
from scheduler.framework.members import Members
from scheduler.table.host_table import HostTable
from tests.support import fleet


def assigned(
    table: HostTable, count: int = 1, *, seed: int = 7, driver: Mapping[str, Any] | None = None, **changes: Any
) -> list[tuple[str, list[str]]]:
    """(host, alternates) per instance."""
    request = fleet.request(fleet.spec(**changes), table, seed=seed)
    choosing = fleet.driver(**(driver or {}))
    with table.take_tentatively():
        found = survey(table, choosing, request)
        rows = engine.choose_rows(table, choosing, request, found, count)
        chosen = [(str(n), row) for n, row in enumerate(rows)]
        others = Alternates(table, choosing, request, found).choose_rows(chosen)
        return [(table.hosts[row], [table.hosts[other] for other in others[uuid]]) for uuid, row in chosen]


@pytest.mark.parametrize("attempts", [1, 2, 3, 5])
def test_one_fewer_than_the_attempts_allowed(attempts: int) -> None:
    table = fleet.table([fleet.node(f"h{n}") for n in range(12)])
    [(_, others)] = assigned(table, max_attempts=attempts)
    assert len(others) == attempts - 1


def test_as_many_as_the_cell_has() -> None:
    table = fleet.table([fleet.node(f"h{n}") for n in range(4)])  # two per cell
    [(host, others)] = assigned(table, max_attempts=5)
    assert len(others) == 1
    assert int(host[1]) % 2 == int(others[0][1]) % 2


def test_clearly_worse_hosts_come_last_best_first() -> None:
    amounts = [64, 60, 60, 60, 60, 60, 40, 60, 20, 60]  # GiB; h0, h2 and h4 are near each other in the first cell
    nodes = [fleet.node(f"h{n}", memory_mb=1024 * gib) for n, gib in enumerate(amounts)]
    [(host, others)] = assigned(fleet.table(nodes), driver={"ram_weight_multiplier": 5.0}, max_attempts=5)
    assert host == "h0"
    assert set(others[:2]) == {"h2", "h4"}
    assert others[2:] == ["h6", "h8"]


def test_single_boots_differ_in_their_first_alternate() -> None:
    """Or all builds of a host that dies would go to one and the same other."""
    table = fleet.table([fleet.node(f"h{n}", memory_mb=65536 - 64 * n) for n in range(60)])
    first = Counter(others[0] for seed in range(100) for _, others in assigned(table, seed=seed))
    assert len(first) > 15
    assert max(first.values()) < 20


def test_the_same_seed_gives_the_same_alternates() -> None:
    table = fleet.table([fleet.node(f"h{n}") for n in range(40)])
    assert assigned(table, 3, seed=5) == assigned(table, 3, seed=5)


def test_batch_retries_spread_over_several_hosts() -> None:
    table = fleet.table([fleet.node(f"h{n}") for n in range(40)])
    first = [others[0] for _, others in assigned(table, 10)]
    assert len(set(first)) > 5


def test_other_nodes_of_a_host_are_no_alternates() -> None:
    table = fleet.table(
        [fleet.node("h1", node="n1"), fleet.node("x"), fleet.node("h1", node="n2"), fleet.node("y"), fleet.node("h2")]
    )
    for host, others in assigned(table, 4, max_attempts=4):
        assert host not in others
        assert len(others) == len(set(others))


def test_members_of_an_affinity_group_have_none() -> None:
    table = fleet.table([fleet.node(f"h{n}") for n in range(6)])
    assert all(others == [] for _, others in assigned(table, 2, group=fleet.group(GroupPolicy.AFFINITY)))


def test_anti_affinity_members_share_no_host_with_anyone() -> None:
    table = fleet.table([fleet.node(f"h{n}") for n in range(24)])
    given_out = assigned(table, 4, group=fleet.group(GroupPolicy.ANTI_AFFINITY))
    everything = [host for host, others in given_out for host in (host, *others)]
    assert len(everything) == len(set(everything)) == 12


def test_hosts_filled_by_the_batch_are_no_alternates() -> None:
    table = fleet.table([fleet.node(f"h{n}", vcpus=1) for n in range(4)])
    assert [others for _, others in assigned(table, 4)] == [[], [], [], []]


@pytest.mark.parametrize("seed", range(20))
def test_group_batches_of_one_transaction_share_no_hosts(seed: int) -> None:
    """Both were surveyed before any of them held a host."""
    chance = random.Random(seed)
    table = fleet.table([fleet.node(f"h{n}") for n in range(chance.choice((6, 40)))])
    if seed % 3 == 0:  # two nodes of one host
        table.set_nodes(fleet.CELLS[0], [fleet.node("h0", node="other")])
    group = fleet.group(GroupPolicy.ANTI_AFFINITY, chance.choice((1, 2)))
    driver, members, places = fleet.driver(), Members(), Counter[str]()
    with table.take_tentatively():
        batches = []
        for number in range(2):
            request = fleet.request(fleet.spec(group=group, max_attempts=3), table, seed=chance.randrange(1 << 60), members=members)
            found = survey(table, driver, request)
            rows = engine.choose_rows(table, driver, request, found, chance.randrange(1, 4))
            batches.append((request, found, [(f"{number}-{n}", row) for n, row in enumerate(rows)]))
        for request, found, chosen in batches:
            places.update(table.hosts[row] for _, row in chosen)
            for others in Alternates(table, driver, request, found).choose_rows(chosen).values():
                places.update(table.hosts[row] for row in others)
    assert max(places.values()) <= group.max_server_per_host
