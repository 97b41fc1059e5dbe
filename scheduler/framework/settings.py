"""The scheduler's settings, as a frozen record. ``scheduler/opts.py`` makes one from the configuration."""

from __future__ import annotations

from objects.base import Object
from objects.shared_defaults import AVAILABILITY_ZONE, IDLE_INTERVAL_S, SERVICE_DOWN_TIME_S

DEFAULT_FILTERS = (
    "ComputeFilter",
    "AvailabilityZoneFilter",
    "RamFilter",
    "CoreFilter",
    "DiskFilter",
    "ComputeCapabilitiesFilter",
    "ImagePropertiesFilter",
    "TraitsFilter",
    "ServerGroupAntiAffinityFilter",
    "ServerGroupAffinityFilter",
)
SPREADING_WEIGHERS = (
    "RAMWeigher",
    "CPUWeigher",
    "DiskWeigher",
    "NumInstancesWeigher",
    "BuildFailureWeigher",
    "ServerGroupSoftAffinityWeigher",
    "ServerGroupSoftAntiAffinityWeigher",
    "CrossCellWeigher",
)
"""The weighers that Nova enables too, of those that are here."""
DEFAULT_WEIGHERS = (*SPREADING_WEIGHERS, "LeftoverWeigher")

LEFTOVER_OPTIONS = ("leftover_shape", "leftover_from")
"""What LeftoverWeigher reads beside its multiplier."""


class SchedulerSettings(Object, frozen=True, kw_only=True):
    """All times are in seconds. Names and default multipliers are those of Nova if Nova has them.

    No options: ``service_poll_interval`` and ``claims_poll_interval``, the least time between two reads of a cell's heartbeats and
    of the claims log; ``claim_window``, for which a decision waits for others to share its transaction.
    """

    driver: str = "filter"
    enabled_filters: tuple[str, ...] = DEFAULT_FILTERS
    enabled_weighers: tuple[str, ...] = DEFAULT_WEIGHERS
    host_subset_size: int = 1
    shuffle_best_same_weighed_hosts: bool = True
    ram_weight_multiplier: float = 1.0
    cpu_weight_multiplier: float = 1.0
    disk_weight_multiplier: float = 1.0
    num_instances_weight_multiplier: float = 0.0
    build_failure_weight_multiplier: float = 1000000.0
    io_ops_weight_multiplier: float = -1.0
    balance_weight_multiplier: float = 1.0
    leftover_weight_multiplier: float = 1000.0
    leftover_shape: float = 1.15
    leftover_from: float = 0.55
    affinity_room_weight_multiplier: float = 10000.0
    cell_capacity_weight_multiplier: float = 1.0
    cell_spread_weight_multiplier: float = 1.0
    cross_cell_move_weight_multiplier: float = 1000000.0
    soft_affinity_weight_multiplier: float = 1.0
    soft_anti_affinity_weight_multiplier: float = 1.0
    allow_resize_to_same_host: bool = False
    max_io_ops_per_host: int = 8
    max_instances_per_host: int = 50
    isolated_images: tuple[str, ...] = ()
    isolated_hosts: tuple[str, ...] = ()
    restrict_isolated_hosts_to_isolated_images: bool = True
    aggregate_image_properties_isolation_namespace: str | None = None
    aggregate_required_for_tenants: bool = False
    json_filter_attributes: tuple[str, ...] = ()
    image_properties_default_architecture: str | None = None
    default_availability_zone: str = AVAILABILITY_ZONE
    service_down_time: float = SERVICE_DOWN_TIME_S
    service_poll_interval: float = 2.0
    feed_poll_interval: float = 1.0
    claims_poll_interval: float = 1.0
    idle_interval: float = IDLE_INTERVAL_S
    claim_window: float = 0.001
    warm_up: float = 15.0
