"""A stored decision, taken again on the table as it was: the same hosts, alternates and scores."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from objects import errors, stored
from objects.aggregate import Aggregate
from objects.compute_node import ComputeNode
from objects.decision import DecidedInstance, Decision
from objects.group import GroupPolicy
from objects.inventory import Slot
from objects.numa import HostNumaNode
from objects.spec import RequestSpec
from scheduler.claim.stripes import with_stripe
from scheduler.engine import engine
from scheduler.engine.alternates import Alternates
from scheduler.engine.decision_inputs import kept_settings, settings_of
from scheduler.engine.driver import SchedulerDriver
from scheduler.engine.surveying import survey
from scheduler.explain import decision_record
from scheduler.framework.settings import DEFAULT_FILTERS, SPREADING_WEIGHERS, SchedulerSettings
from scheduler.table.host_table import HostTable
from scheduler.weighers.leftover import LeftoverWeigher
from scheduler.what_if.replay import replay_decision
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
        made.confirm_locked([row_of(table, key) for key in sorted(wanted)])
    [decision] = made.finish_plan()[1]
    return stored.load_text(stored.dump_value(decision), Decision)


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
    with table.take_tentatively():
        found = survey(table, driver, request)
        rows = engine.choose_rows(table, driver, request, found, len(uuids))
    if len(rows) < len(uuids):
        return [DecidedInstance(instance_uuid=uuid, host=None) for uuid in uuids]
    again = fleet.request(spec, table, seed=decision.seed)  # what is placed is looked at anew before alternates are given out
    with table.take_tentatively():
        for row in rows:
            engine.take_row(table, again, row)
        others = Alternates(table, driver, again, found).choose_rows(list(zip(uuids, rows, strict=True)))
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


# -- from the record alone -----------------------------------------------------------------------------------------------------

CELL_UUIDS = {"cell1": fleet.CELLS[0], "cell2": fleet.CELLS[1]}
WEIGHERS = ("BalanceWeigher", "LeftoverWeigher", "AffinityRoomWeigher", "IoOpsWeigher", "CellSpreadWeigher", "CellCapacityWeigher")
CONFIGURATIONS: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {
        "driver": st.sampled_from(["filter", "filter", "filter", "chance"]),
        "host_subset_size": st.sampled_from([1, 1, 2, 3, 30]),
        "shuffle_best_same_weighed_hosts": st.booleans(),
        "ram_weight_multiplier": st.sampled_from([1.0, -1.0, 0.0]),
        "cpu_weight_multiplier": st.sampled_from([1.0, -2.5]),
        "num_instances_weight_multiplier": st.sampled_from([0.0, 1.0, -0.3]),
        "max_instances_per_host": st.sampled_from([50, 5]),
        "leftover_from": st.sampled_from([0.0, 0.3, 0.55]),
        "enabled_weighers": st.sets(st.sampled_from(WEIGHERS)).map(lambda more: (*SPREADING_WEIGHERS, *sorted(more))),
        "enabled_filters": st.just((*DEFAULT_FILTERS, "NumInstancesFilter", "IoOpsFilter")),
    }
)
REPLAYED = st.lists(
    st.tuples(st.integers(1, 6), st.integers(0, 3), st.integers(1, 4), st.integers(0, 2), st.integers(0, 2)),
    min_size=1,
    max_size=24,
)
"""vCPUs, how many of them are claimed, GiB of memory, failed builds, and GPUs."""
ASKED = st.fixed_dictionaries(
    {
        "vcpus": st.integers(1, 2),
        "policy": st.sampled_from([None, None, None, *GroupPolicy]),
        "members": st.lists(st.integers(0, 5), max_size=3),
        "gpu": st.booleans(),
        "zone": st.booleans(),
        "multiplier": st.booleans(),
        "ratio": st.booleans(),
        "nodes": st.booleans(),
    }
)

PACKING: dict[str, Any] = {"enabled_weighers": (*SPREADING_WEIGHERS, "LeftoverWeigher"), "leftover_from": 0.5}
PLAIN: dict[str, Any] = {
    "vcpus": 1,
    "policy": None,
    "members": [],
    "gpu": False,
    "zone": False,
    "multiplier": False,
    "ratio": False,
    "nodes": False,
}


def varied(hosts: list[tuple[int, int, int, int, int]], asked: dict[str, Any]) -> tuple[HostTable, list[ComputeNode]]:
    nodes = [
        fleet.node(
            f"h{n}", vcpus=vcpus, memory_mb=gib * 1024, failed_builds=float(failed), resources={"CUSTOM_GPU": gpus} if gpus else {}
        )
        for n, (vcpus, _, gib, failed, gpus) in enumerate(hosts)
    ]
    if asked["nodes"]:  # of two sizes, on two of three hosts
        for n in range(len(nodes)):
            vcpus, memory_mb = nodes[n].vcpus // 3, nodes[n].memory_mb // 3
            parts = (vcpus, memory_mb), (nodes[n].vcpus - vcpus, nodes[n].memory_mb - memory_mb)
            numa_nodes = tuple(HostNumaNode(vcpus=cpus, memory_mb=mib) for cpus, mib in parts) if n % 3 else ()
            nodes[n] = msgspec.structs.replace(nodes[n], numa_nodes=numa_nodes)
    some = tuple(node.host for node in nodes[::2])
    metadata: dict[str, str] = {}
    if asked["multiplier"]:
        metadata["ram_weight_multiplier"] = "-0.7"
    if asked["ratio"]:
        metadata["cpu_allocation_ratio"] = "0.8"
    made = fleet.table(nodes, dict.fromkeys(some, "z"), [Aggregate(id=1, name="a", hosts=some, metadata=metadata)])
    for n, (node, (_, claimed, *_)) in enumerate(zip(nodes, hosts, strict=True)):
        made.set_inventory(fleet.inventory(n + 1, node, fleet.CELLS[n % 2], 2, used_vcpus=claimed, instances=claimed), now=0.0)
    return made, nodes


def recorded(
    hosts: list[tuple[int, int, int, int, int]], asked: dict[str, Any], options: dict[str, Any], count: int, others: int
) -> tuple[RequestSpec, Decision]:
    """A decision, after others of the same transaction, as it is read from the database."""
    table, nodes = varied(hosts, asked)
    flavor = fleet.flavor_asking({"CUSTOM_GPU": 1}, fleet.flavor(asked["vcpus"])) if asked["gpu"] else fleet.flavor(asked["vcpus"])
    group = fleet.group(asked["policy"], most=2) if asked["policy"] and options["driver"] != "chance" else None
    spec = fleet.spec(flavor, group=group, availability_zone="z" if asked["zone"] else None)
    jobs = [*(job(fleet.spec(), 1) for _ in range(others)), job(spec, count)]
    made = attempt(table, jobs, driver=fleet.driver(**options))
    slots = [Slot(group_uuid=group.uuid, instance_uuid=f"m{n}", host=f"h{n}") for n in asked["members"]] if group else []
    wanted = begun(made, jobs, slots)
    rows = {
        n + 1: fleet.inventory(n + 1, node, fleet.CELLS[n % 2], 2, used_vcpus=hosts[n][1], instances=hosts[n][1])
        for n, node in enumerate(nodes)
    }
    if wanted:
        made.confirm_locked([rows[key] for key in sorted(wanted)])
    decision = made.finish_plan()[1][-1]
    return spec, stored.load_text(stored.dump_value(decision), Decision)


@given(REPLAYED, ASKED, CONFIGURATIONS, st.integers(1, 4), st.integers(0, 2))
@examples(400, least=60)
def test_a_record_is_all_it_takes(
    hosts: list[tuple[int, int, int, int, int]], asked: dict[str, Any], options: dict[str, Any], count: int, others: int
) -> None:
    spec, decision = recorded(hosts, asked, options, count, others)
    if not any(choice.host for choice in decision.choices):
        assert decision.basis is None
        with pytest.raises(errors.Invalid, match="is a refusal"):
            replay_decision(decision, spec, CELL_UUIDS)
        return
    again = replay_decision(decision, spec, CELL_UUIDS)
    assert again.is_same, (again.servers, again.reasons)
    assert again.settings == ()
    assert again.servers[0].certain
    assert again.servers[0].now == decision.choices[0].host
    assert len(stored.dump_value(decision.basis)) < 3000
    if count == 1:
        assert len(stored.dump_value(decision)) < 4500


@given(REPLAYED, ASKED, CONFIGURATIONS, st.sampled_from([1.0, -1.0, 3.0]), st.sampled_from([1.0, -2.0]), st.integers(1, 3))
@examples(400, least=60)
def test_other_weights_replay_like_a_scheduler_configured_so(
    hosts: list[tuple[int, int, int, int, int]], asked: dict[str, Any], options: dict[str, Any], ram: float, cpu: float, subset: int
) -> None:
    """Where all hosts are kept, and weighers and filters are the same ones."""
    options |= {"driver": "filter", "host_subset_size": 1, "ram_weight_multiplier": 0.5}
    hosts = hosts[:5]
    spec, decision = recorded(hosts, asked, options, 1, 0)
    if decision.basis is None:
        return
    other = options | {"ram_weight_multiplier": ram, "cpu_weight_multiplier": cpu, "host_subset_size": subset}
    table, _ = varied(hosts, asked)
    driver = fleet.driver(**other)
    slots = [Slot(group_uuid=spec.group.uuid, instance_uuid=f"m{n}", host=f"h{n}") for n in asked["members"]] if spec.group else []
    request = fleet.request(spec, table, slots, seed=decision.seed)
    with table.take_tentatively():
        [row] = engine.choose_rows(table, driver, request, survey(table, driver, request), 1)
    again = replay_decision(decision, spec, CELL_UUIDS, SchedulerSettings(**other))
    assert again.servers[0].now == table.hosts[row], (again, decision)
    assert {name for name, _, _ in again.settings} == {name for name in other if other[name] != options[name]}
    if again.servers[0].now != again.servers[0].then:
        assert again.reasons


def test_the_difference_is_named() -> None:
    hosts = [(6, 0, 1, 0, 0), (3, 0, 4, 0, 0)]
    options: dict[str, Any] = {"cpu_weight_multiplier": 3.0, "driver": "filter"}
    spec, decision = recorded(hosts, PLAIN, options, 1, 0)
    settings = SchedulerSettings(cpu_weight_multiplier=0.5)
    again = replay_decision(decision, spec, CELL_UUIDS, settings)
    assert [(server.then, server.now) for server in again.servers] == [("h0", "h1")]
    assert again.settings == (("cpu_weight_multiplier", 3.0, 0.5),)
    assert again.reasons[0] == "h1 scores 2.2500, h0 1.7500."
    assert "CPUWeigher adds 0.2500 to h1, 0.5000 to h0: -0.2500." in again.reasons
    refusing = SchedulerSettings(enabled_filters=(*DEFAULT_FILTERS, "NumInstancesFilter"), max_instances_per_host=0)
    [first, *_] = replay_decision(decision, spec, CELL_UUIDS, refusing).reasons
    assert first == "h0 is refused by NumInstancesFilter (too many instances)."


def test_a_newly_enabled_filter_sees_the_current_host() -> None:
    hosts = [(6, 0, 1, 0, 0), (3, 0, 1, 0, 0)]
    spec, decision = recorded(hosts, PLAIN, {"enabled_filters": ("RamFilter", "CoreFilter")}, 1, 0)
    rented = [Aggregate(id=1, name="rented", hosts=("h0",), metadata={"filter_tenant_id": "bank"})]
    settings = SchedulerSettings(enabled_filters=("RamFilter", "CoreFilter", "AggregateMultiTenancyIsolation"))
    again = replay_decision(decision, spec, CELL_UUIDS, settings, aggregates=rented)
    assert [(server.then, server.now) for server in again.servers] == [("h0", "h1")]
    assert again.reasons[0].startswith("h0 is refused by AggregateMultiTenancyIsolation")


def test_a_batch_that_was_packed_is_replayed_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = [(8, claimed, 8, 0, 0) for claimed in (5, 4, 3, 6)], PLAIN, PACKING, 4, 0
    spec, decision = recorded(*asked)
    assert decision.basis is not None
    assert decision.basis.terms == {"LeftoverWeigher": (1.0, 1 / 64)}
    servers = replay_decision(decision, spec, CELL_UUIDS).servers
    assert all(server.certain and server.now == server.then for server in servers)
    monkeypatch.setattr(decision_record, "RECOMPUTED", decision_record.RECOMPUTED - {LeftoverWeigher})
    spec, decision = recorded(*asked)
    assert decision.basis is not None
    older = msgspec.structs.replace(decision, basis=msgspec.structs.replace(decision.basis, terms={}))  # of the last release
    assert set(decision.basis.raws) == {"LeftoverWeigher"}
    servers = replay_decision(older, spec, CELL_UUIDS).servers
    assert [server.certain for server in servers] == [True, False, False, False]
    assert servers[0].now == servers[0].then


def test_a_packing_decision_with_stripes_is_replayed() -> None:
    """The best host of all is of the other stripe: only with the weight of then is the chosen one the best again."""
    hosts = [(8, 5, 8, 0, 0), (8, 7, 8, 0, 0), (8, 4, 8, 0, 0)]
    table, _ = varied(hosts, PLAIN)
    spec = fleet.spec()
    decision = decided(table, with_stripe(fleet.driver(**PACKING), 1, 2), spec, 1)
    [choice] = decision.choices
    assert choice.host == "h0"
    assert decided(table, fleet.driver(**PACKING), spec, 1).choices[0].host == "h1"
    [server] = replay_decision(decision, spec, CELL_UUIDS).servers
    assert (server.certain, server.now) == (True, "h0")
    assert [each.parts["Stripe"] for each in decision.candidates] == [1000.0, 1000.0, 0.0]


def test_a_record_has_settings_differing_from_the_first() -> None:
    spreading = SchedulerSettings(enabled_weighers=SPREADING_WEIGHERS, leftover_from=0.0)
    assert kept_settings(spreading) == {}
    assert settings_of({}) == spreading
    default = SchedulerSettings()
    assert kept_settings(default) == {"enabled_weighers": ("*", "LeftoverWeigher"), "leftover_from": 0.55}
    assert settings_of(stored.load_text(stored.dump_value(kept_settings(default)), dict[str, Any])) == default


def test_incomplete_records_are_refused_in_one_sentence() -> None:
    spec, decision = recorded([(6, 0, 1, 0, 0)], PLAIN, {}, 1, 0)
    with pytest.raises(errors.Invalid, match="a release stored it that kept no hosts"):
        replay_decision(msgspec.structs.replace(decision, basis=None), spec, CELL_UUIDS)
    assert decision.basis is not None
    unset = msgspec.structs.replace(decision, basis=msgspec.structs.replace(decision.basis, settings=None))
    with pytest.raises(errors.Invalid, match="more settings than a record keeps"):
        replay_decision(unset, spec, CELL_UUIDS)
    assert replay_decision(unset, spec, CELL_UUIDS, SchedulerSettings()).notes
