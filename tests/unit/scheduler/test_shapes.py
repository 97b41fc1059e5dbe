"""Kept surveys say what a pass over the fleet says, whatever has happened to its hosts since."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

import numpy as np
import pytest

from objects.aggregate import Aggregate
from objects.cell import CellState
from objects.inventory import Inventory
from objects.spec import Image, RequestSpec
from scheduler.filters.capacity import RamFilter
from scheduler.plan import engine
from scheduler.plan.shapes import BLOCK, SCALES_KEPT_S, KeptSurvey, Shapes
from scheduler.settings import DEFAULT_FILTERS
from scheduler.table.host_table import HostTable
from tests.support import fleet

FILTERS = (
    *DEFAULT_FILTERS,
    "IoOpsFilter",
    "NumInstancesFilter",
    "AggregateInstanceExtraSpecsFilter",
    "AggregateMultiTenancyIsolation",
)
WEIGHERS = ("RAMWeigher", "CPUWeigher", "BalanceWeigher", "LeftoverWeigher", "IoOpsWeigher", "BuildFailureWeigher")
HOSTS = 3 * BLOCK + 17
EVERY_S = 60.0
"""Seconds without a word after which a host is down."""


class World:
    """A fleet to which things happen, and the requests that come in between."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.now = time.monotonic()
        self.nodes = {f"h{n}": fleet.node(f"h{n}", vcpus=self.chance.choice((8, 16, 32))) for n in range(HOSTS)}
        self.homes = {host: fleet.CELLS[self.chance.randrange(2)] for host in self.nodes}
        self.zones = {host: self.chance.choice(("north", "south")) for host in self.nodes}
        self.table = HostTable()
        self.ledger: dict[str, Inventory] = {}
        self.aggregates: list[Aggregate] = []
        self.rule()
        for key, (host, node) in enumerate(self.nodes.items(), 1):
            self.ledger[host] = fleet.inventory(key, node, self.homes[host])
            self.table.set_inventory(self.ledger[host], self.now)
        fleet.tell_cells(self.table, self.nodes.values(), self.homes, self.now)
        self.driver = fleet.driver(enabled_filters=FILTERS, enabled_weighers=WEIGHERS, io_ops_weight_multiplier=-0.5)
        self.driver.shapes = Shapes(kept_from=0)

    def host(self) -> str:
        return self.chance.choice(list(self.nodes))

    # -- what happens ------------------------------------------------------------------------------------------------------------

    def rule(self) -> None:
        """Operators have made their minds up anew."""
        some = [host for host in self.nodes if self.chance.random() < 0.2]
        data = self.chance.choice(({"ssd": "true"}, {"filter_tenant_id": "q"}, {"ram_weight_multiplier": "2"}))
        self.aggregates = [Aggregate(id=1, uuid="a", name="a", hosts=tuple(some), metadata=data)]
        self.table.set_topology(fleet.cells(), self.homes, self.zones, self.aggregates)

    def close_a_cell(self) -> None:
        self.table.set_cells(fleet.cells(*(self.chance.choice((CellState.ENABLED, CellState.DISABLED)) for _ in range(2))))

    def claim(self) -> None:
        for _ in range(self.chance.randrange(1, 6)):
            host = self.host()
            row = self.ledger[host]
            sign = self.chance.choice((1, 1, -1)) if row.instances else 1
            self.ledger[host] = fleet.inventory(
                row.id,
                self.nodes[host],
                self.homes[host],
                row.generation + 1,
                used_vcpus=row.used_vcpus + sign * 2,
                used_memory_mb=row.used_memory_mb + sign * 2048,
                instances=row.instances + sign,
            )
            self.table.set_inventory(self.ledger[host], self.now)

    def report(self) -> None:
        host = self.host()
        changes = {"running_vms": self.chance.randrange(4), "failed_builds": float(self.chance.randrange(2))}
        attributes = {"traits": self.chance.choice(([], ["SSD"]))}
        told = fleet.node(host, vcpus=16, vcpus_used=self.chance.randrange(8), attributes=attributes, **changes)
        self.table.set_node(self.homes[host], told)

    def hear(self) -> None:
        for host in self.chance.sample(list(self.nodes), HOSTS // 2):
            self.table.set_service(self.homes[host], host, self.now, disabled=False, forced_down=False)

    def disable(self) -> None:
        host = self.host()
        flags = {"disabled": self.chance.random() < 0.7, "forced_down": self.chance.random() < 0.3}
        self.table.set_service(self.homes[host], host, self.now, **flags)

    def wait(self) -> None:
        self.now += self.chance.choice((1.0, SCALES_KEPT_S, 0.9 * EVERY_S))

    def settle(self) -> None:
        self.table.settle(self.now)

    def remove(self) -> None:
        row = self.table.find(*[self.host()] * 2)
        if row is not None:
            self.table.remove(row)

    def come_back(self) -> None:
        host = self.host()
        row = self.ledger[host]
        self.ledger[host] = fleet.inventory(row.id, self.nodes[host], self.homes[host], row.generation + 1)
        self.table.set_inventory(self.ledger[host], self.now)
        fleet.tell_cells(self.table, [self.nodes[host]], self.homes, self.now)

    # -- what is asked -----------------------------------------------------------------------------------------------------------

    def spec(self) -> RequestSpec:
        size = fleet.flavor(vcpus=self.chance.choice((2, 4)), memory_mb=2048)
        wishes: list[dict[str, object]] = [
            {},
            {"availability_zone": "north"},
            {"project_id": "q"},
            {"image": Image(id="i", properties={"trait:SSD": "required"})},
        ]
        return fleet.spec(size, **self.chance.choice(wishes))

    def compare(self) -> bool:
        """Ask for a survey, and compare it with a pass over the fleet. Returns whether it was a kept one."""
        asked = self.spec()
        seed = self.chance.randrange(1 << 60)
        request = fleet.request(asked, self.table, seed=seed, alive_since=self.now - EVERY_S)
        found = engine.survey(self.table, self.driver, request)
        whole = engine.survey(self.table, self.driver, request, np.arange(self.table.size))
        assert found.counts == whole.counts
        assert found.rows.tolist() == whole.rows.tolist()
        if not isinstance(found, KeptSurvey):
            return False
        expected = engine.score(self.table, self.driver, request, found.parts, found.rows)
        assert found.scores.tolist() == expected.tolist()
        by_row = dict(zip(found.rows.tolist(), expected.tolist(), strict=True))
        for count in (1, 5, 40):
            rows, scores = found.best(count)
            best = sorted(by_row.values(), reverse=True)[:count]
            assert scores.tolist() == pytest.approx(best, abs=2e-9)  # of equal hosts, some are left out
            assert [by_row[row] for row in rows.tolist()] == scores.tolist()
        for cell in range(2):
            theirs = {row: score for row, score in by_row.items() if self.table.cell[row] == cell}
            rows, scores = found.best_of_cell(cell, 12)
            assert scores.tolist() == pytest.approx(sorted(theirs.values(), reverse=True)[:12], abs=2e-9)
            assert [theirs[row] for row in rows.tolist()] == scores.tolist()
        return True


@pytest.mark.parametrize("seed", range(6))
def test_a_kept_survey_says_what_a_pass_says(seed: int) -> None:
    world = World(seed)
    usual: list[Callable[[], None]] = (
        [world.claim] * 8 + [world.report] * 4 + [world.hear, world.disable, world.wait, world.settle] * 2
    )
    seldom: list[Callable[[], None]] = [world.rule, world.close_a_cell, world.remove, world.come_back]
    kept = 0
    for _ in range(100):
        world.chance.choice(usual if world.chance.random() < 0.95 else seldom)()
        kept += world.compare()
    assert kept > 20


def test_what_one_plan_takes_is_seen_by_the_next_and_is_gone_afterwards() -> None:
    world = World(1)
    asked = fleet.spec(fleet.flavor(vcpus=8, memory_mb=8192))

    def survey() -> KeptSurvey:
        request = fleet.request(asked, world.table, alive_since=world.now - EVERY_S)
        found = [engine.survey(world.table, world.driver, request) for _ in range(2)][1]
        assert isinstance(found, KeptSurvey)
        return found

    before = survey()
    first = before.best(1)[0].item(0)
    with world.table.tentative():
        engine.take(world.table, fleet.request(asked, world.table), first)
        meanwhile = survey()
        assert meanwhile.best(1)[0].item(0) != first
        assert before.best(1)[0].item(0) == first, "what was told stays told"
    assert survey().best(1)[0].item(0) == first


def test_without_random_ties_the_first_of_equal_hosts_is_the_best() -> None:
    table = fleet.table([fleet.node(f"h{n}") for n in range(HOSTS)])
    driver = fleet.driver(shuffle_best_same_weighed_hosts=False)
    driver.shapes = Shapes(kept_from=0)
    request = fleet.request(fleet.spec(), table, alive_since=0.0)
    for _ in range(2):
        found = engine.survey(table, driver, request)
        assert found.best(3)[0].tolist() == [0, 1, 2]
    assert isinstance(found, KeptSurvey)


def test_equal_hosts_are_chosen_evenly() -> None:
    table = fleet.table([fleet.node(f"h{n}") for n in range(64 * BLOCK)])
    driver = fleet.driver()
    driver.shapes = Shapes(kept_from=0)
    asked = fleet.spec()
    requests = [fleet.request(asked, table, seed=n, alive_since=0.0) for n in range(600)]
    chosen = [engine.survey(table, driver, request).best(1)[0].item(0) for request in requests]
    assert len(set(chosen)) > 570
    assert len({row // BLOCK for row in chosen}) > 55


class OfASite(RamFilter):
    """It says nothing of what it reads."""


def test_nothing_is_kept_where_a_filter_does_not_say_what_it_reads() -> None:
    world = World(2)
    world.driver.filters = (*world.driver.filters, OfASite(world.driver.filters[0].settings))
    request = fleet.request(fleet.spec(), world.table, alive_since=world.now - EVERY_S)
    assert not any(isinstance(engine.survey(world.table, world.driver, request), KeptSurvey) for _ in range(3))
