"""Conductors and agents that are stopped for longer than a lease, or a silence, at each of their steps, and then go on.

They are processes of their own, stopped with SIGSTOP. Meanwhile successors bring everything to its end; who wakes changes nothing.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
import psutil
import pytest
import sqlalchemy as sa

from db.cell import instances, services
from db.cell.tables import builds
from db.sql.connection import Connection
from objects import lifecycle
from objects.build import Report, ReportKind
from objects.instance import Failure, FailureClass, State
from objects.lifecycle import Change
from objects.process import AGENT_BINARY
from service.periodic import wait_until
from tests.support import fleet
from tests.support.ground import USUAL
from tests.support.processes import RoleProcess, write_configuration
from tests.support.sleeper import LEASE, Job, Told
from tests.support.world import PATIENCE, World, world

HOSTS = {"cell1": ["a1", "a2"], "cell2": ["b1", "b2"]}
AWAKE = 60.0
"""Seconds that a process may take to come to where it is stopped."""


class Sleeper:
    """A process of ``tests.support.sleeper``."""

    def __init__(self, role: str, url: str, jobs: Sequence[Job]) -> None:
        command = [sys.executable, "-m", "tests.support.sleeper", role, url]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert self._process.stdin is not None
        self._process.stdin.write(msgspec.json.encode(jobs))
        self._process.stdin.close()
        self._process.stdin = None

    def sleeps(self) -> bool:
        """Wait until it has stopped itself."""
        state = psutil.Process(self._process.pid)
        return wait_until(lambda: state.status() == psutil.STATUS_STOPPED or self._process.poll() is not None, AWAKE, 0.05) and (
            state.status() == psutil.STATUS_STOPPED
        )

    def wake(self) -> list[Told]:
        """Let it go on to its end."""
        self._process.send_signal(signal.SIGCONT)
        out, said = self._process.communicate(timeout=AWAKE)
        assert self._process.returncode == 0, said.decode()
        return msgspec.json.decode(out, type=list[Told])

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()


@contextmanager
def sleeper(role: str, url: str, jobs: Sequence[Job]) -> Iterator[Sleeper]:
    made = Sleeper(role, url, jobs)
    try:
        if not made.sleeps():
            made._process.kill()
            raise AssertionError(made._process.communicate()[1].decode())
        yield made
    finally:
        made.end()


def written(cloud: World, uuids: Sequence[str]) -> object:
    """All that one who was overtaken might touch. A copy that is STAGED, or in cell0 where the server is not, is inert."""
    rows = []
    for uuid in uuids:
        home = cloud.row(uuid)
        rows.append([row for row in cloud.rows(uuid).values() if row.version or row == home])
    return cloud.requests(), [cloud.mapped(uuid) for uuid in uuids], rows, cloud.evidence().claims


BUILDS = ("after lease_batches 1", "before stage_parts 1", "before hand_over 1", "after hand_over 1")
ELSEWHERE = (
    "before refence_requests 1",
    "after refence_requests 1",
    "before stage_parts 2",
    "before hand_over 1",
    "after hand_over 1",
)
"""With one server, whose first cell could not take it."""
BURIALS = ("before stage_buried 1", "before bury_requests 1", "after bury_requests 1")


def test_a_super_conductor_without_its_lease_changes_nothing(tmp_path: Path) -> None:
    """At every step at once, each with a batch of its own; its successor has finished all of them by then."""
    with world(tmp_path, HOSTS) as cloud:
        # of two in two cells one may be handed over while the stage of the other sleeps
        batches = [(Job(at=at), cloud.accept(1 if "stage" in at else 2)) for at in BUILDS]
        batches += [(Job(at=at, refuse_stage=True), cloud.accept()) for at in ELSEWHERE]
        batches += [(Job(at=at), cloud.accept(2, size=fleet.flavor(vcpus=1000))) for at in BURIALS]
        jobs = [msgspec.structs.replace(job, batch=spec.batch_id) for job, spec in batches]
        uuids = [server.uuid for server in cloud.evidence().servers]
        with sleeper("super", cloud.folder.database_url("api"), jobs) as asleep:
            stopped = time.monotonic()
            cloud.start()
            cloud.settle()
            assert wait_until(lambda: time.monotonic() - stopped > 1.5 * LEASE, PATIENCE)
            before = written(cloud, uuids)
            told = asleep.wake()
        evidence = cloud.settle()
        assert written(cloud, uuids) == before
        states = Counter(row.instance.state for row in evidence.rows)
        assert states == {State.ACTIVE: len(uuids) - 2 * len(BURIALS), State.ERROR: 2 * len(BURIALS)}
        assert [bool(end.sent) for end in told] == [job.at == "after hand_over 1" for job in jobs], told
        assert sum(len(cloud.spawned(host)) for host in cloud.homes) == states[State.ACTIVE], "nothing was built twice"


def test_a_cell_conductor_changes_nothing_after_its_sleep(tmp_path: Path) -> None:
    """In sweeps between reading and writing, and with reports in hand that were answered by its successor long ago."""
    with world(tmp_path, {"cell1": ["a1", "a2", "a3"]}) as cloud:
        dead, late, failed, asked = cloud.conductor("one").drive(cloud.accept(4), upto="ordered").uuids
        database = cloud.databases["cell1"]
        accepted(cloud, dead)
        host = cloud.row(dead).host or ""
        database.write(services.set_forced_down, host, AGENT_BINARY, True, time.time())
        database.write(_strike, late)
        cloud.keeper.keep()  # what was staged is scheduled
        reason = Failure(kind=FailureClass.HOST, error="BuildFailed", message="no disk", at=0.0)
        jobs = [
            Job(at="before transition_rows 1", sweep="dead_hosts"),
            Job(at="before transition_rows 1", sweep="end_overdue"),
            Job(at="before record_sent 1", sweep="resend_orders"),
            Job(at="before apply_reports 1", report=report(cloud, failed, ReportKind.FAILED, failure=reason)),
            Job(at="before apply_reports 1", report=report(cloud, asked, ReportKind.ACCEPT)),
        ]
        with sleeper("cell", cloud.folder.database_url("cell1"), jobs) as asleep:
            database.write(services.set_forced_down, host, AGENT_BINARY, False, time.time())
            cloud.start()
            cloud.settle()
            before = written(cloud, [dead, late, failed, asked])
            told = asleep.wake()
        cloud.settle()
        assert written(cloud, [dead, late, failed, asked]) == before
        assert [end.end for end in told] == ["done", "done", "done", "refused", "refused"]
        assert [cloud.row(uuid).state for uuid in (dead, late, failed, asked)] == ["active", "error", "active", "active"]
        assert [cloud.row(uuid).attempt for uuid in (failed, asked)] == [1, 1]
        assert [end.sent for end in told[:2] + told[3:]] == [0] * 4


def _strike(tx: Connection, uuid: str) -> None:
    tx.execute(sa.update(builds).where(builds.c.instance_uuid == uuid).values(deadline=1.0))


def accepted(cloud: World, uuid: str) -> None:
    """An agent's start that is gone by now had begun to build it."""
    row = cloud.row(uuid)
    who = (row.host or "", row.fence, row.attempt, "gone")
    outcome = cloud.databases["cell1"].write(
        instances.transition_rows, [uuid], lambda r: lifecycle.accept_order(r, *who), time.time()
    )
    assert isinstance(outcome[uuid], Change)


