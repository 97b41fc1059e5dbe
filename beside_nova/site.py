"""The options of a site's nova.conf that its scheduler decides by, as settings of this scheduler."""

from __future__ import annotations

from pathlib import Path

from oslo_config import cfg

from beside_nova.engine import SchedulerDriver, SchedulerSettings, load_driver
from beside_nova.opts import NovaSettings
from objects import errors
from objects.base import Object

FILTERS = {
    "AllHostsFilter": "AllHostsFilter",
    "ComputeFilter": "ComputeFilter",
    "ComputeCapabilitiesFilter": "ComputeCapabilitiesFilter",
    "ImagePropertiesFilter": "ImagePropertiesFilter",
    "ServerGroupAntiAffinityFilter": "ServerGroupAntiAffinityFilter",
    "ServerGroupAffinityFilter": "ServerGroupAffinityFilter",
    "IoOpsFilter": "IoOpsFilter",
    "AggregateIoOpsFilter": "IoOpsFilter",
    "NumInstancesFilter": "NumInstancesFilter",
    "AggregateNumInstancesFilter": "NumInstancesFilter",
    "IsolatedHostsFilter": "IsolatedHostsFilter",
    "SameHostFilter": "SameHostFilter",
    "DifferentHostFilter": "DifferentHostFilter",
    "SimpleCIDRAffinityFilter": "SimpleCIDRAffinityFilter",
    "AggregateInstanceExtraSpecsFilter": "AggregateInstanceExtraSpecsFilter",
    "AggregateImagePropertiesIsolation": "AggregateImagePropertiesIsolation",
    "AggregateMultiTenancyIsolation": "AggregateMultiTenancyIsolation",
    "AggregateTypeAffinityFilter": "AggregateTypeAffinityFilter",
    "JsonFilter": "JsonFilter",
    # Requests that these two would refuse are not judged: see ``request``.
    "NUMATopologyFilter": None,
    "PciPassthroughFilter": None,
}
"""Filters of Nova, and which one judges the same here."""
PLACEMENT_FILTERS = (
    "AvailabilityZoneFilter",
    "RamFilter",
    "CoreFilter",
    "DiskFilter",
    "beside_nova.units:PlacementUnitsFilter",
    "TraitsFilter",
)
"""What Placement judges before Nova's filters do."""
WEIGHERS = (
    "RAMWeigher",
    "CPUWeigher",
    "DiskWeigher",
    "IoOpsWeigher",
    "BuildFailureWeigher",
    "ServerGroupSoftAffinityWeigher",
    "ServerGroupSoftAntiAffinityWeigher",
    "NumInstancesWeigher",
    "CrossCellWeigher",
)
MULTIPLIERS = {
    "ram": 1.0,
    "cpu": 1.0,
    "disk": 1.0,
    "io_ops": -1.0,
    "build_failure": 1000000.0,
    "soft_affinity": 1.0,
    "soft_anti_affinity": 1.0,
    "num_instances": 0.0,
    "cross_cell_move": 1000000.0,
}
"""Nova's defaults."""
_DEFAULT_FILTERS = [
    "ComputeFilter",
    "ComputeCapabilitiesFilter",
    "ImagePropertiesFilter",
    "ServerGroupAntiAffinityFilter",
    "ServerGroupAffinityFilter",
]


def _filter_options() -> list[cfg.Opt]:
    return [
        cfg.ListOpt("enabled_filters", default=_DEFAULT_FILTERS),
        *(cfg.FloatOpt(f"{name}_weight_multiplier", default=default) for name, default in MULTIPLIERS.items()),
        cfg.IntOpt("host_subset_size", default=1),
        cfg.BoolOpt("shuffle_best_same_weighed_hosts", default=False),
        cfg.IntOpt("max_io_ops_per_host", default=8),
        cfg.IntOpt("max_instances_per_host", default=50),
        cfg.ListOpt("isolated_images", default=[]),
        cfg.ListOpt("isolated_hosts", default=[]),
        cfg.BoolOpt("restrict_isolated_hosts_to_isolated_images", default=True),
        cfg.StrOpt("aggregate_image_properties_isolation_namespace"),
        cfg.StrOpt("image_properties_default_architecture"),
    ]


