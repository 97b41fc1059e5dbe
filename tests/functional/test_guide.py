"""The operator's guide does what it says: every page is followed, in the order of the list on its first one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.support import guide
from tests.support.bus import url_of
from tests.support.databases import closed_port
from tests.support.guide import Reader

GUIDE = Path(__file__).parents[2] / "docs" / "guide"
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
        reader = Reader(tmp_path, meant, capsys)
        stack.callback(reader.close)
        yield reader


@pytest.mark.timeout(600)
def test_the_pages_do_what_they_say(reader: Reader) -> None:
    for name in ("README.md", *PAGES):
        reader.read(GUIDE / name)


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
