"""Alternates: who gets which, and how many."""

from __future__ import annotations

from typing import Any

import pytest

from objects.group import Policy
from scheduler import engine
from scheduler.alternates import Alternates
from scheduler.table import HostTable
from tests.support import fleet


def assigned(table: HostTable, count: int = 1, **changes: Any) -> list[tuple[str, list[str]]]:
    """(host, alternates) per instance."""
    request = fleet.request(fleet.spec(**changes), table)
    driver = fleet.driver()
    with table.tentative():
        found = engine.survey(table, driver, request)
        rows = engine.choose(table, driver, request, found, count)
        chosen = [(str(n), row) for n, row in enumerate(rows)]
        others = Alternates(table, driver, request, found).of(chosen)
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


def test_the_best_hosts_come_first() -> None:
    table = fleet.table([fleet.node(f"h{n}", memory_mb=65536 - 1024 * n) for n in range(8)])
    [(host, others)] = assigned(table, max_attempts=4)
    assert (host, others) == ("h0", ["h2", "h4", "h6"])


def test_a_batch_does_not_send_all_its_retries_to_one_host() -> None:
    table = fleet.table([fleet.node(f"h{n}") for n in range(40)])
    first = [others[0] for _, others in assigned(table, 10)]
    assert len(set(first)) > 5


def test_other_nodes_of_the_same_host_are_no_alternates() -> None:
    table = fleet.table(
        [fleet.node("h1", node="n1"), fleet.node("x"), fleet.node("h1", node="n2"), fleet.node("y"), fleet.node("h2")]
    )
    for host, others in assigned(table, 4, max_attempts=4):
        assert host not in others
        assert len(others) == len(set(others))


def test_members_of_an_affinity_group_have_none() -> None:
    table = fleet.table([fleet.node(f"h{n}") for n in range(6)])
    assert all(others == [] for _, others in assigned(table, 2, group=fleet.group(Policy.AFFINITY)))


def test_members_of_an_anti_affinity_group_share_no_host_with_anyone() -> None:
    table = fleet.table([fleet.node(f"h{n}") for n in range(24)])
    given_out = assigned(table, 4, group=fleet.group(Policy.ANTI_AFFINITY))
    everything = [host for host, others in given_out for host in (host, *others)]
    assert len(everything) == len(set(everything)) == 12


def test_a_host_that_the_batch_has_filled_is_no_alternate() -> None:
    table = fleet.table([fleet.node(f"h{n}", vcpus=1) for n in range(4)])
    assert [others for _, others in assigned(table, 4)] == [[], [], [], []]
