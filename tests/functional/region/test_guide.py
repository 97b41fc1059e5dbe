"""The operator's guide does what it says: every page is followed, in the order of the list on its first one."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from compute.journal import read_entries
from rpc import agents
from tests.support import guide, vhosts
from tests.support.bus import url_of
from tests.support.databases import closed_port
from tests.support.guide import Reader

GUIDE = Path(__file__).parents[3] / "docs" / "guide"
PAGES = re.findall(r"^\| \[.*?\]\((.*?\.md)\) \|", (GUIDE / "README.md").read_text(), re.MULTILINE)


def test_every_page_is_in_the_list() -> None:
    assert sorted(PAGES) == sorted(page.name for page in GUIDE.glob("*.md") if page.name != "README.md")


@pytest.fixture
def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Reader]:
    monkeypatch.chdir(tmp_path)
    for name in ("SUPERCONDUCTOR_CONFIG", "SUPERCONDUCTOR_ENDPOINT"):
        monkeypatch.setenv(name, "")  # set by the first page, and back to what they were at the end
    with ExitStack() as stack:
        first, second = (stack.enter_context(contextmanager(url_of)("rabbit")) for _ in range(2))
        meant = {
            "rabbit://sc:PASSWORD@mq/cell1": first,
            "rabbit://sc:PASSWORD@mq/cell2": second,
            "rabbit://sc:NEW@mq/cell2": f"{second}?heartbeat_timeout_threshold=15",
            "8774": str(closed_port()),
        }
        prefixes = [agents.prefix_of(urlsplit(url).path) for url in (first, second)]
        meant["compute.cell1."] = prefixes[0]
        hosts = ("cell1-host1", "cell1-host2", "cell2-host1")
        stack.callback(vhosts.delete_users, [f"{prefix}{host}" for prefix in prefixes for host in hosts])
        reader = Reader(tmp_path, meant, capsys)
        stack.callback(reader.close)
        yield reader


@pytest.mark.timeout(600)
def test_the_pages_do_what_they_say(reader: Reader) -> None:
    for name in ("README.md", *PAGES):
        before = guests(reader.folder)
        reader.read(GUIDE / name)
        if name == "restoring-a-database.md":
            after = guests(reader.folder)
            assert not before - after, "a restore destroys no guest"
            assert max(after.values()) == 1, "and builds none twice"


def guests(folder: Path) -> Counter[str]:
    """How often each server's guest runs, by the journals of all hosts."""
    running: Counter[str] = Counter()
    for journal in folder.rglob("*.guests"):
        here: set[str] = set()
        for entry in read_entries(journal):
            if entry.spawned is not None:
                here.add(entry.spawned.uuid)
            if entry.destroyed is not None:
                here.discard(entry.destroyed)
        running.update(here)
    return running


@pytest.mark.parametrize(
    ("said", "promise", "like"),
    [
        ("+--+\n| a |  b |\n+--+\n", "| a | b |\n", True),
        ("a 17 b\n", "a ... b\n", True),
        ("a\nb\nc\n", "...\nc\n", True),
        ("a\nb\nc\n", "a\n...\n", True),
        ("a\nb\nc\n", "a\nc\n", False),
        ("a\nb\n", "a\n", False),
        ("a (b)\n", "a (b)\n", True),
    ],
)
def test_outputs_are_compared(said: str, promise: str, like: bool) -> None:
    assert guide.is_like(said, promise) is like
