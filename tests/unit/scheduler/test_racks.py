"""Groups whose members are spread over racks, and fault domains on racks of their own."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from objects.capacity import Loss, LossKind
from objects.group import GroupPolicy, ServerGroup
from objects.inventory import Slot
from objects.spec import RequestSpec
from scheduler.engine import engine
from scheduler.engine.alternates import Alternates
from scheduler.engine.request_classes import Shapes
from scheduler.engine.row_inputs import exceptions_of, singled_out
from scheduler.engine.survey_cache import KeptSurvey
from scheduler.engine.surveying import survey
from scheduler.filters.affinity import ServerGroupRackFilter
from scheduler.framework.hosts import Hosts
from scheduler.framework.members import Members
from scheduler.framework.settings import SchedulerSettings
from scheduler.table.host_table import HostTable
from scheduler.what_if import failure_simulation
from tests.support import fleet

RACKS = {"a": ("h1", "h2"), "b": ("h3", "h4"), "c": ("h5",)}
"""h6 is in none."""


def table(racks: dict[str, tuple[str, ...]] | None = None, hosts: int = 6) -> HostTable:
    aggregates = fleet.racks(**(RACKS if racks is None else racks))
    return fleet.table([fleet.node(f"h{n}") for n in range(1, hosts + 1)], aggregates=aggregates)


def group(per_rack: int | None = 1, policy: GroupPolicy = GroupPolicy.ANTI_AFFINITY, per_host: int = 1) -> ServerGroup:
    return ServerGroup(
        uuid="g", name="g", project_id="p", policy=policy, max_server_per_host=per_host, max_server_per_rack=per_rack
    )


def slots(*hosts: str, domain: str | None = None) -> list[Slot]:
    return [Slot(group_uuid="g", instance_uuid=f"{host} {domain}", host=host, fault_domain=domain) for host in hosts]


def in_domain(name: str, policy: GroupPolicy = GroupPolicy.SOFT_ANTI_AFFINITY) -> RequestSpec:
    return fleet.spec(group=group(None, policy), scheduler_hints={"group": ("g",), "fault_domain": (name,)})


def left(made: HostTable, asked: RequestSpec, members: Sequence[Slot] = (), **changes: Any) -> list[str]:
    request = fleet.request(asked, made, members, **changes)
    mask = ServerGroupRackFilter(SchedulerSettings()).passes(Hosts(made, request), request)
    assert mask is not None
    return sorted(made.hosts[row] for row in np.flatnonzero(mask))


def placed(made: HostTable, asked: RequestSpec, count: int, members: Sequence[Slot] = ()) -> list[str]:
    request = fleet.request(asked, made, members)
    driver = fleet.driver()
    with made.take_tentatively():
        rows = driver.place_instances(made, request, survey(made, driver, request), count)
    return [made.hosts[row] for row in rows]


class TestMembersPerRack:
    def test_full_racks_and_hosts_without_rack_are_closed(self) -> None:
        assert left(table(), fleet.spec(group=group())) == ["h1", "h2", "h3", "h4", "h5"]
        assert left(table(), fleet.spec(group=group()), slots("H1", "h5")) == ["h3", "h4"]
        assert left(table(), fleet.spec(group=group(2)), slots("h1", "h2", "h5")) == ["h3", "h4", "h5"]

    def test_a_host_in_two_racks_is_in_none(self) -> None:
        assert left(table(RACKS | {"d": ("h1",)}), fleet.spec(group=group())) == ["h2", "h3", "h4", "h5"]

    def test_all_nodes_of_a_host_are_one_host(self) -> None:
        made = fleet.table([fleet.node("h1", node="n1"), fleet.node("h1", node="n2")], aggregates=fleet.racks(a=["h1"]))
        assert left(made, fleet.spec(group=group(2)), slots("h1")) == ["h1", "h1"]
        assert placed(made, fleet.spec(group=group(3, per_host=9)), 5) == ["h1"] * 3

    def test_what_a_plan_adds_to_a_host_counts(self) -> None:
        made = table()
        request = fleet.request(fleet.spec(group=group(2)), made, slots("h1"))
        more = np.ones(6, np.int64)
        mask = ServerGroupRackFilter(SchedulerSettings()).passes(Hosts(made, request, np.arange(6), more), request)
        assert mask is not None
        assert [made.hosts[row] for row in np.flatnonzero(mask)] == ["h3", "h4", "h5"]

    def test_a_group_without_the_rule_is_not_asked(self) -> None:
        made = table()
        request = fleet.request(fleet.spec(group=group(None)), made)
        assert ServerGroupRackFilter(SchedulerSettings()).passes(Hosts(made, request), request) is None

    def test_the_rack_filter_applies_always_even_when_forced(self) -> None:
        made, driver = table(), fleet.driver(enabled_filters=("ComputeFilter",))
        for forced, hosts in (((), ["h3", "h4", "h5"]), (("h2", "h3"), ["h3"])):
            request = fleet.request(fleet.spec(group=group(), force_hosts=forced), made, slots("h1"))
            rows = survey(made, driver, request).passing_rows
            assert [made.hosts[row] for row in rows] == hosts

    @pytest.mark.parametrize("most", [1, 2])
    def test_a_batch_is_spread_over_the_racks(self, most: int) -> None:
        rack_of = {host: rack for rack, hosts in RACKS.items() for host in hosts}
        hosts = placed(table(), fleet.spec(group=group(most)), 6)
        assert len(hosts) == (3 if most == 1 else 5)
        assert max(Counter(rack_of[host] for host in hosts).values()) == most

    def test_members_get_no_alternates(self) -> None:
        made, driver = table(), fleet.driver()
        request = fleet.request(fleet.spec(group=group()), made)
        with made.take_tentatively():
            found = survey(made, driver, request)
            [row] = driver.place_instances(made, request, found, 1)
            assert Alternates(made, driver, request, found).choose_rows([("i", row)]) == {"i": []}

    def test_without_racks_the_refusal_says_so(self) -> None:
        made = table({})
        request = fleet.request(fleet.spec(group=group()), made)
        found = survey(made, fleet.driver(), request)
        assert found.filter_counts[-1].reason == "in no rack: no aggregate of a host has the key rack"

    @pytest.mark.parametrize("seed", range(5))
    def test_kept_surveys_say_the_same(self, seed: int) -> None:
        chance = random.Random(seed)
        racks = {f"r{n}": tuple(f"h{host}" for host in range(1 + 10 * n, 11 + 10 * n)) for n in range(55)}
        made, driver = table(racks, hosts=600), fleet.driver()
        driver.shapes = Shapes(kept_from=0)
        for _ in range(6):
            members = slots(*{f"h{chance.randrange(1, 601)}" for _ in range(20)})
            request = fleet.request(fleet.spec(group=group(chance.randrange(1, 3))), made, members)
            found = survey(made, driver, request)
            whole = survey(made, driver, request, within=np.arange(made.size))
        assert isinstance(found, KeptSurvey)
        assert found.passing_rows.tolist() == whole.passing_rows.tolist()
        assert [(each.name, each.after) for each in found.filter_counts] == [
            (each.name, each.after) for each in whole.filter_counts
        ]


class TestFaultDomains:
    def test_racks_of_other_domains_are_closed(self) -> None:
        members = slots("h1", "h2", domain="1") + slots("H3", domain="2")
        assert left(table(), in_domain("1"), members) == ["h1", "h2", "h5"]
        assert left(table(), in_domain("2"), members) == ["h3", "h4", "h5"]
        assert left(table(), in_domain("3"), members) == ["h5"]

    def test_members_of_no_domain_close_nothing(self) -> None:
        assert left(table(), in_domain("1"), slots("h1")) == ["h1", "h2", "h3", "h4", "h5"]

    def test_the_group_may_limit_the_racks_too(self) -> None:
        asked = fleet.spec(group=group(), scheduler_hints={"fault_domain": ("1",)})
        assert left(table(), asked, slots("h1", domain="1") + slots("h3", domain="2")) == ["h5"]

    def test_a_moving_server_is_not_restricted_by_itself(self) -> None:
        members = slots("h1", domain="1") + slots("h3", domain="2")
        request = fleet.request(in_domain("2"), table())
        request.members = Members(members).view_without(slots("h1", domain="1"))
        made = table()
        mask = ServerGroupRackFilter(SchedulerSettings()).passes(Hosts(made, request), request)
        assert mask is not None
        assert [made.hosts[row] for row in np.flatnonzero(mask)] == ["h1", "h2", "h3", "h4", "h5"]

    @pytest.mark.parametrize("seed", range(8))
    def test_looks_at_all_and_at_named_rows_agree(self, seed: int) -> None:
        chance = random.Random(seed)
        racks = {f"r{n}": tuple(f"h{host}" for host in chance.sample(range(1, 601), 10)) for n in range(70)}
        made, rule = table(racks, hosts=600), ServerGroupRackFilter(SchedulerSettings())
        every = np.arange(made.size)
        for _ in range(6):
            limit = chance.choice((None, 1, 2))
            members = [slot for name in "abc" for slot in slots(*chance.sample([f"h{n}" for n in range(1, 620)], 6), domain=name)]
            asked = fleet.spec(group=group(limit), scheduler_hints={"group": ("g",), "fault_domain": ("a",)})
            request = fleet.request(asked, made, members)
            closed = {made.racks_of(every).item(int(slot.host[1:]) - 1) for slot in members[6:] if int(slot.host[1:]) <= made.size}
            in_racks = Counter(made.racks_of(every).item(int(slot.host[1:]) - 1) for slot in members if int(slot.host[1:]) <= 600)
            expected = [
                row
                for row, rack in enumerate(made.racks_of(every).tolist())
                if rack >= 0 and rack not in closed and (limit is None or in_racks[rack] < limit)
            ]
            assert left(made, asked, members) == sorted(made.hosts[row] for row in expected)
            some = rule.passes(Hosts(made, request, every), request)
            assert some is not None
            assert np.flatnonzero(some).tolist() == expected
            exceptions = exceptions_of(rule, made, request, singled_out(rule.row_inputs, made, request))
            assert exceptions is not None
            refused = np.setdiff1d(every, exceptions.rows) if exceptions.pass_alone else exceptions.rows
            assert np.setdiff1d(every, refused).tolist() == expected

    def test_what_is_undone_opens_its_rack_again(self) -> None:
        made = table()
        request = fleet.request(in_domain("1"), made, slots("h3", domain="1"))
        step = engine.Savepoint(made, request)
        with made.take_tentatively():
            engine.take_row(made, request, 0)
            assert request.members.of_other_domains("2") == {"h1", "h3"}
            step.undo()
        assert request.members.of_other_domains("2") == {"h3"}
        assert request.members.of_other_domains("1") == set()


def test_the_hosts_of_a_rack_are_lost_together() -> None:
    made = table()
    rows = failure_simulation.rows_of(made, Loss(kind=LossKind.RACK, name="b"))
    assert [made.hosts[row] for row in rows] == ["h3", "h4"]
    assert failure_simulation.rows_of(made, Loss(kind=LossKind.RACK, name="z")).size == 0
