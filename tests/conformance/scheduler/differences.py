"""Where our filters and weighers answer otherwise than Nova's, on purpose: each difference with its condition and both answers.

``docs/scheduling.md`` documents them. What differs and is not allowed here fails the stage ``nova-filters``, and so does a
difference that no world meets.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Iterable
from typing import Any, NamedTuple

from tests.conformance.scheduler.worlds import CUSTOM_PROPERTIES, HOST_STATE, Json

FILTERS = {
    "AggregateImagePropertiesIsolation": "AggregateImagePropertiesIsolation",
    "AggregateInstanceExtraSpecsFilter": "AggregateInstanceExtraSpecsFilter",
    "AggregateIoOpsFilter": "IoOpsFilter",
    "AggregateMultiTenancyIsolation": "AggregateMultiTenancyIsolation",
    "AggregateNumInstancesFilter": "NumInstancesFilter",
    "AggregateTypeAffinityFilter": "AggregateTypeAffinityFilter",
    "AllHostsFilter": "AllHostsFilter",
    "ComputeCapabilitiesFilter": "ComputeCapabilitiesFilter",
    "ComputeFilter": "ComputeFilter",
    "DifferentHostFilter": "DifferentHostFilter",
    "ImagePropertiesFilter": "ImagePropertiesFilter",
    "IoOpsFilter": "IoOpsFilter",
    "IsolatedHostsFilter": "IsolatedHostsFilter",
    "JsonFilter": "JsonFilter",
    "NumInstancesFilter": "NumInstancesFilter",
    "SameHostFilter": "SameHostFilter",
    "ServerGroupAffinityFilter": "ServerGroupAffinityFilter",
    "ServerGroupAntiAffinityFilter": "ServerGroupAntiAffinityFilter",
    "SimpleCIDRAffinityFilter": "SimpleCIDRAffinityFilter",
    "map_az_to_placement_aggregate": "AvailabilityZoneFilter",
    "require_tenant_aggregate": "RequireTenantAggregate",
    "isolate_aggregates": "IsolateAggregates",
}
"""Nova's filters and request filters, each with ours."""
REQUESTED = "get_filtered_hosts"
"""Nova's host manager: forced, ignored and requested hosts."""
WEIGHERS = (
    "RAMWeigher",
    "CPUWeigher",
    "DiskWeigher",
    "NumInstancesWeigher",
    "BuildFailureWeigher",
    "IoOpsWeigher",
    "CrossCellWeigher",
    "ServerGroupSoftAffinityWeigher",
    "ServerGroupSoftAntiAffinityWeigher",
)
NOT_COMPARED = {
    "MetricsFilter": "not there: hosts report no metrics",
    "NUMATopologyFilter": "ours counts what hosts report of their nodes; Nova's also places CPUs and pages, which our hosts do",
    "PciPassthroughFilter": "not there: devices of hosts are not given to guests",
    "MetricsWeigher": "not there: hosts report no metrics",
    "PCIWeigher": "not there: devices of hosts are not given to guests",
    "ImagePropertiesWeigher": "not there",
    "HypervisorVersionWeigher": "not there",
    "require_image_type_support": "Placement: a trait of the image's disk format",
    "compute_status_filter": "Placement: a trait of disabled hosts; ComputeFilter has the same answer",
    "transform_image_metadata": "Placement: traits of buses and models",
    "accelerators_filter": "Placement: a trait of hosts with accelerators, which are refused",
    "packed_virtqueue_filter": "Placement: a trait",
    "routed_networks_filter": "calls Neutron and Placement",
    "remote_managed_ports_filter": "Placement: a trait of hosts with such ports",
    "ephemeral_encryption_filter": "Placement: a trait",
    "virtio_sound_filter": "Placement: a trait",
    "tpm_secret_security_filter": "Placement: a trait",
    "owner_nova_filter": "Placement: a trait of hosts of other owners",
}
"""Filters, request filters and weighers of Nova's that nothing here is compared with, each with the reason."""

OURS_ALONE = {
    "RamFilter": "Placement, in Nova",
    "CoreFilter": "Placement, in Nova",
    "DiskFilter": "Placement, in Nova",
    "TraitsFilter": "Placement, in Nova",
    "BalanceWeigher": "Nova has none",
    "LeftoverWeigher": "Nova has none",
    "AffinityRoomWeigher": "Nova has none",
    "CellCapacityWeigher": "Nova has none",
    "CellSpreadWeigher": "Nova has none",
}
"""Filters and weighers of ours that are compared with nothing, each with the reason."""

