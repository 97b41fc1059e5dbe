"""What one scheduling decision costs in process: filters, weighing, the claim in the table, the record that explains it.

``python bench/decisions.py`` measures fleets of 1,000, 10,000 and 100,000 hosts as ``bench/_fleet.py`` makes them. The table
changes with every decision: what it claims goes in, and some guest that was there goes out; now and then a cell's hosts are heard
of. Every second decision keeps no record, which tells what the record costs. No two requests are alike but in their flavor. Of
large fleets surveys are kept for further requests of a shape. There, decisions that are not counted come first, in which nearly all
shapes are asked for. "passes" are counted decisions without a group that found no kept survey, and passed over the fleet. Of
several rounds the one with the best median is shown, because others use this machine too; ``--rounds`` says of how many. What it
costs to write the record down, on SQLite, stands apart. ``--smoke`` takes a small fleet for a moment.

"p99 CPU" is of the seconds that the thread itself has used: where others want the processors, "p99" tells of them.
"""

from __future__ import annotations

import gc
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

sys.path.append(str(Path(__file__).parent.parent))  # last, so that what is installed comes first

from bench._fleet import ZONES, Fleet
from bench._script import parser_of
from db.api.claims import decisions
from objects import stored
from objects.context import RequestContext
from objects.group import GroupPolicy, ServerGroup
from objects.inventory import GroupSlots, Slot, Standing
from objects.spec import RequestSpec
from scheduler.claim import result
from scheduler.claim.claim_planner import ClaimPlanner
from scheduler.claim.cursor import Cursor
from scheduler.engine.driver import SchedulerDriver
from scheduler.engine.job import Job, PlanContext
from scheduler.engine.request_classes import KEPT_FROM
from scheduler.engine.survey_cache import KeptSurvey
from scheduler.framework.settings import DEFAULT_FILTERS, DEFAULT_WEIGHERS, SchedulerSettings
from scheduler.plugins import load_driver
from tests.support.databases import api_database

FILTERS = (*DEFAULT_FILTERS, "IoOpsFilter", "NumInstancesFilter")
CONTEXT = RequestContext(request_id="req-bench", project_id="p")
HEARTBEATS = 500
"""Decisions between two looks at the heartbeats of a cell."""
KEPT_UP = 100
"""Decisions between two rounds of the thread that keeps surveys of large fleets up to date. A round counts as no decision."""
WARM_UP = 3000
"""Decisions of a large fleet that are not counted: a second or two of a busy scheduler."""
MEMBERS = 10
"""Of a group, that are placed already."""

SpecAndSlots = tuple[RequestSpec, Sequence[Slot]]


@dataclass
class Took:
    """Seconds of decisions of one kind, those that kept a record and those that did not."""

    recorded: list[float] = field(default_factory=list)
    unrecorded: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    is_kept: list[bool] = field(default_factory=list)  # whether there was a survey to begin with, where they are kept

    @property
    def median_seconds(self) -> float:
        return statistics.median(self.recorded)

    def render_row(self) -> str:
        """per second, median and p99 in microseconds, the shares of the record and of passes."""
        rate = len(self.recorded) / sum(self.recorded)
        share = f"{1 - statistics.median(self.unrecorded) / self.median_seconds:.0%}" if self.unrecorded else "-"
        passes = f"{self.is_kept.count(False) / len(self.is_kept):.1%}" if self.is_kept else "-"
        p99s = (sorted(durations)[int(len(durations) * 0.99)] * 1e6 for durations in (self.recorded, self.cpu))
        return f"{rate:>10,.0f} {self.median_seconds * 1e6:>10.0f} {next(p99s):>10.0f} {next(p99s):>10.0f} {share:>9} {passes:>9}"


def plain_request(fleet: Fleet) -> SpecAndSlots:
    """A server of some flavor; every fourth names its zone."""
    zone = fleet.chance.choice(ZONES) if fleet.chance.random() < 0.25 else None
    return spec_of(fleet, availability_zone=zone), ()


def zoned_request(fleet: Fleet) -> SpecAndSlots:
    """A server of a deployment that is spread over the zones."""
    return spec_of(fleet, availability_zone=fleet.chance.choice(ZONES)), ()


