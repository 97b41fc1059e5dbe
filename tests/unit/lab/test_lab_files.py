"""Traces and fleets are read as they are documented, and everything else is refused with the line."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from lab.demand import demand_of
from lab.fleet import FleetHost, read_fleet, text_of_nodes
from lab.trace import FAULT_DOMAINS, NUMA, Arrival, open_trace
from objects import errors
from objects.group import GroupPolicy
from tests.support.traces import HEADER, write_lines

AZURE = "vmId,tenantId,cores,ram,vmTypeId,starttime,endtime"
HUAWEI = "flavor_vcpus,flavor_ram,numa,strategy,group,domain"


def arrivals(path: Path, ignored: tuple[str, ...] = ()) -> list[Arrival]:
    return list(open_trace(path, ignored).list_arrivals())


def test_a_plain_trace_has_columns_in_any_order(tmp_path: Path) -> None:
    path = write_lines(
        tmp_path / "trace.csv",
        "policy,group,zone,project,disk_gb,memory_mb,vcpus,end,start,id",
        ["anti-affinity,g,north,p,10,2048,2,7.5,5,a", ",,,,,4096,4.0,,6,b"],
    )
    assert arrivals(path) == [
        Arrival(2, "a", 5.0, 7.5, 2, 2048, 10, "p", "north", "g", GroupPolicy.ANTI_AFFINITY),
        Arrival(3, "b", 6.0, math.inf, 4, 4096),
    ]


def test_azure_days_are_seconds_here(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "trace.csv", AZURE, ["1,t,200.0,28.0,0,-2.0,inf", "2,t,100.0,14.0,1,0.5,1.5"])
    assert open_trace(path).begins == 0.0
    assert arrivals(path) == [
        Arrival(2, "1", -172800.0, math.inf, 200, 28, 0, "t"),
        Arrival(3, "2", 43200.0, 129600.0, 100, 14, 0, "t"),
    ]


def test_huawei_requests_come_in_file_order(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "trace.csv", HUAWEI, ["8,16,1,affinity,3,", "4,8,2,,,", "4,8,2,fault_domain,3,1"])
    first, second = (8, 16384, "affinity 3", GroupPolicy.AFFINITY, None), (4, 8192, "", None, None)
    third = (4, 8192, "fault_domain 3", GroupPolicy.SOFT_ANTI_AFFINITY, "1")
    for ignored, last in (((NUMA,), third), ((NUMA, FAULT_DOMAINS), second)):
        found = arrivals(path, ignored)
        assert [(each.vcpus, each.memory_mb, each.group, each.policy, each.fault_domain) for each in found] == [first, second, last]


def test_numa_nodes_need_hosts_that_have_some(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "trace.csv", HUAWEI, ["8,16,2,,,"])
    assert [each.numa_nodes for each in arrivals(path)] == [2]
    assert [each.numa_nodes for each in arrivals(path, (NUMA,))] == [1]
    with pytest.raises(errors.Invalid, match=r"line 2: asks for 2 NUMA nodes, and no host of the fleet has any; .*--ignore numa"):
        demand_of(open_trace(path), [FleetHost("h", 8, 16384)])
    for nodes, rejected in ((((4, 8192), (4, 8192)), 0), (((5, 8192), (3, 8192)), 1), (((8, 16384),), 1)):
        assert demand_of(open_trace(path), [FleetHost("h", 8, 16384, nodes=nodes)]).bound.rejected == rejected
    plain = write_lines(tmp_path / "plain.csv", f"{HEADER},numa_nodes", ["a,0,1,8,4,2", "b,0,1,8,4,"])
    assert [each.numa_nodes for each in arrivals(plain)] == [2, 1]


def test_fault_domains_need_racks(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "trace.csv", HUAWEI, ["1,1,1,fault_domain,0,1"])
    with pytest.raises(errors.Invalid, match=r"line 2: .*no host of the fleet is in a rack; give --racks"):
        demand_of(open_trace(path, (NUMA,)), [FleetHost("h", 8, 8192)])
    assert demand_of(open_trace(path, (NUMA,)), [FleetHost("h", 8, 8192, rack="r")]).servers == 1
    assert demand_of(open_trace(path, (NUMA, FAULT_DOMAINS)), [FleetHost("h", 8, 8192)]).servers == 1


@pytest.mark.parametrize(
    ("header", "lines", "text"),
    [
        (HEADER, ["a,5,6,1,1", "b,4,6,1,1"], "line 3: begins before"),
        (HEADER, ["a,0,1,1,1", "b,0,1,1"], "line 3: has 4 values for 5 columns"),
        (HEADER, ["a,0,1,1,1,1"], "line 2: has 6 values"),
        (HEADER, ["a,0,1,half,1"], "line 2: vcpus: 'half' is not a whole number"),
        (HEADER, ["a,0,1,0.5,1"], "line 2: vcpus: '0.5' is not a whole number"),
        (HEADER, ["a,0,1,-1,1"], "line 2: vcpus: '-1' is not a whole number"),
        (HEADER, ["a,0,1,nan,1"], "line 2: vcpus: 'nan' is not a whole number"),
        (HEADER, ["a,0,1,inf,1"], "line 2: vcpus: 'inf' is not a whole number"),
        (HEADER, ["a,0,1,99999999999,1"], "line 2: vcpus: '99999999999' is not a whole number"),
        (HEADER, ["a,nan,1,1,1"], "line 2: start: 'nan' is not a time"),
        (HEADER, ["a,inf,inf,1,1"], "line 2: start: 'inf' is not a time"),
        (HEADER, ["a,,1,1,1"], "line 2: start: '' is not a time"),
        (HEADER, ["a,noon,1,1,1"], "line 2: start: 'noon' is not a time"),
        (HEADER, ["a,2,1,1,1"], "line 2: end: 1 is before start, 2"),
        (HEADER, ['a,0,1,"1,1'], "line 2: is not CSV"),
        (HEADER, [], "has no servers"),
        (f"{HEADER},colour", ["a,0,1,1,1,red"], "line 1: the column 'colour' is unknown. Columns: id, start"),
        ("id,start,end,vcpus", ["a,0,1,1"], "line 1: the column 'memory_mb' is missing"),
        (f"{HEADER},id", ["a,0,1,1,1,a"], "line 1: the column 'id' is there twice"),
        (f"{HEADER},group,policy", ["a,0,1,1,1,g,"], "line 2: a server has both a group and a policy"),
        (f"{HEADER},group,policy", ["a,0,1,1,1,g,near"], "line 2: policy: 'near' is not one of affinity"),
        (f"{HEADER},group,policy", ["a,0,1,1,1,g,affinity", "b,0,1,1,1,g,anti-affinity"], "line 3: policy: group 'g' has the"),
        (HEADER.replace(",", ";"), [], "the column 'id' is missing; commas separate columns, and this line has semicolons"),
        (f"{HEADER},numa_nodes", ["a,0,1,3,4,2"], "line 2: numa_nodes: 3 vCPUs and 4 MiB cannot be divided equally among 2 nodes"),
        (HUAWEI, ["8,16,1,near,1,"], "line 2: strategy: 'near' is not one of"),
        (HUAWEI, ["8,16,1,fault_domain,1,"], "line 2: domain: is missing"),
        (f"{HEADER},fault_domain", ["a,0,1,1,1,d"], "line 2: fault_domain: is of a server in a group"),
        (f"{HEADER},group,policy,fault_domain", ["a,0,1,1,1,g,affinity,d"], "line 2: fault_domain: is of a server in a group"),
    ],
)
def test_a_broken_trace_is_refused_with_the_line(tmp_path: Path, header: str, lines: list[str], text: str) -> None:
    path = write_lines(tmp_path / "trace.csv", header, lines)
    with pytest.raises(errors.Invalid) as refused:
        demand_of(open_trace(path), [FleetHost("h", 8, 8)])
    assert text in str(refused.value)
    assert str(path) in str(refused.value)


@pytest.mark.parametrize(("content", "text"), [(b"", "is empty"), (b"\xff\xfe\x00", "is not UTF-8 text")])
def test_a_file_that_is_no_table_is_refused(tmp_path: Path, content: bytes, text: str) -> None:
    path = tmp_path / "trace.csv"
    path.write_bytes(content)
    with pytest.raises(errors.Invalid, match=text):
        open_trace(path)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(errors.Invalid, match="cannot be read: No such file"):
        open_trace(tmp_path / "none.csv")


def test_a_fleet_lists_hosts_or_counts_them(tmp_path: Path) -> None:
    path = write_lines(
        tmp_path / "fleet.csv", "host,count,vcpus,memory_mb,disk_gb,cell,zone", ["a,,8,64,10,west,north", "b,2,4,32,,,"]
    )
    assert read_fleet(path) == [
        FleetHost("a", 8, 64, 10, "west", "north"),
        FleetHost("b-1", 4, 32),
        FleetHost("b-2", 4, 32),
    ]


def test_racks_come_from_the_fleet_or_a_file(tmp_path: Path) -> None:
    fleet = write_lines(tmp_path / "fleet.csv", "host,vcpus,memory_mb,rack", ["a,8,64,r1", "b,8,64,r2", "c,8,64,"])
    assert [host.rack for host in read_fleet(fleet)] == ["r1", "r2", None]
    racks = write_lines(tmp_path / "racks.csv", "rack_id,host_id", ["r3,B", "r4,z"])
    assert [host.rack for host in read_fleet(fleet, (), racks)] == ["r1", "r3", None]
    for header, lines, text in (
        ("host,rack", ["a,r1"], r"line 1: the column 'host_id' is missing. Columns: host_id, rack_id$"),
        ("host_id,rack_id", ["a,"], "line 2: a host or its rack is missing"),
        ("host_id,rack_id", ["a,r1", "A,r2"], "line 3: host A is in rack r1, too"),
        ("host_id,rack_id", ["z,r1"], "names no host of"),
    ):
        with pytest.raises(errors.Invalid, match=text):
            read_fleet(fleet, (), write_lines(tmp_path / "broken.csv", header, lines))


def test_a_huawei_host_has_two_nodes_or_one(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "fleet.csv", "CPU1,RAM1,CPU2,RAM2", ["16,32,32,64", "8,16,0,0"])
    added_up = [FleetHost("host-0", 48, 96 * 1024), FleetHost("host-1", 8, 16 * 1024)]
    assert read_fleet(path, (NUMA,)) == added_up
    nodes = ((16, 32 * 1024), (32, 64 * 1024)), ((8, 16 * 1024),)
    assert read_fleet(path) == [host._replace(nodes=each) for host, each in zip(added_up, nodes, strict=True)]


def test_a_fleet_says_which_nodes_a_host_has(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "fleet.csv", "vcpus,memory_mb,numa_nodes", ["8,64,2", "8,64,", "8,64,3:40 5:23"])
    nodes = [host.nodes for host in read_fleet(path)]
    assert nodes == [((4, 32), (4, 32)), (), ((3, 40), (5, 23))]
    assert [host.nodes for host in read_fleet(path, (NUMA,))] == [(), (), ()]
    again = write_lines(tmp_path / "again.csv", "vcpus,memory_mb,numa_nodes", [f"8,64,{text_of_nodes(each)}" for each in nodes])
    assert [host.nodes for host in read_fleet(again)] == nodes


@pytest.mark.parametrize(
    ("header", "lines", "text"),
    [
        ("vcpus", ["8"], "line 1: the column 'memory_mb' is missing"),
        ("cpus,memory_mb", ["8,8"], "line 1: the column 'vcpus' is missing"),
        ("vcpus,memory_mb,numa_nodes", ["8,9,2"], "line 2: numa_nodes: vcpus and memory_mb cannot be divided equally among 2"),
        (
            "vcpus,memory_mb,numa_nodes",
            ["8,9,4:4 5:4"],
            "line 2: numa_nodes: the nodes have more than the host's vcpus or memory_mb",
        ),
        ("vcpus,memory_mb,numa_nodes", ["8,9,4:4:4"], "line 2: numa_nodes: 4:4:4 is no list of vcpus:memory_mb"),
        ("vcpus,memory_mb,numa_nodes", ["8,9,4:x"], "line 2: numa_nodes: 'x' is not a whole number"),
        ("vcpus,memory_mb,row", ["8,8,1"], "line 1: the column 'row' is unknown"),
        ("vcpus,memory_mb", ["8"], "line 2: has 1 values for 2 columns"),
        ("vcpus,memory_mb", ["8,many"], "line 2: memory_mb: 'many' is not a whole number"),
        ("vcpus,memory_mb,count", ["8,8,0"], "line 2: count: '0' is not a whole number from 1"),
        ("vcpus,memory_mb,count", ["8,8,2000000"], "line 2: count: a fleet has at most 1000000 hosts"),
        ("host,vcpus,memory_mb", ["a,8,8", "A,8,8"], "line 3: host A is in line 2, too"),
        ("vcpus,memory_mb", [], "has no hosts"),
    ],
)
def test_a_malformed_fleet_is_refused_with_the_line(tmp_path: Path, header: str, lines: list[str], text: str) -> None:
    path = write_lines(tmp_path / "fleet.csv", header, lines)
    with pytest.raises(errors.Invalid) as refused:
        read_fleet(path)
    assert text in str(refused.value)
