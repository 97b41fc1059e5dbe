"""For all tests: what they logged and printed can be sent on, and how much of the matrix of servers a run goes through."""

from __future__ import annotations

import gc
import os
import zlib
from collections import defaultdict
from collections.abc import Collection, Generator, Sequence
from pathlib import Path

import pytest

pytest.register_assert_rewrite("tests.support")  # so that assertions there say what they compared

from tests.support import examples  # noqa: E402 - only modules that are imported after that are rewritten

examples.use()

SERVERS = ("mariadb", "postgresql")
GROUNDS = ("lite", *SERVERS)
SERVERS_SHARE = 10
"""One in so many tests that could also run on SQLite runs on a server."""
WHOLE = os.environ.get("TEST_MATRIX") == "all"
"""Run every test on every ground that it names. Otherwise those about SQL run on SQLite and one server, others on one ground."""
SQL = Path(__file__).parent / "functional" / "db"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Replace lone surrogates in captured output: pytest-xdist encodes it as UTF-8, and would lose the whole process."""
    report = yield
    report.sections = [(name, text.encode(errors="replace").decode()) for name, text in report.sections]
    return report


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "one_in(n): of its cases one in n runs, which, their names decide; TEST_MATRIX=all: all of them"
    )


def pytest_collection_finish() -> None:
    """Collect garbage less often, and none of the modules and tests: it took a quarter of the time of short tests."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 10, 10)


def pytest_report_header() -> str:
    wide = (
        "on every ground they name"
        if WHOLE
        else "on one of the grounds they name, those of tests/functional/db on SQLite and one server (TEST_MATRIX=all: everything)"
    )
    return f"tests run {wide}"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Of tests that are the same but for the ground, leave one: which, their name decides. A test named on its own is run.

    Of the cases of a test that is marked ``one_in(n)``, leave one in n, and at least one.
    """
    if WHOLE or any("::" in argument for argument in config.args):
        return
    there = {item.nodeid for item in items}
    gone = {item.nodeid for item in items if _is_run_elsewhere(item.nodeid, there, is_sql=SQL in item.path.parents)}
    gone |= _not_drawn([item for item in items if item.nodeid not in gone])
    if gone:
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid in gone])
        items[:] = [item for item in items if item.nodeid not in gone]


def _not_drawn(items: Sequence[pytest.Item]) -> set[str]:
    """The cases that are not among the one in n."""
    cases: defaultdict[tuple[str, int], list[str]] = defaultdict(list)
    for item in items:
        if mark := item.get_closest_marker("one_in"):
            cases[item.nodeid.partition("[")[0], mark.args[0]].append(item.nodeid)
    drawn = {(test, n): sorted(names, key=lambda name: zlib.crc32(name.encode())) for (test, n), names in cases.items()}
    return {name for (_, n), names in drawn.items() for name in names[-(-len(names) // n) :]}


def _is_run_elsewhere(name: str, there: Collection[str], *, is_sql: bool) -> bool:
    """Whether this test is run on another ground instead. ``is_sql``: it is run on SQLite, and on one server."""
    path, _, call = name.rpartition("::")
    ground = next((each for each in GROUNDS if each in call), None)
    if ground is None:
        return False
    twins = {each: twin for each in GROUNDS if (twin := f"{path}::{call.replace(ground, each)}") in there}
    draw = zlib.crc32(min(twins.values()).encode())
    servers = [each for each in SERVERS if each in twins]
    server = servers[draw // SERVERS_SHARE % len(servers)] if servers else "lite"
    if is_sql:
        return ground not in ("lite", server)
    on_server = "lite" not in twins or draw % SERVERS_SHARE == 0
    return ground != (server if on_server else "lite")
