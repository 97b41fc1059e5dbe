"""The hosts of a Nova cloud in the scheduler's table, read once and kept current by small reads.

A poll costs one statement on Nova's API database, three on each cell and one on Placement; more where something has changed.
Nothing here decides: commands do, and so can a process that serves requests.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import msgspec
import numpy as np
import sqlalchemy as sa

from beside_nova import readers
from beside_nova.database import NovaDatabase, cell_url
from beside_nova.engine import HostTable, PlanContext, ServiceReports
from beside_nova.opts import NovaSettings
from beside_nova.records import (
    CELL0_UUID,
    DISABLED_TRAIT,
    SHARING_TRAIT,
    ApiFacts,
    NovaCell,
    NovaNode,
    NovaService,
    Provider,
)
from beside_nova.schema import CELL, NOVA_API, PLACEMENT
from beside_nova.units import ATTRIBUTE
from objects import errors
from objects.aggregate import ZONE, Aggregate
from objects.amounts import STANDARD
from objects.cell import CellMapping, CellState
from objects.compute_node import ComputeNode
from objects.inventory import Inventory

OVERLAP = timedelta(seconds=3)
"""Rows may be committed later than their time says: each poll looks back so far before the last one."""
THOROUGH_INTERVAL_S = 10.0
"""Seconds between two thorough polls, which read the generations of all providers, and all services."""
CLOCK_SKEW = timedelta(seconds=60)
"""Thorough polls look back so much further: times of rows are of the clocks of many hosts."""
IGNORED_KEYS = frozenset({"cpu_allocation_ratio", "ram_allocation_ratio", "disk_allocation_ratio"})
"""Keys of aggregates that this scheduler reads and Nova does not: there, ratios are in Placement's inventories only."""


class Databases(NamedTuple):
    """``open_cell``: makes the database of a cell."""

    api: NovaDatabase
    placement: NovaDatabase
    open_cell: Callable[[NovaCell], NovaDatabase]


def open_databases(settings: NovaSettings) -> Databases:
    """Raises Misconfigured if one is not named, or cannot be what its URL says."""
    if not settings.api_connection or not settings.placement_connection:
        missing = "placement_connection" if settings.api_connection else "api_connection"
        raise errors.Misconfigured(f"No {missing} is set in [nova]: give a --config-file, or OS_NOVA__{missing.upper()}")

    def open_cell(cell: NovaCell) -> NovaDatabase:
        url = cell_url(cell.connection, settings.cell_connection, settings.cell_username, settings.cell_password)
        return NovaDatabase(f"cell {cell.name}", url, CELL)

    return Databases(
        NovaDatabase("nova_api", settings.api_connection, NOVA_API),
        NovaDatabase("placement", settings.placement_connection, PLACEMENT),
        open_cell,
    )


class NovaCellView:
    """What is known of one cell. ``error``: why it could not be read; empty: it was."""

    def __init__(self, cell: NovaCell) -> None:
        self.cell = cell
        self.database: NovaDatabase | None = None
        self.nodes: dict[str, NovaNode] = {}
        self.services: dict[str, NovaService] = {}
        self.error = ""
        self.read_at = -math.inf


