"""What our filters and weighers answer for a world, by the production table, filters, weighers and engine."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np

from api.lookup import boot_request
from api.lookup.image_needs import ImageNeeds
from images.store import FolderStore
from objects.aggregate import Aggregate
from objects.cell import CellMapping, CellState
from objects.compute_node import ComputeNode
from objects.destination import Destination
from objects.flavor import Flavor
from objects.group import GroupPolicy, ServerGroup
from objects.inventory import Slot
from objects.move import Move, MoveKind
from objects.spec import Image, RequestSpec
from objects.stored_image import ImageDetails
from scheduler.engine.always import ForceHosts, IgnoreHosts, RequestedDestination
from scheduler.engine.criteria import Criteria
from scheduler.engine.surveying import survey
from scheduler.framework.batch_request import Request
from scheduler.framework.filter import Filter
from scheduler.framework.hosts import Hosts
from scheduler.framework.settings import SchedulerSettings
from scheduler.framework.weigher import Weigher
from scheduler.plugins import load_driver
from scheduler.table.host_table import HostTable
from tests.conformance.scheduler.worlds import CELLS, DEFAULT_ZONE, STATS, Json
from tests.support import fleet
from tests.support.ground import Ground

SETTINGS = {"placement_aggregate_required_for_tenants": "aggregate_required_for_tenants"}
"""Options that have another name here."""
UNITS = {"DiskWeigher": 1024.0}
"""Nova's raw weights are so many times ours: MiB, where ours are GiB."""
_REPORTED = ("host_ip", "cpu_info", "supported_instances")
_SIZES = ("vcpus", "memory_mb", "disk_gb")


class Weighed(NamedTuple):
    """What a weigher says of the hosts that are left. ``score``: the multiplier times the scaled weight."""

    raw: list[float]
    multiplier: list[float]
    score: list[float]


MEMORY = Path("/dev/shm")
"""Where a temporary store is fast: it syncs every change."""


_ANY_FLAVOR = Flavor(flavor_id="f", name="f", vcpus=1, memory_mb=1)


class ImageDoor:
    """The way of an image's properties from the body of a request to its spec: as API processes go it, with a real image store."""

    def __init__(self) -> None:
        self._folder = TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None)
        place = Path(self._folder.name)
        self._store = FolderStore(place / "images")
        self._needs = ImageNeeds(self._store, Ground("lite", place).open("api"))
        self._known: set[str] = set()
        self._images: dict[str, Image] = {}

    def asked_for(self, image: Json) -> Image:
        """Alternately by ``imageRef`` and by a block device."""
        key = json.dumps(image)
        if key not in self._images:
            self._images[key] = self._pass(image)
        return self._images[key]

    def _pass(self, image: Json) -> Image:
        if image["id"] not in self._known:
            self._store.add_image([bytes(512)], name="image", image_id=image["id"], disk_format="raw")
            self._known.add(image["id"])
        self._store.change_record(image["id"], "image", ImageDetails(properties=image["properties"]))
        device = {"source_type": "image", "destination_type": "local", "uuid": image["id"], "boot_index": 0}
        named = {"imageRef": image["id"]} if len(self._images) % 2 else {"block_device_mapping_v2": [device]}
        boot = boot_request.parse({"server": {"name": "web", "flavorRef": "f"} | named}, 1)
        return self._needs.describe_image(boot.image_id, "p", _ANY_FLAVOR, "server.imageRef")


IMAGES = ImageDoor()


