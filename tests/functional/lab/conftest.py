"""What tests of the lab stand on: commands without a deployment."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.commands import Shell


@pytest.fixture
def shell(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(tmp_path / "none", capsys)
