"""The commands beside Nova, as an operator types them."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.support.commands import Outcome, Shell
from tests.support.nova_cloud import NovaCloud, flavor_object, request_spec, uuid_of


class NovaShell:
    """Runs ``superconductor nova ...`` on the databases of a cloud."""

    def __init__(self, shell: Shell, cloud: NovaCloud) -> None:
        self._shell, self._cloud = shell, cloud
        self._file = shell.state / "nova.ini"

    def __call__(self, *words: str) -> Outcome:
        settings = self._cloud.settings
        lines = [f"api_connection = {settings.api_connection}", f"placement_connection = {settings.placement_connection}"]
        self._file.write_text("\n".join(["[nova]", *lines]))
        return self._shell.run("--config-file", str(self._file), "nova", *words)

    def run_other(self, *words: str) -> Outcome:
        """Another command."""
        return self._shell.run(*words)

    def answer(self, *words: str) -> Any:
        """The JSON of a command that must succeed."""
        outcome = self(*words, "--json")
        assert (outcome.status, outcome.err) == (0, ""), outcome
        return json.loads(outcome.out)


@pytest.fixture
def cloud(tmp_path: Path) -> NovaCloud:
    made = NovaCloud(tmp_path)
    made.add_cell("cell1")
    return made


@pytest.fixture
def nova(tmp_path: Path, cloud: NovaCloud, capsys: pytest.CaptureFixture[str]) -> NovaShell:
    return NovaShell(Shell(tmp_path, capsys), cloud)


def test_status_shows_cells_and_hosts_left_out(nova: NovaShell, cloud: NovaCloud) -> None:
    cloud.claim("server", cloud.add_host("h1", vcpus=8, ratio=4.0), vcpus=8)
    cloud.add_host("h2", mapped=False)

    shown = nova("status").out
    [cell] = nova.answer("status")["cells"]

    assert (cell["hosts"], cell["judged"], cell["up"], cell["servers"]) == (2, 1, 1, 1)
    assert (cell["vcpus"], cell["vcpus_used"]) == (32.0, 8.0)
    assert "25.0 %" in shown
    assert "it is not mapped to cell cell1, where it reports" in shown
    assert max(map(len, shown.splitlines())) <= 80


def test_status_of_a_cell_that_cannot_be_read(nova: NovaShell, cloud: NovaCloud) -> None:
    cloud.add_cell("cell2", database_connection="mysql://u:secret@127.0.0.1:1/x")

    outcome = nova("status")

    assert outcome.status == 1
    assert "cell cell2 is left out" in outcome.err
    assert "secret" not in outcome.out + outcome.err


def test_databases_that_are_not_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty.conf").write_text("")

    outcome = Shell(tmp_path, capsys).run("--config-file", str(tmp_path / "empty.conf"), "nova", "status")

    assert outcome.status == 1
    assert "No api_connection is set in [nova]" in outcome.err


def test_an_unknown_filter_of_the_site_is_refused(nova: NovaShell, cloud: NovaCloud, monkeypatch: pytest.MonkeyPatch) -> None:
    conf = Path(cloud.url_of("x").removeprefix("sqlite:///")).with_name("nova.conf")
    conf.write_text("[filter_scheduler]\nenabled_filters = ComputeFilter,OurOwnFilter\n")
    monkeypatch.setenv("OS_NOVA__CONFIG_FILE", str(conf))

    outcome = nova("status")

    assert outcome.status == 1
    assert "OurOwnFilter, which is not known here" in outcome.err


def test_capacity_counts_as_placement_does(nova: NovaShell, cloud: NovaCloud) -> None:
    cloud.claim("server", cloud.add_host("h1", vcpus=8, memory_mb=16384, disk_gb=1000, ratio=4.0), vcpus=2, memory_mb=2048)
    cloud.add_host("small", vcpus=2, memory_mb=64000, disk_gb=1000, ratio=16.0)
    cloud.add_host("unmapped", mapped=False)
    cloud.add_flavor("m1", vcpus=2, memory_mb=2048, root_gb=0)
    cloud.add_flavor("wide", vcpus=4, memory_mb=512, root_gb=0)
    cloud.add_flavor("pinned", extra_specs={"hw:cpu_policy": "dedicated"})

    answer = nova.answer("capacity", "m1", "wide")

    room = {flavor["flavor"]: (flavor["servers"], flavor["hosts"]) for flavor in answer["flavors"]}
    assert room == {"m1": (7 + 16, 2), "wide": (7, 1)}  # max_unit: the small host has 2 vCPUs, whatever its ratio
    assert answer["left_out"] == {"it is not mapped to cell cell1, where it reports": 1}
    assert "Flavor pinned is not judged here: extra spec hw:cpu_policy" in nova("capacity", "pinned").err


def test_capacity_after_losing_a_rack(nova: NovaShell, cloud: NovaCloud) -> None:
    hosts = {name: cloud.add_host(name, vcpus=4, ratio=1.0) for name in ("h1", "h2", "h3")}
    cloud.add_aggregate("rack 1", {"h1": hosts["h1"]}, rack="r1")
    for number, host in enumerate(("h1", "h1", "h2"), 1):
        cloud.add_server(uuid_of(number), host, spec=request_spec(uuid_of(number), flavor=flavor_object(vcpus=2)))
        cloud.claim(uuid_of(number), hosts[host], vcpus=2)
    cloud.add_flavor("m1", vcpus=2)

    answer = nova.answer("capacity", "m1", "--after-losing", "rack", "r1")

    assert (answer["loss"]["hosts"], answer["loss"]["servers"], answer["loss"]["placed"]) == (1, 2, 2)
    assert [flavor["servers"] for flavor in answer["flavors"]] == [1]
    assert nova("capacity", "m1", "--after-losing", "host", "h9").err.strip().endswith("There is no host h9 with hosts")


def test_servers_that_a_loss_strands_are_named(nova: NovaShell, cloud: NovaCloud) -> None:
    for number, host in enumerate(("h1", "h2"), 1):
        provider = cloud.add_host(host, vcpus=4, ratio=1.0)
        cloud.add_server(uuid_of(number), host, spec=request_spec(uuid_of(number), flavor=flavor_object(vcpus=3)))
        cloud.claim(uuid_of(number), provider, vcpus=3)
    cloud.add_flavor("m1")

    outcome = nova("capacity", "m1", "--after-losing", "host", "h1")

    assert outcome.status == 1
    assert "Servers that fit nowhere else" in outcome.out
    assert uuid_of(1)[-12:] in outcome.out.replace("\n", "")


def test_what_if_places_members_apart(nova: NovaShell, cloud: NovaCloud) -> None:
    hosts = {name: cloud.add_host(name) for name in ("h1", "h2", "h3")}
    cloud.claim(uuid_of(1), hosts["h2"])
    group = cloud.add_group("anti-affinity", [uuid_of(1)])
    cloud.add_flavor("m1")

    two = nova.answer("what-if", "--flavor", "m1", "--count", "2", "--group", group)
    three = nova("what-if", "--flavor", "m1", "--count", "3", "--group", group)

    assert sorted(two["hosts"]) == ["h1", "h3"]
    assert three.status == 1
    assert "without the anti-affinity policy of its server group" in " ".join(three.out.split())


def test_what_if_in_a_zone(nova: NovaShell, cloud: NovaCloud) -> None:
    hosts = {name: cloud.add_host(name) for name in ("h1", "h2")}
    cloud.add_aggregate("east", {"h2": hosts["h2"]}, availability_zone="east")
    cloud.add_flavor("m1")

    assert nova.answer("what-if", "--flavor", "m1", "--zone", "east")["hosts"] == ["h2"]


def test_a_refusal_is_explained(nova: NovaShell, cloud: NovaCloud) -> None:
    cloud.add_host("h1", vcpus=4, memory_mb=8192, ratio=1.0)
    cloud.add_flavor("small", vcpus=4)
    spec = request_spec(uuid_of(1), flavor=flavor_object(vcpus=6, memory_mb=2048))
    cloud.add_server(uuid_of(1), None, cell="cell0", spec=spec, vm_state="error")
    cloud.insert("cell0", "instance_faults", instance_uuid=uuid_of(1), message="No valid host was found. ", code=500, deleted=0)
    cloud.insert("cell0", "instance_actions", instance_uuid=uuid_of(1), request_id="req-1", action="create")

    shown = nova("explain", "req-1").out
    [explanation] = nova.answer("explain", uuid_of(1))

    assert explanation["outcome"]["would_have_fitted"] == ["with a flavor of 2 vCPUs less"]
    assert explanation["state"] == "error"
    assert "Nova said: No valid host was found." in shown
    assert "not enough vCPUs" in shown
    assert max(map(len, shown.splitlines())) <= 80


def test_an_explanation_ignores_the_servers_claim(nova: NovaShell, cloud: NovaCloud) -> None:
    provider = cloud.add_host("h1", vcpus=4, ratio=1.0)
    cloud.add_server(uuid_of(1), "h1", spec=request_spec(uuid_of(1), flavor=flavor_object(vcpus=4)))
    cloud.claim(uuid_of(1), provider, vcpus=4)

    [explanation] = nova.answer("explain", uuid_of(1))

    assert (explanation["claimed"], explanation["outcome"]["hosts"]) == (["h1"], ["h1"])


def test_a_request_that_is_not_judged_says_why(nova: NovaShell, cloud: NovaCloud) -> None:
    spec = request_spec(uuid_of(1), flavor=flavor_object(extra_specs={"hw:numa_nodes": "2"}))
    cloud.add_server(uuid_of(1), None, cell="cell0", spec=spec, vm_state="error")

    [explanation] = nova.answer("explain", uuid_of(1))

    assert (explanation["not_judged"], explanation["outcome"]) == (["extra spec hw:numa_nodes"], None)
    assert "Nova knows no server x" in nova("explain", "x").err


def test_rebalance_empties_hosts(nova: NovaShell, cloud: NovaCloud) -> None:
    hosts = {name: cloud.add_host(name, vcpus=8, ratio=1.0) for name in ("h1", "h2", "h3")}
    for number, host in enumerate(("h1", "h2", "h2", "h3", "h3", "h3"), 1):
        cloud.add_server(uuid_of(number), host, spec=request_spec(uuid_of(number), flavor=flavor_object(vcpus=2)))
        cloud.claim(uuid_of(number), hosts[host], vcpus=2)
    cloud.add_flavor("wide", vcpus=8)

    plan = nova.answer("rebalance", "--dry-run", "--at-most", "50%", "--flavor", "wide")

    assert [(move["server"], move["source"], move["destination"], move["live"]) for move in plan["moves"]] == [
        (uuid_of(1), "h1", "h3", True)
    ]
    assert (plan["before"]["fits"], plan["after"]["fits"]) == ({"wide": 0}, {"wide": 1})
    assert "add --dry-run" in nova("rebalance").err


def test_servers_that_cannot_move_keep_their_host(nova: NovaShell, cloud: NovaCloud) -> None:
    hosts = {name: cloud.add_host(name) for name in ("h1", "h2", "h3")}
    pinned = flavor_object(extra_specs={"hw:cpu_policy": "dedicated"})
    for number, (host, flavor) in enumerate((("h1", pinned), ("h2", flavor_object()), ("h2", flavor_object())), 1):
        cloud.add_server(uuid_of(number), host, spec=request_spec(uuid_of(number), flavor=flavor))
        cloud.claim(uuid_of(number), hosts[host])

    plan = nova.answer("rebalance", "--dry-run", "--at-most", "50%")

    assert plan["moves"] == []
    assert plan["kept"] == {"not judged here: extra spec hw:cpu_policy": 1}


def test_a_record_can_be_replayed(nova: NovaShell, cloud: NovaCloud, tmp_path: Path) -> None:
    hosts = {name: cloud.add_host(name, vcpus=4, ratio=1.0) for name in ("h1", "h2")}
    cloud.add_aggregate("east", {"h2": hosts["h2"]}, availability_zone="east")
    start = datetime(2026, 1, 1)
    cloud.add_server(uuid_of(1), "h1", launched_at=start, deleted=1, terminated_at=start + timedelta(hours=1))
    cloud.add_server(uuid_of(2), "h2", launched_at=start, spec=request_spec(uuid_of(2), availability_zone="east"))
    cloud.add_server(uuid_of(3), None, launched_at=None, vm_state="error")
    cloud.add_group("anti-affinity", [uuid_of(2)])
    trace, fleet = tmp_path / "trace.csv", tmp_path / "fleet.csv"

    counts = nova.answer("record", str(trace), "--fleet", str(fleet), "--with-names")
    replayed = nova.run_other("lab", "replay", str(trace), "--fleet", str(fleet), "--output", str(tmp_path / "results"))

    assert counts == {"servers": 2, "hosts": 2, "never_ran": 1}
    lines = trace.read_text().splitlines()
    seconds = start.replace(tzinfo=UTC).timestamp()
    assert lines[1] == f"{uuid_of(1)},{seconds},{seconds + 3600},1,1024,10,p,,,,,1"
    assert ",east," in lines[2]
    assert ",anti-affinity," in lines[2]
    assert replayed.status == 0


def test_a_record_has_pseudonyms(nova: NovaShell, cloud: NovaCloud, tmp_path: Path) -> None:
    cloud.add_host("secret-host")
    cloud.add_server(uuid_of(1), "secret-host", project_id="secret-project")
    trace, fleet = tmp_path / "trace.csv", tmp_path / "fleet.csv"

    nova.answer("record", str(trace), "--fleet", str(fleet))

    assert "secret" not in trace.read_text() + fleet.read_text()
    assert uuid_of(1) not in trace.read_text()
