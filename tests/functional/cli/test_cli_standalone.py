"""``superconductor standalone`` takes the options of [scheduler] as a scheduler of its own process does."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import requests

from cli.app import main
from cli.standalone.all_in_one import DeploymentTimes, StateFolder
from cli.standalone.serving import scheduler_settings
from objects import errors
from service.periodic import wait_until
from tests.support.commands import standalone
from tests.support.region import IMAGE
from tests.support.websocket_client import open_websocket, read_until

LONELY = "[scheduler]\nenabled_filters = ComputeFilter,NumInstancesFilter\nmax_instances_per_host = 1\n"


def file_of(folder: Path, text: str) -> str:
    path = folder / "filters.conf"
    path.write_text(text)
    return str(path)


def test_hosts_are_chosen_as_the_file_says(tmp_path: Path) -> None:
    with requests.Session() as http, standalone(tmp_path / "state", file_of(tmp_path, LONELY)) as endpoint:
        http.trust_env = False
        flavor = http.get(f"{endpoint}/flavors").json()["flavors"][0]["id"]

        def statuses() -> list[str]:
            servers: list[dict[str, Any]] = http.get(f"{endpoint}/servers/detail").json()["servers"]
            return sorted(server["status"] for server in servers)

        for name in ("one", "two", "three"):
            body = {"server": {"name": name, "flavorRef": flavor, "imageRef": IMAGE}}
            assert http.post(f"{endpoint}/servers", json=body).status_code == 202
        assert wait_until(lambda: statuses() == ["ACTIVE", "ACTIVE", "ERROR"], 60.0)


def test_commands_find_the_one_that_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    with standalone(tmp_path / "state", file_of(tmp_path, "")) as endpoint:
        monkeypatch.setenv("SUPERCONDUCTOR_ENDPOINT", endpoint)
        for words, expected in ((["flavor", "list"], "m1.small"), (["host", "list"], "cell1-host2"), (["image", "list"], "\n")):
            assert main(words) == 0
            assert expected in capsys.readouterr().out
    assert main(["flavor", "list"]) == 1
    assert f"No standalone of yours serves at {endpoint}" in capsys.readouterr().err


def test_a_state_folder_is_not_committed(tmp_path: Path) -> None:
    StateFolder(tmp_path / "state").release_lock()
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    listed = subprocess.run(["git", "-C", str(tmp_path), "status", "--porcelain"], capture_output=True, text=True, check=True)
    assert listed.stdout == ""


def test_consoles_are_opened_through_a_private_proxy(tmp_path: Path) -> None:
    """Which listens on a free port unless the file says otherwise."""
    newest = {"OpenStack-API-Version": "compute 2.53"}
    with requests.Session() as http, standalone(tmp_path / "state", file_of(tmp_path, LONELY)) as endpoint:
        http.trust_env = False
        flavor = http.get(f"{endpoint}/flavors").json()["flavors"][0]["id"]
        body = {"server": {"name": "one", "flavorRef": flavor, "imageRef": IMAGE}}
        server = http.post(f"{endpoint}/servers", json=body).json()["server"]["id"]
        assert wait_until(lambda: http.get(f"{endpoint}/servers/{server}").json()["server"]["status"] == "ACTIVE", 60.0)
        asked = {"remote_console": {"protocol": "serial", "type": "serial"}}
        answer = http.post(f"{endpoint}/servers/{server}/remote-consoles", json=asked, headers=newest)
        with open_websocket(answer.json()["remote_console"]["url"]) as console:
            console.send("hello\n")
            read_until(console, b"one: hello")
        terminal, inside = pty.openpty()
        words = ["server", "console", "one", "--attach", "--endpoint", endpoint]
        attached = subprocess.Popen([sys.executable, "-m", "cli", *words], stdin=inside, stdout=inside, stderr=inside)
        os.close(inside)
        seen = b""
        for expected, typed in ((b"one: serial console", b"typed\r"), (b"one: typed", b"\x03\r"), (b"one: \x03", b"\x1d")):
            while expected not in seen:
                seen += os.read(terminal, 4096)
            os.write(terminal, typed)
        assert attached.wait(30) == 0
        assert b"left the console" in seen + os.read(terminal, 4096)
        os.close(terminal)
        words = ["server", "console", "one", "--url", "serial", "--endpoint", endpoint]
        url = subprocess.run([sys.executable, "-m", "cli", *words], check=True, capture_output=True, text=True).stdout.strip()
        with open_websocket(url) as console:
            read_until(console, b"one: serial console")


def test_a_wrong_name_is_refused_with_right_ones(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = file_of(tmp_path, "[scheduler]\nenabled_filters = RamFlter\n")
    assert main(["--config-file", file, "standalone", "--state", str(tmp_path / "state"), "--port", "0"]) != 0
    said = capsys.readouterr().err
    assert "RamFlter" in said
    assert "RamFilter" in said
    assert not (tmp_path / "state").exists()


def test_unset_options_have_the_pace_of_one_process(tmp_path: Path) -> None:
    pace = DeploymentTimes(down_time=7.0)
    assert scheduler_settings([], pace) == pace.scheduler_settings
    told = scheduler_settings([f"--config-file={file_of(tmp_path, LONELY)}"], pace)
    assert told.max_instances_per_host == 1
    assert told.service_down_time == 7.0
    slow = file_of(tmp_path, "[DEFAULT]\nservice_down_time = 20\n")
    given = scheduler_settings([f"--config-file={slow}"], pace)
    assert given.service_down_time == 20.0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--libvirt-uri", "qemu:///system"], "--libvirt-uri is for --driver libvirt"),
        (["--stop-guests"], "--stop-guests is for --driver libvirt"),
        (["--boot", "one"], "--boot is for --driver libvirt"),
        (["--driver", "libvirt", "--libvirt-uri", "qemu:///system", "--hosts", "2"], "leave out --hosts and --cells"),
        (["--driver", "libvirt", "--libvirt-uri", "qemu:///system", "--stop-guests"], "leave out --libvirt-uri"),
        (["--driver", "libvirt", "--resource", "CUSTOM_GPU=4"], "--resource is for simulated hosts"),
    ],
)
def test_conflicting_options_are_refused_without_side_effects(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    assert main(["standalone", "--state", str(tmp_path / "state"), "--port", "0", *words]) != 0
    assert said in capsys.readouterr().err
    assert not (tmp_path / "state").exists()


def test_an_unknown_driver_is_refused_with_known_ones(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["standalone", "--state", str(tmp_path / "state"), "--driver", "xen"]) != 0
    said = capsys.readouterr().err
    assert "simulated" in said
    assert "libvirt" in said


def test_the_hosts_of_a_folder_keep_their_driver(tmp_path: Path) -> None:
    folder = StateFolder(tmp_path / "state")
    try:
        folder.claim_driver("simulated")
        folder.claim_driver("simulated")
        with pytest.raises(errors.Misconfigured, match="give --driver simulated"):
            folder.claim_driver("libvirt")
    finally:
        folder.release_lock()


def test_a_folder_without_drivers_has_simulated_hosts(tmp_path: Path) -> None:
    folder = StateFolder(tmp_path / "state")
    try:
        (folder.path / "api.db").touch()
        with pytest.raises(errors.Misconfigured, match="give --driver simulated"):
            folder.claim_driver("libvirt")
    finally:
        folder.release_lock()
