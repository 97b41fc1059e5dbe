"""Take a stored decision again, as it was configured or otherwise, from what its record keeps.

The hosts that were kept are entered into a table of their own, as they were, and the engine that decides chooses among them.
Filters, weighers, ties and draws are the same code. The scales of weights are those of the whole fleet then, from the record.

Filters that were in force have passed these hosts. Of them only those are asked again whose answers follow from what is kept,
because servers of the batch fill the hosts up. Filters that were not in force are asked.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any
from uuid import NAMESPACE_OID, uuid5

import msgspec
import numpy as np

from objects import errors, numa
from objects.aggregate import Aggregate
from objects.base import Object
from objects.basis import Basis, KeptHost
from objects.cell import CellMapping, CellState
from objects.compute_node import ComputeNode
from objects.context import RequestContext
from objects.decision import DecidedInstance, Decision
from objects.inventory import Inventory, Slot
from objects.spec import RequestSpec
from scheduler.engine import engine
from scheduler.engine.always import ResourceClassFilter
from scheduler.engine.decision_inputs import FREE_SETTINGS, UNSAID_SETTINGS, settings_of
from scheduler.engine.driver import SchedulerDriver
from scheduler.engine.job import Job, PlanContext
from scheduler.engine.survey import FleetSurvey, WeigherScale, scale_weights
from scheduler.filters.affinity import ServerGroupAffinityFilter, ServerGroupAntiAffinityFilter
from scheduler.filters.capacity import CoreFilter, DiskFilter, RamFilter
from scheduler.filters.load import IoOpsFilter, NumInstancesFilter
from scheduler.filters.numa import NUMATopologyFilter
from scheduler.framework.batch_request import Request
from scheduler.framework.hosts import Hosts
from scheduler.framework.members import Members
from scheduler.framework.settings import SchedulerSettings
from scheduler.framework.weigher import Weigher
from scheduler.plugins import load_driver
from scheduler.table.aggregation import RATIOS
from scheduler.table.arrays import Floats, mix_bits
from scheduler.table.host_table import HostTable
from scheduler.weighers.load import BuildFailureWeigher

ASKED_AGAIN = (
    RamFilter,
    CoreFilter,
    DiskFilter,
    NumInstancesFilter,
    IoOpsFilter,
    ResourceClassFilter,
    NUMATopologyFilter,
    ServerGroupAffinityFilter,
    ServerGroupAntiAffinityFilter,
)
"""Filters whose answers follow from what is kept."""
STRIPE = "Stripe"
"""The weigher of concurrent schedulers, which no configuration names. Its weights never change."""


class ReplayedServer(Object, frozen=True, kw_only=True):
    """The host that a server got ``then``, and the one that it gets ``now``; None: none of the kept hosts.

    ``certain``: the record keeps all that this server's host depended on.
    """

    instance_uuid: str
    then: str
    now: str | None
    certain: bool = True


class Replay(Object, frozen=True, kw_only=True):
    """``settings``: those that differ, as (name, then, now). ``reasons``: why the first server that differs has another host.

    ``notes``: what the record does not keep, as far as it matters here.
    """

    decision: Decision
    servers: tuple[ReplayedServer, ...]
    settings: tuple[tuple[str, Any, Any], ...] = ()
    reasons: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def is_same(self) -> bool:
        """Whether each server gets the same host, of those that are certain."""
        return all(server.then == server.now for server in self.servers if server.certain)


def replay_decision(
    decision: Decision,
    spec: RequestSpec,
    cell_uuids: Mapping[str, str],
    settings: SchedulerSettings | None = None,
    attributes: Mapping[tuple[str, str], Mapping[str, Any]] | None = None,
    aggregates: Sequence[Aggregate] = (),
) -> Replay:
    """Take the decision again. ``spec``: the request of its batch. ``cell_uuids``: by the names of cells.

    ``settings``: None for those of then. ``attributes`` (of nodes, by host and node) and ``aggregates``: as they are now, for
    filters that were not in force then.

    Raises Invalid if the record holds too little, and Misconfigured if a plugin of the configuration is missing.
    """
    basis = decision.basis
    if basis is None:
        raise errors.Invalid(
            f"Decision {decision.id} is a refusal, so that no host was kept: 'explain' says what each filter left."
            if not any(choice.host for choice in decision.choices)
            else f"Decision {decision.id} cannot be replayed: a release stored it that kept no hosts."
        )
    if basis.settings is None and settings is None:
        raise errors.Invalid(f"Decision {decision.id} was taken with more settings than a record keeps: give --config FILE.")
    then = settings_of(basis.settings or {})
    return _Replay(decision, basis, spec, cell_uuids, then, settings or then, attributes or {}, aggregates).run()


class _Replay:
    def __init__(
        self,
        decision: Decision,
        basis: Basis,
        spec: RequestSpec,
        cell_uuids: Mapping[str, str],
        then: SchedulerSettings,
        now: SchedulerSettings,
        attributes: Mapping[tuple[str, str], Mapping[str, Any]],
        aggregates: Sequence[Aggregate],
    ) -> None:
        self._decision, self._basis, self._then, self._now = decision, basis, then, now
        self._cell_uuids, self._attributes, self._aggregates = cell_uuids, attributes, aggregates
        placed = [choice for choice in decision.choices if choice.host and choice.instance_uuid not in basis.claimed]
        self._placed: list[DecidedInstance] = placed
        self._spec = msgspec.structs.replace(
            spec,
            fences=dict.fromkeys((choice.instance_uuid for choice in placed), 1),
            excluded_cells=basis.excluded_cells,
            excluded_hosts=basis.excluded_hosts,
        )
        named = len(basis.hosts) - len(basis.further)
        self._names = [(candidate.host, candidate.node, candidate.cell) for candidate in decision.candidates[:named]] + list(
            basis.further
        )
        before = load_driver(then)
        self._in_force = {one.name for one in before.filters} | {count.name for count in decision.filters}
        self._then_weighers = {one.name: one for one in before.weighers}
        self._then_subset = before.subset
        self._driver = self._made_driver()
        self._table = self._made_table()
        self._request = self._made_request()
        self._notes: list[str] = []

    def run(self) -> Replay:
        surveyed = self._survey_then()
        chosen = self._choose_rows(surveyed)
        hosts = [self._table.hosts[row] for row in chosen] + [None] * (len(self._placed) - len(chosen))
        certain = self._certain_count()
        servers = [
            ReplayedServer(instance_uuid=choice.instance_uuid, then=choice.host or "", now=host, certain=number < certain)
            for number, (choice, host) in enumerate(zip(self._placed, hosts, strict=True))
        ]
        if certain < len(servers):
            self._notes.append(f"The record keeps what {certain} of {len(servers)} servers depended on.")
        if self._basis.replaced:
            self._notes.append(f"{self._basis.replaced} servers lost their first host to other claims, which is not replayed.")
        reasons: tuple[str, ...] = ()
        for server, choice in zip(servers, self._placed, strict=True):
            if server.certain and server.then != server.now:
                reasons = tuple(self._explain_move(surveyed, choice, server.now))
                break
        return Replay(
            decision=self._decision,
            servers=tuple(servers),
            settings=self._differing_settings(),
            reasons=reasons,
            notes=tuple(self._notes),
        )

    # -- the world of then -----------------------------------------------------------------------------------------------------

    def _made_driver(self) -> SchedulerDriver:
        driver = load_driver(self._now)
        driver.filters = tuple(one for one in driver.filters if one.name not in self._in_force or isinstance(one, ASKED_AGAIN))
        return driver

    def _made_table(self) -> HostTable:
        basis, spec = self._basis, self._spec
        table = HostTable(self._now.default_availability_zone)
        cells = {name: self._cell_uuids.get(name) or str(uuid5(NAMESPACE_OID, name)) for _, _, name in self._names}
        homes = {host: cells[cell] for host, _, cell in self._names}
        zones = {host: one.availability_zone for one in self._aggregates if one.availability_zone for host in one.hosts}
        if spec.availability_zone is not None:  # it was asked for, so that hosts passed that are in it
            zones = dict.fromkeys(homes, spec.availability_zone)
        mappings = [
            CellMapping(uuid=uuid, name=name, database_url="", transport_url="", state=CellState.ENABLED)
            for name, uuid in cells.items()
        ]
        table.set_topology(mappings, homes, zones, [*self._of_then(), *self._of_now()])
        order = sorted(range(len(self._names)), key=basis.rows.__getitem__) if basis.rows else range(len(self._names))
        for position in order:
            self._enter_host(table, position, cells[self._names[position][2]])
        return table

    def _enter_host(self, table: HostTable, position: int, cell_uuid: str) -> None:
        kept_host, (host, node, _) = self._basis.hosts[position], self._names[position]
        free = {name: int(amounts[position]) for name, amounts in self._basis.resources.items()}
        free = numa.without_nodes(free) | _node_capacities(free, kept_host)
        inventory = Inventory(
            id=kept_host.inventory,
            host=host,
            node=node,
            cell_uuid=cell_uuid,
            generation=max(kept_host.generation, 0),
            cap_vcpus=kept_host.cap_vcpus,
            cap_memory_mb=kept_host.cap_memory_mb,
            cap_disk_gb=kept_host.cap_disk_gb,
            instances=kept_host.instances,
            cap_resources=free,
        )
        table.set_inventory(inventory, now=0.0)
        attributes = dict(self._attributes.get((host, node), {}))
        node_of_then = ComputeNode(
            host=host, node=node, vcpus=0, memory_mb=0, disk_gb=0, attributes=attributes, failed_builds=kept_host.failed_builds
        )
        table.set_nodes(cell_uuid, [node_of_then])
        table.set_service(cell_uuid, host, time.monotonic(), disabled=False, forced_down=False)
        row = table.find_row(host, node)
        if row is None:
            raise errors.Invalid(f"Decision {self._decision.id}: host {host} of its record cannot be entered.")
        table.set_free(row, kept_host.free_vcpus, kept_host.free_memory_mb, kept_host.free_disk_gb)
        table.instances[row], table.building[row] = kept_host.instances, kept_host.building
        for resource in RATIOS:
            getattr(table, f"ratio_{resource}")[row] = 1.0

    def _of_then(self) -> Iterator[Aggregate]:
        """An aggregate for each host, with the multipliers and limits that aggregates gave it.

        A multiplier that is the configured one counts as that.
        """
        basis = self._basis
        for position, (host, _, _) in enumerate(self._names):
            metadata: dict[str, str] = {}
            for name, multipliers in basis.multipliers.items():
                weigher = self._then_weighers.get(name)
                if weigher is not None and multipliers[position] != weigher.weight_multiplier:
                    sign = -1 if isinstance(weigher, BuildFailureWeigher) else 1  # whose option is positive
                    metadata[weigher.option] = repr(sign * multipliers[position])
            for resource, limits in basis.limits.items():
                own_capacity: float = getattr(basis.hosts[position], f"cap_{resource}")
                metadata[RATIOS[resource]] = repr(limits[position] / own_capacity if own_capacity else 1.0)
            if metadata:
                yield Aggregate(id=-1 - position, name=f"of {host}", hosts=(host,), metadata=metadata)

    def _of_now(self) -> Iterator[Aggregate]:
        """The aggregates of now, without what the record has of then."""
        known = {*RATIOS.values(), *(one.option for one in self._then_weighers.values())}
        for one in self._aggregates:
            yield msgspec.structs.replace(one, metadata={key: text for key, text in one.metadata.items() if key not in known})

    def _made_request(self) -> Request:
        job = Job(RequestContext(request_id=self._decision.request_id), self._spec, tuple(self._spec.fences))
        moment = PlanContext(time.monotonic(), self._decision.at, -np.inf, young=False, mapped_since=-np.inf, ages={})
        request = job.make_request(self._table, moment)
        request.seed = self._decision.seed
        for name, terms in self._basis.terms.items():
            request.remember_result(("terms", name), partial(tuple, terms))
        if self._spec.group is not None:
            slots: dict[str, list[Slot]] = {}
            for (host, _, _), (placed, held) in zip(self._names, self._basis.members, strict=True):
                slots[host] = [self._make_slot(host, number, held=number >= placed) for number in range(placed + held)]
            request.members = Members([slot for host_slots in slots.values() for slot in host_slots])
        return request

    def _make_slot(self, host: str, number: int, *, held: bool) -> Slot:
        group = self._spec.group.uuid if self._spec.group is not None else ""
        return Slot(group_uuid=group, instance_uuid=f"{host}/{number}", host=host, held=held)

    # -- choosing --------------------------------------------------------------------------------------------------------------

    def _survey_then(self) -> FleetSurvey:
        hosts = Hosts(self._table, self._request)
        passed, counts = engine.narrow_hosts(self._driver.chain_for(self._request).all_filters, hosts, self._request)
        parts = tuple(self._recorded_parts(hosts))
        scores = np.zeros(len(hosts))
        for part in parts:
            scores = part.add_scores(scores, hosts, part.raw)
        return FleetSurvey(hosts, passed, scores, parts, counts, self._request.seed if self._driver.shuffle else None)

    def _recorded_parts(self, hosts: Hosts) -> Iterator[WeigherScale]:
        """The weighers with the scales of then; of a weigher that was not in force, with that of the kept hosts."""
        basis = self._basis
        applying = {one.name: one for one in self._driver.chain_for(self._request).weighers}
        names = [name for name in basis.scales if name in applying or name not in self._then_weighers]
        for name in [*names, *(name for name in applying if name not in basis.scales)]:
            weigher: Weigher | None = applying.get(name)
            if weigher is not None and weigher.of_fleet and name not in basis.scales:
                if name not in self._then_weighers:
                    self._notes.append(f"{name} is left out: the record does not say how full the fleet was.")
                continue
            if name in basis.raws:
                own_multiplier = basis.multipliers.get(name, (1.0,))[0]
                weigher = _KeptWeights(self._now, name, self._by_row(basis.raws[name]), weigher, own_multiplier)
            multiplier = None if weigher is not None and name in basis.multipliers and weigher.option else 0.0
            if weigher is not None and multiplier == 0.0:
                multiplier = weigher.weight_multiplier
            raw = weigher.weigh(hosts, self._request) if weigher is not None and multiplier != 0.0 else None
            if weigher is None or raw is None:
                continue
            if name in basis.scales:
                low, span, floored = basis.scales[name]
                yield WeigherScale(weigher, np.maximum(raw, low) if floored else raw, multiplier, low, span, floored)
            else:
                self._notes.append(f"{name} was not in force: its scale is that of the kept hosts, not of the fleet.")
                yield scale_weights(weigher, raw, multiplier, None)

    def _by_row(self, values: Sequence[float]) -> Floats:
        """Numbers of the kept hosts, in the order of the table's rows."""
        by_row = np.zeros(self._table.size)
        for (host, node, _), number in zip(self._names, values, strict=True):
            row = self._table.find_row(host, node)
            if row is not None:
                by_row[row] = number
        return by_row

    def _choose_rows(self, surveyed: FleetSurvey) -> list[int]:
        subset, top = self._driver.subset, self._basis.top
        if subset == 1:
            return self._place_servers(surveyed, len(self._placed))
        among = min(subset, self._passing_count)
        if among <= top:
            return self._place_servers(surveyed, len(self._placed))
        place = mix_bits(self._request.seed + 1) % among
        best = self._in_drawing_order(surveyed)
        if place < top:
            return best[place : place + 1]
        self._notes.append(
            f"The host was drawn as number {place + 1} of {among}. The record keeps the best {top} and the drawn one."
        )
        return best[-1:] if len(best) > top else []

    def _place_servers(self, surveyed: FleetSurvey, count: int) -> list[int]:
        with self._table.take_tentatively():
            return self._driver.place_instances(self._table, self._request, surveyed, count)

    def _in_drawing_order(self, surveyed: FleetSurvey) -> list[int]:
        """Rows from which one is drawn, as the engine orders them."""
        rows, scores = surveyed.passing_rows, surveyed.passing_scores
        ordered: list[int] = rows[np.lexsort((self._table.inventory[rows], -scores))].tolist()
        return ordered

    @property
    def _passing_count(self) -> int:
        """How many hosts passed then."""
        counted = self._decision.filters[-1].after if self._decision.filters and not self._decision.message else 0
        return self._basis.passing or max(counted, len(self._basis.hosts))

    def _certain_count(self) -> int:
        """Of how many servers, from the first on, the record keeps what their hosts depended on."""
        basis, count = self._basis, len(self._placed)
        if basis.replaced:
            return 0
        kept_names = {(host, node) for host, node, _ in self._names}
        known = next((number for number, placed in enumerate(self._placed) if (placed.host, placed.node) not in kept_names), count)
        if set(basis.raws) - {STRIPE} or self._request.racks_limited:  # racks are not kept
            known = min(known, 1)
        subset = max(self._driver.subset, self._then_subset)
        if subset > 1 and self._passing_count > basis.top:
            known = min(known, max(basis.top - subset + 1, 1))
        return known

    # -- telling ---------------------------------------------------------------------------------------------------------------

    def _differing_settings(self) -> tuple[tuple[str, Any, Any], ...]:
        then, now = msgspec.structs.asdict(self._then), msgspec.structs.asdict(self._now)
        if self._basis.settings is None:
            self._notes.append("The record does not keep the settings of then.")
            return ()
        return tuple(
            (name, then[name], now[name]) for name in UNSAID_SETTINGS if then[name] != now[name] and name not in FREE_SETTINGS
        )

    def _explain_move(self, surveyed: FleetSurvey, choice: DecidedInstance, now: str | None) -> Iterator[str]:
        """Which filter or weigher moved the server, and by how much."""
        before = self._table.find_row(choice.host or "", choice.node or "")
        if before is None:
            return
        then = self._table.hosts[before]
        refusing = self._refusing_filter(before)
        if refusing:
            yield f"{then} is refused by {refusing}."
        if now is None:
            yield "None of the kept hosts is left."
            return
        after = next(row for row in self._table.rows_of[now.lower()])
        rows = np.array([before, after], np.int64)
        scores = surveyed.scores_of(rows).tolist()
        if not refusing:
            when = "" if choice is self._placed[0] else " before the batch"
            yield f"{now} scores {scores[1]:.4f}, {then} {scores[0]:.4f}{when}."
        hosts = Hosts(self._table, self._request, rows)
        for part in surveyed.parts:
            raw = part.weigher.weigh(hosts, self._request)
            added = part.scores_of(hosts, raw).tolist() if raw is not None else [0.0, 0.0]
            if abs(added[1] - added[0]) >= 5e-5:
                yield f"{part.weigher.name} adds {added[1]:.4f} to {now}, {added[0]:.4f} to {then}: {added[1] - added[0]:+.4f}."
        for name in self._basis.scales:
            if name in self._then_weighers and all(part.weigher.name != name for part in surveyed.parts):
                yield f"{name}, which was in force, has no weight now."
        if max(self._driver.subset, self._then_subset) > 1:
            yield "Hosts are drawn among the best, by the seed of the request."

    def _refusing_filter(self, row: int) -> str:
        """The filter that refuses the row now, with its reason."""
        hosts = Hosts(self._table, self._request, np.array([row], np.int64))
        for one in self._driver.chain_for(self._request).all_filters:
            passed = one.passes(hosts, self._request)
            if passed is not None and not passed[0]:
                return f"{one.name} ({one.reason})"
        return ""


