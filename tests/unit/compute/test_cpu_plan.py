"""Dedicated CPUs, NUMA cells and huge pages."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compute.libvirt.cpu_plan import CpuPlan, Taken, TakenMemory, plan_cpus
from compute.libvirt.guest_options import GuestSettings
from compute.libvirt.guest_properties import read_properties
from objects import errors
from objects.flavor import Flavor
from tests.support.libvirt_facts import emulating, server

BUSY = Taken(memory=(TakenMemory(cell=0, page_kib=0, memory_mb=4096),))
ALL = GuestSettings(cpu_dedicated_set="0-7")
DEDICATED = {"hw:cpu_policy": "dedicated"}


def plan(
    specs: dict[str, str],
    vcpus: int = 2,
    memory_mb: int = 1024,
    settings: GuestSettings = ALL,
    others: list[Taken] | None = None,
    numa_nodes: tuple[int, ...] = (),
) -> CpuPlan:
    flavor = Flavor(flavor_id="1", name="f", vcpus=vcpus, memory_mb=memory_mb, extra_specs=specs)
    asked = read_properties(flavor, {}, vcpus, memory_mb)
    return plan_cpus(asked, vcpus, memory_mb, server(), settings, others or [], numa_nodes)


def pins(found: CpuPlan) -> dict[int, tuple[int, ...]]:
    return {vcpu: cpus for node in found.nodes for vcpu, cpus in node.pins.items()}


def full(said: str, *args: object, **kwargs: object) -> None:
    with pytest.raises(errors.BuildFailed, match=said):
        plan(*args, **kwargs)  # type: ignore[arg-type]  # passed through


def test_an_ordinary_guest_avoids_dedicated_cpus() -> None:
    assert plan({}, settings=GuestSettings()) == CpuPlan()
    assert plan({}, settings=GuestSettings(cpu_dedicated_set="0-3")) == CpuPlan(shared=(4, 5, 6, 7))
    assert plan({}, settings=GuestSettings(cpu_shared_set="1-2")) == CpuPlan(shared=(1, 2))


def test_a_dedicated_host_takes_no_other_guests() -> None:
    full("All CPUs of this host", {})
    full("NUMA cell 1 has no shared CPUs", {"hw:numa_nodes": "1"}, settings=GuestSettings(cpu_shared_set="0"), others=[BUSY])


def test_dedicated_cpus_are_free_cores_of_one_cell() -> None:
    found = plan(DEDICATED)
    assert pins(found) == {0: (0,), 1: (1,)}
    assert found.taken.cpus == (0, 1)
    assert found.emulator == (0, 1)
    second = plan(DEDICATED, others=[found.taken])
    assert pins(second) == {0: (2,), 1: (3,)}
    third = plan(DEDICATED, vcpus=4, others=[found.taken])
    assert third.taken.cpus == (4, 5, 6, 7)


def test_no_core_is_broken_while_another_is() -> None:
    assert plan(DEDICATED, vcpus=1, others=[Taken(cpus=(0,))]).taken.cpus == (1,)
    assert plan(DEDICATED, vcpus=3).taken.cpus == (0, 1, 2)


def test_too_few_dedicated_cpus_are_the_hosts_fault() -> None:
    full("cpu_dedicated_set is empty", DEDICATED, settings=GuestSettings())
    full("NUMA cell 1 has 4 free dedicated CPUs, the guest needs 5", DEDICATED, vcpus=5)
    full("has 1 free dedicated CPUs", DEDICATED, others=[Taken(cpus=(0, 1, 2, 4, 5, 6))])


def test_thread_policies() -> None:
    isolated = plan(DEDICATED | {"hw:cpu_thread_policy": "isolate"})
    assert pins(isolated) == {0: (0,), 1: (2,)}
    assert isolated.taken.cpus == (0, 1, 2, 3)
    required = plan(DEDICATED | {"hw:cpu_thread_policy": "require"}, vcpus=3)
    assert pins(required) == {0: (0,), 1: (1,), 2: (2,)}
    assert required.taken.cpus == (0, 1, 2, 3)
    full("has 1 free cores", DEDICATED | {"hw:cpu_thread_policy": "isolate"}, others=[Taken(cpus=(0, 4))])


def test_qemus_own_threads() -> None:
    isolate = plan(DEDICATED | {"hw:emulator_threads_policy": "isolate"})
    assert isolate.emulator == (2,)
    assert isolate.taken.cpus == (0, 1, 2)
    shared = GuestSettings(cpu_dedicated_set="0-5", cpu_shared_set="6-7")
    assert plan(DEDICATED | {"hw:emulator_threads_policy": "share"}, settings=shared).emulator == (6, 7)
    full("no dedicated CPU left", DEDICATED | {"hw:emulator_threads_policy": "isolate"}, vcpus=4)


def test_numa_nodes_are_on_different_cells() -> None:
    found = plan({"hw:numa_nodes": "2"}, settings=GuestSettings())
    assert [(node.cell, node.pins) for node in found.nodes] == [(0, {0: (0, 1, 2, 3)}), (1, {1: (4, 5, 6, 7)})]
    assert found.numa
    assert found.taken.cpus == ()
    full("2 NUMA cells, the guest needs 4", {"hw:numa_nodes": "4"}, vcpus=4)


def test_memory_of_a_cell_is_given_once() -> None:
    asked = {"hw:mem_page_size": "small"}
    found = plan(asked, memory_mb=3000, settings=GuestSettings())
    assert found.taken.memory == (TakenMemory(cell=0, page_kib=0, memory_mb=3000),)
    second = plan(asked, memory_mb=3000, settings=GuestSettings(), others=[found.taken])
    assert second.nodes[0].cell == 1
    full("1096 of 4096 MiB", asked, memory_mb=3000, settings=GuestSettings(), others=[found.taken, second.taken])


def test_huge_pages() -> None:
    any_cpu = GuestSettings()
    large = plan({"hw:mem_page_size": "large"}, memory_mb=2048, settings=any_cpu)
    assert large.nodes[0].page_kib == 1048576
    next_one = plan({"hw:mem_page_size": "large"}, memory_mb=2048, settings=any_cpu, others=[large.taken])
    assert (next_one.nodes[0].cell, next_one.nodes[0].page_kib) == (0, 2048)
    assert plan({"hw:mem_page_size": "2MB"}, memory_mb=100, settings=any_cpu).nodes[0].page_kib == 2048
    assert plan({"hw:mem_page_size": "any"}, memory_mb=3001, settings=any_cpu).nodes[0].page_kib == 0
    full("not enough free pages .2048 KiB. for 101 MiB", {"hw:mem_page_size": "2MB"}, memory_mb=101, settings=any_cpu)
    full("not enough free pages .64 KiB.", {"hw:mem_page_size": "64"}, settings=any_cpu)


def test_a_host_without_huge_pages_refuses_them() -> None:
    flavor = Flavor(flavor_id="1", name="f", vcpus=1, memory_mb=64, extra_specs={"hw:mem_page_size": "large"})
    with pytest.raises(errors.BuildFailed, match="not enough free pages"):
        plan_cpus(read_properties(flavor, {}, 1, 64), 1, 64, emulating(), ALL_OF_TWO, [])


ALL_OF_TWO = GuestSettings(cpu_dedicated_set="0-1")


@given(st.lists(st.tuples(st.integers(1, 4), st.sampled_from(["prefer", "isolate", "require"]), st.booleans()), max_size=8))
def test_no_cpu_is_ever_given_twice(asked: list[tuple[int, str, bool]]) -> None:
    taken: list[Taken] = []
    for vcpus, policy, isolate in asked:
        specs = DEDICATED | {"hw:cpu_thread_policy": policy} | ({"hw:emulator_threads_policy": "isolate"} if isolate else {})
        try:
            found = plan(specs, vcpus=vcpus, memory_mb=1, others=taken)
        except errors.BuildFailed:
            continue
        assert {cpu for cpus in pins(found).values() for cpu in cpus} | {*found.emulator} <= {*found.taken.cpus}
        assert len(pins(found)) == vcpus == len({*pins(found).values()})
        taken.append(found.taken)
    given_away = [cpu for each in taken for cpu in each.cpus]
    assert len(given_away) == len({*given_away})
    assert {*given_away} <= {*range(8)}


def test_sets_of_the_operator() -> None:
    assert GuestSettings(cpu_dedicated_set="1-3").split_cpus((0, 1, 2, 3)) == ((1, 2, 3), (0,))
    for wrong, said in (("1-3,x", "is not a set of CPUs"), ("0-9", "no CPU 4"), ("0-1", "both have 1")):
        with pytest.raises(errors.Misconfigured, match=said):
            msgspec.structs.replace(GuestSettings(cpu_dedicated_set="1"), cpu_shared_set=wrong).split_cpus((0, 1, 2, 3))


class TestNodesThatWereClaimed:
    def test_a_guest_uses_the_cpus_of_its_node(self) -> None:
        found = plan({}, settings=GuestSettings(), numa_nodes=(1,))
        assert pins(found) == {0: (4, 5, 6, 7), 1: (4, 5, 6, 7)}
        assert ([node.cell for node in found.nodes], found.numa, found.emulator) == ([1], False, (4, 5, 6, 7))

    def test_a_guest_that_asks_for_nodes_sees_them(self) -> None:
        found = plan({"hw:numa_nodes": "2"}, settings=GuestSettings(), numa_nodes=(0, 1))
        assert ([(node.cell, node.vcpus) for node in found.nodes], found.numa) == ([(0, (0,)), (1, (1,))], True)

    def test_the_memory_of_its_node_was_counted_before(self) -> None:
        """Also where memory is over-allocated."""
        full = [Taken(memory=(TakenMemory(cell=1, page_kib=0, memory_mb=8192),))]
        assert plan({}, settings=GuestSettings(), others=full, numa_nodes=(1,)).nodes[0].cell == 1

    def test_dedicated_cpus_and_huge_pages_need_one_node(self) -> None:
        found = plan(DEDICATED | {"hw:mem_page_size": "2MB"}, numa_nodes=(1,))
        assert ([node.cell for node in found.nodes], found.nodes[0].page_kib, pins(found)) == ([1], 2048, {0: (4,), 1: (5,)})
        full("NUMA cell 1 has 2 free dedicated CPUs, the guest needs 4", DEDICATED, 4, others=[found.taken], numa_nodes=(1,))

    @pytest.mark.parametrize(
        ("specs", "nodes", "said"),
        [
            ({"hw:numa_nodes": "2"}, (0,), "tied to 1 NUMA nodes of this host, and asks for other ones"),
            ({}, (0, 1), "tied to 2 NUMA nodes of this host, and asks for other ones"),
            ({}, (2,), "has no NUMA node 2"),
            (
                {"hw:numa_nodes": "2", "hw:numa_mem.0": "24", "hw:numa_mem.1": "1000"},
                (0, 1),
                "tied to 2 NUMA nodes of this host, and asks for other ones",
            ),
        ],
    )
    def test_other_nodes_than_were_claimed_are_refused(self, specs: dict[str, str], nodes: tuple[int, ...], said: str) -> None:
        full(said, specs, settings=GuestSettings(), numa_nodes=nodes)
