"""The judge of ``make chaos`` sees every violation that is planted, and takes no fault for an excuse that is none."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from chaos.judge import ChaosJudge, overfull_hosts
from chaos.plan import GIANT, MISSING_IMAGE, Boot
from chaos.schedule import Kind
from chaos.weather import Incident, Weather
from cli.standalone.demo.boots import Expected, GroupPlan
from cli.standalone.demo.evidence import Evidence, InstanceState, at_rest
from cli.standalone.demo.verdict import AcceptedBoot, Case
from compute.driver import Guest
from db.audit.quotas import Drift
from deploy.local.shape import Shape
from objects.group import GroupPolicy
from objects.instance import Attempt, Failure, FailureClass, Instance, Server, State
from objects.operation import Operation, OperationKind, OperationState, Outcome
from objects.quota import QuotaUsage
from objects.task import Power, TaskState

SHAPE = Shape(agents=3)
NOW = 10_000.0
WEB = Boot(number=1, at=0.0, count=2)
HOST, OTHER = "cell1-host1", "cell2-host2"
FIRST, SECOND = "uuid-1-0", "uuid-1-1"
CALM = Weather(SHAPE, ())


def taken(boot: Boot) -> AcceptedBoot:
    uuids = tuple(f"uuid-{boot.number}-{index}" for index in range(boot.count))
    return AcceptedBoot(boot=boot, uuids=uuids, at=NOW - 100)


def case(*boots: Boot, deleted: tuple[str, ...] = ()) -> Case:
    return Case(taken=tuple(taken(boot) for boot in boots), deleted=frozenset(deleted))


def server(uuid: str, name: str, state: str = "active", **values: Any) -> Server:
    common: dict[str, Any] = {"batch_id": "b", "project_id": "chaos", "user_id": "u", "created_at": NOW - 100, "updated_at": NOW}
    return Server(uuid=uuid, name=name, state=state, **common, **values)


def row(uuid: str, state: State = State.ACTIVE, host: str | None = HOST, cell: str = "cell1", **values: Any) -> InstanceState:
    return InstanceState(cell=cell, instance=Instance(uuid=uuid, state=state, fence=1, host=host, **values))


def good(*boots: Boot, host: str = HOST) -> Evidence:
    """Every server of these boots runs on one host."""
    named = [pair for boot in boots for pair in zip(taken(boot).uuids, boot.server_names(), strict=True)]
    return Evidence(
        servers=tuple(server(uuid, name) for uuid, name in named),
        requests=0,
        claims={uuid: host for uuid, _ in named},
        charged={host: len(named)},
        claimed={host: len(named)},
        memory_used={},
        rows=tuple(row(uuid, host=host) for uuid, _ in named),
        guests={host: tuple(uuid for uuid, _ in named)},
    )


def failed(
    fault: str, *history: Attempt, boot: Boot | None = None, cell: str = "cell1", host: str | None = HOST
) -> tuple[Boot, Evidence]:
    """One server in ERROR."""
    boot = boot or Boot(number=1, at=0.0)
    (uuid,), (name,) = taken(boot).uuids, boot.server_names()
    ended = row(uuid, State.ERROR, cell=cell, host=host, fault=fault, history=history)
    empty: dict[str, Any] = {"claims": {}, "charged": {}, "claimed": {}, "guests": {}}
    return boot, msgspec.structs.replace(good(boot), servers=(server(uuid, name, "error"),), rows=(ended,), **empty)


def attempt(kind: FailureClass = FailureClass.HOST, error: str = "HostDown", host: str = HOST, number: int = 1) -> Attempt:
    failure = Failure(kind=kind, error=error, message="so it was", at=NOW)
    return Attempt(number=number, host=host, node=host, failure=failure)


def found(case: Case, evidence: Evidence, weather: Weather = CALM) -> list[str]:
    return [violation.message for violation in ChaosJudge(case, evidence, weather).list_violations()]


def hit(kind: Kind, target: str, seconds: float, ended: float = NOW) -> Weather:
    return Weather(SHAPE, [Incident(kind=kind, target=target, began=ended - seconds, ended=ended)])


def without(evidence: Evidence, uuid: str) -> tuple[Server, ...]:
    return tuple(server for server in evidence.servers if server.uuid != uuid)


def operation(kind: OperationKind, state: OperationState, outcome: Outcome | None = None, host: str = HOST) -> Operation:
    """Of the server FIRST, from this host."""
    times: dict[str, Any] = {"created_at": NOW - 50, "updated_at": NOW - 40, "deadline": NOW + 100}
    asked: dict[str, Any] = {"project_id": "chaos", "user_id": "u", "request_id": "r", "power_before": Power.ON, "number": 4}
    bodies: dict[str, Any] = {"source_uuid": FIRST, "twin_uuid": "uuid-twin", "source_host": host}
    return Operation(uuid="op", server_uuid=FIRST, kind=kind, state=state, outcome=outcome, **times, **asked, **bodies)


GOOD = good(WEB)
DOUBLE = server("uuid-9", "chaos-1-1")
PLANTED = {
    "lost": ({"servers": without(GOOD, SECOND)}, "chaos-1-2: 1 servers were accepted, 0"),
    "twice": ({"servers": (*GOOD.servers, DOUBLE)}, "chaos-1-1: 1 servers were accepted, 2"),
    "never asked for": ({"servers": (*GOOD.servers, server("uuid-9", "stranger"))}, "stranger: 0 servers were accepted, 1"),
    "no row": ({"rows": (row(FIRST),)}, "should be in a cell, is in none"),
    "stuck": ({"rows": (row(FIRST), row(SECOND, State.SCHEDULED))}, "has not ended, is scheduled"),
    "deleted by nobody": (
        {"servers": (*without(GOOD, SECOND), server(SECOND, "chaos-1-2", "deleted", deleted=True))},
        "nobody deleted it",
    ),
    "summary": ({"servers": (*without(GOOD, SECOND), server(SECOND, "chaos-1-2", "building"))}, "building in its summary"),
    "rows in two cells": ({"rows": (*GOOD.rows, row(SECOND, cell="cell2"))}, "rows in several cells"),
    "claim lost": ({"claims": {FIRST: HOST}}, f"{SECOND}: claim on None, instance on {HOST}"),
    "claim elsewhere": ({"claims": {FIRST: HOST, SECOND: OTHER}}, f"{SECOND}: claim on {OTHER}"),
    "claim left over": ({"claims": {**GOOD.claims, "uuid-9": OTHER}}, f"uuid-9: claim on {OTHER}, instance on None"),
    "charged too much": ({"charged": {HOST: 3}}, "3 vCPUs charged, 2 claimed"),
    "guest lost": ({"guests": {HOST: (FIRST,)}}, f"{SECOND}: guests on []"),
    "guest left over": ({"guests": {**GOOD.guests, OTHER: ("uuid-9",)}}, "uuid-9: guests on"),
    "guest twice on a host": ({"guests": {HOST: (FIRST, SECOND, SECOND)}}, f"{SECOND}: guests on ['{HOST}', '{HOST}']"),
    "guest in two places": ({"guests": {**GOOD.guests, OTHER: (SECOND,)}}, f"{SECOND}: guests on"),
    "disk left over": ({"disks": {HOST: (FIRST, SECOND), OTHER: (FIRST,)}}, f"{FIRST}: disks on"),
    "disk of nobody": ({"disks": {HOST: (FIRST, SECOND, "uuid-9")}}, "uuid-9: disks on"),
    "copy left over": ({"disks": {HOST: (FIRST, SECOND, f"{FIRST}.part")}}, f"{FIRST}.part: disks on"),
    "resize not confirmed": ({"operations": (operation(OperationKind.RESIZE, OperationState.VERIFY),)}, f"{FIRST}: its resize"),
    "torn disk": ({"spoiled": {FIRST: "its disk is a torn copy"}}, f"{FIRST}: its disk is a torn copy"),
    "request left over": ({"requests": 1}, "1 build requests are left"),
    "quota": (
        {"drifts": (Drift(project_id="chaos", used=QuotaUsage(instances=3), counted=QuotaUsage(instances=2)),)},
        "project chaos",
    ),
}


TOGETHER = Boot(number=1, at=0.0, count=2, simulated=f"abort:{HOST}", expected=Expected.TOGETHER, all_or_nothing=True)
CULPRIT = "Build of instance uuid-1-0 aborted: so it was"
ROLLED_BACK = f"Rolled back: server chaos-1-1 (uuid-1-0) of its all-or-nothing batch failed: {CULPRIT}"


def together(*faults: str | None) -> Evidence:
    """The servers of TOGETHER, ACTIVE where there is no fault."""
    rows, servers = [], []
    for uuid, name, fault in zip(taken(TOGETHER).uuids, TOGETHER.server_names(), faults, strict=True):
        history = (attempt(FailureClass.REQUEST, "BuildAborted"),) if fault == CULPRIT else ()
        rows.append(row(uuid, State.ERROR, fault=fault, history=history) if fault else row(uuid))
        servers.append(server(uuid, name, "error" if fault else "active"))
    active = tuple(each.instance.uuid for each in rows if each.instance.state is State.ACTIVE)
    return msgspec.structs.replace(
        good(TOGETHER),
        servers=tuple(servers),
        rows=tuple(rows),
        claims=dict.fromkeys(active, HOST),
        charged={HOST: len(active)} if active else {},
        claimed={HOST: len(active)} if active else {},
        guests={HOST: active} if active else {},
    )


@pytest.mark.parametrize("faults", [(None, None), (CULPRIT, ROLLED_BACK), (CULPRIT, CULPRIT)])
def test_an_all_or_nothing_batch_is_right(faults: tuple[str | None, ...]) -> None:
    assert found(case(TOGETHER), together(*faults)) == []


@pytest.mark.parametrize("faults", [(CULPRIT, None), (None, ROLLED_BACK), (ROLLED_BACK, ROLLED_BACK)])
def test_a_partial_or_unexplained_failed_batch_is_wrong(faults: tuple[str | None, ...]) -> None:
    assert any("stand or fall together" in what for what in found(case(TOGETHER), together(*faults)))


def test_an_expected_outcome_is_no_violation() -> None:
    assert found(case(WEB), GOOD) == []


def test_all_is_at_rest_only_without_running_tasks() -> None:
    busy = server(SECOND, "chaos-1-2", task_number=4, task_state=TaskState.ORDERED)
    assert at_rest(GOOD)
    assert not at_rest(msgspec.structs.replace(GOOD, servers=(*without(GOOD, SECOND), busy)))


@pytest.mark.parametrize(("planted", "told"), PLANTED.values(), ids=PLANTED)
def test_every_planted_violation_is_found(planted: dict[str, Any], told: str) -> None:
    whats = found(case(WEB), msgspec.structs.replace(GOOD, **planted))

    assert [what for what in whats if told in what], whats


def test_a_violation_includes_the_records_of_its_server() -> None:
    evidence = msgspec.structs.replace(GOOD, rows=(row(FIRST), row(SECOND, State.BUILDING, history=(attempt(),))))
    (violation,) = ChaosJudge(case(WEB), evidence, CALM).list_violations()

    story = "\n".join(violation.story)
    assert SECOND in violation.message
    for told in (
        "mapping: chaos-1-2",
        "row in cell1: building",
        "attempt 1 on cell1-host1",
        f"claim on {HOST}",
        f"guests on ['{HOST}']",
    ):
        assert told in story


def test_a_deleted_server_must_be_gone() -> None:
    gone = server(SECOND, "chaos-1-2", "deleted", deleted=True)
    kept = good(Boot(number=1, at=0.0))
    right = msgspec.structs.replace(
        kept,
        servers=(server(FIRST, "chaos-1-1"), gone),
        rows=(row(FIRST), row(SECOND, State.DELETED)),
    )

    assert found(case(WEB, deleted=(SECOND,)), right) == []
    assert "should be deleted, is active" in found(case(WEB, deleted=(SECOND,)), GOOD)[0]
    half = msgspec.structs.replace(gone, state="active")
    assert found(case(WEB, deleted=(SECOND,)), msgspec.structs.replace(right, servers=(right.servers[0], half)))


EXHAUSTED = "Exceeded maximum number of attempts (3)."
SCRIPTED = attempt(error="BuildFailed")
UNSCRIPTED = [
    (EXHAUSTED, (attempt(error="BuildFailed"),)),
    (EXHAUSTED, (attempt(),)),
    (EXHAUSTED, (attempt(FailureClass.NO_ROOM, "NoRoom"),)),
    (EXHAUSTED, (attempt(error="SpawnTimeout"),)),
    ("Build timed out in building.", (attempt(FailureClass.DEADLINE, "BuildTimeout"),)),
    ("No valid host was found. There are not enough hosts available.", ()),
    ("Build timed out in scheduling.", ()),
    ("", ()),
]


def test_a_full_host_is_explained_by_unclaimed_retries() -> None:
    full = attempt(FailureClass.NO_ROOM, "NoRoom", number=1)
    boot, evidence = failed(EXHAUSTED, full, attempt(FailureClass.NO_ROOM, "NoRoom", number=2))
    assert found(case(boot), evidence), "nothing explains why the first host was full"

    retried = row("ffffffff-0000-4000-8000-000000000000", host=full.host, attempt=2)
    crowded = msgspec.structs.replace(evidence, rows=(*evidence.rows, retried))
    assert not [violation for violation in found(case(boot), crowded) if "without a cause" in violation]


@pytest.mark.parametrize(("fault", "history"), UNSCRIPTED)
def test_an_error_without_a_cause_is_a_violation(fault: str, history: tuple[Attempt, ...]) -> None:
    boot, evidence = failed(fault, *history)

    assert "without a cause" in found(case(boot), evidence)[0]


@pytest.mark.parametrize(
    ("boot", "fault", "history", "cell"),
    [
        (Boot(number=1, at=0.0, simulated="fail", expected=Expected.EXHAUSTED), EXHAUSTED, (SCRIPTED,) * 3, "cell1"),
        (
            Boot(number=1, at=0.0, simulated="hang", expected=Expected.EXHAUSTED),
            EXHAUSTED,
            (attempt(error="SpawnTimeout"),),
            "cell1",
        ),
        (
            Boot(number=1, at=0.0, simulated="abort", expected=Expected.ABORTED),
            "Build of instance x aborted: told to",
            (attempt(FailureClass.REQUEST, "BuildAborted"),),
            "cell1",
        ),
        (
            Boot(number=1, at=0.0, image=MISSING_IMAGE, expected=Expected.ABORTED),
            "Image x is not in the store.",
            (attempt(FailureClass.REQUEST, "NotFound"),),
            "cell1",
        ),
        (Boot(number=1, at=0.0, flavor=GIANT, expected=Expected.NO_VALID_HOST), "No valid host was found. None.", (), "cell0"),
    ],
)
def test_a_scripted_error_is_right_and_required(boot: Boot, fault: str, history: tuple[Attempt, ...], cell: str) -> None:
    _, evidence = failed(fault, *history, boot=boot, cell=cell)

    assert found(case(boot), evidence) == []
    assert "is ACTIVE" in found(case(boot), good(boot))[0]


FAR = "cell2"
EXCUSED = {
    "host stopped": (EXHAUSTED, (attempt(),), hit(Kind.STOP, HOST, 35)),
    "host called dead": (EXHAUSTED, (attempt(),), hit(Kind.HOST, HOST, 1)),
    "cell frozen": (EXHAUSTED, (attempt(),), hit(Kind.FREEZE, "cell1", 25)),
    "cell's bus cut": (EXHAUSTED, (attempt(),), hit(Kind.CUT, "cell1-bus", 25)),
    "broker": (EXHAUSTED, (attempt(),), hit(Kind.BROKER, "kill", 12, ended=NOW - 20)),
    "spawn stopped": (EXHAUSTED, (attempt(error="SpawnTimeout"),), hit(Kind.STOP, HOST, 12)),
    "agent killed": (EXHAUSTED, (attempt(FailureClass.RESTARTED, "AgentRestarted"),), hit(Kind.KILL, f"all {HOST}", 1)),
    "libvirt killed": (EXHAUSTED, (attempt(error="HypervisorDown"),), hit(Kind.LIBVIRT, f"kill {HOST}", 1)),
    "libvirt killed before the order was taken": (
        EXHAUSTED,
        (attempt(FailureClass.STOPPING, "Stopping"),),
        hit(Kind.LIBVIRT, f"kill {HOST}", 1),
    ),
    "QEMU killed": (EXHAUSTED, (attempt(error="BuildFailed"),), hit(Kind.GUEST, f"kill {HOST}", 1)),
    "late, its cell mute": (
        "Build timed out in building.",
        (attempt(FailureClass.DEADLINE, "BuildTimeout"),),
        hit(Kind.MUTE, "cell1", 25),
    ),
}


@pytest.mark.parametrize(("fault", "history", "weather"), EXCUSED.values(), ids=EXCUSED)
def test_an_action_explains_errors_in_its_scope_only(fault: str, history: tuple[Attempt, ...], weather: Weather) -> None:
    boot, evidence = failed(fault, *history)
    (incident,) = weather.incidents
    early = msgspec.structs.replace(incident, began=incident.began - 300, ended=incident.ended - 300)

    assert found(case(boot), evidence, weather) == []
    assert found(case(boot), evidence, Weather(SHAPE, [early])) != []
    if incident.kind is not Kind.BROKER:
        elsewhere = msgspec.structs.replace(incident, target=incident.target.replace("cell1", FAR))
        assert found(case(boot), evidence, Weather(SHAPE, [elsewhere])) != []


LATE = "Build timed out in building."
LATE_ATTEMPT = attempt(FailureClass.DEADLINE, "BuildTimeout")


def test_a_build_is_late_after_an_api_standstill() -> None:
    boot, evidence = failed(LATE, LATE_ATTEMPT)
    assert found(case(boot), evidence, hit(Kind.FREEZE, "api", 25, ended=NOW - 70)) == []
    assert found(case(boot), evidence, hit(Kind.FREEZE, "api", 25, ended=NOW - 120)) != [], "before it was asked for"


def test_a_stalled_machine_explains_delays_and_nothing_else() -> None:
    stalled = Weather(SHAPE, (), [(NOW - 30, NOW - 18)])
    boot, evidence = failed(LATE, LATE_ATTEMPT)
    assert found(case(boot), evidence, stalled) == []
    assert found(case(boot), evidence, Weather(SHAPE, (), [(NOW - 330, NOW - 318)])) != []
    boot, evidence = failed(EXHAUSTED, attempt(FailureClass.RESTARTED, "AgentRestarted"))
    assert found(case(boot), evidence, stalled) != []


def test_no_valid_host_is_right_without_reachable_cells() -> None:
    boot, evidence = failed("No valid host was found. None are up.", cell="cell0", host=None)
    one = Incident(kind=Kind.CUT, target="cell1", began=NOW - 30, ended=NOW)
    other = msgspec.structs.replace(one, target="above-cell2")

    assert found(case(boot), evidence, Weather(SHAPE, [one])) != []
    assert found(case(boot), evidence, Weather(SHAPE, [one, other])) == []
    brief = msgspec.structs.replace(other, began=NOW - 3)
    assert found(case(boot), evidence, Weather(SHAPE, [one, brief])) != []


@pytest.mark.parametrize(("kind", "how"), [(Kind.LIBVIRT, "kill "), (Kind.HOST, ""), (Kind.STOP, "")])
def test_no_valid_host_is_right_if_all_refused(kind: Kind, how: str) -> None:
    boot, evidence = failed("No valid host was found. None are up.", cell="cell0", host=None)
    every = [Incident(kind=kind, target=f"{how}{host.name}", began=NOW - 40, ended=NOW) for host in SHAPE.list_hosts()]

    assert found(case(boot), evidence, Weather(SHAPE, every)) == []
    assert found(case(boot), evidence, Weather(SHAPE, every[1:])) != []


@pytest.mark.parametrize("kind", [Kind.HOST, Kind.DRAIN])
def test_an_affinity_group_fails_while_its_host_refuses(kind: Kind) -> None:
    boot = Boot(number=1, at=0.0, count=2, group=GroupPlan(name="g", policy=GroupPolicy.AFFINITY))
    ended = row(SECOND, State.ERROR, cell="cell0", host=None, fault="No valid host was found. None.")
    members = server(FIRST, "chaos-1-1"), server(SECOND, "chaos-1-2", "error")
    alone: dict[str, Any] = {"claims": {FIRST: HOST}, "charged": {HOST: 1}, "claimed": {HOST: 1}, "guests": {HOST: (FIRST,)}}
    evidence = msgspec.structs.replace(good(boot), servers=members, rows=(row(FIRST), ended), **alone)

    assert found(case(boot), evidence, hit(kind, HOST, 10)) == []
    assert "without a cause" in found(case(boot), evidence, hit(kind, OTHER, 10))[0]


def test_a_drained_host_was_not_out_of_reach() -> None:
    boot, evidence = failed(EXHAUSTED, attempt())

    assert found(case(boot), evidence, hit(Kind.DRAIN, HOST, 60)) != []


def test_incidents_that_overlap_are_counted_once() -> None:
    first = Incident(kind=Kind.FREEZE, target="cell1-bus", began=NOW - 30, ended=NOW - 20)
    second = Incident(kind=Kind.FREEZE, target="cell1-database", began=NOW - 28, ended=NOW - 18)

    assert Weather(SHAPE, [first, second]).cell_outage("cell1", NOW, 60) == 27  # the recovery after the second one included


def test_groups_must_be_together_or_apart() -> None:
    for policy in (GroupPolicy.AFFINITY, GroupPolicy.ANTI_AFFINITY):
        boot = Boot(number=1, at=0.0, count=2, group=GroupPlan(name="g", policy=policy))
        together = good(boot)
        apart = msgspec.structs.replace(
            together,
            claims={FIRST: HOST, SECOND: OTHER},
            charged={HOST: 1, OTHER: 1},
            claimed={HOST: 1, OTHER: 1},
            rows=(row(FIRST), row(SECOND, host=OTHER)),
            guests={HOST: (FIRST,), OTHER: (SECOND,)},
        )
        right, wrong = (together, apart) if policy is GroupPolicy.AFFINITY else (apart, together)

        assert found(case(boot), right) == []
        (what,) = found(case(boot), wrong)
        assert what.startswith("g should")


def test_members_remaining_on_evacuated_hosts_leave_their_group() -> None:
    boot = Boot(number=1, at=0.0, count=2, group=GroupPlan(name="g", policy=GroupPolicy.AFFINITY))
    apart = msgspec.structs.replace(
        good(boot),
        claims={FIRST: OTHER, SECOND: HOST},
        charged={HOST: 1, OTHER: 1},
        claimed={HOST: 1, OTHER: 1},
        rows=(row(FIRST, host=OTHER), row(SECOND)),
        guests={HOST: (SECOND,), OTHER: (FIRST,)},
    )
    for kind, right in ((OperationKind.EVACUATE, True), (OperationKind.MIGRATE, False)):
        evidence = msgspec.structs.replace(apart, history=(operation(kind, OperationState.ENDED, Outcome.DONE),))
        assert (found(case(boot), evidence) == []) is right


def test_hosts_must_not_hold_more_than_fits() -> None:
    guest = Guest(uuid="u", name="n", node="h", fence=1, attempt=1, builder="b", vcpus=2, memory_mb=64, disk_gb=0)

    assert list(overfull_hosts({"h": [guest, guest]}, (4, 128))) == []
    assert len(list(overfull_hosts({"h": [guest, guest]}, (3, 128)))) == 1
    assert len(list(overfull_hosts({"h": [guest, guest]}, (4, 127)))) == 1
