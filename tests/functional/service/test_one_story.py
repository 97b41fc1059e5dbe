"""One boot's story in the log: whoever looks for its request or its server finds every step, by every role, in order."""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from service import config, logs
from service.periodic import wait_until
from tests.support.region import Region, host, running

HOSTS = [host("bad", memory_mb=65536, failure_rate=1.0), host("good", memory_mb=32768)]
STORY = (
    ("conductor.build", "leased", None),
    ("scheduler.manager", "selected", "bad"),
    ("conductor.stage", "staged", "bad"),
    ("conductor.hand_over", "handed over", "bad"),
    ("conductor.orders", "ordered", "bad"),
    ("compute.agent", "order taken", "bad"),
    ("conductor.cell_conductor", "accept", "bad"),
    ("compute.agent", "spawning", "bad"),
    ("compute.agent", "failed", "bad"),
    ("conductor.orders", "ordered", "good"),
    ("compute.agent", "order taken", "good"),
    ("conductor.cell_conductor", "accept", "good"),
    ("compute.agent", "spawning", "good"),
    ("compute.agent", "spawned", "good"),
)
"""Logger, step, host. Each of them leads to the next, whatever else happens meanwhile."""
ALSO = {
    ("api.servers.handlers", "accepted", None),
    ("conductor.cell_conductor", "active", "good"),
    ("conductor.apply", "applied", "good"),
}
"""Said after a commit that others act on: who was faster is chance."""

Line = tuple[str, str, str | None]


@pytest.fixture
def restored() -> Iterator[None]:
    """Afterwards logging is again as pytest had it."""
    root = logging.getLogger()
    handlers, level, hook = list(root.handlers), root.level, sys.excepthook
    yield
    for handler in list(root.handlers):
        root.removeHandler(handler)
        handler.close()
    for handler in handlers:
        root.addHandler(handler)
    root.setLevel(level)
    sys.excepthook = hook


def log_to(path: Path, *arguments: str) -> None:
    logs.setup(config.load_options(["--log-file", str(path), *arguments], files=[]))


def boot(cloud: Region) -> tuple[str, str]:
    """A server that is ACTIVE after a failed attempt, and the request that asked for it."""
    answer = cloud.post("web")
    server = str(answer.json()["server"]["id"])
    cloud.wait_for(server, "ACTIVE")
    return server, answer.headers["x-openstack-request-id"]


_LINE = re.compile(r" INFO (?P<logger>[a-z_.]+) \[req-[^]]+\] \[instance: [^]]+\] (?P<step>[a-z ]+?)(?= [a-z]+=|:|$)")


def plain(lines: Sequence[str]) -> list[Line]:
    """What ``grep`` shows."""
    told: list[Line] = []
    for line in lines:
        found = _LINE.search(line)
        if found is not None:
            place = re.search(r" host=(\S+?)(?=[ :]|$)", line)
            told.append((found["logger"], found["step"], place[1] if place else None))
    return told


def follows(story: Sequence[Line], told: Sequence[Line]) -> bool:
    """Whether ``told`` has all of the story in its order, and anything in between."""
    rest = iter(told)
    return all(step in rest for step in story)


def test_a_search_by_request_or_server_shows_everything(tmp_path: Path, restored: None) -> None:
    path = tmp_path / "region.log"
    log_to(path)
    with running(tmp_path / "state", HOSTS) as cloud:
        server, request_id = boot(cloud)
        for sought in (server, request_id):

            def found(sought: str = sought) -> list[Line]:
                return plain([line for line in path.read_text().splitlines() if sought in line])

            assert wait_until(lambda found=found: follows(STORY, found()) and set(found()) >= ALSO, 90.0), found()  # type: ignore[misc]  # a default binds it
        lines = [line for line in path.read_text().splitlines() if f"[instance: {server}]" in line]
        assert all("cell=cell1" in line for line in lines if " ordered " in line or " accept " in line or " staged " in line)
        assert {re.search(r"attempt=(\d+)", line)[1] for line in lines if " ordered " in line} == {"1", "2"}  # type: ignore[index]  # each has one
        cloud.delete(server)
        assert wait_until(lambda: f"[instance: {server}] gone cell=cell1 host=good" in path.read_text(), 90.0)


def test_for_programs_the_same_are_keys(tmp_path: Path, restored: None) -> None:
    path = tmp_path / "region.log"
    log_to(path, "--use-json")
    with running(tmp_path / "state", [host("h1")]) as cloud:
        server, request_id = boot(cloud)
    told = [json.loads(line)["extra"] for line in path.read_text().splitlines()]
    steps = [extra for extra in told if extra.get("instance") == server]
    assert {extra["request_id"] for extra in steps if extra["step"] != "deleted"} == {request_id}
    [accept] = [extra for extra in steps if extra["step"] == "accept"]
    assert (accept["cell"], accept["host"], accept["attempt"]) == ("cell1", "h1", 1)