def anti_affinity_member(fleet: Fleet) -> SpecAndSlots:
    """One more member of an anti-affinity group."""
    group = group_of(GroupPolicy.ANTI_AFFINITY)
    return spec_of(fleet, group=group), members_on(group, [node.host for node in fleet.chance.sample(fleet.nodes, MEMBERS)])


def affinity_member(fleet: Fleet) -> SpecAndSlots:
    """One more member of an affinity group, whose host has room for it."""
    group, spec = group_of(GroupPolicy.AFFINITY), spec_of(fleet)
    while True:
        row = fleet.ledger[fleet.chance.randrange(len(fleet.ledger)) + 1]
        place = fleet.table.find_row(row.host, row.node)
        building = row.instances - int(fleet.table.guests[place])
        roomy = row.cap_vcpus - row.used_vcpus >= 16 and row.cap_memory_mb - row.used_memory_mb >= 65536 and row.instances < 45
        if roomy and building < 8:  # as many as IoOpsFilter lets a host have
            break
    return spec_of(fleet, batch_id=spec.batch_id, fences=spec.fences, group=group), members_on(group, [row.host] * MEMBERS)


def spec_of(fleet: Fleet, count: int = 1, **changes: Any) -> RequestSpec:
    """A request for so many servers of some flavor."""
    values: dict[str, Any] = {"batch_id": str(uuid.uuid4()), "flavor": fleet.choose_flavor(), "num_instances": count}
    values["fences"] = dict.fromkeys((str(uuid.uuid4()) for _ in range(count)), 1)
    return RequestSpec(request_id="req-bench", project_id="p", user_id="u", name="server", **(values | changes))


def group_of(policy: GroupPolicy) -> ServerGroup:
    """A new group."""
    return ServerGroup(uuid=str(uuid.uuid4()), name="g", project_id="p", policy=policy)


def members_on(group: ServerGroup, hosts: Sequence[str]) -> list[Slot]:
    """A member of the group on each of these hosts."""
    return [Slot(group_uuid=group.uuid, instance_uuid=str(uuid.uuid4()), host=host) for host in hosts]


def groups_of(spec: RequestSpec, slots: Sequence[Slot]) -> list[GroupSlots]:
    """The slots of the request's group as a transaction reads them."""
    placed = "\n".join(slot.host for slot in slots)
    in_domains = tuple((slot.fault_domain, slot.host) for slot in slots if slot.fault_domain is not None)
    return [GroupSlots(group_uuid=spec.group.uuid, placed=placed, in_domains=in_domains)] if spec.group is not None else []


def moment_of(fleet: Fleet) -> PlanContext:
    """What a decision is told of now: all cells have been read a moment ago."""
    mono = time.monotonic()
    return PlanContext(mono, time.time(), mono - 60.0, young=False, mapped_since=mono - 15.0, ages=fleet.ages)


def make_decision(fleet: Fleet, driver: SchedulerDriver, spec: RequestSpec, slots: Sequence[Slot]) -> tuple[float, float, Job]:
    """One decision and its claim; its seconds, and those of the processor, without those of the ledger."""
    uuids = tuple(spec.fences)
    standings, groups = [Standing(needed=uuids)], groups_of(spec, slots)
    began, cpu = time.perf_counter(), time.thread_time()
    job = Job(CONTEXT, spec, uuids)
    attempt = ClaimPlanner(fleet.table, driver, Cursor(), [job], moment_of(fleet))
    inventory_ids = attempt.plan_jobs([], standings, groups)
    attempt.confirm_locked([fleet.ledger[key] for key in inventory_ids])
    [placements], _ = attempt.finish_plan()
    took, used = time.perf_counter() - began, time.thread_time() - cpu
    changed = {placement.inventory_id: fleet.add_guest(placement.inventory_id, spec.flavor) for placement in placements}
    began, cpu = time.perf_counter(), time.thread_time()
    attempt.enter_committed(list(changed.values()))
    took, used = took + time.perf_counter() - began, used + time.thread_time() - cpu
    if len(placements) != len(uuids):
        raise AssertionError(f"a decision found no host on a fleet that has room: {job.decision}")
    for _ in placements:
        fleet.release_guest()
    return took, used, job


@contextmanager
def without_record() -> Iterator[None]:
    """No record is made meanwhile."""
    original = vars(result)["decision_of"]
    vars(result)["decision_of"] = lambda *_: None
    try:
        yield
    finally:
        vars(result)["decision_of"] = original


