"""For all tests: what they logged and printed can be sent on, and how much of the matrix of servers a run goes through."""

from __future__ import annotations

import os
import zlib
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.support import examples

examples.use()

SERVERS = ("mariadb", "postgresql")
WHOLE = os.environ.get("TEST_MATRIX") == "all"
"""Run every test on every server that it names. Otherwise those that are not about SQL run on SQLite and on one server."""
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
        "on every server they name"
        if WHOLE
        else "those beyond tests/functional/db on one of the servers they name (TEST_MATRIX=all: on all)"
    )
    return f"tests run {wide}"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Of tests that are the same but for the server, leave one: which, their name decides. A test named on its own is run."""
    if WHOLE or any("::" in argument for argument in config.args):
        return
    there = {item.nodeid for item in items}
    left_out = [item for item in items if _twin(item, there)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        gone = {item.nodeid for item in left_out}
        items[:] = [item for item in items if item.nodeid not in gone]


def _twin(item: pytest.Item, there: set[str]) -> bool:
    """Whether this test is run on the other server instead."""
    if SQL in item.path.parents:
        return False
    for server, other in (SERVERS, SERVERS[::-1]):
        name = item.nodeid.replace(server, other)
        if name != item.nodeid and name in there:
            both = sorted((item.nodeid, name))
            return both[zlib.crc32("".join(both).encode()) % 2] != item.nodeid
    return False
