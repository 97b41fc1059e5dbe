"""Which hosts of held claims would not be chosen for them now."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from objects.group import GroupPolicy, ServerGroup
from objects.inventory import Slot
from objects.spec import RequestSpec
from scheduler.claim.recheck import refusing_hosts
from scheduler.engine.job import Job, PlanContext
from scheduler.table.host_table import HostTable
from tests.support import fleet

NOW = PlanContext(mono=0.0, wall=0.0, alive_since=-1e9, young=False, mapped_since=-1e9, ages={})


def held(made: HostTable, asked: RequestSpec, hosts: Sequence[str], others: Sequence[Slot] = ()) -> tuple[str, ...]:
    """One server of the request is held on each of ``hosts``, and nothing else is claimed but what the table has."""
    uuids = [f"server-{number}" for number in range(len(hosts))]
    claimed = [(uuid, int(made.inventory[made.rows_named([host])[0]]), host) for uuid, host in zip(uuids, hosts, strict=True)]
    slots = [Slot(group_uuid="g", instance_uuid=uuid, host=host, fault_domain=asked.fault_domain) for uuid, _, host in claimed]
    job = Job(fleet.CONTEXT, asked, tuple(uuids))
    with made.take_tentatively():
        for _, inventory, _ in claimed:
            row = made.find_inventory(inventory)
            assert row is not None
            made.take_room(row, asked.flavor.vcpus, asked.flavor.memory_mb, 0)
        before = made.free_vcpus.copy()
        found = refusing_hosts(made, fleet.driver(), NOW, job, claimed, [*slots, *others])
        assert (made.free_vcpus == before).all()
    return found


def group(policy: GroupPolicy = GroupPolicy.ANTI_AFFINITY, **limits: Any) -> ServerGroup:
    return ServerGroup(uuid="g", name="g", project_id="p", policy=policy, **limits)


def slot(host: str, domain: str | None = None) -> Slot:
    return Slot(group_uuid="g", instance_uuid=f"other on {host}", host=host, fault_domain=domain)


def table(racks: dict[str, tuple[str, ...]] | None = None, vcpus: int = 4) -> HostTable:
    aggregates = fleet.racks(**racks) if racks else ()
    return fleet.table([fleet.node(f"h{n}", vcpus=vcpus) for n in range(1, 5)], aggregates=aggregates)


def test_hosts_full_with_the_held_servers_take_them() -> None:
    assert held(table(), fleet.spec(fleet.flavor(vcpus=2)), ["h1", "h1", "h2", "h2"]) == ()


def test_a_host_that_has_shrunk_does_not() -> None:
    assert held(table(vcpus=3), fleet.spec(fleet.flavor(vcpus=2)), ["h1", "h1", "h2"]) == ("h1",)


def test_an_unknown_host_does_not_take_its_server() -> None:
    made = table()
    job = Job(fleet.CONTEXT, fleet.spec(), ("a",))
    assert refusing_hosts(made, fleet.driver(), NOW, job, [("a", 12345, "gone")], []) == ("gone",)


def test_members_of_a_group_count_themselves_once() -> None:
    asked = fleet.spec(group=group(max_server_per_host=2))
    assert held(table(), asked, ["h1", "h1", "h2"]) == ()
    assert held(table(), asked, ["h1", "h1", "h2"], [slot("h1")]) == ("h1",)


def test_members_of_an_affinity_group_stay_together() -> None:
    asked = fleet.spec(group=group(GroupPolicy.AFFINITY))
    assert held(table(), asked, ["h1", "h1"]) == ()
    assert held(table(), asked, ["h1", "h1"], [slot("h1")]) == ()


def test_joined_racks_retain_only_allowed_members() -> None:
    asked = fleet.spec(group=group(max_server_per_rack=1))
    assert held(table({"a": ("h1",), "b": ("h2",), "c": ("h3",)}), asked, ["h1", "h2", "h3"]) == ()
    assert held(table({"a": ("h1", "h2"), "c": ("h3",)}), asked, ["h1", "h2", "h3"]) == ("h2",)
    assert held(table({"a": ("h1",), "b": ("h2",)}), asked, ["h1", "h2", "h3"]) == ("h3",)


def test_a_rack_with_another_fault_domain_is_closed() -> None:
    racks: dict[str, tuple[str, ...]] = {"a": ("h1", "h2"), "b": ("h3", "h4")}
    asked = fleet.spec(group=group(GroupPolicy.SOFT_ANTI_AFFINITY), scheduler_hints={"group": ("g",), "fault_domain": ("1",)})
    assert held(table(racks), asked, ["h1", "h3"], [slot("h4", "2")]) == ("h3",)
    assert held(table(racks), asked, ["h1", "h3"], [slot("h4", "1")]) == ()
