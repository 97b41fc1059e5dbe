"""Random schedules of the real code hold: as many as there is time for.

TEST_SCHEDULES=600 looks for ten minutes; TEST_SCHEDULES_SEED repeats the schedules of a seed. ``tests/faults/schedules.py`` is a
command, too, which says how far it is.
"""

from __future__ import annotations

import os
import random

import pytest

from tests.faults.schedules import look, walk

SECONDS = float(os.environ.get("TEST_SCHEDULES", "12"))
SEED = int(os.environ.get("TEST_SCHEDULES_SEED") or random.randrange(1 << 30))


def test_no_schedule_of_the_real_code_goes_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    """A failure shows the schedule as it was found, and the command that repeats it and makes it shorter, which takes minutes."""
    tally = look(0.6 * SECONDS, SEED, examples=20, shrink=False)
    with capsys.disabled():
        print(f"\nschedules from seed {SEED}: {tally}")  # noqa: T201 - the seed of a run that holds
    assert len(tally.distinct) > 0.5 * tally.schedules


def test_no_walk_through_operations_goes_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    tally = walk(0.4 * SECONDS, SEED, say=False)
    with capsys.disabled():
        print(f"\nwalks from seed {SEED}: {tally}")  # noqa: T201 - the seed of a run that holds
    assert tally.schedules
