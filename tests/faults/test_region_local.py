"""A region on this machine, started, used and hurt by its own commands."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from functools import partial

import pytest

from service.periodic import wait_until
from tests.support.local_region import LONG, Region, needs_servers, small_region
from tests.support.openstack_client import OpenStack, check_boots, needs_client
from tests.support.websocket_client import open_websocket, read_until

pytestmark = needs_servers


@pytest.fixture(scope="module")
def region(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Region]:
    """One for the tests of this file; each leaves it running, or starts it."""
    with small_region(tmp_path_factory.mktemp("region")) as made:
        yield made


def _status_matches(region: Region, pattern: str) -> bool:
    return re.search(pattern, region.command("status").stdout, re.MULTILINE) is not None


def test_a_region_serves_and_says_what_runs(region: Region) -> None:
    region.boot("web")
    shown = region.command("status")

    assert shown.returncode == 0, shown.stdout
    assert re.search(r"^RabbitMQ .* alive ", shown.stdout, re.MULTILINE), shown.stdout
    for name in ("api-1", "super-conductor-1", "scheduler-1", "cell2-conductor-1", "cell1-host2"):
        port = region.notes.monitored_ports()[name]
        # on a busy machine a process is not well in each moment
        is_well = partial(_status_matches, region, rf"^{name} .* alive +well +{port} ")
        assert wait_until(is_well, LONG), region.command("status").stdout
        assert "superconductor_" in region.http.get(f"http://127.0.0.1:{port}/metrics", timeout=30).text
    assert "runs already" in region.up()
    refused = region.command("up", "--agents", "3")
    assert refused.returncode == 1
    assert "another shape" in refused.stderr


def test_passwords_are_in_private_files_only(region: Region) -> None:
    secret = {match for file in region.folder.etc.iterdir() for match in re.findall(r":([^:@/]+)@", file.read_text())}
    secret |= set(re.findall(r"^keys = (.+)$", (region.folder.etc / "api.conf").read_text(), re.MULTILINE))

    hosts = len(region.notes.shape.list_hosts())
    assert len(secret) == 7 + hosts, "three users of the broker and one for each host, three of the databases, a master key"
    assert {oct(file.stat().st_mode & 0o777) for file in region.folder.etc.iterdir()} == {"0o600"}
    for log in region.folder.log.iterdir():
        assert not [word for word in secret if word in log.read_text()], log
    agents = [file.read_text() for file in region.folder.etc.iterdir() if "host" in file.name or "compute" in file.name]
    assert not [text for text in agents if "mysql" in text or "keys" in text]


@needs_client
def test_the_openstack_client_drives_a_region(region: Region) -> None:
    """User data and passwords included: they go sealed through two databases, and by RabbitMQ to the agent that may have them.

    ``test_client_openstack`` has all else that is promised to users of the client.
    """
    check_boots(OpenStack(region.notes.api_endpoints()[0]))


def test_a_proxy_leads_to_a_server_console(region: Region) -> None:
    region.boot("console", 1)
    server = region.ask("GET", "servers", params={"name": "^console$"})["servers"][0]["id"]
    endpoint = region.notes.api_endpoints()[0]
    asked = {"remote_console": {"protocol": "serial", "type": "serial"}}
    headers = {"OpenStack-API-Version": "compute 2.53"}
    answer = region.http.post(f"{endpoint}/servers/{server}/remote-consoles", json=asked, headers=headers, timeout=30)
    assert answer.status_code == 200, answer.text
    with open_websocket(answer.json()["remote_console"]["url"]) as console:
        console.send("hello\n")
        read_until(console, b"console: hello")


def test_a_killed_worker_is_replaced_by_its_master(region: Region) -> None:
    """One of them: ``test_process_killed`` has all roles."""
    member = "cell2-conductor-1"
    worker = region.worker_of(member)
    os.kill(worker, signal.SIGKILL)

    region.boot(f"after-{member}")
    assert wait_until(lambda: region.worker_of(member) != worker, LONG)


def test_a_killed_master_is_started_again_by_up(region: Region) -> None:
    master = region.table.pids_by_member()["cell1-conductor-1"][0]
    os.kill(master, signal.SIGKILL)
    assert wait_until(lambda: "cell1-conductor-1" not in region.table.members_with_master(), LONG)
    shown = region.command("status")
    said = region.up()

    assert shown.returncode == 1
    assert re.search("cell1-conductor-1 .* (dead|without master) ", shown.stdout), shown.stdout
    assert "starting 1 of" in said
    region.boot("after-master")


def test_single_processes_are_restarted(region: Region) -> None:
    before = region.table.pids_by_member()
    done = region.command("restart", "api-1", "cell2-host2")
    after = region.table.pids_by_member()

    assert done.returncode == 0, done.stdout + done.stderr
    assert {name for name in after if not set(before[name]) & set(after[name])} == {"api-1", "cell2-host2"}
    region.boot("after-restart")
    unknown = region.command("restart", "api-7")
    assert unknown.returncode == 1
    assert "api-1" in unknown.stderr
