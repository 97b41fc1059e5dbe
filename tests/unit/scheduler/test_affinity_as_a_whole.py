"""The first members of an affinity group go to a host that has room for all of them, if there is one."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from objects.group import GroupPolicy
from objects.inventory import Slot
from scheduler.engine import engine
from scheduler.engine.job import Job
from scheduler.engine.surveying import survey
from scheduler.filters.adapter import Adapter
from scheduler.framework.hosts import HostState
from scheduler.framework.settings import SchedulerSettings
from scheduler.table.host_table import HostTable
from tests.support import fleet
from tests.support.attempts import Ledger, attempt, begun, job
from tests.support.examples import examples

FREE = st.lists(st.integers(0, 7), min_size=1, max_size=8)
"""Free vCPUs per node."""


def placed(table: HostTable, count: int, size: int = 1, most: int | None = None) -> list[str]:
    """The hosts for ``count`` members, of ``size`` vCPUs each, of a new group."""
    driver = fleet.driver()
    if most is not None:
        driver.filters = (*driver.filters, Adapter(SchedulerSettings(), "Few", Few(most)))
    request = fleet.request(fleet.spec(fleet.flavor(vcpus=size), group=fleet.group(GroupPolicy.AFFINITY)), table)
    with table.take_tentatively():
        found = survey(table, driver, request, count)
        return [table.hosts[row] for row in engine.choose_rows(table, driver, request, found, count)]


class Few:
    """A filter of the site that looks at hosts one by one."""

    def __init__(self, most: int) -> None:
        self.most = most

    def host_passes(self, host: HostState, spec: object) -> bool:
        return host.instances < self.most


def test_the_best_single_host_yields_to_group_room() -> None:
    best_for_one = fleet.node("h0", vcpus=2, memory_mb=10 * 65536, disk_gb=9000)
    assert placed(fleet.table([best_for_one, fleet.node("h1", vcpus=4)]), 1) == ["h0"]
    assert placed(fleet.table([best_for_one, fleet.node("h1", vcpus=4)]), 4) == ["h1"] * 4


def test_the_roomiest_host_fills_where_none_fits_all() -> None:
    nodes = [fleet.node(f"h{n}", vcpus=vcpus, memory_mb=65536 * (9 - vcpus)) for n, vcpus in enumerate((3, 5, 2))]
    assert placed(fleet.table(nodes), 8) == ["h1"] * 5


def test_filters_that_look_at_single_hosts_count() -> None:
    assert placed(fleet.table([fleet.node("h0"), fleet.node("h1")]), 5, most=3) in (["h0"] * 3, ["h1"] * 3)


@given(FREE, st.lists(st.booleans(), min_size=8, max_size=8), st.integers(1, 9), st.integers(1, 2))
@examples(200)
def test_as_many_as_the_roomiest_host_takes(free: list[int], shared: list[bool], count: int, size: int) -> None:
    """Nodes of which every second may belong to the host before it, against the plain sums of what hosts take."""
    nodes, owner = [], "h0"
    for n, vcpus in enumerate(free):
        owner = owner if n and shared[n] else f"h{n}"
        nodes.append(fleet.node(owner, node=f"n{n}", vcpus=vcpus))
    takes: Counter[str] = Counter()
    for node in nodes:
        takes[node.host] += node.vcpus // size
    hosts = placed(fleet.table(nodes), count, size)
    assert len(hosts) == min(count, max(takes.values()))
    assert len(set(hosts)) <= 1


@given(FREE, st.integers(2, 9), st.integers(1, 2))
@examples(200)
def test_single_node_hosts_taking_the_most_members_remain(free: list[int], count: int, size: int) -> None:
    table, driver = fleet.table([fleet.node(f"h{n}", vcpus=vcpus) for n, vcpus in enumerate(free)]), fleet.driver()
    request = fleet.request(fleet.spec(fleet.flavor(vcpus=size), group=fleet.group(GroupPolicy.AFFINITY)), table)
    with table.take_tentatively():
        left = survey(table, driver, request, count).passing_rows
    takes = {f"h{n}": vcpus // size for n, vcpus in enumerate(free)}
    most = min(count, max(takes.values()))
    assert {table.hosts[row] for row in left} == {host for host, amount in takes.items() if amount >= max(most, 1)}


class TestRaces:
    """What a plan is worth on the locked rows."""

    def founding(self, count: int) -> list[Job]:
        return [job(fleet.spec(group=fleet.group(GroupPolicy.AFFINITY)), count)]

    def test_all_members_move_where_one_no_longer_fits(self) -> None:
        ledger = Ledger(3, vcpus=4)
        jobs = self.founding(4)
        made = attempt(ledger.table, jobs)
        [first] = begun(made, jobs)
        ledger.taken = {first: 1}
        more = set(made.confirm_locked(ledger.rows({first})))
        assert more
        assert first not in more
        assert not made.confirm_locked(ledger.rows(more))
        [placements], _ = made.finish_plan()
        assert len({p.inventory_id for p in placements}) == 1
        assert len(placements) == 4
        assert placements[0].inventory_id != first

    def test_a_group_without_a_common_host_is_refused(self) -> None:
        ledger = Ledger(2, vcpus=4)
        jobs = self.founding(4)
        made = attempt(ledger.table, jobs)
        [first] = begun(made, jobs)
        ledger.taken = {1: 1, 2: 2}
        more = set(made.confirm_locked(ledger.rows({first})))
        if more:
            assert not made.confirm_locked(ledger.rows(more))
        placements, [decision] = made.finish_plan()
        assert placements == [()]
        assert decision.message.startswith("No valid host was found for instance 4 of 4")

    @given(st.lists(st.integers(0, 4), min_size=4, max_size=4), st.integers(2, 5))
    @examples(100)
    def test_members_stay_together_and_never_over_commit(self, taken: list[int], count: int) -> None:
        ledger = Ledger(4, vcpus=4)
        jobs = self.founding(count)
        made = attempt(ledger.table, jobs)
        wanted = begun(made, jobs)
        ledger.taken = {n + 1: used for n, used in enumerate(taken) if used}
        rounds = 0
        while wanted and rounds < 4:
            wanted, rounds = set(made.confirm_locked(ledger.rows(wanted))), rounds + 1
        [placements], _ = made.finish_plan()
        hosts = {p.inventory_id for p in placements}
        assert len(hosts) <= 1
        assert all(count <= 4 - taken[key - 1] for key in hosts)
        assert bool(hosts) is (count <= 4 - min(taken))

    def test_a_leaving_member_holds_its_place_until_then(self) -> None:
        """If it finds no other host, nobody else may have come to its old one meanwhile."""
        group = fleet.group(GroupPolicy.ANTI_AFFINITY)
        ledger = Ledger(1)
        leaving = job(fleet.spec(fleet.flavor(vcpus=99), group=group))
        other = job(fleet.spec(group=group))
        slots = [Slot(group_uuid=group.uuid, instance_uuid=leaving.uuids[0], host="h0")]
        assert not begun(attempt(ledger.table, [leaving, other]), [leaving, other], slots)
        assert (leaving.short, other.short) == (0, 0)


def test_an_unknown_host_with_group_room_is_awaited() -> None:
    nodes = [fleet.node("up", vcpus=2), fleet.node("coming", vcpus=4)]
    table = fleet.table(nodes)
    table.set_service(fleet.CELLS[1], "coming", -1000.0, disabled=False, forced_down=False)
    for count, waits in ((4, True), (5, False)):
        [founding] = jobs = [job(fleet.spec(group=fleet.group(GroupPolicy.AFFINITY)), count)]
        assert not begun(attempt(table, jobs, young=True), jobs)
        assert founding.premature is waits


def test_survey_rows_stay_in_table_order() -> None:
    table = fleet.table([fleet.node(f"h{n}", vcpus=n % 5) for n in range(20)])
    driver, request = fleet.driver(), fleet.request(fleet.spec(group=fleet.group(GroupPolicy.AFFINITY)), table)
    found = survey(table, driver, request, 3)
    assert np.array_equal(found.passing_rows, np.sort(found.passing_rows))
    assert found.filter_counts[-1].name == "WholeGroup"
    assert (found.filter_counts[-1].before, found.filter_counts[-1].after) == (16, 8)
