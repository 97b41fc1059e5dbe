"""For all tests: what they logged and printed can be sent on, and how much of the matrix of servers a run goes through."""

from __future__ import annotations

import os
import zlib
from collections.abc import Collection, Generator
from pathlib import Path

import pytest

from tests.support import examples

examples.use()

SERVERS = ("mariadb", "postgresql")
GROUNDS = ("lite", *SERVERS)
SERVERS_SHARE = 4
"""One in so many tests that could also run on SQLite runs on a server."""
WHOLE = os.environ.get("TEST_MATRIX") == "all"
"""Run every test on every ground that it names. Otherwise those that are not about SQL run on one of them."""
SQL = Path(__file__).parent / "functional" / "db"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Replace lone surrogates in captured output: pytest-xdist encodes it as UTF-8, and would lose the whole process."""
    report = yield
    report.sections = [(name, text.encode(errors="replace").decode()) for name, text in report.sections]
    return report


def pytest_report_header() -> str:
    wide = (
        "on every ground they name"
        if WHOLE
        else "those beyond tests/functional/db on one of the grounds they name (TEST_MATRIX=all: on all)"
    )
    return f"tests run {wide}"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Of tests that are the same but for the ground, leave one: which, their name decides. A test named on its own is run."""
    if WHOLE or any("::" in argument for argument in config.args):
        return
    there = {item.nodeid for item in items}
    left_out = [item for item in items if SQL not in item.path.parents and _is_run_elsewhere(item.nodeid, there)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        gone = {item.nodeid for item in left_out}
        items[:] = [item for item in items if item.nodeid not in gone]


def _is_run_elsewhere(name: str, there: Collection[str]) -> bool:
    """Whether this test is run on another ground instead."""
    path, _, call = name.rpartition("::")
    ground = next((each for each in GROUNDS if each in call), None)
    if ground is None:
        return False
    twins = {each: twin for each in GROUNDS if (twin := f"{path}::{call.replace(ground, each)}") in there}
    draw = zlib.crc32(min(twins.values()).encode())
    servers = [each for each in SERVERS if each in twins]
    on_server = "lite" not in twins or draw % SERVERS_SHARE == 0
    return ground != (servers[draw // SERVERS_SHARE % len(servers)] if servers and on_server else "lite")
