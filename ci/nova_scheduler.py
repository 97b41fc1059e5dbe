"""What the filters and weighers of an installed Nova answer for described hosts and requests.

It runs in an environment of its own, where ``nova`` is installed and nothing of ours is, and speaks JSON with the caller. All names
of Nova that are not public stand in this file and in ``ci/nova_contract.py``.

    python ci/nova_scheduler.py describe        # prints the names of Nova's filters, weighers, options, extra specs, properties
    python ci/nova_scheduler.py answer < worlds # one world a line (tests/conformance/scheduler/worlds.py); prints a line for each

Aggregates are rows of a database in memory, because Nova's request filters read them there. Nothing calls Placement: the aggregates
that a request filter would demand of it are compared with those of the host.
"""

from __future__ import annotations

import datetime
import json
import logging
import sys
import uuid
import warnings
from collections.abc import Iterable, Iterator
from importlib import metadata
from typing import Any

RELEASE = "34.0.0"
REQUEST_FILTERS = ("map_az_to_placement_aggregate", "require_tenant_aggregate", "isolate_aggregates")
"""Request filters whose answer depends on aggregates alone."""
REQUESTED = "get_filtered_hosts"
"""The answer of the host manager alone: forced, ignored and requested hosts."""
SERVICE_DOWN_TIME_S = 60
OPTION_GROUPS = ("scheduler", "filter_scheduler", "metrics")
GIB = 1024
SERVER = "00000000-0000-4000-8000-00000000ffff"
"""The server that is requested."""

World = dict[str, Any]
Answers = dict[str, Any]


class ReleaseChanged(Exception):
    """The installed release is another one."""


def start() -> None:
    """Nova's configuration, objects, and database in memory. Raises ReleaseChanged."""
    import nova.conf
    from nova import context, objects
    from nova.db.api import api, models

    installed = metadata.version("nova")
    if installed != RELEASE:
        raise ReleaseChanged(f"nova {installed} is installed; ci/nova_scheduler.py was written for {RELEASE}")
    objects.register_all()
    nova.conf.CONF([], project="nova", default_config_files=[])
    nova.conf.CONF.set_override("connection", "sqlite://", "api_database")
    nova.conf.CONF.set_override("service_down_time", SERVICE_DOWN_TIME_S)
    nova.conf.CONF.set_override("limit_tenants_to_placement_aggregate", True, "scheduler")
    nova.conf.CONF.set_override("enable_isolated_aggregate_filtering", True, "scheduler")
    api.configure(nova.conf.CONF)
    context.get_admin_context()
    models.BASE.metadata.create_all(api.get_engine())


def describe_release() -> dict[str, list[str]]:
    """The names of what may bear on placement, by heading of ``docs/nova-scheduler.md``."""
    import nova.conf
    from nova.api.validation.extra_specs import base, validators
    from nova.objects import image_meta
    from nova.scheduler import filters, request_filter, weights

    validators.load_validators()
    specs = [spec.name for spec in validators.VALIDATORS.values() if isinstance(spec, base.ExtraSpecValidator)]
    requested = [function.__name__ for function in request_filter.ALL_REQUEST_FILTERS]
    return {
        "Filters": [cls.__name__ for cls in filters.all_filters()] + requested,
        "Weighers": [cls.__name__ for cls in weights.all_weighers()],
        "Options": [f"[{group}] {name}" for group in OPTION_GROUPS for name in nova.conf.CONF[group]],
        "Extra specs": sorted(specs),
        "Image properties": sorted(image_meta.ImageMetaProps.fields),
    }


