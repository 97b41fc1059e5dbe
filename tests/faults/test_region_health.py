"""Processes of a real region say whether they are wedged: stopped, idle, or with a database or a broker that swallows everything.

While they are, they report what they are doing on SIGUSR2, without a secret.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from chaos.watch import unwell_members
from deploy.local.health import State
from deploy.local.options import set_options
from deploy.local.region import Region
from deploy.local.shape import Role
from service.periodic import wait_until
from tests.support.local_region import needs_servers
from tests.support.watched_region import PATIENCE, SHAPE, Watched, watched_region
from tests.support.weather import all_weather

pytestmark = needs_servers

STUCK_AFTER = 4.0
"""Seconds, of cell conductors. A database is given up after fifteen, and their health takes three to tell while it is silent."""
SWEEP_INTERVAL = STUCK_AFTER / 10
"""Seconds. A round is stuck after ten of them, too."""
CELL1 = {"cell1-conductor-1", "cell1-host1", "cell1-host2"}


def soon_stuck(region: Region) -> None:
    for member in SHAPE.list_members():
        if member.role is Role.CONDUCTOR:
            file = region.folder.etc / member.files[-1]
            set_options(file, "monitoring", {"stuck_after": str(STUCK_AFTER)})
            set_options(file, "conductor", {"sweep_interval": str(SWEEP_INTERVAL)})


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    """One for the tests of this file; each leaves it well."""
    with watched_region(tmp_path_factory.mktemp("region"), soon_stuck) as made:
        yield made


def report_of(watched: Watched, name: str) -> str:
    """What the process writes on SIGUSR2 to its master, which is its log where no folder for logs is configured."""
    before = len(watched.log_of(name))

    def complete() -> bool:
        _, head, rest = watched.log_of(name)[before:].partition("====  Configuration")
        return bool(head) and "monitoring.stuck_after" in rest

    os.kill(watched.region.table.pids_by_member()[name][0], signal.SIGUSR2)
    assert wait_until(complete, PATIENCE, pause=0.2), watched.log_of(name)[before:]
    return watched.log_of(name)[before:]


def check_report(watched: Watched, text: str) -> None:
    for section in ("Guru Meditation", "Threads", "Health", "Metrics", "Configuration"):
        assert f"====  {section}\n" in text
    assert "this section failed" not in text
    assert not [secret for secret in watched.secrets() if secret in text]


def test_idle_processes_are_well_and_report(watched: Watched) -> None:
    watched.wait_for(set())
    assert not unwell_members(watched.look())
    for member in SHAPE.list_members():
        text = report_of(watched, member.name)
        check_report(watched, text)
        assert "transport_url" in text, "its configuration is there"
    assert len(watched.secrets()) >= 7
    watched.wait_for(set())


def test_a_stopped_process_is_silent_among_healthy_ones(watched: Watched) -> None:
    stopped = watched.region.table.pids_by_member()["cell1-host1"]
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    try:
        assert watched.told("cell1-host1", 3.0).state is State.SILENT
        [violation] = unwell_members({"cell1-host1": watched.told("cell1-host1", 1.0)})
        assert "cell1-host1 is silent" in violation.message
        assert watched.told("cell1-host2").state is State.WELL
    finally:
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)
    watched.wait_for(set())


def test_a_process_reports_its_wait_for_a_database(watched: Watched) -> None:
    """The database takes what it is asked, and answers nothing. Rounds end by their time-outs, and are begun again."""
    seen: set[str] = set()

    def waits() -> bool:
        seen.update(watched.told("cell1-conductor-1").troubles)
        return any(trouble.startswith("the database of cell") for trouble in seen)

    watched.proxies.freeze_links(["cell1-database"])
    try:
        assert wait_until(waits, PATIENCE, pause=0.5), seen
        text = report_of(watched, "cell1-conductor-1")
        check_report(watched, text)
        assert "not end" in text or "no answer since" in text or "cannot be used" in text
        assert watched.told("cell1-conductor-1").state is State.WEDGED
        others = {name: watched.told(name) for name in ("cell2-conductor-1", "cell2-host1", "scheduler-1", "super-conductor-1")}
        assert not unwell_members(others)
    finally:
        watched.proxies.restore_links(["cell1-database"])
    watched.wait_for(set())


@pytest.mark.parametrize("how", ["mute", "freeze", "cut"] if all_weather() else ["mute", "cut"])
def test_a_process_without_messages_is_reported_wedged(watched: Watched, how: str) -> None:
    """The connections of consumers stay, and nothing comes through them any more; or they are gone."""
    getattr(watched.proxies, f"{how}_links")(["cell1-bus"])
    try:
        watched.wait_for(CELL1)
        for name in CELL1:
            told = watched.told(name)
            assert any(trouble.startswith(("cell-conductor", "compute")) for trouble in told.troubles), told
            check_report(watched, report_of(watched, name))
    finally:
        watched.proxies.restore_links(["cell1-bus"])
    watched.wait_for(set())
