"""The host's own claim."""

from __future__ import annotations

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from compute.driver import Guest
from compute.tracker import ResourceTracker
from objects.compute_node import ComputeNode
from objects.numa import HostNumaNode
from objects.selection import HostCapacity

NODE = ComputeNode(host="h1", node="h1", vcpus=4, memory_mb=4096, disk_gb=40, cpu_allocation_ratio=2.0)


def a_guest(uuid: str, *, vcpus: int = 1, memory_mb: int = 512, disk_gb: int = 1, node: str = "h1") -> Guest:
    return Guest(uuid=uuid, name="", node=node, fence=1, attempt=1, builder="", vcpus=vcpus, memory_mb=memory_mb, disk_gb=disk_gb)


def test_capacity_takes_reserved_off_before_the_ratio() -> None:
    offered = ComputeNode(host="h", node="h", vcpus=4, memory_mb=1000, disk_gb=10, ram_allocation_ratio=1.5)
    node = msgspec.structs.replace(offered, reserved_memory_mb=200, reserved_disk_gb=20)
    assert node.total_capacity == HostCapacity(vcpus=16.0, memory_mb=1200.0, disk_gb=0.0)


def test_the_guest_after_the_last_fitting_is_refused() -> None:
    tracker = ResourceTracker([NODE])
    assert tracker.claim_resources(a_guest("a", vcpus=8, memory_mb=4096, disk_gb=40)) is None
    refusal = tracker.claim_resources(a_guest("b", vcpus=1, memory_mb=1, disk_gb=0))
    assert refusal == "No room for vCPUs (8 used + 1 > 8), MiB of memory (4096 used + 1 > 4096)."


def test_a_refused_claim_takes_nothing() -> None:
    tracker = ResourceTracker([NODE])
    assert tracker.claim_resources(a_guest("a", memory_mb=5000)) is not None
    assert tracker.claim_resources(a_guest("b", memory_mb=4096)) is None


def test_limits_bind_only_where_tighter_than_the_host() -> None:
    tracker = ResourceTracker([NODE])
    tight = HostCapacity(vcpus=2, memory_mb=99999, disk_gb=99999)
    assert tracker.claim_resources(a_guest("a", vcpus=3), tight) == "No room for vCPUs (0 used + 3 > 2)."
    assert tracker.claim_resources(a_guest("b", memory_mb=4097), tight) == "No room for MiB of memory (0 used + 4097 > 4096)."


def test_release_gives_back_and_is_idempotent() -> None:
    tracker = ResourceTracker([NODE])
    assert tracker.claim_resources(a_guest("a", memory_mb=4096)) is None
    tracker.release_resources("a")
    tracker.release_resources("a")
    assert tracker.claim_resources(a_guest("b", memory_mb=4096)) is None


def test_a_running_guest_counts_even_without_room() -> None:
    tracker = ResourceTracker([NODE])
    tracker.hold_resources(a_guest("a", memory_mb=5000))
    assert tracker.claim_resources(a_guest("b", memory_mb=1)) == "No room for MiB of memory (5000 used + 1 > 4096)."
    assert tracker.report_nodes(0)[0].memory_mb_used == 5000


def test_nodes_count_apart_and_unknown_ones_are_refused() -> None:
    tracker = ResourceTracker([NODE, ComputeNode(host="h1", node="n2", vcpus=1, memory_mb=512, disk_gb=1)])
    assert tracker.claim_resources(a_guest("a", memory_mb=4096)) is None
    assert tracker.claim_resources(a_guest("b", node="n2")) is None
    assert tracker.claim_resources(a_guest("c", node="n3")) == "This host has no node 'n3'."


def test_stats_count_guests_and_not_builds_under_way() -> None:
    tracker = ResourceTracker([NODE])
    assert tracker.claim_resources(a_guest("a", vcpus=2)) is None
    assert tracker.report_nodes(3)[0].running_vms == 0
    tracker.hold_resources(a_guest("a", vcpus=2))
    stats = tracker.report_nodes(3)[0]
    assert (stats.running_vms, stats.vcpus_used, stats.memory_mb_used, stats.disk_gb_used) == (1, 2, 512, 1)
    assert (stats.queued_builds, stats.vcpus, stats.cpu_allocation_ratio) == (3, 4, 2.0)