RAISED = "raised"
"""Nova's filter raises an error, and the request fails."""


class Case(NamedTuple):
    """One host, as a request of a world sees it."""

    world: Json
    request: Json
    host: Json

    def values(self, key: str) -> list[str]:
        """What the host's aggregates say of the key."""
        metadata = [each["metadata"] for each in self.world["aggregates"] if self.host["host"] in each["hosts"]]
        return [each[key] for each in metadata if key in each]

    @property
    def specs(self) -> dict[str, str]:
        specs: dict[str, str] = self.request["flavor"]["extra_specs"]
        return specs

    @property
    def properties(self) -> dict[str, str]:
        properties: dict[str, str] = self.request["image"]["properties"] if self.request["image"] else {}
        return properties


Answer = bool | str | Callable[[Case], bool]


class FilterDifference(NamedTuple):
    """``filters``: Nova's names. ``nova``, ``ours``: the answers if the condition holds; None: any."""

    title: str
    filters: tuple[str, ...]
    holds: Callable[[Case], bool]
    nova: Answer | None
    ours: Answer | None

    def allows(self, name: str, case: Case, nova: bool | str, ours: bool) -> bool:
        told: bool | str = RAISED if isinstance(nova, str) else nova
        return name in self.filters and self.holds(case) and _agrees(self.nova, told, case) and _agrees(self.ours, ours, case)


def _agrees(expected: Answer | None, told: bool | str, case: Case) -> bool:
    return expected is None or told == (expected(case) if callable(expected) else expected)


class RawDifference(NamedTuple):
    """``expected``: our raw weight where Nova's is ``raw``."""

    title: str
    weigher: str
    holds: Callable[[Case], bool]
    expected: Callable[[Case, float], float]


# -- numbers of aggregates -----------------------------------------------------------------------------------------------------

MAX_EXACT_FLOAT = 2.0**53


def finite(texts: Iterable[str]) -> list[float]:
    """Those of the texts that are numbers which an aggregate can set."""
    numbers = [_float(text) for text in texts]
    return [number for number in numbers if abs(number) <= MAX_EXACT_FLOAT]


