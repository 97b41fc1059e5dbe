"""What a survey says of the best hosts, against putting all hosts in order; on fleets too large to be looked at as one."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from objects.group import GroupPolicy, ServerGroup
from objects.inventory import Slot
from scheduler.engine import engine
from scheduler.engine.driver import SchedulerDriver
from scheduler.engine.survey import SELECTED_HOSTS, UNDIVIDED_LIMIT, leading_scores
from scheduler.engine.surveying import survey
from scheduler.framework.batch_request import Request
from scheduler.framework.settings import DEFAULT_FILTERS
from scheduler.table.columns import CHANGES_KEPT
from scheduler.table.host_table import HostTable
from tests.support import fleet
from tests.support.examples import examples

HOSTS = max(4 * SELECTED_HOSTS, UNDIVIDED_LIMIT) + 37
"""Enough that scores are looked at block by block."""


def big_table(chance: random.Random, sizes: int) -> HostTable:
    """Hosts of so many sizes, which is how many ties there are, some of them used, down or in another zone."""
    shapes = [(chance.randint(4, 64), chance.randint(4, 256)) for _ in range(sizes)]
    picked = [chance.choice(shapes) for _ in range(HOSTS)]
    nodes = [
        fleet.node(f"h{n}", vcpus=vcpus, memory_mb=gib * 1024, failed_builds=float(chance.random() < 0.05))
        for n, (vcpus, gib) in enumerate(picked)
    ]
    made = fleet.table(nodes, zones={node.host: chance.choice(("east", "west")) for node in nodes})
    for n, node in enumerate(nodes):
        used = chance.choice((0, 0, 1, 2, node.vcpus // 2, node.vcpus))
        amounts = {"used_vcpus": used, "used_memory_mb": used * 1024, "instances": used}
        made.set_inventory(fleet.inventory(n + 1, node, fleet.CELLS[n % 2], 2, **amounts), now=0.0)
        if chance.random() < 0.03:
            made.set_service(fleet.CELLS[n % 2], node.host, 0.0, disabled=False, forced_down=False)
    return made


def plain(table: HostTable, asked: Request) -> dict[int, float]:
    """The score of every host that passes, one by one in Python, without the noise."""
    left = [
        row
        for row in range(table.size)
        if table.heard_at[row] >= asked.alive_since
        and (asked.zone is None or table.zone[row] == asked.zone)
        and table.free_memory_mb[row] >= asked.memory_mb
        and table.free_vcpus[row] >= asked.vcpus
        and table.free_disk_gb[row] >= asked.disk_gb
        and table.instances[row] < 50
    ]
    scores = dict.fromkeys(left, 0.0)
    for column, multiplier in (
        (table.free_memory_mb, 1.0),
        (table.free_vcpus, 1.0),
        (table.free_disk_gb, 1.0),
        (table.failed_builds, -1e6),
    ):
        most = max((float(column[row]) for row in left), default=0.0)
        for row in left:
            scores[row] += float(column[row]) * (multiplier / (most or 1.0))
    return scores


@given(st.integers(0, 2**32), st.sampled_from([1, 3, 400]), st.sampled_from([None, None, "east"]), st.integers(1, 8))
@examples(8, least=2)
def test_best_hosts_of_large_fleets_equal_a_scan(seed: int, sizes: int, zone: str | None, vcpus: int) -> None:
    table = big_table(random.Random(seed), sizes)
    filters = (*DEFAULT_FILTERS, "NumInstancesFilter")
    # a fleet that is fuller than leftover_from would be packed
    driver = fleet.driver(enabled_filters=filters, shuffle_best_same_weighed_hosts=False, leftover_weight_multiplier=0.0)
    asked = fleet.request(fleet.spec(fleet.flavor(vcpus, 1024 * vcpus), availability_zone=zone), table, alive_since=1.0)
    scores = plain(table, asked)
    found = survey(table, driver, asked)
    assert found.passing_rows.tolist() == list(scores)
    assert found.passing_scores.tolist() == pytest.approx(list(scores.values()), rel=1e-12, abs=1e-12)
    in_order = sorted(scores, key=lambda row: -found.passing_scores[found.passing_rows.searchsorted(row)])
    for count in (1, 5, SELECTED_HOSTS + 3):
        assert found.best_rows(count)[0].tolist() == in_order[:count]
    for cell in (0, 1):
        theirs = [row for row in in_order if table.cell[row] == cell]
        for count in (3, SELECTED_HOSTS):
            assert found.best_of_cell(cell, count)[0].tolist() == theirs[:count]
    assert survey(table, driver, asked).first_row() == next(iter(in_order), None)
    with table.take_tentatively():
        assert engine.choose_rows(table, driver, asked, found, 1) == in_order[:1]


@given(st.integers(0, 2**32), st.sampled_from([1, 2, 50]), st.integers(1, 2 * SELECTED_HOSTS))
@examples(8, least=2)
def test_chance_orders_equals_alike_for_any_count(seed: int, sizes: int, count: int) -> None:
    table = big_table(random.Random(seed), sizes)
    asked = fleet.request(fleet.spec(), table, alive_since=1.0, seed=seed)
    driver: SchedulerDriver = fleet.driver()
    found = survey(table, driver, asked)
    in_order = found.passing_rows[np.argsort(-found.passing_scores, kind="stable")].tolist()
    for some in (1, count):
        assert survey(table, driver, asked).best_rows(some)[0].tolist() == in_order[:some]
    assert survey(table, driver, asked).first_row() == in_order[0]
    theirs = [row for row in in_order if table.cell[row] == 1]
    assert survey(table, driver, asked).best_of_cell(1, count)[0].tolist() == theirs[:count]


@given(st.integers(0, 2**32), st.sampled_from([GroupPolicy.SOFT_AFFINITY, GroupPolicy.SOFT_ANTI_AFFINITY]), st.integers(0, 60))
@examples(12, least=4)
def test_weights_of_few_hosts_equal_the_full_weights(seed: int, policy: GroupPolicy, count: int) -> None:
    chance = random.Random(seed)
    table = big_table(chance, 20)
    driver = fleet.driver(soft_affinity_weight_multiplier=chance.choice((1.0, -0.3)), soft_anti_affinity_weight_multiplier=0.7)
    group = ServerGroup(uuid="g", name="g", project_id="p", policy=policy)
    hosts = chance.choices([f"h{n}" for n in range(50)], k=count)
    members = [Slot(group_uuid="g", instance_uuid=str(n), host=host) for n, host in enumerate(hosts)]
    asked = fleet.request(fleet.spec(group=group), table, members, alive_since=1.0)
    found = survey(table, driver, asked)
    dense = survey(table, driver, asked, within=np.arange(table.size))
    assert found.passing_rows.tolist() == dense.passing_rows.tolist()
    assert found.passing_scores.tolist() == dense.passing_scores.tolist()
    assert [(part.weigher, part.low, part.span) for part in found.parts] == [
        (part.weigher, part.low, part.span) for part in dense.parts
    ]
    rows = chance.sample(found.passing_rows.tolist(), 30)
    assert found.raw_weights(rows) == dense.raw_weights(rows)


@given(
    st.integers(0, 2**32),
    st.integers(0, 5000),
    st.integers(1, 700),
    st.sampled_from([2, 20, 10**9]),
    st.sampled_from([0.02, 0.6, 1.0]),
)
@examples(150)
def test_the_leading_scores_are_among_those_found(seed: int, size: int, count: int, distinct: int, share: float) -> None:
    chance = np.random.default_rng(seed)
    scores = chance.integers(0, distinct, size) / 7.0
    left = None if share == 1.0 else chance.random(size) < share
    found, least = leading_scores(scores, left, count, 0.25)
    candidates = np.arange(size) if left is None else np.flatnonzero(left)
    in_order = np.sort(scores[candidates])[::-1]
    assert set(candidates[scores[candidates] >= least]) <= set(found.tolist())
    if candidates.size:
        last = in_order[min(count, in_order.size) - 1]
        assert set(candidates[scores[candidates] >= last - 0.25]) <= set(found.tolist())
    assert found.tolist() == sorted(set(found.tolist()) & set(candidates.tolist()))


def test_the_table_says_which_rows_have_changed() -> None:
    table = fleet.table([fleet.node(f"h{n}") for n in range(5)])
    before = table.change_count
    assert not table.changed_since(before)
    with table.take_tentatively():
        table.take_room(3, 1, 1, 1)
        assert table.changed_since(before) == {3}
    table.set_inventory(fleet.inventory(2, fleet.node("h1"), fleet.CELLS[1], 2, used_vcpus=1), now=0.0)
    assert table.changed_since(before) == {1, 3}


def test_too_many_changes_make_every_row_suspect() -> None:
    table = fleet.table([fleet.node(f"h{n}") for n in range(5)])
    now = table.change_count
    assert 2 not in table.changed_since(now)
    for _ in range(CHANGES_KEPT + 1):
        table.note_changed(2)
    assert 4 in table.changed_since(now)
    assert table.rows_since(now, 5) is None


def test_the_hosts_that_settling_changes_are_known() -> None:
    table = fleet.table([fleet.node(f"h{n}") for n in range(5)])
    table.set_nodes(fleet.CELLS[1], [fleet.node("h3", vcpus_used=2)], ahead=True)  # of guests whose claims are still to be read
    table.take_rows_ahead()
    before = table.change_count
    table.settle_counts(1e9)
    assert table.changed_since(before) == {3}
    assert table.free_vcpus[3] == 14