class NovaState:
    """The table, and what was read. Not for several threads: the table's lock guards the table alone.

    ``left_out``: hosts that no request is judged on, with the reason. ``providers``: roots and others, by number.
    """

    def __init__(self, databases: Databases, service_down_time: float = 60.0, default_zone: str = "nova") -> None:
        self.databases = databases
        self.table = HostTable(default_zone)
        self.facts = ApiFacts((), {}, ())
        self.cells: dict[str, NovaCellView] = {}
        self.providers: dict[int, Provider] = {}
        self.left_out: dict[str, str] = {}
        self._service_down_time, self._default_zone = service_down_time, default_zone
        self._provider_of: dict[str, int] = {}
        self._nodes_by_provider: dict[int, tuple[str, str]] = {}
        self._marked_hosts: frozenset[str] = frozenset()
        self._watermark: tuple[object, ...] = ()
        self._thorough_at = -math.inf
        self._polled_at = datetime.min.replace(tzinfo=None)

    # -- reading -----------------------------------------------------------------------------------------------------------------

    def load_all(self, without: Sequence[str] = ()) -> None:
        """Read everything, into a new table. ``without``: consumers whose allocations do not count.

        A cell that cannot be read is named in ``cells``. Raises DatabaseUnavailable and Misconfigured for the other databases.
        """
        self._polled_at = _utc_now()
        self.table = HostTable(self._default_zone)
        self._read_facts()
        self.providers = self.databases.placement.read(readers.read_providers, None, without)
        self._thorough_at = time.monotonic()
        for view in self.cells.values():
            self._read_cell(view, None)
        self._fill_table()

    def poll_changes(self) -> int:
        """Read what has changed, and return how many providers were read again."""
        since, self._polled_at = self._polled_at - OVERLAP, _utc_now()
        is_thorough = time.monotonic() - self._thorough_at >= THOROUGH_INTERVAL_S
        if is_thorough:
            since, self._thorough_at = since - CLOCK_SKEW, time.monotonic()
        is_same_layout = self.databases.api.read(readers.api_watermark) == self._watermark
        if not is_same_layout:
            self._read_facts()
        views = self.cells.values()
        anew = [view for view in views if not self._read_cell(view, since if is_same_layout else None, all_services=is_thorough)]
        before = dict(self.providers)
        changed = self._read_changed_providers(None if is_thorough else since)
        if anew or not is_same_layout or any(_shape_of(before, number) != _shape_of(self.providers, number) for number in changed):
            self._fill_table()
        else:
            self._enter_providers([number for number in changed if number in self._nodes_by_provider])
        return len(changed)

    def _read_facts(self) -> None:
        self._watermark = self.databases.api.read(readers.api_watermark)
        self.facts = self.databases.api.read(readers.read_api)
        before = self.cells
        self.cells = {}
        for cell in self.facts.cells:
            if cell.uuid != CELL0_UUID:
                view = before.get(cell.uuid)
                self.cells[cell.uuid] = view if view is not None and view.cell == cell else NovaCellView(cell)

    def database_of(self, cell: NovaCell) -> NovaDatabase:
        """The database of a cell, cell0 too. Raises Misconfigured and Invalid for a URL that cannot be used."""
        view = self.cells.get(cell.uuid)
        if view is None:
            return self.databases.open_cell(cell)
        if view.database is None:
            view.database = self.databases.open_cell(cell)
        return view.database

    def _read_cell(self, view: NovaCellView, since: datetime | None, *, all_services: bool = True) -> bool:
        """Read a cell; False if its nodes are others than before, or it was not known."""
        is_known = since is not None and not view.error and view.read_at > -math.inf
        try:
            read = self.database_of(view.cell).read(readers.read_cell, since if is_known else None, all_services=all_services)
            if is_known and read.node_count != len(view.nodes) + sum(node.uuid not in view.nodes for node in read.nodes):
                is_known = False
                read = self.database_of(view.cell).read(readers.read_cell)
        except errors.SuperconductorError as error:
            is_new_error, view.error = str(error) != view.error, str(error)
            return not is_new_error
        view.error, view.read_at = "", time.monotonic()
        if not is_known:
            view.nodes, view.services = {}, {}
        new = [node for node in read.nodes if node.uuid not in view.nodes]
        view.nodes |= {node.uuid: node for node in read.nodes}
        view.services |= {service.host: service for service in read.services}
        if is_known and not new:
            with self.table.lock:
                self._enter_nodes(view, read.nodes)
                self._enter_services(view, read.services)
        return is_known and not new

    def _read_changed_providers(self, since: datetime | None) -> list[int]:
        """Read providers that have changed, and return their numbers. ``since`` None: compare the generations of all."""

        def read_changed(connection: sa.Connection) -> tuple[dict[int, int], dict[int, Provider]]:
            generations = readers.list_generations(connection, since)
            stale = [number for number, at in generations.items() if self._is_stale(number, at)]
            return generations, readers.read_providers(connection, stale) if stale else {}

        generations, providers = self.databases.placement.read(read_changed)
        self.providers |= providers
        gone = self.providers.keys() - generations.keys() if since is None else set[int]()
        for number in gone:
            del self.providers[number]
        return [*providers, *gone]

    def _is_stale(self, number: int, generation: int) -> bool:
        known = self.providers.get(number)
        return known is None or known.generation != generation

    # -- the table ---------------------------------------------------------------------------------------------------------------

    def _fill_table(self) -> None:
        """Enter all hosts. A host that is left out has no inventory in the table, so nothing is placed on it."""
        self._provider_of = {provider.uuid: number for number, provider in self.providers.items()}
        self._nodes_by_provider = {}
        self.left_out = {}
        self.table.set_topology(self._cell_mappings(), self._home_cells(), self._zone_of_hosts(), self._host_aggregates())
        inventories = self._judged_inventories()
        self._marked_hosts = frozenset(self.disabled_hosts())
        judged = {inventory.id for inventory in inventories}
        with self.table.lock:
            for row in range(self.table.size):
                if self.table.inventory[row] and self.table.inventory.item(row) not in judged:
                    self.table.remove_row(row)
            for view in self.cells.values():
                if not view.error:
                    self.table.keep_nodes(view.cell.uuid, {(node.host, node.node) for node in view.nodes.values()})
                    self._enter_nodes(view, view.nodes.values())
                    self._enter_services(view, view.services.values())
            self.table.set_inventories(inventories, time.monotonic())

    def _judged_inventories(self) -> list[Inventory]:
        """The inventories of all hosts but those that are left out."""
        unjudged = self._unjudged_roots()
        inventories: list[Inventory] = []
        for view in self.cells.values():
            for node in view.nodes.values():
                number = self._provider_of.get(node.uuid)
                if number is None:
                    self.left_out[node.host] = "its node has no resource provider in Placement"
                elif self.facts.homes.get(node.host) != view.cell.number:
                    self.left_out[node.host] = f"it is not mapped to cell {view.cell.name}, where it reports"
                elif reason := unjudged.get(number, ""):
                    self.left_out[node.host] = reason
                else:
                    self._nodes_by_provider[number] = (node.host, node.node)
                    inventories.append(self._inventory_of(self.providers[number], node.host, node.node, view.cell.uuid))
        return inventories

    def _enter_providers(self, numbers: Collection[int]) -> None:
        """Enter the usage of providers that have a row already. Their traits are attributes of nodes."""
        self._marked_hosts = frozenset(self.disabled_hosts()) if numbers else self._marked_hosts
        for number in numbers:
            host, node = self._nodes_by_provider[number]
            view = next(view for view in self.cells.values() if view.cell.number == self.facts.homes[host])
            provider = self.providers[number]
            with self.table.lock:
                self._enter_nodes(view, [view.nodes[provider.uuid]])
                self.table.set_inventory(self._inventory_of(provider, host, node, view.cell.uuid), time.monotonic())
                self._enter_services(view, [view.services[host]] if host in view.services else [])

    def _inventory_of(self, provider: Provider, host: str, node: str, cell_uuid: str) -> Inventory:
        capacity = {name: record.usable_amount for name, record in provider.inventory.items()}
        return Inventory(
            id=provider.number,
            host=host,
            node=node,
            cell_uuid=cell_uuid,
            generation=provider.generation,
            cap_vcpus=capacity.get("VCPU", 0.0),
            cap_memory_mb=capacity.get("MEMORY_MB", 0.0),
            cap_disk_gb=capacity.get("DISK_GB", 0.0),
            used_vcpus=provider.used.get("VCPU", 0),
            used_memory_mb=provider.used.get("MEMORY_MB", 0),
            used_disk_gb=provider.used.get("DISK_GB", 0),
            instances=provider.consumers,
            cap_resources={name: math.floor(amount) for name, amount in capacity.items() if name not in STANDARD},
            used_resources={name: amount for name, amount in provider.used.items() if name not in STANDARD},
        )

    def _enter_nodes(self, view: NovaCellView, nodes: Iterable[NovaNode]) -> None:
        self.table.set_nodes(view.cell.uuid, [self._node_record(node) for node in nodes])

    def _node_record(self, node: NovaNode) -> ComputeNode:
        stats = readers.parse_object(node.stats)
        provider = self.providers.get(self._provider_of.get(node.uuid, 0))
        attributes: dict[str, object] = {}
        if node.host_ip:
            attributes["host_ip"] = node.host_ip
        if node.supported_instances:
            attributes["supported_instances"] = _parse_list(node.supported_instances)
        if provider is not None:
            attributes["traits"] = sorted(provider.traits)
            attributes[ATTRIBUTE] = {
                name: [record.min_unit, record.max_unit, record.step_size] for name, record in sorted(provider.inventory.items())
            }
        ratios = {} if provider is None else {name: record.allocation_ratio for name, record in provider.inventory.items()}
        return ComputeNode(
            host=node.host,
            node=node.node,
            vcpus=node.vcpus,
            memory_mb=node.memory_mb,
            disk_gb=node.local_gb,
            cpu_allocation_ratio=ratios.get("VCPU", 1.0),
            ram_allocation_ratio=ratios.get("MEMORY_MB", 1.0),
            disk_allocation_ratio=ratios.get("DISK_GB", 1.0),
            running_vms=max(0, node.running_vms - _whole_of(stats.get("io_workload"))),
            hypervisor_type=node.hypervisor_type,
            hypervisor_version=node.hypervisor_version,
            failed_builds=float(_whole_of(stats.get("failed_builds"))),
            attributes=attributes,
        )

    def _enter_services(self, view: NovaCellView, services: Iterable[NovaService]) -> None:
        entries = list(services)
        mono, now = time.monotonic(), _utc_now()
        self.table.set_services(
            view.cell.uuid,
            ServiceReports(
                [service.host for service in entries],
                np.array(
                    [-math.inf if service.forced_down else mono - (now - service.seen_at).total_seconds() for service in entries]
                ),
                np.array([service.disabled or service.host in self._marked_hosts for service in entries], np.bool_),
                np.zeros(len(entries), np.bool_),
            ),
        )

    def _cell_mappings(self) -> list[CellMapping]:
        return [
            CellMapping(
                uuid=view.cell.uuid,
                name=view.cell.name,
                database_url="",
                transport_url="",
                state=CellState.DISABLED if view.cell.disabled else CellState.ENABLED,
            )
            for view in self.cells.values()
        ]

    def _home_cells(self) -> dict[str, str]:
        uuids = {view.cell.number: uuid for uuid, view in self.cells.items()}
        return {host: uuids[cell] for host, cell in self.facts.homes.items() if cell in uuids}

    def _zone_of_hosts(self) -> dict[str, str]:
        """The zone of each host. Nova's scheduler asks Placement, which has a copy of each aggregate."""
        zones = {one.uuid: one.metadata[ZONE] for one in self.facts.aggregates if one.metadata.get(ZONE)}
        zone_of: dict[str, str] = {}
        for view in self.cells.values():
            for node in view.nodes.values():
                provider = self.providers.get(self._provider_of.get(node.uuid, 0))
                named = sorted(zones[uuid] for uuid in provider.aggregates if uuid in zones) if provider is not None else []
                if named:
                    zone_of[node.host] = named[0]
        return zone_of

    def _host_aggregates(self) -> list[Aggregate]:
        return [
            Aggregate(
                id=one.number,
                uuid=one.uuid,
                name=one.name,
                hosts=one.hosts,
                metadata={key: value for key, value in one.metadata.items() if key not in IGNORED_KEYS},
            )
            for one in self.facts.aggregates
        ]

    def _unjudged_roots(self) -> Mapping[int, str]:
        """Root providers on which this table cannot judge a request, with the reason.

        Room in the root alone is judged as Placement does, also if children have devices. Amounts that a server may take from a
        child, or from a provider that shares its inventory, are not.
        """
        reasons: dict[int, str] = {}
        sharing = [provider for provider in self.providers.values() if SHARING_TRAIT in provider.traits]
        for provider in self.providers.values():
            if not provider.is_root and (nested := sorted(set(STANDARD) & set(provider.inventory))):
                reasons[provider.root] = f"{nested[0]} is in a nested resource provider"
        for shared in sharing:
            offered = sorted(shared.inventory)
            for provider in self.providers.values():
                if provider is not shared and provider.is_root and offered and provider.aggregates & shared.aggregates:
                    reasons[provider.number] = f"{offered[0]} is shared by the resource provider {shared.name}"
        return reasons

    # -- what questions need -----------------------------------------------------------------------------------------------------

    def plan_context(self) -> PlanContext:
        """The moment of a decision."""
        mono = time.monotonic()
        return PlanContext(
            mono=mono,
            wall=time.time(),
            alive_since=mono - self._service_down_time,
            young=False,
            mapped_since=mono,
            ages={view.cell.name: None if view.error else mono - view.read_at for view in self.cells.values()},
        )

    def hosts_of_consumers(self, consumers: Iterable[str]) -> dict[str, set[str]]:
        """The hosts on which each of these servers or migrations has allocations: known from the moment of the claim."""
        places = self.databases.placement.read(readers.providers_of_consumers, set(consumers))
        return {
            consumer: {self._nodes_by_provider[number][0] for number in numbers if number in self._nodes_by_provider}
            for consumer, numbers in places.items()
        }

    def inventory_of_node(self, node_uuid: str) -> int | None:
        """The number of a node's resource provider, if requests are judged on it."""
        number = self._provider_of.get(node_uuid)
        return number if number in self._nodes_by_provider else None

    @property
    def zone_names(self) -> frozenset[str]:
        """Zones that some aggregate makes."""
        return frozenset(one.metadata[ZONE] for one in self.facts.aggregates if one.metadata.get(ZONE))

    def disabled_hosts(self) -> tuple[str, ...]:
        """Hosts that Placement does not offer because their service is disabled."""
        numbers = [number for number in self._nodes_by_provider if DISABLED_TRAIT in self.providers[number].traits]
        return tuple(sorted(self._nodes_by_provider[number][0] for number in numbers))

    def left_out_by_reason(self) -> dict[str, int]:
        return dict(Counter(self.left_out.values()).most_common())

    @property
    def statement_count(self) -> int:
        """How many were sent to all databases so far."""
        opened = [view.database for view in self.cells.values() if view.database is not None]
        return sum(database.statements for database in (self.databases.api, self.databases.placement, *opened))

    def close(self) -> None:
        opened = [view.database for view in self.cells.values() if view.database is not None]
        for database in (self.databases.api, self.databases.placement, *opened):
            database.close()


def _shape_of(providers: Mapping[int, Provider], number: int) -> tuple[object, ...] | None:
    """What of a provider decides which hosts are left out, and in which zone they are; None: there is no such provider."""
    provider = providers.get(number)
    if provider is None:
        return None
    return provider.uuid, provider.root, frozenset(provider.inventory), provider.aggregates, SHARING_TRAIT in provider.traits


def _utc_now() -> datetime:
    """As Nova writes it: UTC without a zone."""
    return datetime.now(UTC).replace(tzinfo=None)


def _whole_of(value: object) -> int:
    """A number of the statistics of a node, which are texts; 0 if it is none."""
    try:
        return int(float(str(value)))
    except ValueError:
        return 0


def _parse_list(text: str) -> list[object]:
    try:
        value = msgspec.json.decode(text)
    except msgspec.DecodeError:
        return []
    return value if isinstance(value, list) else []