_SCHEDULER_OPTIONS = [
    cfg.BoolOpt("limit_tenants_to_placement_aggregate", default=False),
    cfg.BoolOpt("placement_aggregate_required_for_tenants", default=False),
    cfg.BoolOpt("enable_isolated_aggregate_filtering", default=False),
    cfg.BoolOpt("query_placement_for_image_type_support", default=False),
    cfg.BoolOpt("image_metadata_prefilter", default=False),
]


class NovaSite(Object, frozen=True, kw_only=True):
    """What a site's scheduler decides by. ``by_image_type``, ``by_image_metadata``: its request filters of that name are on."""

    nova: NovaSettings
    scheduler: SchedulerSettings
    service_down_time: float
    by_image_type: bool = False
    by_image_metadata: bool = False

    def make_driver(self) -> SchedulerDriver:
        """The filters and weighers of the site."""
        return load_driver(self.scheduler)


def read_site(settings: NovaSettings) -> NovaSite:
    """Read the nova.conf that ``settings`` name; without one, Nova's defaults.

    Raises Misconfigured for a file that cannot be read, and for a filter that is not known here.
    """
    conf = cfg.ConfigOpts()
    conf.register_opts([cfg.FloatOpt("service_down_time", default=60.0), cfg.StrOpt("default_availability_zone", default="nova")])
    conf.register_opts(_filter_options(), group="filter_scheduler")
    conf.register_opts(_SCHEDULER_OPTIONS, group="scheduler")
    for group in ("api_database", "database"):
        conf.register_opt(cfg.StrOpt("connection", secret=True), group=group)
    path = settings.config_file
    if path and not Path(path).is_file():
        raise errors.Misconfigured(f"[nova] config_file: there is no file {path}")
    try:
        conf([], project="nova", default_config_files=[path] if path else [], default_config_dirs=[], use_env=False)
        return _site_of(conf, settings)
    except (cfg.Error, ValueError) as error:
        raise errors.Misconfigured(f"[nova] config_file {path}: {' '.join(str(error).split())}") from error


def _site_of(conf: cfg.ConfigOpts, settings: NovaSettings) -> NovaSite:
    filters, scheduler = conf.filter_scheduler, conf.scheduler
    if unknown := [name for name in filters.enabled_filters if name.rpartition(".")[2] not in FILTERS]:
        raise errors.Misconfigured(f"Nova's enabled_filters names {unknown[0]}, which is not known here: nothing can be judged")
    names = [FILTERS[name.rpartition(".")[2]] for name in filters.enabled_filters]
    by_aggregates = [
        *(["RequireTenantAggregate"] if scheduler.limit_tenants_to_placement_aggregate else []),
        *(["IsolateAggregates"] if scheduler.enable_isolated_aggregate_filtering else []),
    ]
    enabled = dict.fromkeys([*PLACEMENT_FILTERS, *by_aggregates, *(name for name in names if name is not None)])
    return NovaSite(
        nova=NovaSettings(
            api_connection=settings.api_connection or conf.api_database.connection or "",
            placement_connection=settings.placement_connection,
            cell_connection=settings.cell_connection or conf.database.connection or "",
            cell_username=settings.cell_username,
            cell_password=settings.cell_password,
            config_file=settings.config_file,
        ),
        scheduler=SchedulerSettings(
            enabled_filters=tuple(enabled),
            enabled_weighers=WEIGHERS,
            host_subset_size=max(filters.host_subset_size, 1),
            shuffle_best_same_weighed_hosts=filters.shuffle_best_same_weighed_hosts,
            max_io_ops_per_host=filters.max_io_ops_per_host,
            max_instances_per_host=filters.max_instances_per_host,
            isolated_images=tuple(filters.isolated_images),
            isolated_hosts=tuple(filters.isolated_hosts),
            restrict_isolated_hosts_to_isolated_images=filters.restrict_isolated_hosts_to_isolated_images,
            aggregate_image_properties_isolation_namespace=filters.aggregate_image_properties_isolation_namespace,
            image_properties_default_architecture=filters.image_properties_default_architecture,
            aggregate_required_for_tenants=scheduler.placement_aggregate_required_for_tenants,
            default_availability_zone=conf.default_availability_zone,
            **{f"{name}_weight_multiplier": filters[f"{name}_weight_multiplier"] for name in MULTIPLIERS},
        ),
        service_down_time=conf.service_down_time,
        by_image_type=scheduler.query_placement_for_image_type_support,
        by_image_metadata=scheduler.image_metadata_prefilter,
    )
