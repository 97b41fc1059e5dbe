"""Names of what tests make on servers, so that what a killed run has left is known as ours, and as old."""

from __future__ import annotations

import functools
import os
import re
import secrets
import time

RUN_VARIABLE = "SC_TEST_RUN"
"""Names the run that several processes of tests belong to; what it has made is removed when it ends."""
OLD = 6 * 3600
"""Seconds after which nothing of a run can be in use any more: runs take minutes."""

_NAME = re.compile(r"sctest_(?P<run>(?P<made>[0-9a-f]{8})_[0-9a-f]{6})_[0-9a-f]{8}")


def new_run() -> str:
    """A name for a run: when it began, in seconds of the epoch, and a random part."""
    return f"{int(time.time()):08x}_{secrets.token_hex(3)}"


@functools.cache
def run() -> str:
    """The run this process belongs to, one of its own where it was told of none."""
    return os.environ.get(RUN_VARIABLE) or new_run()


def new_name() -> str:
    """A name that no other test has, for a database or a virtual host."""
    return f"sctest_{run()}_{secrets.token_hex(4)}"


def belongs_to(name: str, run: str) -> bool:
    found = _NAME.fullmatch(name)
    return found is not None and found["run"] == run


def is_left_over(name: str) -> bool:
    """Whether it is ours and so old that whoever made it cannot be at work any more."""
    found = _NAME.fullmatch(name)
    return found is not None and int(found["made"], 16) < time.time() - OLD
