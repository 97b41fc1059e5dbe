"""The chance driver, and what both say where nothing is found."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from objects.decision import FilterCount
from scheduler.plan import engine
from scheduler.table.host_table import HostTable
from tests.support import fleet

ONE, TWO = fleet.CELLS


def count(name: str, before: int, after: int, reason: str = "") -> FilterCount:
    return FilterCount(name=name, before=before, after=after, reason=reason)


@pytest.mark.parametrize(
    ("counts", "found", "wanted", "sentence"),
    [
        (
            [count("ComputeFilter", 24, 20), count("RamFilter", 20, 0, "not enough memory")],
            0,
            1,
            "No valid host was found: of 24 hosts 20 were left by ComputeFilter, 0 by RamFilter (not enough memory).",
        ),
        (
            [count("ComputeFilter", 24, 24), count("CoreFilter", 24, 0, "not enough vCPUs")],
            3,
            5,
            "No valid host was found for instance 4 of 5: of 24 hosts 0 were left by CoreFilter (not enough vCPUs).",
        ),
    ],
)
def test_the_filter_driver_says_which_filters_left_how_many(
    counts: list[FilterCount], found: int, wanted: int, sentence: str
) -> None:
    assert fleet.driver().refusal(counts, 24, found, wanted) == sentence


def test_the_filter_driver_says_that_the_fleet_is_empty() -> None:
    assert fleet.driver().refusal([], 0, 0, 1) == "No valid host was found: no host is known yet."


class TestChance:
    def table(self) -> HostTable:
        return fleet.table([fleet.node(f"h{n}", memory_mb=65536 * (n + 1)) for n in range(6)])

    def winners(self, table: HostTable, count: int = 300, **changes: Any) -> Counter[str]:
        driver = fleet.driver(driver="chance", enabled_filters=())
        request = fleet.request(fleet.spec(fleet.flavor(vcpus=0)), table, **changes)
        rows = engine.choose(table, driver, request, engine.survey(table, driver, request), count)
        return Counter(table.hosts[row] for row in rows)

    def refusal(self, table: HostTable, **asked: Any) -> str:
        driver = fleet.driver(driver="chance")
        found = engine.survey(table, driver, fleet.request(fleet.spec(**asked), table, alive_since=0.0))
        assert not found.rows.size
        return driver.refusal(found.counts, found.total, 0, 1)

    def test_every_host_that_is_up_has_its_chance(self) -> None:
        winners = self.winners(self.table())
        assert winners.keys() == {f"h{n}" for n in range(6)}
        assert max(winners.values()) < 3 * min(winners.values())

    def test_hosts_that_are_down_or_full_have_none(self) -> None:
        table = self.table()
        table.set_service(ONE, "h0", -1e9, disabled=False, forced_down=False)
        full = fleet.inventory(2, fleet.node("h1", memory_mb=131072), TWO, 2, used_memory_mb=131072)
        table.set_inventory(full, now=0.0)
        assert self.winners(table, alive_since=0.0).keys() == {"h2", "h3", "h4", "h5"}

    def test_nobody_is_up(self) -> None:
        table = self.table()
        for n in range(6):
            table.set_service(fleet.CELLS[n % 2], f"h{n}", -1e9, disabled=False, forced_down=False)
        assert self.refusal(table) == "No valid host was found. Is the appropriate service running?"

    def test_somebody_is_up_but_ruled_out(self) -> None:
        hosts = tuple(f"h{n}" for n in range(6))
        assert self.refusal(self.table(), ignore_hosts=hosts) == "No valid host was found. Could not find another compute."
