"""A replay is deterministic, goes on as if it had not been interrupted, and counts what it refuses."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from lab import replay
from lab.demand import demand_of
from lab.figures import PolicyOutcome
from lab.fleet import read_fleet
from lab.replay import Checkpoint, TraceReplay
from lab.trace import open_trace
from objects import stored
from scheduler.framework.settings import SPREADING_WEIGHERS, SchedulerSettings
from tests.support.traces import HEADER, made_fleet, made_trace, replayed, write_lines

SERVERS = 600


def timeless(outcome: PolicyOutcome) -> PolicyOutcome:
    """Without the time that it took."""
    return msgspec.structs.replace(outcome, cpu_us=0.0)


def test_a_seed_gives_one_result(tmp_path: Path) -> None:
    trace, fleet = made_trace(tmp_path / "trace.csv", SERVERS), made_fleet(tmp_path / "fleet.csv", 9)
    first = timeless(replayed(trace, fleet, seed=3))
    assert timeless(replayed(trace, fleet, seed=3)) == first
    assert timeless(replayed(trace, fleet, seed=4)) != first
    assert first.rejected > 0


@pytest.mark.parametrize("more", [(), ("LeftoverWeigher",)])
def test_a_replay_goes_on_from_any_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: tuple[str, ...]) -> None:
    monkeypatch.setattr(replay, "CHECKPOINT_SERVERS", 100)
    settings = SchedulerSettings(enabled_weighers=(*SPREADING_WEIGHERS, *more))
    trace = open_trace(made_trace(tmp_path / "trace.csv", SERVERS))
    fleet = read_fleet(made_fleet(tmp_path / "fleet.csv", 9))
    demand = demand_of(trace, fleet)
    saved: list[str] = []

    def run(begun: Checkpoint) -> PolicyOutcome:
        made = TraceReplay(trace, fleet, demand, settings, 7, begun)
        return timeless(made.run(lambda checkpoint: saved.append(stored.dump_value(checkpoint)), lambda servers: None))

    whole = run(Checkpoint())
    for checkpoint in tuple(saved):
        assert run(stored.load_text(checkpoint, Checkpoint)) == whole
    assert len(saved) >= SERVERS // 100


def test_rejects_are_counted_by_reason(tmp_path: Path) -> None:
    day = 86400
    trace = write_lines(
        tmp_path / "trace.csv",
        HEADER,
        ["a,0,,4,8", "too many vcpus,0,,16,8", f"too much memory,0,{day},1,64", f"late,{2 * day},,16,8", f"end,{4 * day},,0,0"],
    )
    fleet = write_lines(tmp_path / "fleet.csv", "vcpus,memory_mb", ["8,16"])
    found = replayed(trace, fleet)
    assert (found.servers, found.rejected) == (5, 3)
    assert [(each.filter, each.servers, each.vcpu_days) for each in found.reasons] == [
        ("CoreFilter", 2, 96.0),
        ("RamFilter", 1, 1.0),
    ]
    assert found.vcpu_days_lost == pytest.approx(100 * 97 / (97 + 16))


def test_samples_tell_of_the_fleet(tmp_path: Path) -> None:
    """One of two hosts is half full of vCPUs and a quarter full of memory."""
    trace = write_lines(tmp_path / "trace.csv", HEADER, ["a,0,,4,4", "b,10,20,0,0"])
    fleet = write_lines(tmp_path / "fleet.csv", "count,vcpus,memory_mb,cell", ["1,8,16,one", "1,8,16,two"])
    found = replayed(trace, fleet)
    assert len(found.samples) == replay.SAMPLES
    first = found.samples[0]
    assert (first.vcpus, first.memory, first.running, first.empty_hosts) == (0.25, 0.125, 1, 1)
    assert sorted(first.hosts) == [0, 50]
    assert (first.stranded_vcpus, first.stranded_memory) == (0.0, 0.125)
    assert (first.imbalance, first.cell_imbalance) == (0.25, 0.25)
    assert found.samples[-1].running == 2


def test_groups_and_zones_are_honoured(tmp_path: Path) -> None:
    trace = write_lines(
        tmp_path / "trace.csv",
        f"{HEADER},group,policy,zone",
        [
            "a,0,5,1,1,g,anti-affinity,",
            "b,1,,1,1,g,anti-affinity,",
            "c,2,,1,1,g,anti-affinity,",
            "d,6,,1,1,g,anti-affinity,",
            "e,7,,1,1,,,north",
            "f,7,,1,1,,,nowhere",
        ],
    )
    fleet = write_lines(tmp_path / "fleet.csv", "vcpus,memory_mb,zone", ["8,8,north", "8,8,south"])
    found = replayed(trace, fleet)
    assert found.rejected == 2
    assert sorted(each.filter for each in found.reasons) == ["AvailabilityZoneFilter", "ServerGroupAntiAffinityFilter"]


def test_fault_domains_are_on_racks_of_their_own(tmp_path: Path) -> None:
    """Rack r1 has room for domain d1 alone, until its last server ends."""
    trace = write_lines(
        tmp_path / "trace.csv",
        f"{HEADER},group,policy,fault_domain",
        [
            "a,0,5,4,1,g,soft-affinity,d1",
            "b,1,5,4,1,g,soft-affinity,d1",
            "c,2,,4,1,g,soft-affinity,d2",
            "d,3,,1,1,g,soft-affinity,d3",
            "e,4,,1,1,g,soft-affinity,",
            "f,6,,1,1,g,soft-affinity,d3",
        ],
    )
    fleet = write_lines(tmp_path / "fleet.csv", "vcpus,memory_mb,rack", ["8,8,r1", "8,8,r2", "1,8,"])
    found = replayed(trace, fleet)
    assert [(each.filter, each.servers) for each in found.reasons] == [("ServerGroupRackFilter", 1)]


def test_builds_end_at_once(tmp_path: Path) -> None:
    """So IoOpsFilter, which limits the builds in progress of a host, lets all pass."""
    trace = write_lines(tmp_path / "trace.csv", HEADER, [f"{number},0,,1,1" for number in range(30)])
    fleet = write_lines(tmp_path / "fleet.csv", "vcpus,memory_mb", ["64,64"])
    settings = SchedulerSettings(enabled_filters=("RamFilter", "CoreFilter", "IoOpsFilter"))
    assert replayed(trace, fleet, settings).rejected == 0