def test_failed_builds_fade() -> None:
    now = [100.0]
    tracker = ResourceTracker([NODE], half_life=60.0, clock=lambda: now[0])
    for _ in range(4):
        tracker.build_failed()
    told = []
    for now[0] in (100.0, 130.0, 160.0, 220.0, 700.0):
        told.append(tracker.report_nodes(0)[0].failed_builds)
    assert told == [4.0, 3.0, 2.0, 1.0, 0.0]
    tracker.build_failed()
    assert tracker.report_nodes(0)[0].failed_builds == 1.0


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abcdefgh"), st.integers(1, 3), st.integers(1, 2048), st.booleans()), max_size=60))
def test_claims_never_exceed_what_is_offered(steps: list[tuple[str, int, int, bool]]) -> None:
    """Whatever comes and goes, what was granted and not released fits."""
    tracker, granted = ResourceTracker([NODE]), dict[str, tuple[int, int]]()
    for uuid, vcpus, memory_mb, leave in steps:
        if leave:
            tracker.release_resources(uuid)
            granted.pop(uuid, None)
        elif uuid not in granted and tracker.claim_resources(a_guest(uuid, vcpus=vcpus, memory_mb=memory_mb)) is None:
            granted[uuid] = (vcpus, memory_mb)
        assert sum(v for v, _ in granted.values()) <= 8
        assert sum(m for _, m in granted.values()) <= 4096


GPU_NODE = msgspec.structs.replace(NODE, resources={"CUSTOM_GPU": 3})


def a_gpu_guest(uuid: str, gpus: int, **others: int) -> Guest:
    return msgspec.structs.replace(a_guest(uuid, vcpus=1, memory_mb=1), resources={"CUSTOM_GPU": gpus} | others)


def test_custom_resource_classes_are_limited_by_the_host() -> None:
    tracker = ResourceTracker([GPU_NODE])
    assert tracker.claim_resources(a_gpu_guest("a", 2)) is None
    assert tracker.claim_resources(a_gpu_guest("b", 2)) == "No room for CUSTOM_GPU (2 used + 2 > 3)."
    assert tracker.claim_resources(a_gpu_guest("b", 1, CUSTOM_NIC=1)) == "No room for CUSTOM_NIC (0 used + 1 > 0)."
    assert tracker.claim_resources(a_gpu_guest("b", 1)) is None
    tracker.release_resources("a")
    assert tracker.claim_resources(a_gpu_guest("c", 2)) is None


def test_class_limits_bind_where_tighter() -> None:
    tracker = ResourceTracker([GPU_NODE])
    room = HostCapacity(vcpus=99, memory_mb=9999, disk_gb=99)
    assert tracker.claim_resources(a_gpu_guest("a", 2), msgspec.structs.replace(room, resources={"CUSTOM_GPU": 1})) is not None
    assert tracker.claim_resources(a_gpu_guest("a", 4), msgspec.structs.replace(room, resources={"CUSTOM_GPU": 9})) is not None
    assert tracker.claim_resources(a_gpu_guest("a", 3), room) is None, "a sender that does not know of the class says nothing of it"


def test_guests_are_reported_with_classes_even_without_capacity() -> None:
    tracker = ResourceTracker([GPU_NODE])
    tracker.hold_resources(a_gpu_guest("a", 5, CUSTOM_NIC=1))
    assert tracker.claim_resources(a_gpu_guest("b", 1)) == "No room for CUSTOM_GPU (5 used + 1 > 3)."
    [stats] = tracker.report_nodes(0)
    assert (stats.resources, stats.resources_used) == ({"CUSTOM_GPU": 3}, {"CUSTOM_GPU": 5, "CUSTOM_NIC": 1})


def test_a_guest_counts_by_flavor_not_by_size() -> None:
    tracker = ResourceTracker([NODE])
    free = msgspec.structs.replace(a_guest("a", vcpus=99, disk_gb=99), resources={"VCPU": 0, "DISK_GB": 0, "MEMORY_MB": 4096})
    assert tracker.claim_resources(free) is None
    tracker.hold_resources(free)
    [stats] = tracker.report_nodes(0)
    assert (stats.vcpus_used, stats.memory_mb_used, stats.disk_gb_used) == (0, 4096, 0)


