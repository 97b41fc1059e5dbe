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

    found = metadata.version("nova")
    if found != RELEASE:
        raise ReleaseChanged(f"nova {found} is installed; ci/nova_scheduler.py was written for {RELEASE}")
    objects.register_all()
    nova.conf.CONF([], project="nova", default_config_files=[])
    nova.conf.CONF.set_override("connection", "sqlite://", "api_database")
    nova.conf.CONF.set_override("service_down_time", SERVICE_DOWN_TIME_S)
    nova.conf.CONF.set_override("limit_tenants_to_placement_aggregate", True, "scheduler")
    nova.conf.CONF.set_override("enable_isolated_aggregate_filtering", True, "scheduler")
    api.configure(nova.conf.CONF)
    context.get_admin_context()
    models.BASE.metadata.create_all(api.get_engine())


def describe() -> dict[str, list[str]]:
    """The names of what may bear on placement, by heading of ``docs/nova-scheduler.md``."""
    import nova.conf
    from nova.api.validation.extra_specs import base, validators
    from nova.objects import image_meta
    from nova.scheduler import filters, request_filter, weights

    validators.load_validators()
    specs = [spec.name for spec in validators.VALIDATORS.values() if isinstance(spec, base.ExtraSpecValidator)]
    requested = [each.__name__ for each in request_filter.ALL_REQUEST_FILTERS]
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
        self._configure(world["settings"])
        self._aggregates = [self._aggregate(each) for each in world["aggregates"]]
        self.hosts = [self._host(each) for each in world["hosts"]]
        self.filters = {cls.__name__: cls() for cls in filters.all_filters() if cls.__name__ in world["filters"]}
        self.weighers = {cls.__name__: cls() for cls in weights.all_weighers() if cls.__name__ in world["weighers"]}
        self._handler = weights.HostWeightHandler()
        self._manager = host_manager.HostManager.__new__(host_manager.HostManager)  # it would read databases
        self._manager.filter_handler, self._manager.enabled_filters = filters.HostFilterHandler(), []

    def _configure(self, settings: dict[str, Any]) -> None:
        import nova.conf

        for name, value in settings.items():
            group = "scheduler" if name in nova.conf.CONF.scheduler else "filter_scheduler"
            nova.conf.CONF.set_override(name, value, group)

    def _aggregate(self, given: dict[str, Any]) -> Any:
        from nova import objects
        from nova.objects import aggregate

        row = aggregate._aggregate_create_in_db(
            self._context, {"name": given["name"], "uuid": str(uuid.uuid4())}, given["metadata"]
        )
        for host in given["hosts"]:
            aggregate._host_add_to_db(self._context, row.id, host)
        return objects.Aggregate.get_by_id(self._context, row.id)

    def close(self) -> None:
        """Leaves the database empty."""
        from nova.db.api import api, models

        with api.get_engine().begin() as connection:
            for kind in (models.AggregateHost, models.AggregateMetadata, models.Aggregate):
                connection.execute(kind.__table__.delete())

    def _host(self, given: dict[str, Any]) -> Any:
        from nova import objects
        from nova.scheduler import host_manager

        now = datetime.datetime.now(datetime.UTC)
        memory, disk = (given[f"{what}_used"] + given[f"reserved_{what}"] for what in ("memory_mb", "disk_gb"))
        node = objects.ComputeNode(
            uuid=str(uuid.uuid4()),
            host=given["host"],
            hypervisor_hostname=given["node"],
            vcpus=given["vcpus"],
            vcpus_used=given["vcpus_used"],
            memory_mb=given["memory_mb"],
            memory_mb_used=memory,
            free_ram_mb=given["memory_mb"] - memory,
            local_gb=given["disk_gb"],
            local_gb_used=disk,
            free_disk_gb=given["disk_gb"] - disk,
            disk_available_least=None,
            updated_at=now,
            cpu_allocation_ratio=given["cpu_allocation_ratio"],
            ram_allocation_ratio=given["ram_allocation_ratio"],
            disk_allocation_ratio=given["disk_allocation_ratio"],
            hypervisor_type=given["hypervisor_type"],
            hypervisor_version=given["hypervisor_version"],
            host_ip=given["host_ip"],
            cpu_info=json.dumps(given["cpu_info"]),
            supported_hv_specs=[objects.HVSpec.from_list(each) for each in given["supported_instances"]],
            numa_topology=None,
            pci_device_pools=None,
            metrics=None,
            stats={
                "num_instances": str(given["instances"]),
                "io_workload": str(max(0, given["instances"] - given["running_vms"])),
                "failed_builds": str(given["failed_builds"]),
                **given["stats"],
            },
        )
        state = host_manager.HostState(given["host"], given["node"], given["cell"])
        service = {
            "host": given["host"],
            "binary": "nova-compute",
            "disabled": given["disabled"],
            "disabled_reason": None,
            "forced_down": given["forced_down"],
            "created_at": now,
            "last_seen_up": now - datetime.timedelta(seconds=given["silent_s"]),
        }
        servers = self._world["servers"]
        here = {server: None for server, host in servers.items() if host == given["host"]}
        state.update(node, service, [each for each in self._aggregates if given["host"] in each.hosts], here)
        return state

    # -- requests --------------------------------------------------------------------------------------------------------------

    def request(self, given: dict[str, Any]) -> Any:
        from nova import objects

        flavor = given["flavor"]
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
            image=given["image"] and objects.ImageMeta.from_dict(given["image"]),
            project_id=given["project_id"],
            user_id="u",
            availability_zone=given["availability_zone"],
            num_instances=1,
            instance_uuid=SERVER,
            ignore_hosts=given["ignore_hosts"],
            force_hosts=given["force_hosts"],
            force_nodes=given["force_nodes"],
            scheduler_hints=given["hints"],
            requested_destination=self._destination(given),
            instance_group=self._group(given["group"]),
            requested_resources=[],
            request_level_params=objects.RequestLevelParams(),
            pci_requests=None,
            numa_topology=None,
            is_bfv=False,
        )

    def _destination(self, given: dict[str, Any]) -> Any:
        from nova import objects

        wanted, move = given["destination"], given["move"]
        if wanted:
            return objects.Destination(host=wanted["host"], node=wanted["node"])
        if move:
            return objects.Destination(cell=objects.CellMapping(uuid=move["source_cell"]), allow_cross_cell_move=move["cross_cell"])
        return None

    def _group(self, given: dict[str, Any] | None) -> Any:
        from nova import objects

        if given is None:
            return None
        servers = self._world["servers"]
        rules = {"max_server_per_host": str(given["max_server_per_host"])} if given["policy"] == "anti-affinity" else {}
        return objects.InstanceGroup(
            uuid=str(uuid.uuid4()),
            policy=given["policy"],
            policies=[given["policy"]],
            _rules=rules,
            members=given["members"],
            hosts=sorted({servers[member] for member in given["members"]}),
        )

    def answers(self, given: dict[str, Any]) -> Answers:
        """By filter: for each host whether it passes, or the error that the filter raises; by weigher: what it says of ``left``."""
        spec = self.request(given)
        passes: dict[str, list[Any]] = {
            name: [_tried(each, host, spec) for host in self.hosts] for name, each in self.filters.items()
        }
        passes |= {name: self._demanded(name, given) for name in REQUEST_FILTERS}
        requested = list(self._manager.get_filtered_hosts(list(self.hosts), spec))
        passes[REQUESTED] = [host in requested for host in self.hosts]
        left = [self.hosts[index] for index in given["left"]]
        return {"filters": passes, "weighers": self._weights(left, spec), "totals": self._totals(left, spec)}

    def _demanded(self, name: str, given: dict[str, Any]) -> list[bool]:
        from nova import exception
        from nova.scheduler import request_filter

        spec = self.request(given | {"destination": None, "move": None})
        try:
            getattr(request_filter, name)(self._context, spec)
        except exception.RequestFilterFailed:
            return [False] * len(self.hosts)
        demand = spec.requested_destination
        required = [set(one_of.split(",")) for one_of in (demand.aggregates or ())] if demand else []
        forbidden = set(demand.forbidden_aggregates or ()) if demand else set()
        theirs = [{each.uuid for each in host.aggregates} for host in self.hosts]
        return [all(one_of & have for one_of in required) and not forbidden & have for have in theirs]

    def _weights(self, left: list[Any], spec: Any) -> dict[str, dict[str, list[float]]]:
        from nova import weights

        found = {}
        for name, weigher in self.weighers.items():
            objects = [weights.WeighedObject(host, 0.0) for host in left]
            scaled = weights.normalize(weigher.weigh_objects(objects, spec), minval=weigher.minval, maxval=weigher.maxval)
            found[name] = {
                "raw": [float(weigher._weigh_object(host, spec)) for host in left],
                "normalised": [float(each) for each in scaled],
                "multiplier": [float(weigher.weight_multiplier(host)) for host in left],
            }
        return found

    def _totals(self, left: list[Any], spec: Any) -> list[float]:
        ranked = self._handler.get_weighed_objects(list(self.weighers.values()), left, spec)
        by_host = {id(each.obj): each.weight for each in ranked}
        return [by_host[id(host)] for host in left]


def _tried(one: Any, host: Any, spec: Any) -> bool | str:
    try:
        return bool(one.host_passes(host, spec))
    except Exception as error:  # noqa: BLE001 - its name is the answer
        return type(error).__name__


def answer(lines: Iterable[str]) -> Iterator[list[Answers]]:
    """For each world the answers to its requests."""
    for line in lines:
        fleet = Fleet(json.loads(line))
        try:
            yield [fleet.answers(each) for each in fleet._world["requests"]]
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
        json.dump(describe(), sys.stdout)
        return 0
    for answers in answer(sys.stdin):
        print(json.dumps(answers), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
