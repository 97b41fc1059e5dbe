"""The databases of a Nova cloud as files of SQLite, with the tables and columns that are read, and rows as Nova writes them."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy import event

from beside_nova import schema
from beside_nova.opts import NovaSettings
from beside_nova.records import CELL0_UUID
from beside_nova.site import read_site
from beside_nova.state import NovaState, open_databases

REVISIONS = {"nova_api": "cdeec0c85668", "placement": "a082b8bb98d0", "cell": "ab450ba04102"}
CLASSES = ("VCPU", "MEMORY_MB", "DISK_GB", "CUSTOM_GPU", "PCPU")


def now() -> datetime:
    return datetime.now(UTC).replace(tzinfo=None, microsecond=0)


def uuid_of(number: int) -> str:
    return str(UUID(int=number))


class NovaCloud:
    """Makes the databases below a folder. Every method writes what Nova or Placement writes, and raises generations as they do."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._numbers = itertools.count(1)
        self._engines: dict[str, sa.Engine] = {}
        for name, declared in (("nova_api", schema.NOVA_API), ("placement", schema.PLACEMENT)):
            self._create_database(name, declared, REVISIONS[name])
        for number, name in enumerate(CLASSES):
            self.insert("placement", "resource_classes", id=number, name=name)
        self.add_cell("cell0", CELL0_UUID)

    @property
    def settings(self) -> NovaSettings:
        return NovaSettings(api_connection=self.url_of("nova_api"), placement_connection=self.url_of("placement"))

    def open_state(self) -> NovaState:
        """What is read of it, loaded."""
        site = read_site(self.settings)
        state = NovaState(open_databases(site.nova), site.service_down_time)
        state.load_all()
        return state

    def url_of(self, name: str) -> str:
        return f"sqlite:///{self._folder / name}.db"

    def insert(self, database: str, table: str, **values: Any) -> int:
        """A row; returns its id, which is made here unless it is given."""
        declared = {"nova_api": schema.NOVA_API, "placement": schema.PLACEMENT}.get(database, schema.CELL).metadata.tables[table]
        if "id" in declared.c:
            values.setdefault("id", next(self._numbers))
        if "created_at" in declared.c:
            values.setdefault("created_at", now())
        with self._engines[database].begin() as connection:
            connection.execute(sa.insert(declared).values(**values))
        return int(values.get("id", 0))

    def execute(self, database: str, statement: str, **values: Any) -> None:
        with self._engines[database].begin() as connection:
            connection.execute(sa.text(statement), values)

    def add_cell(self, name: str, uuid: str = "", **values: Any) -> int:
        """A cell, with a database of its own."""
        number = next(self._numbers)
        self._create_database(name, schema.CELL, REVISIONS["cell"])
        row = {"uuid": uuid or uuid_of(number), "name": name, "database_connection": self.url_of(name), "disabled": 0}
        return self.insert("nova_api", "cell_mappings", id=number, **{**row, **values})

    def add_host(
        self,
        host: str,
        cell: str = "cell1",
        vcpus: int = 8,
        memory_mb: int = 16384,
        disk_gb: int = 100,
        ratio: float = 4.0,
        traits: Sequence[str] = (),
        *,
        mapped: bool = True,
        seen_s_ago: float = 1.0,
    ) -> int:
        """A compute host that is up, with its service, node, mapping and resource provider; returns the provider's id."""
        uuid = uuid_of(next(self._numbers))
        seen_at = now() - timedelta(seconds=seen_s_ago)
        self.insert(
            cell,
            "services",
            host=host,
            binary="nova-compute",
            disabled=0,
            forced_down=0,
            deleted=0,
            last_seen_up=seen_at,
            updated_at=seen_at,
        )
        self.insert(
            cell,
            "compute_nodes",
            uuid=uuid,
            host=host,
            hypervisor_hostname=host,
            hypervisor_type="QEMU",
            hypervisor_version=8002000,
            supported_instances='[["x86_64", "kvm", "hvm"]]',
            stats='{"failed_builds": "0", "io_workload": "0"}',
            vcpus=vcpus,
            memory_mb=memory_mb,
            local_gb=disk_gb,
            running_vms=0,
            deleted=0,
            updated_at=now(),
        )
        if mapped:
            self.insert("nova_api", "host_mappings", host=host, cell_id=self._number_of_cell(cell))
        provider = self.add_provider(host, uuid)
        for name, total, of in (("VCPU", vcpus, ratio), ("MEMORY_MB", memory_mb, 1.0), ("DISK_GB", disk_gb, 1.0)):
            self.add_inventory(provider, name, total, allocation_ratio=of)
        for trait in traits:
            self.add_trait(provider, trait)
        return provider

    def add_provider(self, name: str, uuid: str = "", parent: int | None = None) -> int:
        number = next(self._numbers)
        row = {"uuid": uuid or uuid_of(number), "generation": 1, "root_provider_id": parent or number, "parent_provider_id": parent}
        return self.insert("placement", "resource_providers", id=number, name=name, updated_at=now(), **row)

    def add_inventory(self, provider: int, name: str, total: int, **values: Any) -> None:
        row = {"reserved": 0, "min_unit": 1, "max_unit": total, "step_size": 1, "allocation_ratio": 1.0} | values
        self.insert(
            "placement",
            "inventories",
            resource_provider_id=provider,
            resource_class_id=CLASSES.index(name),
            total=total,
            **row,
        )
        self.raise_generation(provider)

    def add_trait(self, provider: int, name: str) -> None:
        with self._engines["placement"].connect() as connection:
            number = connection.execute(sa.select(schema.traits.c.id).where(schema.traits.c.name == name)).scalar_one_or_none()
        number = self.insert("placement", "traits", name=name) if number is None else number
        self.insert("placement", "resource_provider_traits", trait_id=number, resource_provider_id=provider)
        self.raise_generation(provider)

    def add_aggregate(self, name: str, hosts: Mapping[str, int], mirrored: bool = True, **metadata: str) -> int:
        """``hosts``: with their providers. ``mirrored``: Placement has the aggregate, too."""
        number = next(self._numbers)
        uuid = uuid_of(number)
        self.insert("nova_api", "aggregates", id=number, uuid=uuid, name=name)
        for key, value in metadata.items():
            self.insert("nova_api", "aggregate_metadata", aggregate_id=number, key=key, value=value)
        self.insert("placement", "placement_aggregates", id=number, uuid=uuid)
        for host, provider in hosts.items():
            self.insert("nova_api", "aggregate_hosts", aggregate_id=number, host=host)
            if mirrored:
                self.mirror_aggregate(number, provider)
        return number

    def mirror_aggregate(self, aggregate: int, provider: int) -> None:
        """Placement's copy of an aggregate gets a provider."""
        self.insert("placement", "resource_provider_aggregates", resource_provider_id=provider, aggregate_id=aggregate)
        self.raise_generation(provider)

    def claim(self, consumer: str, provider: int, vcpus: int = 1, memory_mb: int = 1024, disk_gb: int = 10) -> None:
        """Allocations, as the scheduler makes them."""
        for number, used in enumerate((vcpus, memory_mb, disk_gb)):
            if used:
                row = {"resource_provider_id": provider, "resource_class_id": number, "consumer_id": consumer, "used": used}
                self.insert("placement", "allocations", **row)
        self.raise_generation(provider)

    def release(self, consumer: str, provider: int) -> None:
        self.execute(
            "placement",
            "DELETE FROM allocations WHERE consumer_id = :consumer AND resource_provider_id = :provider",
            consumer=consumer,
            provider=provider,
        )
        self.raise_generation(provider)

    def raise_generation(self, provider: int) -> None:
        self.execute(
            "placement",
            "UPDATE resource_providers SET generation = generation + 1, updated_at = :now WHERE id = :id",
            id=provider,
            now=str(now()),
        )

    def add_flavor(
        self, name: str, vcpus: int = 1, memory_mb: int = 1024, root_gb: int = 10, extra_specs: Mapping[str, str] | None = None
    ) -> None:
        row = {"memory_mb": memory_mb, "vcpus": vcpus, "swap": 0, "root_gb": root_gb, "ephemeral_gb": 0, "disabled": 0}
        number = self.insert("nova_api", "flavors", name=name, flavorid=name, is_public=1, **row)
        for key, value in (extra_specs or {}).items():
            self.insert("nova_api", "flavor_extra_specs", flavor_id=number, key=key, value=value)

    def add_group(self, policy: str, members: Sequence[str] = (), max_server_per_host: int | None = None) -> str:
        number = next(self._numbers)
        uuid = uuid_of(number)
        self.insert("nova_api", "instance_groups", id=number, uuid=uuid, name=f"group-{number}", project_id="p", user_id="u")
        rules = None if max_server_per_host is None else json.dumps({"max_server_per_host": max_server_per_host})
        self.insert("nova_api", "instance_group_policy", group_id=number, policy=policy, rules=rules)
        for member in members:
            self.insert("nova_api", "instance_group_member", group_id=number, instance_uuid=member)
        return uuid

    def add_server(
        self, uuid: str, host: str | None, cell: str = "cell1", spec: Mapping[str, Any] | None = None, **values: Any
    ) -> None:
        """An ACTIVE server, its mapping and its request spec. It has no allocations yet."""
        row: dict[str, Any] = {
            "display_name": f"server-{uuid[-3:]}",
            "project_id": "p",
            "host": host,
            "node": host,
            "vm_state": "active",
            "availability_zone": "nova",
            "memory_mb": 1024,
            "vcpus": 1,
            "root_gb": 10,
            "ephemeral_gb": 0,
            "deleted": 0,
            "hidden": 0,
            "launched_at": now(),
        }
        self.insert(cell, "instances", uuid=uuid, **{**row, **values})
        number = self._number_of_cell(cell)
        self.insert("nova_api", "instance_mappings", instance_uuid=uuid, cell_id=number, project_id="p", queued_for_delete=0)
        stored = {"nova_object.name": "RequestSpec", "nova_object.version": "1.15", "nova_object.data": spec or request_spec(uuid)}
        self.insert("nova_api", "request_specs", instance_uuid=uuid, spec=json.dumps(stored))

    def _create_database(self, name: str, declared: schema.Schema, revision: str) -> None:
        engine = sa.create_engine(self.url_of(name))
        event.listen(engine, "connect", lambda connection, _: connection.execute("PRAGMA synchronous=OFF"))
        declared.metadata.create_all(engine)
        with engine.begin() as connection:
            connection.execute(sa.text("INSERT INTO alembic_version (version_num) VALUES (:revision)"), {"revision": revision})
        self._engines[name] = engine

    def _number_of_cell(self, name: str) -> int:
        with self._engines["nova_api"].connect() as connection:
            query = sa.select(schema.cell_mappings.c.id).where(schema.cell_mappings.c.name == name)
            return int(connection.execute(query).scalar_one())