def test_a_guest_is_not_refused_for_unused_resources() -> None:
    """As schedulers see it: a server without disk fits on a host whose disk is over-full."""
    tracker = ResourceTracker([NODE])
    tracker.hold_resources(a_guest("a", disk_gb=50))
    assert tracker.claim_resources(a_guest("b", disk_gb=0)) is None


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(1, 3), st.booleans()), max_size=40))
def test_a_class_is_never_admitted_beyond_its_total(steps: list[tuple[str, int, bool]]) -> None:
    tracker, granted = ResourceTracker([GPU_NODE]), dict[str, int]()
    for uuid, gpus, leave in steps:
        if leave:
            tracker.release_resources(uuid)
            granted.pop(uuid, None)
        elif uuid not in granted:
            fits = sum(granted.values()) + gpus <= 3
            assert (tracker.claim_resources(a_gpu_guest(uuid, gpus)) is None) is (fits and len(granted) < 8)
            if fits:
                granted[uuid] = gpus


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from("abcd"),
            st.sampled_from(("claim", "hold", "release")),
            st.integers(0, 4),
            st.integers(0, 2),
            st.booleans(),
        ),
        max_size=40,
    )
)
def test_stats_are_the_sum_of_the_current_guests(steps: list[tuple[str, str, int, int, bool]]) -> None:
    other = msgspec.structs.replace(GPU_NODE, node="n2")
    tracker, running = ResourceTracker([GPU_NODE, other]), dict[str, Guest]()
    for uuid, what, vcpus, gpus, elsewhere in steps:
        guest = msgspec.structs.replace(a_guest(uuid, vcpus=vcpus), resources={"CUSTOM_GPU": gpus} if gpus else {})
        if elsewhere:
            guest = msgspec.structs.replace(guest, node="n2")
        if what == "release":
            tracker.release_resources(uuid)
            running.pop(uuid, None)
        elif what == "hold":
            tracker.hold_resources(guest)
            running[uuid] = guest
        elif tracker.claim_resources(guest) is None:
            running.pop(uuid, None)  # a claim takes the place of what the uuid held
    for stats in tracker.report_nodes(0):
        guests = [guest for guest in running.values() if guest.node == stats.node]
        assert stats.running_vms == len(guests)
        assert stats.vcpus_used == sum(guest.vcpus for guest in guests)
        assert stats.memory_mb_used == sum(guest.memory_mb for guest in guests)
        gpus = sum(guest.resources.get("CUSTOM_GPU", 0) for guest in guests)
        assert stats.resources_used == ({"CUSTOM_GPU": gpus} if gpus else {})


def test_a_host_offer_may_change_under_its_claims() -> None:
    tracker = ResourceTracker([ComputeNode(host="h", node="n", vcpus=1, memory_mb=512, disk_gb=10)])
    guest = Guest(uuid="a", name="a", node="n", fence=1, attempt=1, builder="h:1", vcpus=1, memory_mb=512, disk_gb=1)
    assert tracker.claim_resources(guest) is None
    other = msgspec.structs.replace(guest, uuid="b")
    assert tracker.claim_resources(other) is not None
    tracker.set_nodes([ComputeNode(host="h", node="n", vcpus=2, memory_mb=1024, disk_gb=10)])
    assert tracker.claim_resources(other) is None
    assert tracker.claim_resources(msgspec.structs.replace(guest, uuid="c")) is not None, "earlier claims count"


def test_a_numa_node_is_never_overcommitted() -> None:
    nodes = (HostNumaNode(vcpus=1, memory_mb=1024), HostNumaNode(vcpus=3, memory_mb=3072))
    tracker = ResourceTracker([msgspec.structs.replace(NODE, numa_nodes=nodes)])

    def tied(uuid: str, memory_mb: int, *numa_nodes: int, vcpus: int = 1) -> Guest:
        return msgspec.structs.replace(a_guest(uuid, memory_mb=memory_mb, vcpus=vcpus), numa_nodes=numa_nodes)

    assert tracker.claim_resources(tied("a", 1000, 0)) is None
    assert tracker.claim_resources(tied("b", 1000, 0)) == "No room for NUMA0_MEMORY_MB (1000 used + 1000 > 1024)."
    assert tracker.claim_resources(tied("c", 2000, 1, vcpus=6)) is None
    assert (
        tracker.claim_resources(tied("d", 48, 0, 1, vcpus=2)) == "No room for vCPUs (7 used + 2 > 8), NUMA1_VCPU (6 used + 1 > 6)."
    )
    tracker.release_resources("c")
    assert tracker.claim_resources(tied("d", 48, 0, 1, vcpus=2)) is None
    tracker.hold_resources(a_guest("of no node", memory_mb=500))
    assert (
        tracker.claim_resources(tied("e", 2548, 0))
        == "No room for NUMA0_VCPU (3 used + 1 > 2), NUMA0_MEMORY_MB (1524 used + 2548 > 1024)."
    )
    assert tracker.claim_resources(tied("e", 2548, 1)) is None
    refused = tracker.claim_resources(tied("f", 1, 2))
    assert refused is not None
    assert refused.startswith("No room for MiB of memory (4096 used + 1 > 4096), NUMA2_VCPU")
    assert tracker.report_nodes(0)[0].resources_used == {}
