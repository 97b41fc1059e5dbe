"""The lower bound, on examples that can be worked out by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.demand import demand_of
from lab.figures import Demand
from lab.fleet import FleetHost
from lab.trace import open_trace
from tests.support.traces import HEADER, replayed, write_lines

DAY = 86400
FLEET = [FleetHost("a", 8, 80), FleetHost("b", 8, 80)]


def demanded(folder: Path, *lines: str) -> Demand:
    return demand_of(open_trace(write_lines(folder / "trace.csv", HEADER, lines)), FLEET)


def test_a_demand_that_fits_by_volume_loses_nothing(tmp_path: Path) -> None:
    found = demanded(tmp_path, f"a,0,{DAY},8,80", f"b,0,{DAY},8,80", f"c,{DAY},,8,80", f"d,{2 * DAY},,1,1")
    assert (found.servers, found.begins, found.ends) == (4, 0.0, 2.0 * DAY)
    assert (found.vcpu_days, found.memory_days) == (24.0, 240.0)
    assert (found.peak_vcpus, found.peak_memory_mb) == (16, 160)
    assert (found.bound.rejected, found.bound.vcpu_days_lost, found.bound.memory_days_lost, found.bound.hosts) == (0, 0.0, 0.0, 2)


def test_what_is_beyond_the_capacity_is_lost(tmp_path: Path) -> None:
    """Of 20 vCPUs, 16 fit for one day: a fifth is lost, and with it a server of 8 or two of 2."""
    found = demanded(tmp_path, "a,0,,8,8", "b,0,,8,8", "c,0,,2,2", "d,0,,2,2", f"e,{DAY},,0,0")
    assert found.bound.vcpu_days_lost == pytest.approx(20.0)
    assert found.bound.rejected == 1
    assert found.bound.hosts == 3


def test_short_memory_costs_vcpus_of_the_cheapest_servers(tmp_path: Path) -> None:
    """40 of 200 MiB are too many. The cheapest have 1 vCPU for 50 MiB: 0.8 of 10 vCPUs."""
    found = demanded(tmp_path, "a,0,,4,50", "b,0,,4,50", "c,0,,1,50", "d,0,,1,50", f"e,{DAY},,0,0")
    assert found.bound.memory_days_lost == pytest.approx(20.0)
    assert found.bound.vcpu_days_lost == pytest.approx(8.0)


def test_servers_before_the_window_count_from_its_beginning(tmp_path: Path) -> None:
    path = write_lines(
        tmp_path / "trace.csv",
        "vmId,tenantId,cores,ram,vmTypeId,starttime,endtime",
        ["1,t,4,1,0,-30,0.5", "2,t,4,1,0,1.0,inf"],
    )
    found = demand_of(open_trace(path), FLEET)
    assert (found.begins, found.ends, found.vcpu_days) == (0.0, DAY, 2.0)


def test_servers_that_end_in_the_moment_make_room(tmp_path: Path) -> None:
    trace = write_lines(tmp_path / "trace.csv", HEADER, [f"a,0,{DAY},16,1", f"b,{DAY},,16,1"])
    fleet = write_lines(tmp_path / "fleet.csv", "vcpus,memory_mb", ["16,16"])
    assert replayed(trace, fleet).rejected == 0


def test_servers_larger_than_every_host_are_lost(tmp_path: Path) -> None:
    """Of 25 vCPUs, the server of 9 fits on no host, and the others fill both."""
    found = demanded(tmp_path, "a,0,,9,1", "b,0,,8,1", "c,0,,8,1", f"d,{DAY},,0,0")
    assert found.bound.vcpu_days_lost == pytest.approx(100 * 9 / 25)
    assert (found.bound.rejected, found.peak_vcpus) == (1, 25)


def test_members_of_an_affinity_group_fill_one_host(tmp_path: Path) -> None:
    """Three of four members of 2 and 3 vCPUs fit into 8."""
    members = [f"m{number},0,,{vcpus},1,g,affinity" for number, vcpus in enumerate((3, 2, 3, 2))]
    others = ["e,0,5,8,1,g,affinity", "f,0,,1,1,h,affinity"]
    trace = write_lines(tmp_path / "trace.csv", f"{HEADER},group,policy", [*members, *others])
    assert demand_of(open_trace(trace), FLEET).bound.rejected == 1


def test_no_single_host_combines_the_largest_sizes(tmp_path: Path) -> None:
    """Of four members, one host has the vCPUs for four and memory for one, another for two and four."""
    members = [f"m{number},0,,2,2,g,affinity" for number in range(4)]
    trace = write_lines(tmp_path / "trace.csv", f"{HEADER},group,policy", members)
    fleet = [FleetHost("a", 8, 2), FleetHost("b", 4, 8), FleetHost("c", 4, 4)]
    assert demand_of(open_trace(trace), fleet).bound.rejected == 2


def test_a_trace_without_times_is_bounded_at_end(tmp_path: Path) -> None:
    header = "flavor_vcpus,flavor_ram,numa,strategy,group,domain"
    path = write_lines(tmp_path / "trace.csv", header, ["8,0,1,,,"] * 3)
    found = demand_of(open_trace(path, ("numa",)), FLEET)
    assert (found.bound.rejected, found.bound.vcpu_days_lost) == (1, None)
