"""``superconductor lab record``: the past of a real deployment is a trace that is replayed on its own hosts."""

from __future__ import annotations

import json
import time
from collections import Counter
from pathlib import Path

import pytest
import sqlalchemy as sa

from cells import administration
from db.api.claims import inventories
from db.api.rows import incarnation
from db.api.rows.ledger import Stamp
from db.api.rows.tables import host_mappings, instance_mappings, request_specs
from db.sql.connection import ApiTransaction
from db.sql.engine import Database
from lab.fleet import read_fleet
from lab.trace import Arrival, open_trace
from objects.compute_node import ComputeNode
from tests.functional.cli.test_cli_standalone import file_of
from tests.support import tombstones
from tests.support.cell_databases import Cells
from tests.support.commands import Operator, Shell, standalone
from tests.support.databases import sqlite_url
from tests.support.region import IMAGE

DAY = 86400.0


def trace_of(path: Path) -> list[Arrival]:
    return list(open_trace(path).list_arrivals())


def test_a_standalones_year_is_recorded_and_replayed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state, shell = tmp_path / "state", Shell(tmp_path / "state", capsys)
    trace, fleet, other = tmp_path / "trace.csv", tmp_path / "fleet.csv", tmp_path / "names.csv"
    with standalone(state, file_of(tmp_path, "")) as endpoint:
        user = Operator(shell, endpoint)
        group = shell.json("server group create apart --policy soft-anti-affinity --project admin")["uuid"]
        for number in (1, 2):
            shell.done(f"-q aggregate create rack{number} --property rack=row{number}")
            shell.done(f"-q aggregate add host rack{number} cell1-host{number}")
        user.json(f"server boot one --flavor m1.small --image {IMAGE} --wait")
        user.json(f"server boot two --flavor m1.small --image {IMAGE} --group {group} --zone nova --hint fault_domain=left --wait")
        user.json(f"server boot gone --flavor m1.tiny --image {IMAGE} --wait")
        shell.done("-q flavor create vast --vcpus 4096 --ram 512 --disk 1")
        assert user(f"server boot never --flavor vast --image {IMAGE} --wait").status == 1
        for line in ("migrate one", "resize two --flavor m1.medium", "resize two --confirm", "shelve one", "unshelve one"):
            assert user(f"server {line} --wait").status == 0, line
        assert user("server delete gone --wait").status == 0
        outcome = shell(f"lab record {trace} --fleet {fleet} -f json")
        assert outcome.err == "superconductor: 1 servers never became ACTIVE and are left out\n"
        told = json.loads(outcome.out)
        shell(f"-q lab record {other} --fleet {tmp_path / 'named.csv'} --with-names")

    arrivals, named = trace_of(trace), trace_of(other)
    assert (told["Servers"], told["Hosts"]) == (len(arrivals), 2)
    assert Counter((each.vcpus, each.memory_mb, each.disk_gb, each.end < float("inf")) for each in arrivals) == {
        (1, 512, 1, True): 1,  # gone
        (1, 2048, 20, True): 2,  # one until it was shelved, also on another host; two until it was resized
        (1, 2048, 20, False): 1,  # one from then on
        (2, 4096, 40, False): 1,  # two
    }
    [resized] = [each for each in arrivals if each.vcpus == 2]
    assert resized.name.endswith(".1")
    assert (resized.zone, str(resized.policy)) == ("nova", "soft-anti-affinity")
    assert (resized.group, resized.fault_domain) != (group, "left")
    assert {each.group for each in named} == {"", group}
    assert {each.fault_domain for each in named} == {None, "left"}
    assert len({each.project for each in arrivals}) == 1
    assert "admin" not in {each.project for each in arrivals}
    text = "".join(map(str, arrivals)) + fleet.read_text()
    assert not any(secret in text for secret in ("admin", "host1", "cell1", "left", "row1", group))
    hosts = read_fleet(tmp_path / "named.csv")
    assert [(host.name, host.vcpus, host.cell) for host in hosts] == [("cell1-host1", 64, "cell1"), ("cell1-host2", 64, "cell1")]

    outcome = shell(f"lab replay {trace} --fleet {fleet} -f json")
    [bound, replayed] = json.loads(outcome.out)
    assert (outcome.status, bound["Rejected"], replayed["Rejected"]) == (0, 0, 0)


