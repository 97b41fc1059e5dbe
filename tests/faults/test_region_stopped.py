"""A region on this machine, misconfigured and stopped by its own commands."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator

import pytest

from service.periodic import wait_until
from tests.support.local_region import COUNT, LONG, ROOT, Region, needs_servers, small_region

pytestmark = needs_servers


@pytest.fixture(scope="module")
def region(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Region]:
    """One for the tests of this file; each leaves it running, or starts it."""
    with small_region(tmp_path_factory.mktemp("region")) as made:
        yield made


def test_a_stopped_region_runs_nothing_but_its_servers(region: Region) -> None:
    region.boot("kept")
    region.down()
    stopped = region.left()
    command = [sys.executable, "-m", "deploy.local", "up", str(region.folder.path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as starting:
        assert wait_until(lambda: len(region.table.pids_by_member()) > 2, LONG)
        starting.kill()
    begun = region.left()
    region.down()
    stopped_again = region.left()
    region.up()

    assert (stopped, stopped_again) == ([], [])
    assert begun != [], "what a killed start has begun goes on"
    assert region.states("kept") == ["ACTIVE"] * COUNT
    region.boot("more")


def test_a_wrong_password_is_reported_with_the_process(region: Region) -> None:
    """It is waited for, as it may be mended; what ends a process at once is in ``test_process_configuration``."""
    region.down()
    path = region.folder.etc / "cell1.conf"
    text = path.read_text()
    changed, count = re.subn(r"//cell1:[^@]+@(.*)/cell1\n\n\[sec", r"//cell1:wrong@\1/cell1\n\n[sec", text)
    assert count == 1
    try:
        path.write_text(changed)
        done = region.command("up", "--patience", "25")
    finally:
        path.write_text(text)

    assert done.returncode == 1
    assert re.search("cell1-conductor-1.*denied", done.stderr, re.DOTALL), done.stderr
    assert region.left() == []
