"""One batch's request for hosts, from the call to the answer."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

from db.api.claims.claims import Ask
from objects import errors, extra_specs
from objects.amounts import Amounts
from objects.context import RequestContext
from objects.decision import Decision, FilterCount
from objects.destination import Destination
from objects.flavor import Flavor
from objects.inventory import Placement, Slot, Standing
from objects.move import Move, MoveKind
from objects.relaxation import Relaxation, RelaxationPair
from objects.selection import Selection
from objects.spec import RequestSpec
from scheduler.engine.decision_inputs import KeptHosts
from scheduler.engine.survey import Survey
from scheduler.framework.batch_request import Request
from scheduler.table.arrays import word_of
from scheduler.table.host_table import HostTable

CLAIM_ATTEMPTS = 5
"""Transactions in which a batch may lose its hosts to others, before it is answered with Conflict."""


def _no_flavors(project_id: str) -> Sequence[Flavor]:
    del project_id
    return ()


class PlanContext(NamedTuple):
    """The time of an attempt, and what is known of the fleet then.

    ``mono``: the monotonic clock in seconds. ``wall``: seconds since the epoch.
    ``alive_since``: hosts heard of since then (monotonic) are up.
    ``young``: cells are being read for the first time, or were read so recently that agents may be just coming back.
    ``mapped_since``: hosts mapped since then (monotonic) and not heard of yet are waited for.
    ``ages``: seconds since each cell's view was refreshed, by the cell's name; None for a cell that was never read.
    ``reading``: names of the cells that were never read, but answer.
    ``began``: when this process started (monotonic). ``epochs``: of what operators configure.
    ``flavors``: returns those that a project may use, the largest first.
    """

    mono: float
    wall: float
    alive_since: float
    young: bool
    mapped_since: float
    ages: Mapping[str, float | None]
    began: float = -math.inf
    epochs: Mapping[str, int] = MappingProxyType({})
    reading: Collection[str] = ()
    flavors: Callable[[str], Sequence[Flavor]] = _no_flavors


class Remedies(NamedTuple):
    """The fields of ``Decision`` with these names. ``relaxations`` is None if a filter raised."""

    relaxations: tuple[Relaxation, ...] | None = None
    pairs: tuple[RelaxationPair, ...] = ()
    largest_flavor: str = ""


UNEXAMINED = Remedies()


@dataclass(slots=True)
class Job:
    """A request for hosts, and the state of its plan. A fresh plan begins with ``restart_planning``.

    ``places``: hosts of the servers that hints name, by the server's uuid.
    ``takes``: what each instance takes of its host. ``seed``: the batch's seed for all random choices.

    State of the plan:

    ``short``: how many instances found a host before the first that found none; None: all did.
    ``lost``: other transactions took the room, or hold the rows that might have it.
    ``premature``: no host was found, but this process does not know the whole fleet yet.
    ``unheard``: no host was found, and these cells, by name, are out of reach.
    ``held``: the only hosts left are held for retries or moves of other members of its group. Cells retry on held hosts without
    asking again, so the job waits.
    ``error``: the exception that planning raised.
    ``together``: its instances are the first members of an affinity group, so all that are placed go to one host.
    ``partial``: fewer instances than asked for found a host, but enough for ``min_count``.
    ``numa_nodes``: by instance and row, the NUMA nodes of the host that it gets there; none if the host reports none.

    For the decision record:

    ``inputs``: the best hosts of the survey that was chosen from, as they were before; ``first_kept``: those of the first survey.
    ``ledger``: how far the claims log had been read. ``replaced``: how many servers of several lost a planned host and got another
    one.

    ``conflicts``: how often, in all attempts, a planned host turned out to be full or locked by another transaction.
    ``taken``: these hosts. ``remedies``: what would have been enough for a refused job.
    """

    context: RequestContext
    spec: RequestSpec
    uuids: tuple[str, ...]
    places: Mapping[str, str] = field(default_factory=dict)
    started: float = field(default_factory=time.perf_counter)
    standing: Standing = field(default_factory=Standing)
    survey: Survey | None = None
    rows: dict[str, int] = field(default_factory=dict)
    losers: list[str] = field(default_factory=list)
    together: bool = False
    alternates: dict[str, list[int]] = field(default_factory=dict)
    numa_nodes: dict[tuple[str, int], tuple[int, ...]] = field(default_factory=dict)
    placements: tuple[Placement, ...] = ()
    short: int | None = None
    partial: bool = False
    counts: tuple[FilterCount, ...] = ()
    lost: bool = False
    premature: bool = False
    unheard: tuple[str, ...] = ()
    held: bool = False
    error: Exception | None = None
    inputs: KeptHosts | None = None
    first_kept: KeptHosts | None = None
    ledger: Mapping[int, int] = field(default_factory=dict)
    replaced: int = 0
    conflicts: int = 0
    taken: dict[str, None] = field(default_factory=dict)
    remedies: Remedies = UNEXAMINED
    decision: Decision | None = None
    takes: Amounts = field(init=False)
    seed: int = field(init=False)

    def __post_init__(self) -> None:
        self.takes, self.seed = self.spec.taken_amounts, word_of(self.spec.batch_id)

    @property
    def is_open(self) -> bool:
        """Whether the job is neither refused nor lost nor failed so far."""
        return not (self.is_refused or self.lost) and self.error is None

    @property
    def is_refused(self) -> bool:
        """Whether too few instances found a host."""
        return self.short is not None and not self.partial

    @property
    def least_count(self) -> int:
        """How many of the needed instances must find a host.

        Servers of the batch that this job does not ask for count as served: they were handed over, deleted, or have ended.
        """
        needed = len(self.standing.needed)
        if self.spec.min_count is None:
            return needed
        spared = max(self.spec.num_instances - self.spec.min_count, 0)
        return max(needed - spared, 0 if self.standing.kept else 1)

    @property
    def is_final(self) -> bool:
        """Whether the job is placed or refused for good, and does not wait for more information."""
        return not (self.premature or self.unheard or self.held)

    @property
    def waiting_reason(self) -> str:
        """Why the job waits, for administrators; empty if it does not."""
        if self.held:
            return "The remaining hosts for its server group are held for retries or moves of other members, until these end"
        if self.unheard:
            cells = ", ".join(self.unheard)
            return f"No host is left, and nothing is heard from any host of cell {cells}: its bus or database is away"
        return ""

    @property
    def claim_request(self) -> Ask:
        return Ask(
            fences={uuid: self.spec.fences[uuid] for uuid in self.uuids},
            vcpus=self.takes.vcpus,
            memory_mb=self.takes.memory_mb,
            disk_gb=self.takes.disk_gb,
            resources=self.takes.resources,
            group=self.spec.group,
            fault_domain=self.spec.fault_domain,
            excluded_cells=self.spec.excluded_cells,
            excluded_hosts=self.spec.excluded_hosts,
            moves=self.spec.move is not None,
        )

    def make_request(self, table: HostTable, moment: PlanContext) -> Request:
        """The engine's request, with cells and zones as numbers of this table. The caller sets the group's members."""
        spec, takes = self.spec, self.takes
        excluded = {table.cell_number(cell) for cell in spec.excluded_cells}
        destination, source_cell = spec.requested_destination or Destination(), spec.move.source_cell_uuid if spec.move else None
        only_cell = destination.cell_uuid
        if only_cell is None and not destination.allow_cross_cell_move:
            only_cell = source_cell
        return Request(
            spec=spec,
            vcpus=takes.vcpus,
            memory_mb=takes.memory_mb,
            disk_gb=takes.disk_gb,
            resources=takes.resources,
            seed=self.seed,
            zone=None if spec.availability_zone is None else table.zone_number(spec.availability_zone),
            excluded_cells=frozenset(excluded - {-1}),
            only_cell=None if only_cell is None else table.cell_number(only_cell),
            source_cell=None if source_cell is None else table.cell_number(source_cell),
            alive_since=moment.alive_since,
            places=self.places,
        )

    def own_slots(self, slots: Sequence[Slot]) -> list[Slot]:
        """The slots of its group that do not restrict it.

        These are the slots of the instances that it places, of the server that it moves, and of the host that is evacuated.
        """
        move = self.spec.move
        if move is None:
            leaving = set(self.standing.needed)
            return [slot for slot in slots if slot.instance_uuid in leaving]
        leaving = {*self.standing.needed, move.instance_uuid}
        return [slot for slot in slots if slot.instance_uuid in leaving or self._is_lost(slot)]

    def count_companions(self, slots: Sequence[Slot]) -> int:
        """The number of other members of its group on the host that is evacuated: they will follow."""
        move = self.spec.move
        return (
            sum(self._is_lost(slot) and not slot.held and slot.instance_uuid != move.instance_uuid for slot in slots) if move else 0
        )

    def _is_lost(self, slot: Slot) -> bool:
        move = self.spec.move
        return move is not None and move.kind is MoveKind.EVACUATE and slot.host.lower() == move.source_host.lower()

    def restart_planning(self, standing: Standing) -> None:
        self.standing = standing
        self.survey, self.rows, self.losers, self.together = None, {}, [], False
        self.alternates, self.numa_nodes, self.placements = {}, {}, ()
        self.partial, self.inputs, self.first_kept, self.replaced = False, None, None, 0
        self.short, self.counts, self.lost, self.premature, self.unheard, self.held = None, (), False, False, (), False
        self.error, self.remedies, self.decision = None, UNEXAMINED, None

    def selections_or_raise(self) -> list[list[Selection]]:
        """The selections of each instance, in request order: the claimed host first, then the alternates.

        An instance gets an empty list if its request is gone, or if it found no host and ``min_count`` does not need it.
        Raises NoValidHost, and what planning raised. Raises CellUnavailable or Conflict if the caller should ask again.
        """
        if self.error is not None:
            raise self.error
        if self.lost:
            raise errors.Conflict(
                f"batch {self.spec.batch_id}: other batches took its hosts {CLAIM_ATTEMPTS} times in a row; ask again"
            )
        if self.premature:
            raise errors.Conflict(f"batch {self.spec.batch_id}: not all hosts are known yet; ask again")
        if self.held:
            raise errors.Conflict(self.waiting_reason)
        if self.unheard:
            raise errors.CellUnavailable(self.waiting_reason)
        if self.is_refused:
            message, decision_id = (
                (self.decision.message, self.decision.id) if self.decision else ("No valid host was found.", None)
            )
            raise errors.NoValidHost(message, decision_id)
        placed = {placement.instance_uuid: placement.selections for placement in self.placements}
        return [list(self.standing.kept.get(uuid) or placed.get(uuid, ())) for uuid in self.uuids]


def checked_job(context: RequestContext, spec: RequestSpec, uuids: Sequence[str]) -> Job:
    """Make a job from the arguments of a call. Raises Invalid for a malformed call, NoValidHost for specs that no host can meet."""
    if len(set(uuids)) != len(uuids):
        raise errors.Invalid("instance_uuids: an instance is named twice")
    missing = [uuid for uuid in uuids if uuid not in spec.fences]
    if missing:
        raise errors.Invalid(f"request_spec.fences: no fence for instance {missing[0]}")
    try:
        extra_specs.check_specs(spec.flavor.extra_specs)
        extra_specs.check_image(spec.image.properties if spec.image else {})
    except errors.Invalid as error:  # the API refuses these, but an earlier version may have accepted them
        raise errors.NoValidHost(f"No valid host was found. {error}") from error
    if spec.move is not None:
        _check_move(spec, spec.move, uuids)
    return Job(context, spec, tuple(uuids))


def _check_move(spec: RequestSpec, move: Move, uuids: Sequence[str]) -> None:
    if len(uuids) != 1:
        raise errors.Invalid(f"instance_uuids: a move is for one server, not for {len(uuids)}; send one request for each")
    if move.instance_uuid in uuids:
        raise errors.Invalid("instance_uuids: a move needs a uuid of its own for its claim; the server keeps its claim meanwhile")
    destination = spec.requested_destination or Destination()
    if destination.cell_uuid not in (None, move.source_cell_uuid) and not destination.allow_cross_cell_move:
        raise errors.Invalid("request_spec.requested_destination: is in another cell; allow_cross_cell_move is needed for that")
