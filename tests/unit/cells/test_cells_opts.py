"""Options of the [cells] group become frozen settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from cells import opts
from cells.bulkhead import BulkheadSettings
from objects import errors
from service import config


def _settings(tmp_path: Path, text: str) -> opts.RegistrySettings:
    file = tmp_path / "cells.conf"
    file.write_text(text)
    return opts.read_settings(config.load_options([], opts.list_opts(), files=[file]))


def test_defaults_are_those_of_the_settings(tmp_path: Path) -> None:
    assert _settings(tmp_path, "") == opts.RegistrySettings()


def test_every_option_arrives(tmp_path: Path) -> None:
    text = "[cells]\ntimeout = 1.5\nthreads = 2\nbreaker_failures = 7\npoll_interval = 3\n"
    assert _settings(tmp_path, text) == opts.RegistrySettings(
        poll_interval=3.0, bulkhead=BulkheadSettings(timeout=1.5, threads=2, failures=7)
    )


@pytest.mark.parametrize("line", ["timeout = 0", "threads = 0", "breaker_failures = none"])
def test_values_that_cannot_work_are_refused(tmp_path: Path, line: str) -> None:
    with pytest.raises(errors.Misconfigured):
        _settings(tmp_path, f"[cells]\n{line}\n")
