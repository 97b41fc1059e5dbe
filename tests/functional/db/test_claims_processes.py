"""Scheduler processes that share nothing but the database, in a race for the last places."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from db.sql.sync import sync_schema
from objects import stored
from tests.support import claimer, fleet
from tests.support.databases import SERVERS, synced, url_on
from tests.support.fleet import Site

HOSTS = 20


@pytest.fixture(params=["mariadb", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    assert request.param in SERVERS
    with url_on(request.param, tmp_path) as made:
        sync_schema(made, "api")
        yield made


@pytest.mark.parametrize("run", range(2))
def test_two_processes_requesting_120_fill_exactly_100_places(url: str, run: int) -> None:
    site = Site(synced(url, "api"), [fleet.node(f"h{n}", vcpus=5) for n in range(HOSTS)])
    command = [sys.executable, claimer.__file__, url, str(HOSTS)]
    processes = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    answers = [answer for process in processes for answer in stored.load_text(process.communicate(timeout=120)[0], list[str])]
    placed = Counter(answer for answer in answers if answer in site.homes)
    assert set(placed.values()) == {5}
    assert len(placed) == HOSTS
    assert Counter(site.claimed().values()) == placed
    assert len(answers) == 120
    assert all("CoreFilter" in answer for answer in answers if answer not in site.homes)
    assert site.overfull() == []
    site.database.dispose_connections()