def _node_capacities(free: Mapping[str, int], kept_host: KeptHost) -> dict[str, int]:
    """Capacities of NUMA nodes by which as much is free on each as then. For the table, all that is used is tied to no node."""
    nodes = {name: room for name, room in free.items() if numa.node_of_class(name) is not None}
    if all(room < 0 for room in nodes.values()):
        return {}  # its nodes were not counted
    used = {True: kept_host.cap_vcpus - kept_host.free_vcpus, False: kept_host.cap_memory_mb - kept_host.free_memory_mb}
    return {name: int(room + used[name.endswith("_VCPU")]) for name, room in nodes.items() if room >= 0}


class _KeptWeights(Weigher):
    """A weigher whose weights are those of the record, because they do not follow from what else it keeps."""

    reads = ()

    def __init__(self, settings: SchedulerSettings, name: str, by_row: Floats, like: Weigher | None, own_multiplier: float) -> None:
        """``like``: the configured weigher of this name. ``own_multiplier``: the multiplier if there is none."""
        super().__init__(settings)
        self.name = name
        self._by_row, self._like, self._own_multiplier = by_row, like, own_multiplier

    @property
    def weight_multiplier(self) -> float:
        return self._like.weight_multiplier if self._like is not None else self._own_multiplier

    def weigh(self, hosts: Hosts, request: Request) -> Floats:
        del request
        return self._by_row.copy() if hosts.rows is None else self._by_row[hosts.rows]
