"""The list of ``top``: keys, as a terminal sends them, choose, filter and open."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from cli.watch.chooser import Chooser, ListKind

SERVERS: list[dict[str, Any]] = [{"id": str(n), "name": f"web-{n}", "status": "ACTIVE"} for n in range(30)]


def shown(chooser: Chooser, items: list[dict[str, Any]], height: int = 50) -> str:
    out = io.StringIO()
    Console(file=out, width=100).print(chooser.shown_list(items, height))
    return out.getvalue()


@pytest.mark.parametrize(
    ("keys", "name"),
    [
        (b"\r", "web-0"),
        (b"\x1b[B\x1b[B\r", "web-2"),
        (b"jjk\n", "web-1"),
        (b"k\x1b[A\r", "web-0"),
        (b"j" * 100 + b"\r", "web-29"),
        (b"\x1b[99~\r\r", None),
        (b"\xff\r", "web-0"),
    ],
)
def test_keys_choose_and_open(keys: bytes, name: str | None) -> None:
    chooser = Chooser()
    chooser.press_keys(keys, SERVERS)
    assert (chooser.opened or {}).get("name") == name


def test_an_explanation_is_scrolled_and_closed() -> None:
    chooser = Chooser()
    chooser.press_keys(b"\rjjk", SERVERS)
    assert (chooser.opened, chooser.scrolled) == (SERVERS[0], 1)
    chooser.press_keys(b"\x1b", SERVERS)
    assert chooser.opened is None


def test_a_filter_is_typed_corrected_and_left() -> None:
    chooser = Chooser()
    chooser.press_keys(b"/qx\x7f", SERVERS)
    assert (chooser.filter, chooser.quits) == ("q", False)
    assert "/q_" in shown(chooser, SERVERS)
    chooser.press_keys(b"\rq", SERVERS)
    assert (chooser.filter, chooser.quits) == ("q", True)
    chooser.press_keys(b"/abc\x1b", SERVERS)
    assert chooser.filter == ""


def test_tab_turns_to_hosts() -> None:
    chooser = Chooser()
    chooser.press_keys(b"jj\t", SERVERS)
    host = {"binary": "nova-compute", "host": "h1", "state": "up", "status": "enabled"}
    assert chooser.listed is ListKind.HOSTS
    assert "h1" in shown(chooser, [host])
    chooser.press_keys(b"\r", [host])
    assert chooser.opened == host


def test_nothing_to_open_is_no_error() -> None:
    chooser = Chooser()
    chooser.press_keys(b"jk\r", [])
    assert chooser.opened is None
    assert "Servers: none" in shown(chooser, [])


def test_the_chosen_line_is_always_shown() -> None:
    chooser = Chooser()
    for height in (1, 24, 50):
        for _ in SERVERS:
            chooser.press_keys(b"j", SERVERS)
        assert [line for line in shown(chooser, SERVERS, height).splitlines() if ">" in line and "web-29" in line]
