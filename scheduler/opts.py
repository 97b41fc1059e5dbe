"""Options of the [scheduler] group, and the frozen settings made of them."""

from __future__ import annotations

from typing import Any

from oslo_config import cfg

from objects import errors
from objects.stats import MAX_EXACT_FLOAT
from scheduler.framework.settings import SchedulerSettings
from service import opts as service_opts
from service.option_maker import OptionMaker

__all__ = ["GROUP", "OPTIONS", "SchedulerSettings", "list_opts", "read_settings"]

GROUP = "scheduler"
_option = OptionMaker(SchedulerSettings)


def _multiplier_option(name: str, subject: str) -> cfg.Opt:
    text = f"Weight of {subject}. A negative value reverses it, 0 disables it."
    return _option(f"{name}_weight_multiplier", text, mutable=True)


WORKERS = cfg.IntOpt("workers", default=1, min=1, help="Number of processes that one superconductor-scheduler starts.")


OPTIONS: tuple[cfg.Opt, ...] = (
    _option(
        "driver",
        "Driver that chooses hosts: filter, chance, an installed entry point, or your own class as module:Class.",
        mutable=True,
    ),
    _option(
        "enabled_filters",
        "Filters that a host must pass, in this order. Demands of the request (forced, ignored hosts) always hold. "
        "Name your own filter by its entry point, or as module:Class.",
        mutable=True,
    ),
    _option("enabled_weighers", "Weighers whose scores are added. Name your own weigher like a filter.", mutable=True),
    _option(
        "host_subset_size",
        "Number of best hosts from which one is drawn at random. More than 1 reduces conflicts between schedulers.",
        min=1,
        mutable=True,
    ),
    _option(
        "shuffle_best_same_weighed_hosts",
        "Order hosts of equal weight at random (the same for the same batch), instead of by their age in the table.",
        mutable=True,
    ),
    _multiplier_option("ram", "free memory"),
    _multiplier_option("cpu", "free vCPUs"),
    _multiplier_option("disk", "free disk"),
    _multiplier_option("num_instances", "the number of instances on a host"),
    _multiplier_option(
        "build_failure",
        "the build failures that a host caused, which lower its score and fade with [compute] failed_build_half_life",
    ),
    _multiplier_option("io_ops", "the number of builds in progress on a host"),
    _multiplier_option("balance", "an even use of a host's vCPUs, memory and disk"),
    _multiplier_option("leftover", "free room whose shape comes near leftover_shape"),
    _option(
        "leftover_shape",
        "LeftoverWeigher: the free share of vCPUs that a host should keep for each share of its memory that is free. "
        "'superconductor lab replay' shows which one fits the servers of a site.",
        min=0.0,
        mutable=True,
    ),
    _option(
        "leftover_from",
        "LeftoverWeigher: it applies, and packs servers, while at least this part of the fleet's vCPUs or memory is used. "
        "Above 0 it leaves out members of groups with an affinity or soft policy. 0: always.",
        min=0.0,
        max=1.0,
        mutable=True,
    ),
    _multiplier_option("affinity_room", "room for more servers of the size of an affinity group's first member"),
    _multiplier_option("cell_capacity", "the free share of the cell's capacity"),
    _multiplier_option("cell_spread", "a cell without other servers of the batch or group"),
    _multiplier_option("cross_cell_move", "the present cell of a server that may move to another one"),
    _multiplier_option("soft_affinity", "the other members of a soft-affinity group on a host"),
    _multiplier_option("soft_anti_affinity", "the absence of other members of a soft-anti-affinity group"),
    _option(
        "allow_resize_to_same_host",
        "Whether a resize may stay on its host, which then needs room for the new size and the old one.",
        mutable=True,
    ),
    _option("max_io_ops_per_host", "IoOpsFilter: maximum number of builds in progress on a host.", min=1, mutable=True),
    _option("max_instances_per_host", "NumInstancesFilter: maximum number of instances on a host.", min=1, mutable=True),
    _option("isolated_images", "IsolatedHostsFilter: UUIDs of images that boot only on isolated_hosts.", mutable=True),
    _option(
        "isolated_hosts", "IsolatedHostsFilter: names of the hosts for isolated_images. Empty: every host passes.", mutable=True
    ),
    _option(
        "restrict_isolated_hosts_to_isolated_images",
        "IsolatedHostsFilter: whether other images may not boot on isolated_hosts.",
        mutable=True,
    ),
    _option(
        "aggregate_image_properties_isolation_namespace",
        "AggregateImagePropertiesIsolation: only metadata keys that begin with this and a dot count. Unset: all.",
        mutable=True,
    ),
    _option(
        "aggregate_required_for_tenants",
        "RequireTenantAggregate: whether a project that no aggregate lists is refused. False: it may use any host.",
        mutable=True,
    ),
    _option(
        "json_filter_attributes",
        "JsonFilter: attributes of hosts that tenants may use in queries, as $attributes.NAME. The results tell tenants "
        "about hosts.",
        mutable=True,
    ),
    _option(
        "image_properties_default_architecture",
        "ImagePropertiesFilter: architecture of images that name none, for instance x86_64. Unset: any architecture.",
        mutable=True,
    ),
    _option(
        "feed_poll_interval",
        "Seconds between two reads of a cell's change feed, while its hosts are chosen or its feed has news.",
        min=0.02,
    ),
    _option(
        "warm_up",
        "Seconds after the cells that answer have been read for the first time, and after a host was mapped, in which the "
        "scheduler waits for hosts without a report before it refuses a request. A call waits no longer; it is then repeated.",
        min=0.0,
    ),
)


def list_opts() -> list[tuple[str, list[cfg.Opt]]]:
    """The options by group, for the sample configuration generator and for the loading of the configuration."""
    return [(GROUP, [WORKERS, *OPTIONS])]


def read_settings(conf: cfg.ConfigOpts) -> SchedulerSettings:
    """The options as a frozen record. Registers them if needed.

    Raises Misconfigured for a number that is not finite or too large, and for an invalid zone name.
    """
    conf.register_opts(OPTIONS, group=GROUP)
    group = conf[GROUP]
    values: dict[str, Any] = {option.dest: group[option.dest] for option in OPTIONS}
    for name, value in values.items():
        if isinstance(value, float) and not abs(value) <= MAX_EXACT_FLOAT:  # refuses NaN too
            raise errors.Misconfigured(f"[{GROUP}] {name}: {value} is not a number from -2**53 to 2**53")
    values |= {
        "default_availability_zone": service_opts.default_zone(conf),
        "service_down_time": service_opts.down_time(conf),
        "idle_interval": service_opts.idle_interval(conf),
    }
    values |= {name: tuple(values[name]) for name, value in values.items() if isinstance(value, list)}
    return SchedulerSettings(**values)