def nova_object(name: str, /, **data: Any) -> dict[str, Any]:
    """An object as Nova serializes it."""
    return {"nova_object.name": name, "nova_object.namespace": "nova", "nova_object.version": "1.0", "nova_object.data": data}


def flavor_object(
    name: str = "m1.small",
    vcpus: int = 1,
    memory_mb: int = 1024,
    root_gb: int = 10,
    extra_specs: Mapping[str, str] | None = None,
    **more: Any,
) -> dict[str, Any]:
    sizes = {"vcpus": vcpus, "memory_mb": memory_mb, "root_gb": root_gb, "ephemeral_gb": 0, "swap": 0}
    return nova_object("Flavor", name=name, flavorid=name, id=1, extra_specs=dict(extra_specs or {}), **{**sizes, **more})


def request_spec(uuid: str, **fields: Any) -> dict[str, Any]:
    """The data of a RequestSpec as it is stored for a boot. Fields that are null mean the same as those that are missing."""
    return {
        "instance_uuid": uuid,
        "num_instances": 1,
        "project_id": "p",
        "user_id": "u",
        "flavor": flavor_object(),
        "image": nova_object("ImageMeta", id=uuid_of(7), properties=nova_object("ImageMetaProps")),
        "pci_requests": nova_object("InstancePCIRequests", instance_uuid=uuid, requests=[]),
        "numa_topology": None,
        "availability_zone": None,
        "force_hosts": None,
        "force_nodes": None,
        "instance_group": None,
        "scheduler_hints": {},
        "is_bfv": False,
        "limits": nova_object("SchedulerLimits", disk_gb=None, memory_mb=None, numa_topology=None, vcpu=None),
        **fields,
    }
