"""For all tests: what they logged and printed can be sent from the process that ran them."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from tests.support import examples

examples.use()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Replace lone surrogates in captured output: pytest-xdist encodes it as UTF-8, and would lose the whole process."""
    report = yield
    report.sections = [(name, text.encode(errors="replace").decode()) for name, text in report.sections]
    return report