def report(cloud: World, uuid: str, kind: ReportKind, failure: Failure | None = None) -> Report:
    """Of the attempt in force, by an agent's start that is gone by now."""
    row = cloud.row(uuid)
    return Report(
        kind=kind, instance_uuid=uuid, host=row.host or "", fence=row.fence, attempt=row.attempt, builder="gone", failure=failure
    )


@pytest.mark.parametrize("ground", USUAL[1:])
def test_an_agent_asleep_during_a_spawn_leaves_nothing(tmp_path: Path, ground: str) -> None:
    """It was called dead, and its build is on another host: its guest comes up all the same, and goes."""
    with world(tmp_path, {"cell1": ["a1", "a2"]}, ground) as cloud:
        driven = cloud.conductor("one").drive(cloud.accept(), upto="handed over")
        [uuid] = driven.uuids
        host = cloud.row(uuid).host or ""
        [other] = {"a1", "a2"} - {host}
        cloud.start_agent(other)
        cloud.start_cells(msgspec.structs.replace(cloud.quick, service_down_time=2.0))
        groups: dict[str, dict[str, object]] = {
            "DEFAULT": {"transport_url": cloud.folder.bus_url("cell1")},
            "compute": {"host": host, "report_interval": 0.2, "audit_interval": 0.5},
            "simulated": {
                "state_path": cloud.folder.path / "hosts",
                "shared_folder": True,
                "spawn_delay_min": 1.5,
                "spawn_delay_max": 1.5,
            },
        }
        agent = RoleProcess("compute", tmp_path, write_configuration(tmp_path / "agent.conf", groups), name="agent")
        try:
            assert agent.says("is ready"), agent.log
            cloud.send_again("cell1", uuid)
            assert wait_until(lambda: cloud.row(uuid).state is State.BUILDING, PATIENCE)
            assert agent.says("spawning"), "it has the answer to its question by now"
            os.killpg(agent.pid, signal.SIGSTOP)
            assert wait_until(lambda: cloud.row(uuid).state is State.ACTIVE, PATIENCE)
            assert (cloud.row(uuid).host, cloud.row(uuid).attempt) == (other, 2)
            os.killpg(agent.pid, signal.SIGCONT)
            assert wait_until(lambda: [entry.destroyed for entry in cloud.journal(host)][-1:] == [uuid], PATIENCE), cloud.journal(
                host
            )
            cloud.start_conductor()
            assert cloud.settle().claims == {uuid: other}
            assert (cloud.row(uuid).host, cloud.row(uuid).attempt) == (other, 2)
        finally:
            agent.kill()
