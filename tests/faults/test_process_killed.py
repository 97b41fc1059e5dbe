"""A deployment of one cell in separate processes, on MariaDB and RabbitMQ: killed, stopped, reloaded, several of each at once."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import psutil
import pytest
import requests

from service.periodic import wait_until
from tests.support.conductor import read_requests
from tests.support.processes import IMAGE, PATIENCE, Deployment, RoleProcess, deployment, write_configuration


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """Two conductors, two schedulers, an API of two workers and two agents, which have booted something."""
    with deployment(tmp_path_factory.mktemp("deployment")) as made:
        for name in ("conductor-1", "conductor-2", "scheduler-1", "scheduler-2", "api"):
            made.start(name.partition("-")[0], name=name)
        for host in ("h1", "h2"):
            made.start_agent(host)
        assert all(process.says("is ready") for process in made.processes), [process.log[-2000:] for process in made.processes]
        assert wait_until(lambda: made.operate("host", "list", "-f", "value", "-c", "Host").split() == ["h1", "h2"], PATIENCE, 0.5)
        made.operate("host", "discover")
        assert made.boots("first", 4)
        yield made


def named(running: Deployment, name: str) -> RoleProcess:
    return next(process for process in running.processes if process.log_file.stem == name)


@pytest.mark.parametrize("name", ["conductor-1", "scheduler-1", "api", "h1"])
def test_a_killed_worker_is_replaced(running: Deployment, name: str) -> None:
    process = named(running, name)
    workers = process.workers()
    ready = process.log.count("is ready")
    os.kill(workers[0], signal.SIGKILL)
    assert process.says("is ready", times=ready + 1), process.log[-2000:]
    assert wait_until(lambda: len(process.workers()) == len(workers), PATIENCE, 0.1)
    assert workers[0] not in process.workers()
    assert running.boots(f"after-{name}", 3)


def test_a_build_survives_killed_conductors_and_schedulers(running: Deployment) -> None:
    running.post("under-fire", 20)
    for name in ("conductor-1", "conductor-2", "scheduler-1", "scheduler-2"):
        for pid in named(running, name).workers():
            os.kill(pid, signal.SIGKILL)
    assert wait_until(lambda: running.statuses("under-fire") == ["ACTIVE"] * 20, PATIENCE, 0.2), running.statuses("under-fire")


def test_workers_whose_master_is_killed_end_by_themselves(running: Deployment) -> None:
    extra = running.start("scheduler", name="scheduler-extra")
    assert extra.says("is ready")
    workers = extra.workers()
    extra.signal(signal.SIGKILL)
    extra.wait()
    assert wait_until(lambda: not any(psutil.pid_exists(pid) for pid in workers), PATIENCE, 0.1)


def test_sigterm_finishes_begun_work_before_the_process_ends(running: Deployment) -> None:
    """An agent that is spawning: its guest comes up before the agent goes, within the bound."""
    slow = running.start_agent("h3", spawn_delay_min=1.5, spawn_delay_max=1.5, vcpus=64, memory_mb=1 << 20, disk_gb=10000)
    assert slow.says("is ready")
    assert wait_until(lambda: "h3" in running.operate("host", "list", "-f", "value", "-c", "Host"), PATIENCE, 0.5)
    running.operate("host", "discover")
    assert wait_until(lambda: bool(_building_on(running, "h3")), PATIENCE, 0.1)
    begun = _building_on(running, "h3")
    slow.signal(signal.SIGTERM)
    began = time.monotonic()
    assert slow.wait() == 0
    assert time.monotonic() - began < 20.0
    assert "has stopped" in slow.log
    assert wait_until(lambda: all(_show(running, uuid)["status"] == "ACTIVE" for uuid in begun), PATIENCE, 0.2)
    assert {_show(running, uuid)["OS-EXT-SRV-ATTR:host"] for uuid in begun} == {"h3"}


def test_sigterm_whose_bound_is_hit_loses_no_build(running: Deployment) -> None:
    """An agent that would spawn for minutes: it is gone within its bound, and what it was at is built by another host."""
    room = {"vcpus": 256, "memory_mb": 1 << 22, "disk_gb": 40000}
    slow = running.start_agent("h4", drain_timeout=0.5, spawn_delay_min=300, spawn_delay_max=300, **room)
    assert slow.says("is ready")
    assert wait_until(lambda: "h4" in running.operate("host", "list", "-f", "value", "-c", "Host"), PATIENCE, 0.5)
    running.operate("host", "discover")
    assert wait_until(lambda: bool(_building_on(running, "h4")), PATIENCE, 0.1)
    begun = _building_on(running, "h4")
    slow.signal(signal.SIGTERM)
    assert slow.wait(20.0) == 0
    assert wait_until(lambda: all(_show(running, uuid)["status"] == "ACTIVE" for uuid in begun), PATIENCE, 0.2)
    assert "h4" not in {_show(running, uuid)["OS-EXT-SRV-ATTR:host"] for uuid in begun}


def test_a_conductor_at_its_bound_leaves_its_build(running: Deployment) -> None:
    """It waits for a scheduler that does not answer when it is told to end, and may not wait for as long."""
    hasty = {"DEFAULT": {"graceful_shutdown_timeout": 1}, "conductor": {"lease_seconds": 5}}
    extra = running.start("conductor", name="conductor-hasty", **hasty)
    assert extra.says("is ready")
    others = [named(running, name) for name in ("conductor-1", "conductor-2", "scheduler-1", "scheduler-2")]
    stopped = [pid for process in others for pid in process.workers()]
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    try:
        running.post("left-behind")
        assert wait_until(lambda: _leased(running), PATIENCE, 0.05)
        extra.signal(signal.SIGTERM)
        extra.wait(15.0)
    finally:
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)
    assert wait_until(lambda: running.statuses("left-behind") == ["ACTIVE"], PATIENCE, 0.1)


def _leased(running: Deployment) -> bool:
    """Whether a conductor has begun with all that waits."""
    rows = running.database.read(read_requests)
    return bool(rows) and all(row.state == "leased" for row in rows)


def _show(running: Deployment, uuid: str) -> dict[str, str]:
    shown: dict[str, str] = requests.get(f"{running.endpoint}/servers/{uuid}", timeout=10).json()["server"]
    return shown


def _building_on(running: Deployment, host: str) -> list[str]:
    """Boot one more server, and return those that are spawning on ``host``: the emptiest host is the likeliest."""
    running.post(f"drain-{time.monotonic_ns()}")
    time.sleep(0.7)  # it has been ordered by then, and its guest does not run yet
    answer = requests.get(f"{running.endpoint}/servers/detail", params={"name": "^drain", "status": "BUILD"}, timeout=10).json()
    return [server["id"] for server in answer["servers"] if server["OS-EXT-SRV-ATTR:host"] == host]


def test_an_ending_api_answers_its_accepted_requests(running: Deployment) -> None:
    """Nobody who was let in gets an error, and the port can be taken by the next API at once."""
    api = named(running, "api")
    failures: list[str] = []
    answers: list[int] = []
    stop = threading.Event()

    def ask() -> None:
        session = requests.Session()
        while not stop.is_set():
            try:
                answer = session.get(f"{running.endpoint}/servers", params={"limit": "5"}, timeout=10)
            except requests.ConnectionError as error:
                if "refused" not in str(error) and not stop.is_set() and api.workers():
                    failures.append(str(error))
                return
            answers.append(answer.status_code)
            if answer.status_code != 200:
                failures.append(answer.text)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    assert wait_until(lambda: len(answers) >= 40, PATIENCE), "it is busy when it is told"
    api.signal(signal.SIGTERM)
    assert api.wait() == 0
    stop.set()
    for thread in threads:
        thread.join()
    again = running.start("api", name="api-again")
    assert again.says("is ready")
    assert running.boots("again", 2)
    assert not [failure for failure in failures if "503" in failure or "500" in failure], failures


def test_sighup_reloads_only_changeable_options(running: Deployment) -> None:
    api = named(running, "api-again")
    workers = api.workers()
    assert requests.get(f"{running.endpoint}/servers", params={"limit": "900"}, timeout=10).status_code == 200
    try:
        changed = {**running.groups, "api": {**running.groups["api"], "max_servers_per_request": 2, "threads": 3}}
        write_configuration(running.conf, changed)
        api.signal(signal.SIGHUP)
        assert api.says("has reloaded its configuration", times=2), api.log[-2000:]  # one of each worker
        body: Any = {"server": {"name": "many", "flavorRef": "tiny", "imageRef": IMAGE, "max_count": 3}}
        assert requests.post(f"{running.endpoint}/servers", json=body, timeout=10).status_code == 400
        assert "threads" in api.log  # told that this one needs a restart
        assert api.workers() == workers

        running.conf.write_text("[api\nmax_limit = seven\n")
        api.signal(signal.SIGHUP)
        assert api.says("the configuration was not reloaded", times=2), api.log[-2000:]
        assert requests.post(f"{running.endpoint}/servers", json=body, timeout=10).status_code == 400
    finally:
        write_configuration(running.conf, running.groups)
    api.signal(signal.SIGHUP)
    assert wait_until(lambda: requests.post(f"{running.endpoint}/servers", json=body, timeout=10).status_code == 202, PATIENCE, 0.2)


def test_sighup_changes_how_a_scheduler_chooses(running: Deployment) -> None:
    schedulers = [named(running, name) for name in ("scheduler-1", "scheduler-2")]
    try:
        only_none = {**running.groups, "scheduler": {**running.groups["scheduler"], "enabled_filters": "NoSuchFilter"}}
        write_configuration(running.conf, only_none)
        for scheduler in schedulers:
            scheduler.signal(signal.SIGHUP)
            assert scheduler.says("the configuration was not reloaded")
        assert running.boots("unchanged")
        driver = {**running.groups, "scheduler": {**running.groups["scheduler"], "driver": "chance"}}
        write_configuration(running.conf, driver)
        for scheduler in schedulers:
            scheduler.signal(signal.SIGHUP)
            assert scheduler.says("has reloaded its configuration")
        uuid = running.post("by-chance")
        assert wait_until(lambda: running.statuses("by-chance") == ["ACTIVE"], PATIENCE, 0.1)
        explained = requests.get(f"{running.endpoint}/servers/{uuid}/explanation", timeout=10).json()
        assert explained["explanation"]["decisions"][-1]["driver"] == "chance", explained
    finally:
        write_configuration(running.conf, running.groups)


def test_everything_ends_on_sigterm_and_leaves_no_process(running: Deployment) -> None:
    """The last test: it takes the deployment down."""
    with ExitStack() as stack:
        stack.callback(running.close)
        living = [process for process in running.processes if psutil.pid_exists(process.pid) and process.workers()]
        assert len(living) >= 6
        workers = [pid for process in living for pid in process.workers()]
        for process in living:
            process.signal(signal.SIGTERM)
        assert [process.wait() for process in living] == [0] * len(living)
        assert not [pid for pid in workers if psutil.pid_exists(pid)]
