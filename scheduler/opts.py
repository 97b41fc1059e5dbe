"""Options of the [scheduler] group, and the frozen settings made of them."""

from __future__ import annotations

from typing import Any

from oslo_config import cfg

from objects import errors, text
from objects.stats import MAX_EXACT_FLOAT
from scheduler.framework.settings import SchedulerSettings

__all__ = ["GROUP", "OPTIONS", "SchedulerSettings", "list_opts", "settings"]

GROUP = "scheduler"
_DEFAULT = SchedulerSettings()


def _multiplier(name: str, what: str) -> cfg.FloatOpt:
    return cfg.FloatOpt(
        f"{name}_weight_multiplier",
        default=getattr(_DEFAULT, f"{name}_weight_multiplier"),
        mutable=True,
        help=f"Weight of {what}. A negative value reverses it, 0 disables it.",
    )


WORKERS = cfg.IntOpt("workers", default=1, min=1, help="Number of processes that one superconductor-scheduler starts.")

OPTIONS: tuple[cfg.Opt, ...] = (
    cfg.StrOpt(
        "driver",
        default=_DEFAULT.driver,
        mutable=True,
        help="Driver that chooses hosts: filter, chance, an installed entry point, or your own class as module:Class.",
    ),
    cfg.ListOpt(
        "enabled_filters",
        default=list(_DEFAULT.enabled_filters),
        mutable=True,
        help="Filters that a host must pass, in this order. Demands of the request (forced, ignored hosts) always hold. "
        "Name your own filter by its entry point, or as module:Class.",
    ),
    cfg.ListOpt(
        "enabled_weighers",
        default=list(_DEFAULT.enabled_weighers),
        mutable=True,
        help="Weighers whose scores are added. Name your own weigher like a filter.",
    ),
    cfg.IntOpt(
        "host_subset_size",
        default=_DEFAULT.host_subset_size,
        min=1,
        mutable=True,
        help="Number of best hosts from which one is drawn at random. More than 1 reduces conflicts between schedulers.",
    ),
    cfg.BoolOpt(
        "shuffle_best_same_weighed_hosts",
        default=_DEFAULT.shuffle_best_same_weighed_hosts,
        mutable=True,
        help="Order hosts of equal weight at random (the same for the same batch), instead of by their age in the table.",
    ),
    _multiplier("ram", "free memory"),
    _multiplier("cpu", "free vCPUs"),
    _multiplier("disk", "free disk"),
    _multiplier("num_instances", "the number of instances on a host"),
    _multiplier(
        "build_failure",
        "the build failures that a host caused, which lower its score and fade with [compute] failed_build_half_life",
    ),
    _multiplier("io_ops", "the number of builds in progress on a host"),
    _multiplier("balance", "an even use of a host's vCPUs, memory and disk"),
    _multiplier("leftover", "free room whose shape comes near leftover_shape"),
    cfg.FloatOpt(
        "leftover_shape",
        default=_DEFAULT.leftover_shape,
        min=0.0,
        mutable=True,
        help="LeftoverWeigher: the free share of vCPUs that a host should keep for each share of its memory that is free. "
        "'superconductor lab replay' shows which one fits the servers of a site.",
    ),
    cfg.FloatOpt(
        "leftover_from",
        default=_DEFAULT.leftover_from,
        min=0.0,
        max=1.0,
        mutable=True,
        help="LeftoverWeigher: it applies, and packs servers, while at least this part of the fleet's vCPUs or memory is used. "
        "Above 0 it leaves out members of groups with an affinity or soft policy. 0: always.",
    ),
    _multiplier("affinity_room", "room for more servers of the size of an affinity group's first member"),
    _multiplier("cell_capacity", "the free share of the cell's capacity"),
    _multiplier("cell_spread", "a cell without other servers of the batch or group"),
    _multiplier("cross_cell_move", "the present cell of a server that may move to another one"),
    _multiplier("soft_affinity", "the other members of a soft-affinity group on a host"),
    _multiplier("soft_anti_affinity", "the absence of other members of a soft-anti-affinity group"),
    cfg.BoolOpt(
        "allow_resize_to_same_host",
        default=_DEFAULT.allow_resize_to_same_host,
        mutable=True,
        help="Whether a resize may stay on its host, which then needs room for the new size and the old one.",
    ),
    cfg.IntOpt(
        "max_io_ops_per_host",
        default=_DEFAULT.max_io_ops_per_host,
        min=1,
        mutable=True,
        help="IoOpsFilter: maximum number of builds in progress on a host.",
    ),
    cfg.IntOpt(
        "max_instances_per_host",
        default=_DEFAULT.max_instances_per_host,
        min=1,
        mutable=True,
        help="NumInstancesFilter: maximum number of instances on a host.",
    ),
    cfg.ListOpt(
        "isolated_images",
        default=list(_DEFAULT.isolated_images),
        mutable=True,
        help="IsolatedHostsFilter: UUIDs of images that boot only on isolated_hosts.",
    ),
    cfg.ListOpt(
        "isolated_hosts",
        default=list(_DEFAULT.isolated_hosts),
        mutable=True,
        help="IsolatedHostsFilter: names of the hosts for isolated_images. Empty: every host passes.",
    ),
    cfg.BoolOpt(
        "restrict_isolated_hosts_to_isolated_images",
        default=_DEFAULT.restrict_isolated_hosts_to_isolated_images,
        mutable=True,
        help="IsolatedHostsFilter: whether other images may not boot on isolated_hosts.",
    ),
    cfg.StrOpt(
        "aggregate_image_properties_isolation_namespace",
        default=_DEFAULT.aggregate_image_properties_isolation_namespace,
        mutable=True,
        help="AggregateImagePropertiesIsolation: only metadata keys that begin with this and a dot count. Unset: all.",
    ),
    cfg.BoolOpt(
        "aggregate_required_for_tenants",
        default=_DEFAULT.aggregate_required_for_tenants,
        mutable=True,
        help="RequireTenantAggregate: whether a project that no aggregate lists is refused. False: it may use any host.",
    ),
    cfg.ListOpt(
        "json_filter_attributes",
        default=list(_DEFAULT.json_filter_attributes),
        mutable=True,
        help="JsonFilter: attributes of hosts that tenants may use in queries, as $attributes.NAME. The results tell tenants "
        "about hosts.",
    ),
    cfg.StrOpt(
        "image_properties_default_architecture",
        default=_DEFAULT.image_properties_default_architecture,
        mutable=True,
        help="ImagePropertiesFilter: architecture of images that name none, for instance x86_64. Unset: any architecture.",
    ),
    cfg.StrOpt(
        "default_availability_zone",
        default=_DEFAULT.default_availability_zone,
        help="Availability zone of hosts that no aggregate puts into a zone.",
    ),
    cfg.FloatOpt(
        "service_down_time",
        default=_DEFAULT.service_down_time,
        min=1.0,
        help="Seconds without a heartbeat, by this process's clock, after which a host counts as down.",
    ),
    cfg.FloatOpt(
        "service_poll_interval",
        default=_DEFAULT.service_poll_interval,
        min=0.05,
        help="Minimum seconds between two reads of a cell's heartbeats, which come with those of its change feed.",
    ),
    cfg.FloatOpt(
        "feed_poll_interval",
        default=_DEFAULT.feed_poll_interval,
        min=0.02,
        help="Seconds between two reads of a cell's change feed, while its hosts are chosen or its feed has news.",
    ),
    cfg.FloatOpt(
        "claims_poll_interval",
        default=_DEFAULT.claims_poll_interval,
        min=0.02,
        help="Seconds between two reads of the claims log, cells, host mappings and aggregates while there are requests. Every "
        "decision reads all of these itself.",
    ),
    cfg.FloatOpt(
        "idle_interval",
        default=_DEFAULT.idle_interval,
        min=0.02,
        help="Maximum seconds between two reads of a cell none of whose hosts are chosen, and of the claims log while there are no "
        "requests.",
    ),
    cfg.FloatOpt(
        "claim_window",
        default=_DEFAULT.claim_window,
        min=0.0,
        help="Seconds that a decision waits for others to share its transaction.",
    ),
    cfg.FloatOpt(
        "warm_up",
        default=_DEFAULT.warm_up,
        min=0.0,
        help="Seconds after the cells that answer have been read for the first time, and after a host was mapped, in which the "
        "scheduler waits for hosts without a report before it refuses a request. A call waits no longer; it is then repeated.",
    ),
)


def list_opts() -> list[tuple[str, list[cfg.Opt]]]:
    """The options by group, for the sample configuration generator and for the loading of the configuration."""
    return [(GROUP, [WORKERS, *OPTIONS])]


def settings(conf: cfg.ConfigOpts) -> SchedulerSettings:
    """The options as a frozen record. Registers them if needed.

    Raises Misconfigured for a number that is not finite or too large, and for an invalid zone name.
    """
    conf.register_opts(OPTIONS, group=GROUP)
    group = conf[GROUP]
    values: dict[str, Any] = {option.dest: group[option.dest] for option in OPTIONS}
    for name, value in values.items():
        if isinstance(value, float) and not abs(value) <= MAX_EXACT_FLOAT:  # refuses NaN too
            raise errors.Misconfigured(f"[{GROUP}] {name}: {value} is not a number from -2**53 to 2**53")
    zone = group.default_availability_zone
    if not text.is_zone(zone):
        raise errors.Misconfigured(f"[{GROUP}] default_availability_zone: {zone!r} is not the name of a zone")
    values |= {name: tuple(values[name]) for name, value in values.items() if isinstance(value, list)}
    return SchedulerSettings(**values)
