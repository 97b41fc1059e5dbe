"""The chance driver, and what both say where nothing is found."""

from __future__ import annotations

import re
import sys
import types
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from objects.decision import FilterCount
from scheduler.drivers.filter import FilterScheduler
from scheduler.engine import engine
from scheduler.engine.survey import Survey
from scheduler.engine.surveying import survey
from scheduler.framework.batch_request import Request
from scheduler.framework.settings import SchedulerSettings
from scheduler.table.host_table import HostTable
from tests.support import fleet
from tests.support.attempts import attempt, begun, job

ONE, TWO = fleet.CELLS
DOCUMENT = Path(__file__).parents[3] / "docs" / "scheduling.md"


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
def test_the_filter_driver_counts_hosts_after_filters(counts: list[FilterCount], found: int, wanted: int, sentence: str) -> None:
    assert fleet.driver().refusal_message(counts, 24, found, wanted) == sentence


def test_the_filter_driver_reports_an_empty_fleet() -> None:
    assert fleet.driver().refusal_message([], 0, 0, 1) == "No valid host was found: no host is known yet."


class Emptiest(FilterScheduler):
    """Chooses the host with the most free vCPUs."""

    def choose_rows(self, table: HostTable, request: Request, surveyed: Survey, count: int) -> list[int]:
        rows = surveyed.passing_rows[table.free_vcpus[surveyed.passing_rows].argsort()[::-1]]
        return [int(row) for row in rows[:count]]


@given(st.lists(st.integers(1, 6), max_size=12), st.integers(1, 3), st.booleans(), st.integers(0, 99))
def test_one_host_is_chosen_as_planned_without_taking(sizes: list[int], subset: int, is_own: bool, seed: int) -> None:
    table = fleet.table([fleet.node(f"h{n}", vcpus=vcpus) for n, vcpus in enumerate(sizes)])
    settings = SchedulerSettings(host_subset_size=subset)
    given_by = fleet.driver(host_subset_size=subset)
    driver = Emptiest(settings, given_by.filters, given_by.weighers) if is_own else given_by
    asked = fleet.spec(fleet.flavor(vcpus=4))
    before = table.free_vcpus.tolist()
    request = fleet.request(asked, table, seed=seed)
    chosen = driver.choose_one(table, request, survey(table, driver, request))
    assert table.free_vcpus.tolist() == before
    request = fleet.request(asked, table, seed=seed)
    with table.take_tentatively():
        rows = driver.place_instances(table, request, survey(table, driver, request), 1)
    assert rows == ([] if chosen is None else [chosen])
    assert (chosen is None) == (max(sizes, default=0) < 4)


class TestChance:
    def table(self) -> HostTable:
        return fleet.table([fleet.node(f"h{n}", memory_mb=65536 * (n + 1)) for n in range(6)])

    def winners(self, table: HostTable, count: int = 300, **changes: Any) -> Counter[str]:
        driver = fleet.driver(driver="chance", enabled_filters=())
        request = fleet.request(fleet.spec(fleet.flavor(vcpus=0)), table, **changes)
        rows = engine.choose_rows(table, driver, request, survey(table, driver, request), count)
        return Counter(table.hosts[row] for row in rows)

    def refusal(self, table: HostTable, **asked: Any) -> str:
        driver = fleet.driver(driver="chance")
        found = survey(table, driver, fleet.request(fleet.spec(**asked), table, alive_since=0.0))
        assert not found.passing_rows.size
        return driver.refusal_message(found.filter_counts, found.total, 0, 1)

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


class WorstFirst(FilterScheduler):
    """A site's own: the worst host that passes, as often as it goes."""

    name = "worst first"

    def choose_rows(self, table: HostTable, request: Request, surveyed: Survey, count: int) -> list[int]:
        chosen: list[int] = []
        for row in surveyed.best_rows(surveyed.passing_rows.size)[0].tolist()[::-1]:
            while len(chosen) < count and engine.fitting_rows(self, table, request, np.array([row]))[0]:
                engine.take_row(table, request, row)
                chosen.append(row)
        return chosen


class Overfull(FilterScheduler):
    """One that puts everything on one host."""

    name = "overfull"

    def choose_rows(self, table: HostTable, request: Request, surveyed: Survey, count: int) -> list[int]:
        return [int(surveyed.passing_rows[0])] * count


class Astray(FilterScheduler):
    """One that returns what is no row."""

    name = "astray"

    def choose_rows(self, table: HostTable, request: Request, surveyed: Survey, count: int) -> list[int]:
        return [table.size]


class TestOnesOwn:
    """``choose`` of a site's own driver, in plans of real jobs."""

    def table(self) -> HostTable:
        return fleet.table([fleet.node(f"h{n}", vcpus=2, memory_mb=65536 * (n + 1)) for n in range(4)])

    def hosts(self, table: HostTable, path: str, count: int) -> list[str]:
        jobs = [job(fleet.spec(fleet.flavor(vcpus=1)), count)]
        begun(attempt(table, jobs, driver=fleet.driver(driver=path)), jobs)
        if jobs[0].error is not None:
            raise jobs[0].error
        return [table.hosts[row] for row in jobs[0].rows.values()]

    def test_a_driver_decides_and_its_takings_count_once(self) -> None:
        table = self.table()
        free = table.free_vcpus.tolist()
        assert self.hosts(table, f"{__name__}:WorstFirst", 3) == ["h0", "h0", "h1"]
        assert table.free_vcpus.tolist() == free, "a plan leaves nothing behind"

    def test_a_driver_cannot_exceed_its_filters(self) -> None:
        assert self.hosts(self.table(), f"{__name__}:Overfull", 2) == ["h0", "h0"]
        table = self.table()
        free = table.free_vcpus.tolist()
        with pytest.raises(ValueError, match="driver overfull chose host h0, which its filters do not let pass"):
            self.hosts(table, f"{__name__}:Overfull", 3)
        assert table.free_vcpus.tolist() == free

    def test_the_documented_driver_fills_hosts_by_name(self, monkeypatch: pytest.MonkeyPatch) -> None:
        [example] = re.findall(r"```py\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
        module = types.ModuleType("site_placement")
        exec(example, module.__dict__)
        monkeypatch.setitem(sys.modules, module.__name__, module)
        assert self.hosts(self.table(), "site_placement:FirstByName", 5) == ["h0", "h0", "h1", "h1", "h2"]
        assert len(self.hosts(self.table(), "site_placement:FirstByName", 8)) == 8

    def test_what_is_no_row_is_refused(self) -> None:
        with pytest.raises(ValueError, match="driver astray chose rows"):
            self.hosts(self.table(), f"{__name__}:Astray", 1)
