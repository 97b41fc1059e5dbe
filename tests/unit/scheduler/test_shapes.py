"""Kept surveys say what a pass over the fleet says, whatever has happened to its hosts since."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

import numpy as np
import pytest

from objects.aggregate import Aggregate
from objects.cell import CellState
from objects.group import GroupPolicy
from objects.inventory import Inventory, Slot
from objects.spec import Image, RequestSpec
from scheduler.engine import engine, survey_cache
from scheduler.engine.request_classes import Shapes
from scheduler.engine.survey import AskedSingly, Survey
from scheduler.engine.survey_cache import BLOCK, SCALES_KEPT_S, KeptSurvey
from scheduler.engine.surveying import survey
from scheduler.filters.adapter import Adapter
from scheduler.filters.capacity import RamFilter
from scheduler.framework.batch_request import Request
from scheduler.framework.hosts import HostState
from scheduler.framework.members import Members
from scheduler.framework.settings import DEFAULT_FILTERS
from scheduler.table import host_table
from scheduler.table.host_table import HostTable
from tests.support import fleet

FILTERS = (
    *DEFAULT_FILTERS,
    "IoOpsFilter",
    "NumInstancesFilter",
    "AggregateInstanceExtraSpecsFilter",
    "AggregateMultiTenancyIsolation",
)
WEIGHERS = (
    "RAMWeigher",
    "CPUWeigher",
    "BalanceWeigher",
    "LeftoverWeigher",
    "IoOpsWeigher",
    "BuildFailureWeigher",
    "ServerGroupSoftAffinityWeigher",
    "ServerGroupSoftAntiAffinityWeigher",
    "AffinityRoomWeigher",
)
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
        some = {"leftover_from": self.chance.choice((0.0, 0.001))}  # applies from the third claim on or so
        self.driver = fleet.driver(enabled_filters=FILTERS, enabled_weighers=WEIGHERS, io_ops_weight_multiplier=-0.5, **some)
        self.driver.shapes = Shapes(kept_from=0)
        self.told: set[tuple[type[Survey], GroupPolicy | None]] = set()

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
        self.table.set_nodes(self.homes[host], [told])

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
        self.table.settle_counts(self.now)

    def remove(self) -> None:
        row = self.table.find_row(*[self.host()] * 2)
        if row is not None:
            self.table.remove_row(row)

    def come_back(self) -> None:
        host = self.host()
        row = self.ledger[host]
        self.ledger[host] = fleet.inventory(row.id, self.nodes[host], self.homes[host], row.generation + 1)
        self.table.set_inventory(self.ledger[host], self.now)
        fleet.tell_cells(self.table, [self.nodes[host]], self.homes, self.now)

    def arrive(self) -> None:
        """A host that nobody knew; its cell or the ledger may speak first, and sometimes only one of them does."""
        host = f"new-{len(self.nodes)}"
        self.nodes[host] = fleet.node(host, vcpus=self.chance.choice((8, 16, 64)))
        self.homes[host] = fleet.CELLS[self.chance.randrange(2)]
        self.zones[host] = "north"
        self.ledger[host] = fleet.inventory(len(self.nodes), self.nodes[host], self.homes[host])
        self.table.set_topology(fleet.cells(), self.homes, self.zones, self.aggregates)
        steps: list[Callable[[], None]] = [
            lambda: self.table.set_inventory(self.ledger[host], self.now),
            lambda: fleet.tell_cells(self.table, [self.nodes[host]], self.homes, self.now),
        ]
        for step in self.chance.sample(steps, self.chance.choice((1, 2, 2))):
            step()

    def rehome(self) -> None:
        """Operators map a host to the other cell, which has told of it too."""
        host = self.host()
        self.homes[host] = next(cell for cell in fleet.CELLS[:2] if cell != self.homes[host])
        self.table.set_topology(fleet.cells(), self.homes, self.zones, self.aggregates)
        fleet.tell_cells(self.table, [self.nodes[host]], self.homes, self.now)

    def join(self) -> None:
        """A host is put into an aggregate that there is, which changes nothing for others."""
        one = self.aggregates[0]
        hosts = tuple(dict.fromkeys((*one.hosts, self.host())))
        self.aggregates = [Aggregate(id=1, uuid="a", name="a", hosts=hosts, metadata=one.metadata)]
        self.table.set_topology(fleet.cells(), self.homes, self.zones, self.aggregates)

    # -- what is asked -----------------------------------------------------------------------------------------------------------

    def spec(self) -> RequestSpec:
        size = fleet.flavor(vcpus=self.chance.choice((2, 4)), memory_mb=2048)
        wishes: list[dict[str, object]] = [
            {},
            {"availability_zone": "north"},
            {"project_id": "q"},
            {"image": Image(id="i", properties={"trait:SSD": "required"})},
            {"ignore_hosts": (self.host(), self.host().upper(), "nowhere")},
            {"excluded_hosts": tuple(self.host() for _ in range(30))},
            {"group": fleet.group(self.chance.choice(list(GroupPolicy)), self.chance.randrange(1, 3))},
            {"group": fleet.group(self.chance.choice(list(GroupPolicy))), "ignore_hosts": (self.host(),)},
        ]
        return fleet.spec(size, **self.chance.choice(wishes))

    def slots(self, asked: RequestSpec) -> list[Slot]:
        """Members of the request's group, up to three on a host."""
        if asked.group is None:
            return []
        hosts = [self.host() for _ in range(self.chance.choice((0, 1, 5, 60)))]
        some = [host for host in hosts for _ in range(self.chance.randrange(1, 4))]
        return [
            Slot(group_uuid=asked.group.uuid, instance_uuid=str(n), host=host, held=self.chance.random() < 0.2)
            for n, host in enumerate(some)
        ]

    def compare(self) -> bool:
        """Ask for a survey, and compare it with a pass over the fleet. Returns whether it was a kept one."""
        asked = self.spec()
        seed = self.chance.randrange(1 << 60)
        slots = self.slots(asked)
        request = fleet.request(asked, self.table, slots, seed=seed, alive_since=self.now - EVERY_S)
        if self.chance.random() < 0.5:
            request.members = Members((), *fleet.by_group(slots))
        found = survey(self.table, self.driver, request)
        whole = survey(self.table, self.driver, request, within=np.arange(self.table.size))
        assert found.filter_counts == whole.filter_counts
        assert found.passing_rows.tolist() == whole.passing_rows.tolist()
        self.told.add((type(found), asked.group.policy if asked.group else None))
        if not isinstance(found, KeptSurvey):
            return False
        applying = [any(part.weigher.name == "LeftoverWeigher" for part in each.parts) for each in (found, whole)]
        assert applying[0] == applying[1]
        expected = engine.score_rows(self.table, self.driver, request, found.parts, found.passing_rows)
        assert found.passing_scores.tolist() == expected.tolist()
        by_row = dict(zip(found.passing_rows.tolist(), expected.tolist(), strict=True))
        for count in (1, 5, 40):
            rows, scores = found.best_rows(count)
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
    seldom: list[Callable[[], None]] = [world.rule, world.join, world.join, world.close_a_cell, world.remove, world.come_back]
    seldom += [world.arrive, world.arrive, world.rehome]
    kept = 0
    for _ in range(100):
        world.chance.choice(usual if world.chance.random() < 0.95 else seldom)()
        kept += world.compare()
    assert kept > 20
    assert {policy for kind, policy in world.told if kind is KeptSurvey} >= {None, GroupPolicy.ANTI_AFFINITY}


