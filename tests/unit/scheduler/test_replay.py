"""A stored decision, taken again on the table as it was: the same hosts, alternates and scores."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from objects import stored
from objects.decision import DecidedInstance, Decision
from objects.group import GroupPolicy
from objects.spec import RequestSpec
from scheduler.drivers.base import SchedulerDriver
from scheduler.plan import engine
from scheduler.plan.alternates import Alternates
from scheduler.table.host_table import HostTable
from tests.support import fleet
from tests.support.attempts import attempt, begun, job
from tests.support.examples import examples

HOSTS = st.lists(st.tuples(st.integers(1, 4), st.integers(0, 3)), min_size=1, max_size=10)
"""vCPUs, few enough for many ties, and how many of them are claimed."""
DRIVERS: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {
        "driver": st.sampled_from(["filter", "filter", "chance"]),
        "host_subset_size": st.sampled_from([1, 1, 3]),
        "shuffle_best_same_weighed_hosts": st.booleans(),
    }
)


def fleet_of(hosts: list[tuple[int, int]]) -> HostTable:
    nodes = [fleet.node(f"h{n}", vcpus=vcpus) for n, (vcpus, _) in enumerate(hosts)]
    made = fleet.table(nodes)
    for n, (node, (_, claimed)) in enumerate(zip(nodes, hosts, strict=True)):
        row = fleet.inventory(n + 1, node, fleet.CELLS[n % 2], 2, used_vcpus=claimed, instances=claimed)
        made.set_inventory(row, now=0.0)
    return made


def decided(table: HostTable, driver: SchedulerDriver, spec: RequestSpec, count: int) -> Decision:
    """What is stored of it."""
    jobs = [job(spec, count)]
    made = attempt(table, jobs, driver=driver)
    wanted = begun(made, jobs)
    if wanted:
        made.confirm([row_of(table, key) for key in sorted(wanted)])
    [decision] = made.finish()[1]
    return stored.load(stored.dump(decision), Decision)


def row_of(table: HostTable, key: int) -> Any:
    """The ledger's row as this table has it: nothing happened since the plan."""
    row = table.find_inventory(key)
    assert row is not None
    claimed, count = int(table.claimed_vcpus[row]), int(table.instances[row])
    node = fleet.node(table.hosts[row], vcpus=int(table.cap_vcpus[row]))
    return fleet.inventory(key, node, table.cells[int(table.cell[row])].uuid, 2, used_vcpus=claimed, instances=count)


def choices(table: HostTable, driver: SchedulerDriver, spec: RequestSpec, decision: Decision) -> list[DecidedInstance]:
    """The decision taken again by the engine, with nothing of it but its seed."""
    uuids = [choice.instance_uuid for choice in decision.choices]
    request = fleet.request(spec, table, seed=decision.seed)
    with table.tentative():
        found = engine.survey(table, driver, request)
        rows = engine.choose(table, driver, request, found, len(uuids))
    if len(rows) < len(uuids):
        return [DecidedInstance(instance_uuid=uuid, host=None) for uuid in uuids]
    again = fleet.request(spec, table, seed=decision.seed)  # what is placed is looked at anew before alternates are given out
    with table.tentative():
        for row in rows:
            engine.take(table, again, row)
        others = Alternates(table, driver, again, found).of(list(zip(uuids, rows, strict=True)))
    return [
        DecidedInstance(
            instance_uuid=uuid,
            host=table.hosts[row],
            node=table.nodes[row],
            cell=table.cells[int(table.cell[row])].name,
            alternates=tuple(table.hosts[other] for other in others[uuid]),
        )
        for uuid, row in zip(uuids, rows, strict=True)
    ]


@given(HOSTS, DRIVERS, st.integers(1, 6), st.integers(1, 2), st.sampled_from([None, None, *GroupPolicy]))
@examples(150)
def test_seed_and_table_are_all_it_takes(
    hosts: list[tuple[int, int]], options: dict[str, Any], count: int, vcpus: int, policy: GroupPolicy | None
) -> None:
    if options["driver"] == "chance":
        policy = None  # chance knows no groups
    spec = fleet.spec(fleet.flavor(vcpus), group=fleet.group(policy) if policy else None)
    decision = decided(fleet_of(hosts), fleet.driver(**options), spec, count)
    again = decided(fleet_of(hosts), fleet.driver(**options), spec, count)  # in another process
    assert (again.seed, again.choices) == (decision.seed, decision.choices)
    assert (again.candidates, again.filters, again.message) == (decision.candidates, decision.filters, decision.message)
    if policy is None:  # members of a group may be planned together: more than a survey and a choice
        assert choices(fleet_of(hosts), fleet.driver(**options), spec, decision) == list(decision.choices)


def test_another_seed_is_another_choice() -> None:
    """Or the test above would say nothing."""
    table, driver = fleet_of([(4, 0)] * 10), fleet.driver()
    specs = [fleet.spec() for _ in range(20)]
    decisions = [decided(table, driver, spec, 1) for spec in specs]
    assert len({decision.seed for decision in decisions}) == 20
    assert len({decision.choices[0].host for decision in decisions}) > 1
    for spec, decision in zip(specs, decisions, strict=True):
        assert choices(table, driver, spec, decision) == list(decision.choices)
