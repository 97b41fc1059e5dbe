"""How many examples a property is tried with: a tenth in the usual run, all where ``TEST_EXAMPLES=all`` asks for them."""

from __future__ import annotations

import os
from typing import Any

from hypothesis import settings

ALL = os.environ.get("TEST_EXAMPLES") == "all"
LEAST = 8
USUAL = 100
"""How many test a property well that says nothing of it."""


def examples(count: int, *, least: int = LEAST, **changes: Any) -> settings:
    """Settings of a property that ``count`` examples test well. They are drawn anew in each run, so many runs try many.

    ``least``: how many are tried in the usual run; fewer where one takes half a second.
    """
    return settings(max_examples=count if ALL else max(least, count // 10), deadline=None, **changes)


def use() -> None:
    """For properties without settings of their own."""
    settings.register_profile("usual", examples(USUAL))
    settings.load_profile("usual")
