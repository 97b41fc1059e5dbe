"""What a role's process says of a configuration that cannot work, and what it waits for at start-up."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path

import pytest
from cryptography.fernet import Fernet
from websockets.exceptions import InvalidStatus

from conductor.process import roles_of
from db import processes
from db.processes import Level
from objects.process import CONDUCTOR_BINARY, About, Process
from service import config
from service.opts import list_opts
from tests.support.bus import silent_listener
from tests.support.databases import closed_port, sqlite_url, synced
from tests.support.processes import Configuration, RoleProcess, run_role, write_configuration
from tests.support.websocket_client import open_websocket

pytestmark = pytest.mark.one_in(5)

RABBIT = "rabbit://guest:guest@127.0.0.1:1/none"
API = {"api_database": {"connection": "sqlite:////nowhere/api.db"}}
BUS = {"DEFAULT": {"transport_url": RABBIT}}
CELL = {"cell_database": {"connection": "sqlite:////nowhere/cell1.db"}}
MASTER_KEY = Fernet.generate_key().decode()


@pytest.mark.parametrize(
    ("role", "groups", "reason"),
    [
        ("api", BUS, "[api_database] connection is not set"),
        ("api", API, "[DEFAULT] transport_url is not set"),
        ("api", BUS | API | {"api": {"host": "0.0.0.0"}}, "noauth_anywhere"),
        ("api", BUS | API | {"secrets": {"keys": "hunter2"}}, "[secrets] keys"),
        ("scheduler", BUS | API | {"scheduler": {"enabled_filters": "RamFliter"}}, "RamFilter"),
        ("scheduler", BUS | API | {"scheduler": {"host_subset_size": "many"}}, "host_subset_size"),
        ("conductor", BUS, "[api_database] connection to serve the API level, [cell_database] connection"),
        (
            "conductor",
            BUS | CELL | API | {"conductor": {"roles": "cell"}},
            "[api_database] connection is set, and must not be here",
        ),
        ("conductor", BUS | CELL | {"secrets": {"keys": MASTER_KEY}}, "[secrets] keys must not contain a master key"),
        ("conductor", BUS | CELL | {"conductor": {"roles": "cells"}}, "roles"),
        ("conductor", BUS | API | {"conductor": {"roles": "super, cell"}}, "[cell_database] connection is not set"),
        ("console-proxy", BUS, "[api_database] connection is not set"),
        (
            "console-proxy",
            API | {"console": {"serial_url": "http://h/"}},
            "[console] serial_url: 'http://h/' is no URL that begins",
        ),
        ("console-proxy", API | {"console": {"novnc_url": "https://"}}, "[console] novnc_url"),
        ("console-proxy", API | {"console": {"key": "k.pem"}}, "[console] key: it is of no use without cert"),
        ("console-proxy", API | {"console": {"cert": "/nowhere.pem"}}, "[console] cert, key: /nowhere.pem cannot be used"),
        ("console-proxy", API | {"console": {"host": "192.0.2.1"}}, "[console] host, port: cannot listen on 192.0.2.1"),
        ("api", BUS | API | {"console": {"serial_url": "ws://h:x/"}}, "[console] serial_url"),
        ("compute", BUS | {"compute": {"console_host": "h1"}}, "[compute] console_host: 'h1' is not an IP address"),
        ("compute", BUS | {"compute": {"console_address": "h1 h2"}}, "[compute] console_address: 'h1 h2' is no name or address"),
        ("compute", BUS | {"compute": {"console_host": "::"}}, "[compute] console_address: say by which address"),
        ("compute", CELL, "[DEFAULT] transport_url is not set"),
        ("compute", BUS | CELL, "[cell_database] connection is set, and must not be here"),
        ("compute", BUS | API, "[api_database] connection is set, and must not be here"),
        ("compute", BUS | {"secrets": {"keys": MASTER_KEY}}, "[secrets] keys is set, and must not be here"),
        ("compute", {"DEFAULT": {"transport_url": RABBIT, "api_transport_url": RABBIT}}, "[DEFAULT] api_transport_url is set"),
        ("compute", BUS | {"compute": {"driver": "nonesuch"}}, "simulated"),
        ("compute", BUS | {"upgrade_levels": {"conductor": "1.7"}}, "[upgrade_levels] conductor: '1.7' is no messages version"),
        ("scheduler", BUS | API | {"upgrade_levels": {"compute": "x"}}, "of this release: 1.0, 1.1, or auto"),
    ],
)
def test_an_impossible_configuration_is_reported_in_a_line(tmp_path: Path, role: str, groups: Configuration, reason: str) -> None:
    done = run_role(role, write_configuration(tmp_path / "role.conf", groups))
    assert done.returncode == 1
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith(f"superconductor-{role}: ")
    assert reason in lines[0]
    assert "hunter2" not in done.stderr
    assert MASTER_KEY not in done.stderr


@pytest.mark.parametrize(
    ("groups", "roles"),
    [
        (BUS | API, ("super",)),
        (BUS | CELL, ("cell",)),
        (BUS | API | CELL, ("super", "cell")),
        (BUS | API | CELL | {"conductor": {"roles": "super"}}, ("super",)),
    ],
)
def test_conductor_roles_follow_from_the_configuration(tmp_path: Path, groups: Configuration, roles: tuple[str, ...]) -> None:
    from cells import opts as cells_opts
    from conductor import opts

    file = write_configuration(tmp_path / "conductor.conf", groups)
    conf = config.load_options([], list_opts(), opts.list_opts(), cells_opts.list_opts(), files=[file])
    assert roles_of(conf) == roles


def test_a_port_that_is_taken_is_told(tmp_path: Path) -> None:
    with silent_listener() as taken:
        port = taken.getsockname()[1]
        done = run_role("api", write_configuration(tmp_path / "api.conf", BUS | API | {"api": {"port": port}}))
    assert done.returncode == 1
    assert f"cannot listen on 127.0.0.1 port {port}: Address already in use" in done.stderr


def test_a_conductor_names_missing_dependencies_and_waits(tmp_path: Path) -> None:
    broker = closed_port()
    groups: Configuration = {
        "DEFAULT": {"transport_url": f"rabbit://guest:hunter2@127.0.0.1:{broker}/none"},
        "cell_database": {"connection": sqlite_url(tmp_path, "cell1")},
    }
    process = RoleProcess("conductor", tmp_path, write_configuration(tmp_path / "cell1.conf", groups))
    try:
        assert process.says("waiting for the database of cell cell1.db")
        assert "superconductor db sync" in process.log
        synced(sqlite_url(tmp_path, "cell1"), "cell").dispose_connections()
        assert process.says("the database of cell cell1.db is available")
        assert process.says("waiting for the bus of cell cell1.db")
        assert f"127.0.0.1:{broker}" in process.log
        assert "is ready" not in process.log
        process.signal(signal.SIGTERM)
        assert process.wait(15) == 0
        assert "hunter2" not in process.log
    finally:
        process.kill()


def test_a_console_proxy_needs_the_api_database_alone(tmp_path: Path) -> None:
    port = closed_port()
    groups: Configuration = {"api_database": {"connection": sqlite_url(tmp_path, "api")}, "console": {"port": port}}
    process = RoleProcess("console-proxy", tmp_path, write_configuration(tmp_path / "proxy.conf", groups))
    try:
        assert process.says("waiting for the API database")
        synced(sqlite_url(tmp_path, "api"), "api").dispose_connections()
        assert process.says("is ready")
        with pytest.raises(InvalidStatus) as refused:
            open_websocket(f"ws://127.0.0.1:{port}/?token=hunter2")
        assert refused.value.response.status_code == 403
        process.signal(signal.SIGTERM)
        assert process.wait(15) == 0
        assert "hunter2" not in process.log
    finally:
        process.kill()


def test_a_supervisor_learns_when_a_worker_serves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    groups: Configuration = {
        "DEFAULT": {"transport_url": RABBIT},
        "api_database": {"connection": sqlite_url(tmp_path, "api")},
        "api": {"port": closed_port()},
    }
    conf = write_configuration(tmp_path / "api.conf", groups)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as supervisor:
        address = f"@{os.getpid()}-{tmp_path.name}"
        supervisor.bind(address.replace("@", "\0", 1))
        supervisor.settimeout(60)
        monkeypatch.setenv("NOTIFY_SOCKET", address)
        process = RoleProcess("api", tmp_path, conf)
        try:
            assert process.says("waiting for the API database")
            supervisor.setblocking(False)
            with pytest.raises(BlockingIOError):
                supervisor.recv(100)
            supervisor.settimeout(60)
            synced(sqlite_url(tmp_path, "api"), "api").dispose_connections()
            assert supervisor.recv(100) == b"READY=1"
            assert "is ready" in process.log
            process.signal(signal.SIGTERM)
            assert supervisor.recv(100) == b"STOPPING=1"
            assert process.wait(15) == 0
        finally:
            process.kill()


def test_an_unready_api_accepts_no_connections(tmp_path: Path) -> None:
    import requests

    port = closed_port()
    groups: Configuration = {
        "DEFAULT": {"transport_url": RABBIT},
        "api_database": {"connection": sqlite_url(tmp_path, "api")},
        "api": {"port": port},
    }
    process = RoleProcess("api", tmp_path, write_configuration(tmp_path / "api.conf", groups))
    try:
        assert process.says("waiting for the API database")
        with pytest.raises(requests.ConnectionError):
            requests.get(f"http://127.0.0.1:{port}/", timeout=5)
        synced(sqlite_url(tmp_path, "api"), "api").dispose_connections()
        assert process.says("is ready")  # although its bus is not there: what is accepted waits in the queue
        assert requests.get(f"http://127.0.0.1:{port}/", timeout=5).status_code in (200, 300)
    finally:
        process.kill()


@pytest.mark.parametrize("role", ["scheduler", "conductor"])
def test_a_process_refuses_releases_that_are_too_old(tmp_path: Path, role: str) -> None:
    level: Level = "api" if role == "scheduler" else "cell"
    groups: Configuration = {
        "DEFAULT": {"transport_url": RABBIT},
        f"{level}_database": {"connection": sqlite_url(tmp_path, level)},
    }
    database = synced(sqlite_url(tmp_path, level), level)
    about = About(release="0.0.9", messages="0.9")
    old = Process(uuid="p", binary=CONDUCTOR_BINARY, host="old-1", about=about, started_at=0.0, last_seen=0.0, age=0.0)
    database.write(processes.record_process, level, old)
    database.dispose_connections()
    done = run_role(role, write_configuration(tmp_path / "role.conf", groups))
    assert done.returncode == 1
    assert f"superconductor-{role} cannot start: This process is of release" in done.stderr
    assert "superconductor-conductor on old-1 (0.9); they are too old: upgrade them first" in done.stderr
