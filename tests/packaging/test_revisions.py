"""Revisions of databases are one chain: two of one number could not be applied."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
_NUMBER = re.compile(r'^(revision|down_revision)(?:: [^=]+)? = "(\d{4})"$', re.MULTILINE)


@pytest.mark.parametrize("level", ["api", "cell"])
def test_each_revision_follows_the_one_before(level: str) -> None:
    files = sorted((ROOT / "db" / level / "migrations" / "versions").glob("[0-9]*.py"))
    numbers = [path.name[:4] for path in files]
    assert len(numbers) == len(set(numbers)), numbers
    for before, path in zip([None, *numbers], files, strict=False):
        said = dict(_NUMBER.findall(path.read_text()))
        assert (said["revision"], said.get("down_revision")) == (path.name[:4], before)
