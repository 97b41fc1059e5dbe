"""Metrics and health over HTTP; an address that cannot be had costs a line in the log and nothing else."""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import requests

from service import config, metrics, monitor
from service.health import Board, HealthCheck
from service.monitor import Monitor, MonitorSettings
from service.periodic import wait_until

PATIENCE = 90.0


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@contextmanager
def serving(board: Board, port: int) -> Iterator[str]:
    served = Monitor(MonitorSettings(port=port), board).start()
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        served.stop()


def answers(url: str) -> bool:
    try:
        return requests.get(f"{url}/metrics", timeout=PATIENCE).ok
    except requests.ConnectionError:
        return False


def test_metrics_and_health_are_served() -> None:
    board, trouble = Board(), [""]
    part = HealthCheck("sweep", lambda: trouble[0])
    with serving(board, free_port()) as url:
        assert wait_until(lambda: answers(url), PATIENCE)
        text = requests.get(f"{url}/metrics", timeout=PATIENCE)
        assert text.headers["Content-Type"].startswith("text/plain")
        assert "superconductor_stage_seconds_count" in text.text
        for path in ("health", "healthcheck", "health/"):
            answer = requests.get(f"{url}/{path}", timeout=PATIENCE)
            assert (answer.status_code, answer.json()) == (200, {"healthy": True, "checks": []})
        trouble[0] = "its thread has ended"
        board.watch_part(part)
        answer = requests.get(f"{url}/health", timeout=PATIENCE)
        assert answer.status_code == 503
        assert answer.json()["checks"] == [{"check": "sweep", "trouble": "its thread has ended", "note": ""}]
        alive = requests.get(f"{url}/alive", timeout=PATIENCE)
        assert (alive.status_code, alive.text) == (200, "alive\n"), "no restart mends it"
        assert requests.get(url, timeout=PATIENCE).status_code == 404
        assert requests.post(f"{url}/metrics", timeout=PATIENCE).status_code == 405


def test_a_taken_port_is_reported_and_used_later(caplog: pytest.LogCaptureFixture) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with serving(Board(), port) as url:
            assert wait_until(lambda: "Address already in use" in caplog.text, PATIENCE)
            assert f"[monitoring] address, port: metrics and health cannot be served on 127.0.0.1 port {port}" in caplog.text
            taken.close()
            assert wait_until(lambda: answers(url), PATIENCE)


@pytest.mark.parametrize(
    "chosen", [MonitorSettings(port=70000), MonitorSettings(port=-1), MonitorSettings(address="192.0.2.1", port=9)]
)
def test_an_impossible_address_is_reported(chosen: MonitorSettings, caplog: pytest.LogCaptureFixture) -> None:
    served = Monitor(chosen, Board()).start()
    assert wait_until(lambda: "cannot be served on" in caplog.text, PATIENCE)
    served.stop()
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


def test_every_worker_has_its_port_none_by_default() -> None:
    options = [(monitor.GROUP, monitor.OPTIONS)]
    assert monitor.read_settings(config.load_options([], options, files=[]), 3).port == 0
    conf = config.load_options([], options, files=[], overrides={"monitoring.port": 9100})
    assert [monitor.read_settings(conf, worker).port for worker in (0, 1, 2)] == [9100, 9101, 9102]


class Readers:
    def __init__(self, value: float | None) -> None:
        self.value = value

    def read(self) -> metrics.Values:
        if self.value is None:
            raise ValueError("not now")
        return [(("east", "database"), self.value)]


def test_a_failing_reading_costs_only_itself() -> None:
    def told() -> dict[str, float]:
        (family,) = metrics.BREAKER.collect()
        return {sample.labels["cell"]: sample.value for sample in family.samples if sample.labels["cell"] == "east"}

    failing, one = Readers(None), Readers(1.0)
    metrics.BREAKER.follow_reader(failing.read)
    metrics.BREAKER.follow_reader(one.read)
    assert told() == {"east": 1.0}
    del one
    assert wait_until(lambda: told() == {}, PATIENCE)