class Site:
    """A state folder with two cells whose servers are rows only."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.shell = Shell(folder, capsys)
        self.folder = folder
        self.shell.done("db sync --api")
        for name in ("cell0 --cell0", "east", "west"):
            self.shell.done(f"cell create {name}")
        self.api = Database(sqlite_url(folder, "api"))
        self.cells = {name: Database(sqlite_url(folder, name)) for name in ("east", "west")}
        self.api.write(incarnation.advance_mark)
        for name in ("east", "west"):
            self.api.write(_host, f"{name}-host", self.uuid(name))

    def uuid(self, cell: str) -> str:
        return administration.find_cell(self.api, cell).uuid

    def leave(self, cell: str, count: int, days: float) -> list[str]:
        """Servers that ran for an hour."""
        when = time.time() - days * DAY
        uuids = tombstones.leave(self.api, self.cells[cell], self.uuid(cell), count, when)
        self.api.write(_ran, uuids, when - 3600.0)
        return uuids

    def record(self, options: str = "") -> list[Arrival]:
        self.shell.done(f"-q lab record {self.folder / 'trace.csv'} --fleet {self.folder / 'fleet.csv'} --with-names {options}")
        return trace_of(self.folder / "trace.csv")


def _host(tx: ApiTransaction, host: str, cell_uuid: str) -> None:
    tx.execute(sa.insert(host_mappings), {"host": host, "cell_uuid": cell_uuid, "created_at": 1.0})
    node = ComputeNode(host=host, node=host, vcpus=8, memory_mb=16384, disk_gb=100)
    inventories.set_inventory(tx, Stamp(1, 1), [node], cell_uuid)


def _ran(tx: ApiTransaction, uuids: list[str], start: float) -> None:
    mappings = instance_mappings
    tx.execute(sa.update(mappings).where(mappings.c.instance_uuid.in_(uuids)).values(mapped_at=start, launched_at=start + 5.0))


def _break(tx: ApiTransaction, uuid: str) -> None:
    batch = tx.execute(sa.select(instance_mappings.c.batch_id).where(instance_mappings.c.instance_uuid == uuid)).scalar_one()
    tx.execute(sa.update(request_specs).where(request_specs.c.batch_id == batch).values(spec="{"))


@pytest.fixture
def site(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Site:
    return Site(tmp_path, capsys)


def test_archives_are_read_and_each_server_counts_once(site: Site) -> None:
    old, young = site.leave("east", 3, 90.0), site.leave("west", 2, 10.0)
    assert [each.name for each in site.record()] == sorted(old) + sorted(young)
    site.shell.done("-q db archive --until-complete --max-rows 2")
    archive = site.folder / "archive"
    assert [each.name for each in site.record()] == sorted(young)
    assert [each.name for each in site.record(f"--archive {archive}")] == sorted(old) + sorted(young)
    again = f"--archive {archive} --archive {archive / 'api.jsonl'}"
    assert [each.name for each in site.record(again)] == sorted(old) + sorted(young)
    with (archive / "api.jsonl").open("a") as file:
        file.write('{"table": "instance_mapp')
    assert len(site.record(f"--archive {archive}")) == 5, "a line that was cut off is not lost: its row is there still"


def test_a_date_leaves_out_what_ended_before(site: Site) -> None:
    site.leave("east", 3, 90.0)
    young = site.leave("west", 2, 10.0)
    since = time.time() - 10.0 * DAY - 1800.0
    found = site.record(f"--since {time.strftime('%Y-%m-%dT%H:%M:%S+00:00', time.gmtime(since))}")
    assert [(each.name, each.start, round(each.end - each.start, -2)) for each in found] == [
        (uuid, float(int(since)), 1800.0) for uuid in young
    ]


def test_an_unreachable_cell_is_named_or_omitted(site: Site, tmp_path: Path) -> None:
    east = site.leave("east", 2, 5.0)
    site.leave("west", 1, 5.0)
    Cells(tmp_path).add_unreachable("far", "mysql+pymysql://sc:secret@127.0.0.1:1/far")
    line = f"lab record {tmp_path / 'trace.csv'} --fleet {tmp_path / 'fleet.csv'}"
    told = site.shell.refused(line)
    assert "far" in told
    assert "--without-cell far" in told
    assert "secret" not in told
    assert not (tmp_path / "trace.csv").exists()
    assert len(site.record("--without-cell far")) == 3
    assert [each.name for each in site.record("--without-cell far --without-cell west")] == sorted(east)
    assert [host.name for host in read_fleet(tmp_path / "fleet.csv")] == ["east-host"]
    assert "No cell is called 'north'" in site.shell.refused(f"{line} --without-cell north", 3)


def test_a_failure_leaves_the_earlier_record(site: Site) -> None:
    site.leave("east", 2, 5.0)
    assert len(site.record()) == 2
    before = {path.name: path.read_bytes() for path in site.folder.iterdir() if path.suffix == ".csv"}
    broken = site.folder / "broken.jsonl"
    for text, why in (
        ("{}\n", "line 1: is not a line of 'superconductor db archive'"),
        ('{"table": "instance_mappings", "row": {}}\n', "line 1: is not a row of this release"),
        ("no\n", "line 1: is not a line"),
        ("\xff\n", "line 1: is not a line"),
    ):
        broken.write_text(text, encoding="latin-1")
        line = f"lab record {site.folder / 'trace.csv'} --fleet {site.folder / 'fleet.csv'} --archive {broken}"
        assert why in site.shell.refused(line)
    line = f"lab record {site.folder / 'trace.csv'} --fleet {site.folder / 'none' / 'fleet.csv'}"
    assert "cannot be written: No such file or directory" in site.shell.refused(line)
    assert "there is no file" in site.shell.refused(f"{line} --archive nowhere")
    assert {path.name: path.read_bytes() for path in site.folder.iterdir() if path.suffix == ".csv"} == before
    assert not list(site.folder.glob("*.tmp"))


def test_servers_without_a_request_are_counted(site: Site) -> None:
    lost, kept = site.leave("east", 1, 6.0), site.leave("east", 2, 5.0)
    site.api.write(_break, lost[0])
    outcome = site.shell(f"lab record {site.folder / 'trace.csv'} --fleet {site.folder / 'fleet.csv'} -f json")
    assert (outcome.status, json.loads(outcome.out)["Without a request"]) == (0, 1)
    assert outcome.err.splitlines()[-1].endswith("1 servers are left out, because their requests are not known")
    assert len(trace_of(site.folder / "trace.csv")) == len(kept)


def test_an_empty_deployment_has_nothing_to_record(site: Site) -> None:
    line = f"lab record {site.folder / 'trace.csv'} --fleet {site.folder / 'fleet.csv'}"
    assert "There is nothing to record" in site.shell.refused(line)
    assert not list(site.folder.glob("*.csv"))