@pytest.mark.parametrize("seed", range(4))
def test_a_concurrent_survey_equals_a_pass(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(survey_cache, "PAGE_SIZE", 100)
    world = World(seed)
    happenings: list[Callable[[], None]] = [world.claim, world.claim, world.report, world.hear, world.disable, world.arrive]

    class Meanwhile:
        """Something happens between two holds of the table's lock."""

        def __enter__(self) -> None:
            world.now += 0.1
            world.chance.choice(happenings)()

        def __exit__(self, *_: object) -> None: ...

    kept = 0
    for _ in range(12):
        for _ in range(8):
            kept += world.compare()
        lock, world.table.lock = world.table.lock, Meanwhile()  # type: ignore[assignment]  # one thread needs none
        world.driver.shapes.keep_up(world.table)
        world.table.lock = lock
    assert kept > 3


def test_host_changes_do_not_renew_surveys(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(2)
    asked = fleet.spec(fleet.flavor(vcpus=1, memory_mb=1))

    def surveyed() -> Survey:
        request = fleet.request(asked, world.table, alive_since=world.now - EVERY_S)
        found = survey(world.table, world.driver, request)
        whole = survey(world.table, world.driver, request, within=np.arange(world.table.size))
        assert (found.filter_counts, found.passing_rows.tolist()) == (whole.filter_counts, whole.passing_rows.tolist())
        scores = engine.score_rows(world.table, world.driver, request, found.parts, found.passing_rows)
        for cell in range(2):
            theirs = sorted(scores[world.table.cell[found.passing_rows] == cell].tolist(), reverse=True)
            assert found.best_of_cell(cell, 5)[1].tolist() == pytest.approx(theirs[:5], abs=2e-9)
        return found

    surveyed()
    assert isinstance(surveyed(), KeptSurvey)
    monkeypatch.setattr(survey_cache.KeptRows, "build_rows", None)
    for happening in (world.arrive, world.remove, world.rehome) * 5:
        happening()
        assert isinstance(surveyed(), KeptSurvey)


def test_surveys_are_renewed_when_many_hosts_have_come() -> None:
    world = World(2)
    order = world.table.by_cell
    arrived = 0
    while world.table.by_cell is order:
        world.arrive()
        arrived += 1
        assert arrived <= host_table.LATER_ROWS + HOSTS // host_table.LATER_ROWS_PART + 1
    assert arrived > 20
    world.compare()


def test_later_assumptions_of_a_request_are_not_stored() -> None:
    world = World(5)
    some = list(world.nodes)[: HOSTS // 2]
    for host in some:
        world.table.set_service(world.homes[host], host, world.now - 2 * EVERY_S, disabled=False, forced_down=False)
    asked = fleet.spec()

    def request() -> Request:
        return fleet.request(asked, world.table, alive_since=world.now - EVERY_S)

    world.driver.shapes.keep_up(world.table)
    survey(world.table, world.driver, request())
    refused = request()
    survey(world.table, world.driver, refused)
    refused.returning_cells = frozenset({0})
    world.driver.shapes.keep_up(world.table)
    found = survey(world.table, world.driver, request())
    assert isinstance(found, KeptSurvey)
    assert found.filter_counts == survey(world.table, world.driver, request(), within=np.arange(world.table.size)).filter_counts


@pytest.mark.parametrize("policy", GroupPolicy)
def test_group_members_need_no_pass_over_the_fleet(policy: GroupPolicy, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(3)
    asked = fleet.spec(group=fleet.group(policy))
    slots = [Slot(group_uuid="g", instance_uuid=str(n), host=world.host()) for n in range(40)]

    def surveyed() -> Survey:
        return survey(world.table, world.driver, fleet.request(asked, world.table, slots, alive_since=world.now - EVERY_S))

    surveyed()
    surveyed()
    monkeypatch.setattr(engine, "narrow_hosts", None)
    assert surveyed().best_rows(1)[0].size == 1


def test_first_affinity_members_are_weighed_on_all_hosts() -> None:
    world = World(3)
    asked = fleet.spec(group=fleet.group(GroupPolicy.AFFINITY))
    for _ in range(3):
        found = survey(world.table, world.driver, fleet.request(asked, world.table, alive_since=world.now - EVERY_S))
        assert not isinstance(found, KeptSurvey)
        assert any(part.weigher.name == "AffinityRoomWeigher" for part in found.parts)


class EvenNames:
    """A filter of a site, of one host at a time."""

    def __init__(self) -> None:
        self.asked = 0

    def host_passes(self, host: HostState, spec: RequestSpec) -> bool:
        del spec
        self.asked += 1
        return host.host.endswith(("0", "2", "4", "6", "8"))


def test_a_host_filter_runs_on_the_best_hosts() -> None:
    world = World(4)
    own = EvenNames()
    world.driver.filters = (*world.driver.filters, Adapter(world.driver.filters[0].settings, "EvenNames", own))
    request = fleet.request(fleet.spec(), world.table, alive_since=world.now - EVERY_S)
    answers = []
    for _ in range(3):
        own.asked = 0
        found = survey(world.table, world.driver, request)
        assert isinstance(found, AskedSingly)
        answers.append(
            [rows.tolist() for rows in (found.best_rows(5)[0], found.best_of_cell(0, 5)[0], found.best_of_cell(1, 5)[0])]
        )
        assert 15 <= own.asked < 100
    assert answers[1] == answers[2]
    whole = survey(world.table, world.driver, request)
    assert found.passing_rows.tolist() == whole.passing_rows.tolist()
    assert found.filter_counts == whole.filter_counts


def test_a_plan_sees_earlier_takings_and_leaves_none() -> None:
    world = World(1)
    asked = fleet.spec(fleet.flavor(vcpus=8, memory_mb=8192))

    def surveyed() -> KeptSurvey:
        request = fleet.request(asked, world.table, alive_since=world.now - EVERY_S)
        found = [survey(world.table, world.driver, request) for _ in range(2)][1]
        assert isinstance(found, KeptSurvey)
        return found

    before = surveyed()
    first = before.best_rows(1)[0].item(0)
    with world.table.take_tentatively():
        engine.take_row(world.table, fleet.request(asked, world.table), first)
        meanwhile = surveyed()
        assert meanwhile.best_rows(1)[0].item(0) != first
        assert before.best_rows(1)[0].item(0) == first, "what was told stays told"
    assert surveyed().best_rows(1)[0].item(0) == first


def test_the_first_equal_host_wins_without_random_ties() -> None:
    table = fleet.table([fleet.node(f"h{n}") for n in range(HOSTS)])
    driver = fleet.driver(shuffle_best_same_weighed_hosts=False)
    driver.shapes = Shapes(kept_from=0)
    request = fleet.request(fleet.spec(), table, alive_since=0.0)
    for _ in range(2):
        found = survey(table, driver, request)
        assert found.best_rows(3)[0].tolist() == [0, 1, 2]
    assert isinstance(found, KeptSurvey)


def test_equal_hosts_are_chosen_evenly() -> None:
    table = fleet.table([fleet.node(f"h{n}") for n in range(64 * BLOCK)])
    driver = fleet.driver()
    driver.shapes = Shapes(kept_from=0)
    asked = fleet.spec()
    requests = [fleet.request(asked, table, seed=n, alive_since=0.0) for n in range(600)]
    chosen = [survey(table, driver, request).best_rows(1)[0].item(0) for request in requests]
    assert len(set(chosen)) > 570
    assert len({row // BLOCK for row in chosen}) > 55


class OfASite(RamFilter):
    """It says nothing of what it reads."""


def test_nothing_is_stored_for_filters_without_declared_inputs() -> None:
    world = World(2)
    world.driver.filters = (*world.driver.filters, OfASite(world.driver.filters[0].settings))
    request = fleet.request(fleet.spec(), world.table, alive_since=world.now - EVERY_S)
    assert not any(isinstance(survey(world.table, world.driver, request), KeptSurvey) for _ in range(3))


def test_an_inapplicable_weigher_renews_the_survey() -> None:
    world = World(2)
    world.driver = fleet.driver(enabled_weighers=("RAMWeigher", "LeftoverWeigher"), leftover_from=0.005)
    world.driver.shapes = Shapes(kept_from=0)
    asked = fleet.spec(fleet.flavor(vcpus=1, memory_mb=1))

    def claim(vcpus: int) -> None:
        for host, row in list(world.ledger.items())[:20]:
            changed = fleet.inventory(row.id, world.nodes[host], world.homes[host], row.generation + 1, used_vcpus=vcpus)
            world.ledger[host] = changed
            world.table.set_inventory(changed, world.now)

    def applying() -> bool:
        request = fleet.request(asked, world.table, alive_since=world.now - EVERY_S)
        found, whole = (survey(world.table, world.driver, request, within=within) for within in (None, np.arange(world.table.size)))
        assert isinstance(found, KeptSurvey) or not kept
        assert found.passing_scores.tolist() == pytest.approx(whole.passing_scores.tolist(), abs=2e-9)
        return any(part.weigher.name == "LeftoverWeigher" for part in found.parts)

    kept = False
    claim(8)
    assert applying()
    assert applying()
    kept = True
    assert applying()
    claim(0)
    assert not applying()
    assert not applying()