def _float(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _is_int(text: str) -> bool:
    try:
        int(text)
    except ValueError:
        return False
    return True


class _Limit(NamedTuple):
    """A limit of the configuration that aggregates can set, and what it limits."""

    option: str
    count: Callable[[Json], int]

    def odd(self, case: Case) -> bool:
        return not all(map(_is_int, case.values(self.option)))

    def configured(self, case: Case) -> bool:
        return bool(self.count(case.host) < case.world["settings"][self.option])

    def smallest(self, case: Case) -> bool:
        limit: float = min(finite(case.values(self.option)), default=case.world["settings"][self.option])
        return self.count(case.host) < limit

    def differences(self, plain: str, of_aggregates: str) -> Iterable[FilterDifference]:
        yield FilterDifference(
            f"{of_aggregates}: a value that is no whole number counts, and one that is none leaves the others",
            (of_aggregates,),
            self.odd,
            self.configured,
            self.smallest,
        )
        yield FilterDifference(
            f"{plain}: values of aggregates count, as in Nova's {of_aggregates}",
            (plain,),
            lambda case: bool(case.values(self.option)),
            self.configured,
            self.smallest,
        )


IO_OPS = _Limit("max_io_ops_per_host", lambda host: max(0, host["instances"] - host["running_vms"]))
INSTANCES = _Limit("max_instances_per_host", lambda host: int(host["instances"]))

# -- extra specs ---------------------------------------------------------------------------------------------------------------

NUMERIC = ("=", "==", "!=", ">=", "<=")


def _no_number(wanted: str) -> bool:
    """Whether a numeric operator is compared with a text, or an alternative has no operand: Nova's operators raise."""
    return wanted.split()[:1] == ["<or>"] or wanted.split()[:1] in [[operator] for operator in NUMERIC]


def _reported(case: Case, name: str) -> bool:
    return bool(case.host[name])


def _unknown_hypervisor(case: Case, scope: str) -> bool:
    return any(f"{scope}{name}" in case.specs and not _reported(case, name) for name in ("hypervisor_type", "hypervisor_version"))


def _host_state(case: Case, scope: str) -> bool:
    return any(f"{scope}{name}" in case.specs for name in HOST_STATE)


# -- image properties ----------------------------------------------------------------------------------------------------------

NAMES_NOW = {"architecture": "hw_architecture", "vm_mode": "hw_vm_mode"}
OTHER_SPELLINGS = {"amd64", "i386", "hv", "X86_64"}


def _words(case: Case, key: str) -> set[str]:
    return {word.strip() for value in case.values(key) for word in value.split(",")}


def _respelt(case: Case) -> bool:
    """An aggregate lists an architecture or mode of the image in another spelling than Nova's canonical one."""
    wanted = {name for former, name in NAMES_NOW.items() if case.properties.keys() & {former, name}}
    return any(_words(case, name) & OTHER_SPELLINGS for name in wanted)


BOOLEAN = "hw_qemu_guest_agent"


def _boolean_as_written(case: Case) -> bool:
    """An aggregate lists the image's boolean, but not as ``True``, which is how Nova writes it."""
    words = _words(case, BOOLEAN)
    return "True" not in words and case.properties.get(BOOLEAN, "").lower() in {word.lower() for word in words}


def _false_boolean(case: Case) -> bool:
    """The aggregates of the host list other values than the image's boolean, which is false."""
    value = case.properties.get(BOOLEAN, "")
    return value == "no" and bool(case.values(BOOLEAN)) and value not in _words(case, BOOLEAN)


def _by_own_property(case: Case) -> bool:
    """The image and an aggregate have different values of a property that is none in Nova."""
    own = [key for key in case.properties if key in CUSTOM_PROPERTIES or key.startswith("trait:")]
    return any(case.values(key) and case.properties[key] not in _words(case, key) for key in own)


# -- hosts by name -------------------------------------------------------------------------------------------------------------


def _other_case(names: Collection[str], host: str) -> bool:
    return host not in names and host.lower() in {name.lower() for name in names}


def _isolated(case: Case) -> bool:
    image = case.request["image"]
    return bool(image and image["id"] in case.world["settings"]["isolated_images"])


def _split_by_a_move(case: Case) -> bool:
    group = case.request["group"]
    hosts = {case.world["servers"][member] for member in group["members"]} if group else set()
    return len(hosts) > 1 and bool(group["moving"])


def _forced(case: Case) -> bool:
    return bool(case.request["force_hosts"] or case.request["force_nodes"])


def _zone(case: Case) -> str:
    return next(iter(case.values("availability_zone")), "nova")


def _own_aggregates(case: Case) -> list[Json]:
    """Aggregates that list the project among others."""
    project = case.request["project_id"]
    return [
        each
        for each in case.world["aggregates"]
        if any(key.startswith("filter_tenant_id") and project in value.split(", ") for key, value in each["metadata"].items())
    ]


def _listed_among_others(case: Case) -> bool:
    project = case.request["project_id"]
    return any(project not in each["metadata"].values() for each in _own_aggregates(case))


def _in_own_aggregate(case: Case) -> bool:
    return any(case.host["host"] in each["hosts"] for each in _own_aggregates(case))


# -- queries -------------------------------------------------------------------------------------------------------------------


def _query(case: Case) -> list[Any] | None:
    given = case.request["hints"].get("query")
    return json.loads(given[0]) if given else None


def _special_query(case: Case) -> bool:
    """What the query says has another meaning here, as far as this host is concerned."""
    query = _query(case)
    return query is not None and (
        _nested_not(query) or any(_special_operand(case.host, each) for each in _operands(query)) or _mixed(query)
    )


def _nested_not(query: list[Any]) -> bool:
    inner = [each for each in query[1:] if isinstance(each, list)]
    return any(each[0] == "not" or _nested_not(each) for each in inner)


def _operands(query: list[Any]) -> Iterable[Any]:
    for each in query[1:]:
        if isinstance(each, list):
            yield from _operands(each)
        else:
            yield each


def _mixed(query: list[Any]) -> bool:
    """A number is compared with a text."""
    if query[0] in ("and", "or", "not"):
        return any(_mixed(each) for each in query[1:])
    return len({_is_text(each) for each in query[1:]}) > 1


def _is_text(operand: Any) -> bool:
    return isinstance(operand, str) and (
        operand == "$hypervisor_type" or not operand.startswith("$") or operand.startswith("$stats.")
    )


def _special_operand(host: Json, operand: Any) -> bool:
    if operand == "$hypervisor_type" or (isinstance(operand, str) and operand.startswith("$stats.")):
        return not _of_host(host, operand)
    if operand in ("$free_ram_mb", "$total_usable_ram_mb"):
        return bool(host["ram_allocation_ratio"] != 1.0 or host["reserved_memory_mb"])
    if operand in ("$free_disk_mb", "$total_usable_disk_gb"):
        return bool(host["disk_allocation_ratio"] != 1.0 or host["reserved_disk_gb"])
    return False


def _of_host(host: Json, operand: Any) -> Any:
    """An operand's value as ``docs/scheduling.md`` has it; None: the host has none."""
    if not isinstance(operand, str) or not operand.startswith("$"):
        return operand
    if operand.startswith("$stats."):
        return host["stats"].get(operand.removeprefix("$stats."))
    memory, disk = host["memory_mb"] - host["reserved_memory_mb"], host["disk_gb"] - host["reserved_disk_gb"]
    return {
        "hypervisor_type": host["hypervisor_type"] or None,
        "hypervisor_version": host["hypervisor_version"],
        "free_ram_mb": memory * host["ram_allocation_ratio"] - host["memory_mb_used"],
        "free_disk_mb": (disk * host["disk_allocation_ratio"] - host["disk_gb_used"]) * 1024,
        "total_usable_ram_mb": memory,
        "total_usable_disk_gb": disk,
        "vcpus_total": host["vcpus"],
        "vcpus_used": host["vcpus_used"],
        "num_instances": host["instances"],
        "num_io_ops": IO_OPS.count(host),
        "failed_builds": host["failed_builds"],
    }[operand[1:]]


def _met(query: list[Any], host: Json) -> bool:
    """The condition as ``docs/scheduling.md`` has it."""
    operator, *parts = query
    if operator == "not":
        return not _met(parts[0], host)
    if operator in ("and", "or"):
        return (all if operator == "and" else any)([_met(each, host) for each in parts])
    first, *others = (_of_host(host, each) for each in parts)
    answers = [_compared(operator, first, other) for other in others]
    return any(answers) if operator == "in" else all(answers)


def _compared(operator: str, one: Any, other: Any) -> bool:
    if one is None or other is None or isinstance(one, str) != isinstance(other, str):
        return False
    return bool(
        {"=": one == other, "in": one == other, "<": one < other, ">": one > other, "<=": one <= other, ">=": one >= other}[
            operator
        ]
    )


def _query_met(case: Case) -> bool:
    query = _query(case)
    return query is None or _met(query, case.host)


# -- the differences -----------------------------------------------------------------------------------------------------------

FILTER_DIFFERENCES: tuple[FilterDifference, ...] = (
    *IO_OPS.differences("IoOpsFilter", "AggregateIoOpsFilter"),
    *INSTANCES.differences("NumInstancesFilter", "AggregateNumInstancesFilter"),
    FilterDifference(
        "operators: a value that is no number does not match; Nova's filter fails",
        ("ComputeCapabilitiesFilter", "AggregateInstanceExtraSpecsFilter"),
        lambda case: any(_no_number(wanted) for wanted in case.specs.values()),
        RAISED,
        False,
    ),
    FilterDifference(
        "operators: a number of an aggregate that matches is enough; Nova's filter may fail at a text beside it",
        ("AggregateInstanceExtraSpecsFilter",),
        lambda case: any(_no_number(wanted) and len(_words(case, key.split(":")[-1])) > 1 for key, wanted in case.specs.items()),
        RAISED,
        True,
    ),
    FilterDifference(
        "ComputeCapabilitiesFilter: capabilities:free_ram_mb and so on are no attributes",
        ("ComputeCapabilitiesFilter",),
        lambda case: _host_state(case, "capabilities:"),
        True,
        False,
    ),
    FilterDifference(
        "ComputeCapabilitiesFilter: free_ram_mb and so on without a scope are ignored",
        ("ComputeCapabilitiesFilter",),
        lambda case: _host_state(case, ""),
        None,
        True,
    ),
    FilterDifference(
        "ComputeCapabilitiesFilter: capabilities: of an unknown hypervisor match nothing",
        ("ComputeCapabilitiesFilter",),
        lambda case: _unknown_hypervisor(case, "capabilities:"),
        True,
        False,
    ),
    FilterDifference(
        "ComputeCapabilitiesFilter: without a scope, an unknown hypervisor is not asked for",
        ("ComputeCapabilitiesFilter",),
        lambda case: _unknown_hypervisor(case, ""),
        None,
        True,
    ),
    FilterDifference(
        "ComputeFilter: a forced host may be disabled",
        ("ComputeFilter",),
        lambda case: _forced(case) and case.host["disabled"] and not case.host["forced_down"] and case.host["silent_s"] < 60,
        False,
        True,
    ),
    FilterDifference(
        "AggregateImagePropertiesIsolation: properties that Nova does not know count",
        ("AggregateImagePropertiesIsolation",),
        _by_own_property,
        True,
        False,
    ),
    FilterDifference(
        "AggregateImagePropertiesIsolation: aliases in aggregates count as equal",
        ("AggregateImagePropertiesIsolation",),
        _respelt,
        False,
        True,
    ),
    FilterDifference(
        "AggregateImagePropertiesIsolation: booleans count as they are written, without case; in Nova only True",
        ("AggregateImagePropertiesIsolation",),
        _boolean_as_written,
        False,
        True,
    ),
    FilterDifference(
        "AggregateImagePropertiesIsolation: false booleans count",
        ("AggregateImagePropertiesIsolation",),
        _false_boolean,
        True,
        False,
    ),
    FilterDifference(
        "IsolatedHostsFilter: without isolated_hosts, isolated images go anywhere",
        ("IsolatedHostsFilter",),
        lambda case: not case.world["settings"]["isolated_hosts"] and _isolated(case),
        False,
        True,
    ),
    FilterDifference(
        "IsolatedHostsFilter: names of hosts ignore case",
        ("IsolatedHostsFilter",),
        lambda case: _other_case(case.world["settings"]["isolated_hosts"], case.host["host"]),
        lambda case: not _isolated(case),
        _isolated,
    ),
    FilterDifference(
        "requested destination: names of hosts ignore case",
        (REQUESTED,),
        lambda case: bool(case.request["destination"]) and _other_case([case.request["destination"]["host"]], case.host["host"]),
        False,
        True,
    ),
    FilterDifference(
        "ServerGroupAffinityFilter: a group that a move has divided takes no more members",
        ("ServerGroupAffinityFilter",),
        _split_by_a_move,
        True,
        False,
    ),
    FilterDifference(
        "SimpleCIDRAffinityFilter: a host without an address does not pass; Nova's filter fails",
        ("SimpleCIDRAffinityFilter",),
        lambda case: case.host["host_ip"] is None and "build_near_host_ip" in case.request["hints"],
        RAISED,
        False,
    ),
    FilterDifference(
        "AvailabilityZoneFilter: the default zone is a zone; in Nova requests for it go to any zone",
        ("map_az_to_placement_aggregate",),
        lambda case: case.request["availability_zone"] == "nova" and _zone(case) != "nova",
        True,
        False,
    ),
    FilterDifference(
        "RequireTenantAggregate: one key may list several projects",
        ("require_tenant_aggregate",),
        _listed_among_others,
        None,
        _in_own_aggregate,
    ),
    FilterDifference(
        "JsonFilter: allocation ratios, missing values, numbers and texts, not inside lists",
        ("JsonFilter",),
        _special_query,
        None,
        _query_met,
    ),
)

RAW_DIFFERENCES: tuple[RawDifference, ...] = (
    RawDifference(
        "RAMWeigher: with the allocation ratio",
        "RAMWeigher",
        lambda case: case.host["ram_allocation_ratio"] != 1.0,
        lambda case, raw: (
            raw + (case.host["ram_allocation_ratio"] - 1.0) * (case.host["memory_mb"] - case.host["reserved_memory_mb"])
        ),
    ),
    RawDifference(
        "DiskWeigher: with the allocation ratio",
        "DiskWeigher",
        lambda case: case.host["disk_allocation_ratio"] != 1.0,
        lambda case, raw: (
            raw + (case.host["disk_allocation_ratio"] - 1.0) * (case.host["disk_gb"] - case.host["reserved_disk_gb"]) * 1024
        ),
    ),
    RawDifference(
        "CrossCellWeigher: 0 in other cells, where Nova has -1",
        "CrossCellWeigher",
        lambda case: bool(case.request["move"]) and case.host["cell"] != case.request["move"]["source_cell"],
        lambda case, raw: max(raw, 0.0),
    ),
)
ODD_MULTIPLIER = "multipliers: the smallest value that is a number applies; Nova takes the configured one if one value is none"
SCALE_FROM_ZERO = "BuildFailureWeigher: the scale begins at 0, Nova's at the fewest failures"
FROM_ZERO = ("RAMWeigher", "CPUWeigher", "DiskWeigher", "IoOpsWeigher", "BuildFailureWeigher")
"""Weighers of ours whose scale begins at 0."""


def titles() -> list[str]:
    """Of all declared differences."""
    of_filters, of_weights = [each.title for each in FILTER_DIFFERENCES], [each.title for each in RAW_DIFFERENCES]
    return [*of_filters, *of_weights, ODD_MULTIPLIER, SCALE_FROM_ZERO]
