"""Hosts, binaries and processes with odd names: refused where they come in, and harmless where they were stored before."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from cells.discovery import discover_hosts
from cells.registry import CellRegistry, RegistrySettings
from conductor.cell_conductor import CellConductor
from db.api.deployment import host_mappings
from db.cell import services
from objects import errors
from objects.build import Report, ReportKind
from objects.cell import HostMapping
from objects.compute_node import ComputeNode
from objects.context import RequestContext
from objects.process import AGENT_BINARY, About
from tests.support.commands import Shell
from tests.support.databases import SERVERS, database_on
from tests.support.world import World, world, world_fixture

CONTEXT = RequestContext(request_id="req-test")
ODD = ("h1 ", " h1", "h\0", "h\n1", "\x1b]0;owned\x07", "\udcff", "", "x" * 256, "h/1", 7, None, ["h1"], {"a": 1})
ESCAPES = "\x1b]0;owned\x07\x1b[31mh"


cloud = world_fixture({"cell1": ["h1"]}, scope="module")


@pytest.fixture
def conductor(cloud: World) -> CellConductor:
    return cloud.cell_conductor("cell1")[0]


def report(**fields: Any) -> Report:
    known: dict[str, Any] = {"kind": ReportKind.ACCEPT, "instance_uuid": "u", "host": "h1", "fence": 1, "attempt": 1}
    known["builder"] = "h1:b"
    return Report(**known | fields)


@pytest.mark.parametrize("odd", ODD)
def test_a_cells_conductor_stores_no_odd_names(cloud: World, conductor: CellConductor, odd: Any) -> None:
    before = cloud.databases["cell1"].read(services.list_all)
    node = ComputeNode(host=odd, node=odd, vcpus=1, memory_mb=1, disk_gb=1)
    for call in (
        lambda: conductor.report_state(CONTEXT, odd, AGENT_BINARY, 1),
        lambda: conductor.report_state(CONTEXT, "h1", odd, 1),
        lambda: conductor.introduce(CONTEXT, odd, AGENT_BINARY, About(), 1.0),
        lambda: conductor.introduce(CONTEXT, "h1", odd, About(), 1.0),
        lambda: conductor.holdings(CONTEXT, odd),
        lambda: conductor.update_resource_stats(CONTEXT, node),
        lambda: conductor.report(CONTEXT, [report(host=odd)]),
        lambda: conductor.report(CONTEXT, [report(), report(instance_uuid=odd)]),
        lambda: conductor.build_instances(CONTEXT, [report(host=odd)]),
    ):
        with pytest.raises(errors.Invalid, match="a name has 1 to 255 letters"):
            call()
    assert cloud.databases["cell1"].read(services.list_all) == before


@pytest.mark.parametrize(("version", "pid", "uptime"), [(2**40, 1, 1.0), (-1, 1, 1.0), (1, 2**40, 1.0), (1, 1, math.nan)])
def test_numbers_that_no_column_holds_are_refused(conductor: CellConductor, version: int, pid: int, uptime: float) -> None:
    with pytest.raises(errors.Invalid, match="number"):
        say(conductor, version, pid, uptime)


def say(conductor: CellConductor, version: int, pid: int, uptime: float) -> None:
    conductor.report_state(CONTEXT, "h1", AGENT_BINARY, version)
    conductor.introduce(CONTEXT, "h1", AGENT_BINARY, About(pid=pid), uptime)


def test_what_a_process_says_of_itself_is_cleaned(cloud: World, conductor: CellConductor) -> None:
    conductor.introduce(CONTEXT, "h1", AGENT_BINARY, About(release="1\0\x1b" + "x" * 100, messages="y" * 100, pid=1), 1.0)
    [seen] = cloud.databases["cell1"].read(services.list_seen, AGENT_BINARY, "h1")
    assert seen.service.release is not None
    assert seen.service.release.startswith("1\N{REPLACEMENT CHARACTER}\N{REPLACEMENT CHARACTER}xxx")
    assert (len(seen.service.release.encode()), seen.service.messages) == (64, "y" * 13 + "...")


@pytest.mark.parametrize("server", SERVERS)
def test_host_names_the_server_equates_are_no_error(tmp_path: Path, server: str) -> None:
    with database_on(server, tmp_path, "api") as database:
        database.write(host_mappings.add_mappings, [HostMapping(host="h1", cell_uuid="c1")], 1.0)
        asked = [HostMapping(host=host, cell_uuid="c1") for host in ("h1", "h1 ", "H1", "h2")]
        elsewhere = database.write(host_mappings.add_mappings, asked, 1.0)
        there = {mapping.host for mapping in database.read(host_mappings.list_all)}
        assert there | {mapping.host for mapping in elsewhere} == {"h1", "h1 ", "H1", "h2"}


def test_hosts_with_stored_odd_names_are_not_mapped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with world(tmp_path, {"cell1": ["h1"]}) as cloud:
        cell = cloud.databases["cell1"]
        for host in (ESCAPES, "h1 "):
            cell.write(services.record_heartbeats, [services.Beat(host=host, binary=AGENT_BINARY)], 1.0)
        registry = CellRegistry(cloud.api, RegistrySettings())
        found = discover_hosts(registry, cloud.api)
        registry.close()
        assert len(found.refused) == 2
        assert {mapping.host for mapping in cloud.api.read(host_mappings.list_all)} == {"h1"}
        cell_uuid = cloud.api.read(host_mappings.cell_uuid_by_host)["h1"]
        cloud.api.write(host_mappings.add_mappings, [HostMapping(host=ESCAPES, cell_uuid=cell_uuid)], 1.0)
        shell = Shell(tmp_path, capsys)
        for form in ("", " -f value", " -f csv", " -f json", " -f yaml", " -f table"):
            out = shell.done(f"host list{form}")
            assert "owned" in out
            assert "\x1b" not in out
            assert "\x07" not in out
        assert "\x1b" not in shell("host discover").err
        outcome = shell.run("--state", str(tmp_path), "host", "delete", ESCAPES, "h1 ")
        assert "\x1b" not in outcome.err
        assert "owned" not in shell.done("host list")