class OurFleet:
    """A world in a host table."""

    def __init__(self, world: Json, filters: Iterable[str], weighers: Iterable[str]) -> None:
        self._world = world
        known = set(SchedulerSettings.__struct_fields__)
        given = {SETTINGS.get(name, name): value for name, value in world["settings"].items()}
        changes: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in given.items() if name in known
        }
        settings = SchedulerSettings(
            enabled_filters=tuple(filters), enabled_weighers=tuple(weighers), json_filter_attributes=STATS, **changes
        )
        driver = load_driver(settings)
        self._filters = {one.name: one for one in driver.filters if one.name in settings.enabled_filters}
        self._weighers = {one.name: one for one in driver.weighers}
        self._places: tuple[Filter, ...] = tuple(kind(settings) for kind in (ForceHosts, RequestedDestination, IgnoreHosts))
        self._now = time.monotonic()
        self._alive_since = self._now - settings.service_down_time
        self._table = self._fill()
        self._rows = np.array([self._table.find_row(host["host"], host["node"]) for host in world["hosts"]], np.int64)

    def _fill(self) -> HostTable:
        made, hosts = HostTable(DEFAULT_ZONE), self._world["hosts"]
        aggregates = [
            Aggregate(id=number, name=each["name"], hosts=tuple(each["hosts"]), metadata=each["metadata"])
            for number, each in enumerate(self._world["aggregates"], start=1)
        ]
        zones = {host: each.availability_zone for each in aggregates for host in each.hosts if each.availability_zone}
        cells = [
            CellMapping(uuid=cell, name=cell[:8], database_url="", transport_url="", state=CellState.ENABLED) for cell in CELLS
        ]
        made.set_topology(cells, {host["host"]: host["cell"] for host in hosts}, zones, aggregates)
        for number, host in enumerate(hosts, start=1):
            node = _node(host)
            used = {f"used_{what}": host[f"{what}_used"] for what in _SIZES}
            made.set_inventory(fleet.inventory(number, node, host["cell"], instances=host["instances"], **used), now=0.0)
            made.set_nodes(host["cell"], [node])
        for host in hosts:
            made.set_service(
                host["cell"],
                host["host"],
                self._now - host["silent_s"],
                disabled=host["disabled"],
                forced_down=host["forced_down"],
            )
        return made

    def request(self, given: Json) -> Request:
        group, move, servers = given["group"], given["move"], self._world["servers"]
        members = group["members"] if group else ()
        slots = [
            Slot(group_uuid="g", instance_uuid=member, host=servers[member], moving=member in group["moving"]) for member in members
        ]
        cell = self._table.cell_number(move["source_cell"]) if move else None
        named = [uuid for name in ("same_host", "different_host") for uuid in given["hints"].get(name, ())]
        return fleet.request(
            _spec(given),
            self._table,
            slots,
            alive_since=self._alive_since,
            source_cell=cell,
            only_cell=None if move is None or move["cross_cell"] else cell,
            places={uuid: servers[uuid] for uuid in named if uuid in servers},
        )

    def passes(self, name: str, given: Json) -> list[bool]:
        """Which hosts the filter passes. An agent that an operator forced down is down, which the table itself knows."""
        request = self.request(given)
        hosts = Hosts(self._table, request, self._rows)
        mask = self._filters[name].passes(hosts, request)
        found = np.ones(len(hosts), np.bool_) if mask is None else mask
        return (found & hosts.is_eligible if name == "ComputeFilter" else found).tolist()

    def requested(self, given: Json) -> list[bool]:
        """Which hosts the request itself leaves: forced, ignored and requested ones."""
        request = self.request(given)
        hosts = Hosts(self._table, request, self._rows)
        found = np.ones(len(hosts), np.bool_)
        for one in self._places:
            mask = one.passes(hosts, request)
            if mask is not None:
                found &= mask
        return found.tolist()

    def weighs(self, name: str, given: Json) -> Weighed:
        weigher, request = self._weighers[name], self.request(given)
        hosts = Hosts(self._table, request, self._rows[given["left"]])
        raw = weigher.weigh(hosts, request)
        multiplier = np.broadcast_to(weigher.host_multipliers(hosts), (len(hosts),))
        told = np.zeros(len(hosts)) if raw is None else np.asarray(raw) * UNITS.get(name, 1.0)
        return Weighed(told.tolist(), multiplier.tolist(), self._scores((weigher,), given))

    def totals(self, given: Json) -> list[float]:
        return self._scores(tuple(self._weighers.values()), given)

    def _scores(self, weighers: tuple[Weigher, ...], given: Json) -> list[float]:
        plain: Json = {"ignore_hosts": [], "force_hosts": [], "force_nodes": [], "destination": None}
        criteria = Criteria((), weighers, subset=1, shuffle=False)
        rows = self._rows[given["left"]]
        found = survey(self._table, criteria, self.request(given | plain), within=rows)
        scores = dict(zip(found.passing_rows.tolist(), found.passing_scores.tolist(), strict=True))
        return [scores[row] for row in rows.tolist()]


def _node(host: Json) -> ComputeNode:
    fields = {name: host[name] for name in ComputeNode.__struct_fields__ if name in host}
    attributes: dict[str, Any] = {name: host[name] for name in _REPORTED if host[name] is not None} | host["stats"]
    return ComputeNode(**(fields | {"attributes": attributes, "failed_builds": float(host["failed_builds"])}))


def _spec(given: Json) -> RequestSpec:
    image, group, wanted, move = given["image"], given["group"], given["destination"], given["move"]
    hints = {name: tuple(each.replace("$stats.", "$attributes.") for each in told) for name, told in given["hints"].items()}
    return fleet.spec(
        Flavor(flavor_id="f", **given["flavor"]),
        project_id=given["project_id"],
        image=image and IMAGES.asked_for(image),
        availability_zone=given["availability_zone"],
        group=group
        and ServerGroup(
            uuid="g",
            name="g",
            project_id=given["project_id"],
            policy=GroupPolicy(group["policy"]),
            max_server_per_host=group["max_server_per_host"],
        ),
        ignore_hosts=tuple(given["ignore_hosts"]),
        force_hosts=tuple(given["force_hosts"]),
        force_nodes=tuple(given["force_nodes"]),
        requested_destination=wanted and Destination(host=wanted["host"], node=wanted["node"]),
        move=move
        and Move(kind=MoveKind.RESIZE, instance_uuid="i", source_host=move["source_host"], source_cell_uuid=move["source_cell"]),
        scheduler_hints=hints,
    )