def one_round(hosts: int, driver: SchedulerDriver, ask: Callable[[Fleet], SpecAndSlots], decisions: int) -> Took:
    fleet, took = Fleet(hosts), Took()
    gc.collect()
    for n in range(-WARM_UP if hosts >= KEPT_FROM else 0, decisions):
        if n % HEARTBEATS == 0:
            fleet.report_hosts(fleet.cells[n // HEARTBEATS % len(fleet.cells)])
        if n % KEPT_UP == 0:
            driver.shapes.keep_up(fleet.table)
        spec, slots = ask(fleet)
        seconds, used, job = make_decision(fleet, driver, spec, slots)
        if n < 0:
            continue
        took.recorded.append(seconds)
        took.cpu.append(used)
        if hosts >= KEPT_FROM and spec.group is None:
            took.is_kept.append(isinstance(job.survey, KeptSurvey))
        spec, slots = ask(fleet)
        with without_record():
            took.unrecorded.append(make_decision(fleet, driver, spec, slots)[0])
    return took


def best_round(hosts: int, driver: SchedulerDriver, ask: Callable[[Fleet], SpecAndSlots], rounds: int, decisions: int) -> Took:
    return min((one_round(hosts, driver, ask, decisions) for _ in range(rounds)), key=lambda took: took.median_seconds)


def batch_cost(fleet: Fleet, driver: SchedulerDriver, rounds: int) -> float:
    """Microseconds per instance of a batch of 100, at best."""
    return min(make_decision(fleet, driver, spec_of(fleet, 100), ())[0] for _ in range(rounds)) / 100 * 1e6


def store_cost(fleet: Fleet, driver: SchedulerDriver, times: int) -> tuple[float, int]:
    """Microseconds to store one decision on SQLite, in a transaction of its own; and its size in bytes."""
    decision = make_decision(fleet, driver, *plain_request(fleet))[2].decision
    if decision is None:
        raise AssertionError("a decision kept no record")
    with tempfile.TemporaryDirectory() as folder:
        database = api_database(Path(folder))
        best = float("inf")
        for n in range(times):
            again = msgspec.structs.replace(decision, id=f"{n:036}")
            began = time.perf_counter()
            database.write(decisions.store_all, [again])
            best = min(best, time.perf_counter() - began)
    return best * 1e6, len(stored.dump_value(decision))


def main() -> None:
    parser = parser_of(__doc__, "a small fleet for a moment: does it still work?")
    parser.add_argument("--rounds", type=int, default=5, help="of each kind of decision; the best one is shown")
    parser.add_argument("--decisions", type=int, default=1000, help="of each round, with a record and without")
    parser.add_argument("--hosts", type=int, nargs="+", default=[1_000, 10_000, 100_000], help="the sizes of the fleets")
    options = parser.parse_args()
    sizes, rounds, count = ([300], 1, 30) if options.smoke else (options.hosts, options.rounds, options.decisions)
    driver = load_driver(SchedulerSettings(enabled_filters=FILTERS, enabled_weighers=DEFAULT_WEIGHERS))
    print(f"{len(FILTERS)} filters, {len(DEFAULT_WEIGHERS)} weighers; the best of {rounds} rounds of {count} decisions")
    print(f"{'hosts':>8}  {'':20} {'per second':>10} {'median us':>10} {'p99 us':>10} {'p99 CPU':>10} {'record':>9} {'passes':>9}")
    for hosts in sizes:
        kinds = {"a server": plain_request}
        if hosts in (sizes[0], 10_000):
            kinds |= {"of a zone": zoned_request, "apart from a group": anti_affinity_member, "with its group": affinity_member}
        for kind, ask in kinds.items():
            print(f"{hosts:>8}  {kind:20} {best_round(hosts, driver, ask, rounds, count).render_row()}", flush=True)
        fleet = Fleet(hosts)
        per_server = batch_cost(fleet, driver, rounds)
        print(f"{hosts:>8}  {'100 servers, of each':20} {1e6 / per_server:>10,.0f} {per_server:>10.0f}")
    took, size = store_cost(fleet, driver, 20 if options.smoke else 500)
    print(f"writing the record down, {size} bytes, on SQLite: {took:.0f} us")


if __name__ == "__main__":
    main()