class Fleet:
    """The hosts and aggregates of a world as Nova's objects."""

    def __init__(self, world: World) -> None:
        from nova import context
        from nova.scheduler import filters, host_manager, weights

        self._world = world
        self._context = context.get_admin_context()
        self._set_options(world["settings"])
        self._aggregates = [self._create_aggregate(entry) for entry in world["aggregates"]]
        self.hosts = [self._make_host(entry) for entry in world["hosts"]]
        self.filters = {cls.__name__: cls() for cls in filters.all_filters() if cls.__name__ in world["filters"]}
        self.weighers = {cls.__name__: cls() for cls in weights.all_weighers() if cls.__name__ in world["weighers"]}
        self._handler = weights.HostWeightHandler()
        self._manager = host_manager.HostManager.__new__(host_manager.HostManager)  # it would read databases
        self._manager.filter_handler, self._manager.enabled_filters = filters.HostFilterHandler(), []

    def _set_options(self, settings: dict[str, Any]) -> None:
        import nova.conf

        for name, value in settings.items():
            group = "scheduler" if name in nova.conf.CONF.scheduler else "filter_scheduler"
            nova.conf.CONF.set_override(name, value, group)

    def _create_aggregate(self, description: dict[str, Any]) -> Any:
        from nova import objects
        from nova.objects import aggregate

        row = aggregate._aggregate_create_in_db(
            self._context, {"name": description["name"], "uuid": str(uuid.uuid4())}, description["metadata"]
        )
        for host in description["hosts"]:
            aggregate._host_add_to_db(self._context, row.id, host)
        return objects.Aggregate.get_by_id(self._context, row.id)

    def close(self) -> None:
        """Leaves the database empty."""
        from nova.db.api import api, models

        with api.get_engine().begin() as connection:
            for kind in (models.AggregateHost, models.AggregateMetadata, models.Aggregate):
                connection.execute(kind.__table__.delete())

    def _make_host(self, description: dict[str, Any]) -> Any:
        from nova import objects
        from nova.scheduler import host_manager

        now = datetime.datetime.now(datetime.UTC)
        memory, disk = (
            description[f"{resource}_used"] + description[f"reserved_{resource}"] for resource in ("memory_mb", "disk_gb")
        )
        node = objects.ComputeNode(
            uuid=str(uuid.uuid4()),
            host=description["host"],
            hypervisor_hostname=description["node"],
            vcpus=description["vcpus"],
            vcpus_used=description["vcpus_used"],
            memory_mb=description["memory_mb"],
            memory_mb_used=memory,
            free_ram_mb=description["memory_mb"] - memory,
            local_gb=description["disk_gb"],
            local_gb_used=disk,
            free_disk_gb=description["disk_gb"] - disk,
            disk_available_least=None,
            updated_at=now,
            cpu_allocation_ratio=description["cpu_allocation_ratio"],
            ram_allocation_ratio=description["ram_allocation_ratio"],
            disk_allocation_ratio=description["disk_allocation_ratio"],
            hypervisor_type=description["hypervisor_type"],
            hypervisor_version=description["hypervisor_version"],
            host_ip=description["host_ip"],
            cpu_info=json.dumps(description["cpu_info"]),
            supported_hv_specs=[objects.HVSpec.from_list(item) for item in description["supported_instances"]],
            numa_topology=None,
            pci_device_pools=None,
            metrics=None,
            stats={
                "num_instances": str(description["instances"]),
                "io_workload": str(max(0, description["instances"] - description["running_vms"])),
                "failed_builds": str(description["failed_builds"]),
                **description["stats"],
            },
        )
        state = host_manager.HostState(description["host"], description["node"], description["cell"])
        service = {
            "host": description["host"],
            "binary": "nova-compute",
            "disabled": description["disabled"],
            "disabled_reason": None,
            "forced_down": description["forced_down"],
            "created_at": now,
            "last_seen_up": now - datetime.timedelta(seconds=description["silent_s"]),
        }
        servers = self._world["servers"]
        instances = {server: None for server, host in servers.items() if host == description["host"]}
        state.update(node, service, [item for item in self._aggregates if description["host"] in item.hosts], instances)
        return state

    # -- requests --------------------------------------------------------------------------------------------------------------

    def make_request(self, request: dict[str, Any]) -> Any:
        from nova import objects

        flavor = request["flavor"]
        return objects.RequestSpec(
            flavor=objects.Flavor(
                name=flavor["name"],
                flavorid=flavor["name"],
                vcpus=flavor["vcpus"],
                memory_mb=flavor["memory_mb"],
                root_gb=flavor["root_gb"],
                ephemeral_gb=flavor["ephemeral_gb"],
                swap=flavor["swap_mb"],
                extra_specs=dict(flavor["extra_specs"]),
            ),
            image=request["image"] and objects.ImageMeta.from_dict(request["image"]),
            project_id=request["project_id"],
            user_id="u",
            availability_zone=request["availability_zone"],
            num_instances=1,
            instance_uuid=SERVER,
            ignore_hosts=request["ignore_hosts"],
            force_hosts=request["force_hosts"],
            force_nodes=request["force_nodes"],
            scheduler_hints=request["hints"],
            requested_destination=self._make_destination(request),
            instance_group=self._make_group(request["group"]),
            requested_resources=[],
            request_level_params=objects.RequestLevelParams(),
            pci_requests=None,
            numa_topology=None,
            is_bfv=False,
        )

    def _make_destination(self, request: dict[str, Any]) -> Any:
        from nova import objects

        destination, move = request["destination"], request["move"]
        if destination:
            return objects.Destination(host=destination["host"], node=destination["node"])
        if move:
            return objects.Destination(cell=objects.CellMapping(uuid=move["source_cell"]), allow_cross_cell_move=move["cross_cell"])
        return None

    def _make_group(self, group: dict[str, Any] | None) -> Any:
        from nova import objects

        if group is None:
            return None
        servers = self._world["servers"]
        rules = {"max_server_per_host": str(group["max_server_per_host"])} if group["policy"] == "anti-affinity" else {}
        return objects.InstanceGroup(
            uuid=str(uuid.uuid4()),
            policy=group["policy"],
            policies=[group["policy"]],
            _rules=rules,
            members=group["members"],
            hosts=sorted({servers[member] for member in group["members"]}),
        )

    def answer_request(self, request: dict[str, Any]) -> Answers:
        """By filter: for each host whether it passes, or the error that the filter raises; by weigher: what it says of ``left``."""
        spec = self.make_request(request)
        passes: dict[str, list[Any]] = {
            name: [_try_filter(host_filter, host, spec) for host in self.hosts] for name, host_filter in self.filters.items()
        }
        passes |= {name: self._match_demand(name, request) for name in REQUEST_FILTERS}
        requested = list(self._manager.get_filtered_hosts(list(self.hosts), spec))
        passes[REQUESTED] = [host in requested for host in self.hosts]
        remaining = [self.hosts[index] for index in request["left"]]
        return {"filters": passes, "weighers": self._weigh_hosts(remaining, spec), "totals": self._total_weights(remaining, spec)}

    def _match_demand(self, name: str, request: dict[str, Any]) -> list[bool]:
        from nova import exception
        from nova.scheduler import request_filter

        spec = self.make_request(request | {"destination": None, "move": None})
        try:
            getattr(request_filter, name)(self._context, spec)
        except exception.RequestFilterFailed:
            return [False] * len(self.hosts)
        demand = spec.requested_destination
        required = [set(one_of.split(",")) for one_of in (demand.aggregates or ())] if demand else []
        forbidden = set(demand.forbidden_aggregates or ()) if demand else set()
        host_aggregates = [{aggregate.uuid for aggregate in host.aggregates} for host in self.hosts]
        return [all(one_of & have for one_of in required) and not forbidden & have for have in host_aggregates]

    def _weigh_hosts(self, remaining: list[Any], spec: Any) -> dict[str, dict[str, list[float]]]:
        from nova import weights

        by_weigher = {}
        for name, weigher in self.weighers.items():
            objects = [weights.WeighedObject(host, 0.0) for host in remaining]
            scaled = weights.normalize(weigher.weigh_objects(objects, spec), minval=weigher.minval, maxval=weigher.maxval)
            by_weigher[name] = {
                "raw": [float(weigher._weigh_object(host, spec)) for host in remaining],
                "normalised": [float(value) for value in scaled],
                "multiplier": [float(weigher.weight_multiplier(host)) for host in remaining],
            }
        return by_weigher

    def _total_weights(self, remaining: list[Any], spec: Any) -> list[float]:
        ranked = self._handler.get_weighed_objects(list(self.weighers.values()), remaining, spec)
        by_host = {id(weighed.obj): weighed.weight for weighed in ranked}
        return [by_host[id(host)] for host in remaining]


def _try_filter(one: Any, host: Any, spec: Any) -> bool | str:
    try:
        return bool(one.host_passes(host, spec))
    except Exception as error:  # noqa: BLE001 - its name is the answer
        return type(error).__name__


def answer_worlds(lines: Iterable[str]) -> Iterator[list[Answers]]:
    """For each world the answers to its requests."""
    for line in lines:
        fleet = Fleet(json.loads(line))
        try:
            yield [fleet.answer_request(request) for request in fleet._world["requests"]]
        finally:
            fleet.close()


def main(arguments: list[str]) -> int:
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    try:
        start()
    except (ReleaseChanged, ImportError) as error:
        print(error, file=sys.stderr)
        return 2
    if arguments == ["describe"]:
        json.dump(describe_release(), sys.stdout)
        return 0
    for answers in answer_worlds(sys.stdin):
        print(json.dumps(answers), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
