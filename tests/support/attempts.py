"""Attempts of a scheduler without a database: jobs, the plan for them, and a ledger that others write too."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from objects.inventory import Inventory, Slot, Standing
from objects.spec import RequestSpec
from scheduler.claim.claim_planner import ClaimPlanner
from scheduler.claim.cursor import Cursor
from scheduler.engine.driver import SchedulerDriver
from scheduler.engine.job import Job, PlanContext
from scheduler.table.host_table import HostTable
from tests.support import fleet


def job(asked: RequestSpec, count: int = 1) -> Job:
    uuids = tuple(f"{asked.batch_id}-{n}" for n in range(count))
    return Job(fleet.CONTEXT, msgspec.structs.replace(asked, fences=dict.fromkeys(uuids, 1)), uuids)


def attempt(
    table: HostTable, jobs: Sequence[Job], *, young: bool = False, alive_since: float = 0.0, driver: SchedulerDriver | None = None
) -> ClaimPlanner:
    moment = PlanContext(time.monotonic(), time.time(), alive_since, young, time.monotonic(), {"cell1": 0.1, "cell2": 0.2})
    return ClaimPlanner(table, driver or fleet.driver(), Cursor(), jobs, moment)


def begun(made: ClaimPlanner, jobs: Sequence[Job], slots: Sequence[Slot] = ()) -> set[int]:
    placed = {uuid for one in jobs for uuid in one.uuids}
    moves = any(one.spec.move for one in jobs)
    groups = fleet.by_group(slots, [slot for slot in slots if moves or slot.instance_uuid in placed])
    return set(made.plan_jobs([], [Standing(needed=one.uuids) for one in jobs], groups))


class Ledger:
    """The rows of a fleet as a database would hand them out, with what others have claimed meanwhile."""

    def __init__(self, hosts: int, **changes: object) -> None:
        self.nodes = [fleet.node(f"h{n}", **changes) for n in range(hosts)]
        self.table = fleet.table(self.nodes)
        self.taken: dict[int, int] = {}

    def rows(self, ids: set[int]) -> list[Inventory]:
        return [
            fleet.inventory(
                key,
                self.nodes[key - 1],
                fleet.CELLS[(key - 1) % 2],
                2 if key in self.taken else 1,
                used_vcpus=self.taken.get(key, 0),
                instances=self.taken.get(key, 0),
            )
            for key in sorted(ids)
        ]


class Overtaken(NamedTuple):
    """An attempt (``made``) for one server whose host (``first``) was found full; ``more``: the hosts that it asks for instead."""

    ledger: Ledger
    jobs: list[Job]
    made: ClaimPlanner
    first: int
    more: set[int]


def overtaken(hosts: int) -> Overtaken:
    """On hosts with room for one server each; others took the one that was planned on before its row was locked."""
    ledger = Ledger(hosts, vcpus=1)
    jobs = [job(fleet.spec())]
    made = attempt(ledger.table, jobs)
    [first] = begun(made, jobs)
    ledger.taken = {first: 1}
    return Overtaken(ledger, jobs, made, first, set(made.confirm_locked(ledger.rows({first}))))
