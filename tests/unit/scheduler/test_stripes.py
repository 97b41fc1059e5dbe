"""Schedulers that take hosts from each other share them out for a while."""

from __future__ import annotations

from objects.group import GroupPolicy
from scheduler.claim.stripes import ACTIVE_S, Stripes
from scheduler.engine import engine
from scheduler.engine.driver import SchedulerDriver
from scheduler.engine.surveying import survey
from scheduler.framework.settings import SPREADING_WEIGHERS
from scheduler.table.host_table import HostTable
from tests.support import fleet


def chosen(driver: SchedulerDriver, count: int) -> set[str]:
    """Hosts of single boots on a fleet of equal ones."""
    table = fleet.table([fleet.node(f"h{n}") for n in range(12)])
    hosts: set[str] = set()
    for seed in range(count):
        request = fleet.request(fleet.spec(), table, seed=seed)
        with table.take_tentatively():
            [row] = engine.choose_rows(table, driver, request, survey(table, driver, request), 1)
        hosts.add(table.hosts[row])
    return hosts


def met(own: int, *others: int) -> Stripes:
    stripes = Stripes()
    stripes.note_writers(others, own, 0.0, conflict=True)
    return stripes


def test_conflicting_schedulers_prefer_disjoint_hosts_covering_all() -> None:
    plain = fleet.driver()
    drivers = [met(7, 3, 11).with_stripe(plain, 1.0), met(3, 11, 7).with_stripe(plain, 1.0), met(11, 3, 7).with_stripe(plain, 1.0)]
    shares = [chosen(driver, 60) for driver in drivers]
    assert [len(share) for share in shares] == [4, 4, 4]
    assert set.union(*shares) == {f"h{n}" for n in range(12)}


def test_nothing_is_shared_without_a_recent_conflict() -> None:
    plain = fleet.driver()
    peaceful = Stripes()
    peaceful.note_writers([3], 7, 0.0, conflict=False)
    assert peaceful.with_stripe(plain, 1.0) is plain
    assert met(7).with_stripe(plain, 1.0) is plain
    assert met(7, 3).with_stripe(plain, ACTIVE_S + 1.0) is plain
    stripes = met(7, 3)
    stripes.note_writers([], 7, ACTIVE_S + 1.0, conflict=True)  # the other has not been heard of for long
    assert stripes.with_stripe(plain, ACTIVE_S + 1.0) is plain


def test_a_foreign_stripe_serves_when_ours_is_full() -> None:
    table = fleet.table([fleet.node("h0", vcpus=1), fleet.node("h1", vcpus=4)])
    request = fleet.request(fleet.spec(fleet.flavor(2)), table)
    for own, other in ((1, 2), (2, 1)):
        driver = met(own, other).with_stripe(fleet.driver(), 1.0)
        found = survey(table, driver, request)
        with table.take_tentatively():
            assert engine.choose_rows(table, driver, request, found, 2) == [1, 1]


def test_the_stripe_preference_is_part_of_the_score() -> None:
    table = fleet.table([fleet.node("h0"), fleet.node("h1")])
    request = fleet.request(fleet.spec(), table)
    driver = met(1, 2).with_stripe(fleet.driver(), 1.0)
    parts = fleet.weights(survey(table, driver, request), [0, 1])
    assert sorted(parts["Stripe"]) == [0.0, 1.0]


PACKING = {"enabled_weighers": (*SPREADING_WEIGHERS, "LeftoverWeigher"), "leftover_from": 0.55}


def half_used(table: HostTable) -> None:
    """Of every host more than half. Every other one is fuller: all of these are in one stripe of two."""
    for row in range(table.size):
        for _ in range(5 + row % 2):
            table.take_room(row, 1, 2048, 0)


def test_packing_schedulers_stay_on_separate_hosts_while_roomy() -> None:
    table = fleet.table([fleet.node(f"h{n}", vcpus=8, memory_mb=16384) for n in range(8)])
    drivers = [met(own, other).with_stripe(fleet.driver(**PACKING), 1.0) for own, other in ((1, 2), (2, 1))]
    taken: list[set[int]] = [set(), set()]
    with table.take_tentatively():
        half_used(table)
        for _ in range(8):  # so many fit into the fuller stripe
            for driver, rows in zip(drivers, taken, strict=True):
                request = fleet.request(fleet.spec(fleet.flavor(1, 2048)), table)
                rows.update(engine.choose_rows(table, driver, request, survey(table, driver, request), 1))
        assert taken[0].isdisjoint(taken[1])


def test_a_stripe_weighs_like_packing_or_else_one() -> None:
    table = fleet.table([fleet.node(f"h{n}", vcpus=8) for n in range(2)])
    driver = met(1, 2).with_stripe(fleet.driver(**PACKING), 1.0)

    def stripes_of(policy: GroupPolicy | None) -> list[float]:
        request = fleet.request(fleet.spec(group=fleet.group(policy) if policy else None), table)
        return sorted(fleet.weights(survey(table, driver, request), [0, 1])["Stripe"])

    assert stripes_of(None) == [0.0, 1.0]
    with table.take_tentatively():
        half_used(table)
        assert stripes_of(None) == stripes_of(GroupPolicy.ANTI_AFFINITY) == [0.0, 1000.0]
        assert stripes_of(GroupPolicy.AFFINITY) == [0.0, 1.0]


def test_a_soft_policy_outweighs_stripes() -> None:
    table = fleet.table([fleet.node(f"h{n}", vcpus=8) for n in range(2)])
    request = fleet.request(fleet.spec(group=fleet.group(GroupPolicy.SOFT_ANTI_AFFINITY)), table)
    assert "Stripe" not in fleet.weights(survey(table, met(1, 2).with_stripe(fleet.driver(), 1.0), request), [0, 1])
