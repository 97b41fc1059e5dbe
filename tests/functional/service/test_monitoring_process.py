"""A role's real process: its metrics, its health with and without a broker, its report on SIGUSR2, and that it goes on."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import requests

from rpc.transport import Bus
from service.periodic import wait_until
from tests.support.bus import FaultProxy, url_of
from tests.support.cell_conductor import DatabaselessConductor
from tests.support.databases import closed_port, sqlite_url, synced
from tests.support.processes import PATIENCE, Configuration, RoleProcess, write_configuration


@pytest.fixture
def proxy() -> Iterator[FaultProxy]:
    with contextmanager(url_of)("rabbit") as url:
        proxy = FaultProxy(url)
        yield proxy
        proxy.close()


@contextmanager
def conductor_on(url: str) -> Iterator[None]:
    """A conductor that admits agents, as each needs one before it listens."""
    with closing(Bus(url)) as bus:
        conductor = DatabaselessConductor(bus)
        yield
        conductor.stop()


@contextmanager
def running(role: str, folder: Path, groups: Configuration) -> Iterator[RoleProcess]:
    process = RoleProcess(role, folder, write_configuration(folder / f"{role}.conf", groups))
    try:
        yield process
    finally:
        process.kill()


def health(port: int) -> tuple[int, dict[str, Any]]:
    """Status and troubles; 0 while nobody listens."""
    try:
        answer = requests.get(f"http://127.0.0.1:{port}/health", timeout=PATIENCE)
    except requests.ConnectionError:
        return 0, {}
    return answer.status_code, {check["check"]: check["trouble"] for check in answer.json()["checks"] if check["trouble"]}


def test_an_agent_reports_silent_brokers_and_on_signals(proxy: FaultProxy, tmp_path: Path) -> None:
    port = closed_port()
    groups: Configuration = {
        "DEFAULT": {"transport_url": proxy.url, "log_dir": tmp_path},
        "compute": {"host": "h1"},
        "simulated": {"state_path": tmp_path / "hosts"},
        "monitoring": {"port": port},
    }
    with conductor_on(proxy.url), running("compute", tmp_path, groups) as process:
        assert wait_until(lambda: health(port)[0] == 200, PATIENCE, 0.2), health(port)
        text = requests.get(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE).text
        assert 'superconductor_agent_builds{host="h1",state="queued"} 0.0' in text
        assert 'superconductor_messages_sent_total{kind="cast",method="ping",topic="compute"}' in text

        proxy.cut()
        assert wait_until(lambda: any(part.startswith("compute.h1") for part in health(port)[1]), PATIENCE, 0.2), health(port)
        assert health(port)[0] == 503
        proxy.restore()
        assert wait_until(lambda: health(port)[0] == 200, PATIENCE, 0.2), health(port)

        workers = process.workers()
        process.signal(signal.SIGUSR2)  # to the master, which passes it on
        assert wait_until(lambda: len(reports(tmp_path)) == 1, PATIENCE, 0.1)
        os.kill(workers[0], signal.SIGUSR2)
        assert wait_until(lambda: "a Guru Meditation Report is in" in log(tmp_path), PATIENCE, 0.1)
        text = reports(tmp_path)[0].read_text()
        assert "compute-h1" in text
        assert "guest:guest" not in text
        assert process.workers() == workers
        assert health(port)[0] == 200
        process.signal(signal.SIGTERM)
        assert process.wait() == 0


def reports(folder: Path) -> list[Path]:
    """Those that are complete."""
    found = folder.glob("superconductor-compute_gurumeditation_*")
    return [path for path in found if "====  Configuration" in path.read_text()]


def log(folder: Path) -> str:
    return "".join(path.read_text() for path in folder.glob("*.log"))


def test_an_api_works_despite_a_taken_monitoring_port(tmp_path: Path) -> None:
    port, url = closed_port(), sqlite_url(tmp_path, "api")
    synced(url, "api").dispose_connections()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        groups: Configuration = {
            "DEFAULT": {"transport_url": "rabbit://guest:guest@127.0.0.1:1/none"},
            "api_database": {"connection": url},
            "api": {"port": port, "workers": 1},
            "monitoring": {"port": taken.getsockname()[1]},
        }
        with running("api", tmp_path, groups) as process:
            assert process.says("metrics and health cannot be served on 127.0.0.1 port")
            assert process.says("is ready")
            assert requests.get(f"http://127.0.0.1:{port}/", timeout=PATIENCE).status_code in (200, 300)
            process.signal(signal.SIGTERM)
            assert process.wait() == 0
