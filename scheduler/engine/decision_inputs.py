"""Keep what a decision is taken on, while it is taken: the best hosts as they are before anything of the batch is placed.

A later process finds neither the claims nor the reports of that moment, because rows hold the present only. So the record of the
decision has them for the hosts that matter (``objects/basis.py``). ``replay.py`` takes the decision again from that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import floor, inf
from typing import Any

import msgspec
import numpy as np

from objects import numa, stored, typed
from objects.basis import KeptHost
from objects.decision import Candidate
from scheduler.engine.survey import Survey, WeigherScale
from scheduler.framework.batch_request import Request
from scheduler.framework.hosts import Hosts
from scheduler.framework.settings import SPREADING_WEIGHERS, SchedulerSettings
from scheduler.table.aggregation import RATIOS
from scheduler.table.host_table import HostTable

BEST_HOSTS_SHOWN = 5
"""Number of best hosts recorded with their scores."""
HOSTS_LIMIT = 16
"""Maximum number of hosts kept of a batch, or of hosts that are drawn from."""
SETTINGS_BYTES = 1000
"""Settings that take more are not kept."""
FREE_SETTINGS = frozenset(
    (
        "service_down_time",
        "service_poll_interval",
        "feed_poll_interval",
        "claims_poll_interval",
        "idle_interval",
        "claim_window",
        "warm_up",
    )
)
"""Settings that no choice among hosts that are up depends on."""
_DEFAULTS_FIRST = "*"
"""Stands for all of UNSAID_SETTINGS at the beginning of a list."""
UNSAID_SETTINGS = msgspec.structs.asdict(SchedulerSettings(enabled_weighers=SPREADING_WEIGHERS, leftover_from=0.0))
"""The settings that a record leaves out. Who changes a default enters the old one here, so that old records keep their meaning."""


def kept_settings(settings: SchedulerSettings) -> dict[str, Any] | None:
    """The settings that are not UNSAID_SETTINGS, as a record has them. ``settings_of`` reads them."""
    chosen = {
        name: _shorten_defaults(value, UNSAID_SETTINGS[name])
        for name, value in msgspec.structs.asdict(settings).items()
        if value != UNSAID_SETTINGS[name] and name not in FREE_SETTINGS
    }
    return chosen if len(stored.dump_value(chosen)) <= SETTINGS_BYTES else None


def settings_of(recorded: Mapping[str, Any]) -> SchedulerSettings:
    """The settings of a record."""
    settings = {name: _restore_defaults(value, UNSAID_SETTINGS.get(name)) for name, value in recorded.items()}
    return typed.convert_data(UNSAID_SETTINGS | settings, SchedulerSettings)


def _shorten_defaults(value: Any, default: Any) -> Any:
    if isinstance(value, tuple) and default and value[: len(default)] == default:
        return (_DEFAULTS_FIRST, *value[len(default) :])
    return value


def _restore_defaults(value: Any, default: Any) -> Any:
    return [*default, *value[1:]] if isinstance(value, list) and value[:1] == [_DEFAULTS_FIRST] else value


@dataclass(slots=True)
class KeptHosts:
    """Hosts of a survey with what is known of them. ``top``: so many rows, in order, are the best of all."""

    rows: list[int]
    scores: list[float]
    hosts: list[KeptHost]
    raws: dict[str, list[float]]
    parts: tuple[WeigherScale, ...]
    top: int
    passing: int
    members: list[tuple[int, int]]
    resources: dict[str, list[float]]
    limits: dict[str, list[float]]
    multipliers: dict[str, list[float]] = field(default_factory=dict)
    terms: dict[str, tuple[float, ...]] = field(default_factory=dict)

    @property
    def shown_count(self) -> int:
        """So many of the hosts are candidates of the record, in their order."""
        return min(self.top, BEST_HOSTS_SHOWN)

    def candidate_records(self, table: HostTable, positions: Iterable[int]) -> list[Candidate]:
        """The records of these hosts."""
        weights: dict[str, list[float]] = {}  # what each weigher adds to the scores
        for part in self.parts:
            name, low = part.weigher.name, part.low
            raws = [max(raw, low) for raw in self.raws[name]] if part.floored else self.raws[name]
            multipliers = self.multipliers[name] if part.multiplier is None else [part.multiplier] * len(raws)
            weights[name] = [(raw - low) * (factor / part.span) for raw, factor in zip(raws, multipliers, strict=True)]
        return [
            Candidate(
                host=table.hosts[row],
                node=table.nodes[row],
                cell=table.cells[table.cell.item(row)].name,
                score=_round_score(self.scores[position]),
                parts={name: _round_score(weights_of_part[position]) for name, weights_of_part in weights.items()},
            )
            for position in positions
            for row in (self.rows[position],)
        ]


def keep_best_hosts(table: HostTable, request: Request, surveyed: Survey, count: int, subset: int) -> KeptHosts:
    """The best hosts of a survey, before ``count`` instances are placed by drawing among ``subset`` hosts."""
    best, scores = surveyed.best_rows(max(BEST_HOSTS_SHOWN, min(subset + count - 1, HOSTS_LIMIT)))
    passing = surveyed.passing_count if subset > 1 else 0
    return _make_kept_hosts(table, request, surveyed, best.tolist(), scores.tolist(), passing)


def with_chosen(inputs: KeptHosts, table: HostTable, request: Request, surveyed: Survey, row: int) -> KeptHosts:
    """The same with the row of the first instance. The table must show nothing of the batch."""
    score = float(surveyed.scores_of(np.array([row], np.int64))[0])
    extended = _make_kept_hosts(table, request, surveyed, [*inputs.rows, row], [*inputs.scores, score], inputs.passing)
    extended.top = inputs.top
    return extended


def _make_kept_hosts(
    table: HostTable, request: Request, surveyed: Survey, rows: list[int], scores: list[float], passing: int
) -> KeptHosts:
    hosts = None
    resources: dict[str, list[float]] = {}
    limits: dict[str, list[float]] = {}
    multipliers: dict[str, list[float]] = {}
    members: list[tuple[int, int]] = []
    if table.classes.numa:
        resources = _node_rooms(table, rows)
    if request.resources or table.current_aggregates.lowering or None in [part.multiplier for part in surveyed.parts]:
        hosts = Hosts(table, request, np.array(rows, np.int64))
        resources |= {name: hosts.free_resource(name).tolist() for name in request.resources}
        if table.current_aggregates.lowering:
            limits = {resource: hosts.capacity_of(resource).tolist() for resource in RATIOS}
        for part in surveyed.parts:
            if part.multiplier is None:
                column = part.weigher.host_multipliers(hosts)
                multipliers[part.weigher.name] = np.broadcast_to(column, len(rows)).tolist()
    for part in surveyed.parts:
        if not part.weigher.option and part.multiplier not in (None, 1.0):
            multipliers[part.weigher.name] = [part.multiplier] * len(rows)
    if request.server_group is not None:
        row_numbers, group_members = np.array(rows, np.int64), request.members
        placed = group_members.of_rows(table.named_rows, row_numbers, with_held=False).tolist()
        all_of_them = (
            group_members.of_rows(table.named_rows, row_numbers, with_held=True).tolist() if group_members.any_held else placed
        )
        members = [(count, total - count) for count, total in zip(placed, all_of_them, strict=True)]
    # what the weights depend on of the fleet as a whole
    weighers = [part.weigher for part in surveyed.parts if part.weigher.of_fleet]
    terms_by_weigher = {weigher.name: weigher.cached_terms(table, request) for weigher in weighers}
    return KeptHosts(
        rows=rows,
        scores=scores,
        hosts=[_kept_host(table, row) for row in rows],
        raws=surveyed.raw_weights(rows),
        parts=surveyed.parts,
        top=len(rows),
        passing=passing,
        members=members,
        resources=resources,
        limits=limits,
        multipliers=multipliers,
        terms={name: terms for name, terms in terms_by_weigher.items() if terms is not None},
    )


def _node_rooms(table: HostTable, rows: list[int]) -> dict[str, list[float]]:
    """What is free on the NUMA nodes of these hosts, by class; -1 where there is no such node, or it is not counted."""
    free_by_node: dict[str, list[float]] = {}
    for number, node in enumerate(table.free_on_nodes(rows)):
        for name, free in zip(numa.class_names(number), node, strict=True):
            free_by_node[name] = [amount if -1.0 < amount < inf else -1.0 for amount in free]
    return free_by_node


def _kept_host(table: HostTable, row: int) -> KeptHost:
    return KeptHost(
        inventory=table.inventory.item(row),
        generation=table.generation.item(row),
        free_vcpus=shorten_number(table.free_vcpus.item(row)),
        free_memory_mb=shorten_number(table.free_memory_mb.item(row)),
        free_disk_gb=shorten_number(table.free_disk_gb.item(row)),
        cap_vcpus=shorten_number(table.cap_vcpus.item(row)),
        cap_memory_mb=shorten_number(table.cap_memory_mb.item(row)),
        cap_disk_gb=shorten_number(table.cap_disk_gb.item(row)),
        instances=table.instances.item(row),
        building=table.building.item(row),
        failed_builds=shorten_number(table.failed_builds.item(row)),
    )


def shorten_number(amount: float) -> float:
    """The same number, as JSON has it without ".0"."""
    return int(amount) if amount.is_integer() else amount


def _round_score(number: float) -> float:
    """Round to 6 digits. ``round(number, 6)`` takes longer than everything else done for a candidate."""
    return floor(number * 1e6 + 0.5) / 1e6
