"""One call for hosts, from the asking to the answer."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from db.claims import Ask
from objects import errors
from objects.context import RequestContext
from objects.decision import Decision, FilterCount
from objects.inventory import Placement, Slot, Standing
from objects.selection import Selection
from objects.spec import RequestSpec
from scheduler.engine import Survey


class Moment(NamedTuple):
    """When an attempt is made, and what is known then. ``mono``: the monotonic clock, ``wall``: seconds since the epoch.

    ``alive_since``: hosts heard of since then (monotonic) are up. ``young``: this process may not have heard of all hosts yet.
    ``ages``: the age of each cell's view by the cell's name, None where nothing is known of it.
    """

    mono: float
    wall: float
    alive_since: float
    young: bool
    ages: Mapping[str, float | None]


@dataclass(slots=True)
class Job:
    """What is asked, and how far the plan for it is. A fresh plan begins with ``restart``.

    ``short``: how many instances found a host before the first that found none; None: all did. ``lost``: others took the room
    first, again and again. ``premature``: it found none because this process does not know the fleet yet. ``error``: planning it
    failed.
    """

    context: RequestContext
    spec: RequestSpec
    uuids: tuple[str, ...]
    started: float = field(default_factory=time.perf_counter)
    standing: Standing = field(default_factory=Standing)
    survey: Survey | None = None
    rows: dict[str, int] = field(default_factory=dict)
    losers: list[str] = field(default_factory=list)
    alternates: dict[str, list[int]] = field(default_factory=dict)
    evicted: dict[str, tuple[Slot, ...]] = field(default_factory=dict)
    placements: tuple[Placement, ...] = ()
    short: int | None = None
    counts: tuple[FilterCount, ...] = ()
    lost: bool = False
    premature: bool = False
    error: Exception | None = None
    decision: Decision | None = None

    @property
    def open(self) -> bool:
        """Nothing speaks against it so far."""
        return self.short is None and not self.lost and self.error is None

    @property
    def ask(self) -> Ask:
        flavor = self.spec.flavor
        return Ask(
            fences={uuid: self.spec.fences[uuid] for uuid in self.uuids},
            vcpus=flavor.vcpus,
            memory_mb=flavor.memory_mb,
            disk_gb=flavor.disk_gb,
            group=self.spec.group,
            excluded_cells=self.spec.excluded_cells,
        )

    def restart(self, standing: Standing) -> None:
        self.standing = standing
        self.survey, self.rows, self.losers = None, {}, []
        self.alternates, self.evicted, self.placements = {}, {}, ()
        self.short, self.counts, self.lost, self.premature = None, (), False, False
        self.error, self.decision = None, None

    def answer(self) -> list[list[Selection]]:
        """In request order; nothing for an instance whose request is gone. Raises NoValidHost."""
        if self.short is not None:
            message, decision_id = (
                (self.decision.message, self.decision.id) if self.decision else ("No valid host was found.", None)
            )
            raise errors.NoValidHost(message, decision_id)
        placed = {placement.instance_uuid: placement.selections for placement in self.placements}
        return [list(self.standing.kept.get(uuid) or placed.get(uuid, ())) for uuid in self.uuids]


def checked(context: RequestContext, spec: RequestSpec, uuids: Sequence[str]) -> Job:
    """A job for what came over the bus. Raises Invalid where the call itself is wrong."""
    if len(set(uuids)) != len(uuids):
        raise errors.Invalid("instance_uuids: an instance is named twice")
    missing = [uuid for uuid in uuids if uuid not in spec.fences]
    if missing:
        raise errors.Invalid(f"request_spec.fences: no fence for instance {missing[0]}")
    return Job(context, spec, tuple(uuids))
