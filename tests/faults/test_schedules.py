"""Random schedules of the real code hold: as many as there is time for.

TEST_SCHEDULES=600 looks for ten minutes; TEST_SCHEDULES_SEED repeats the schedules of a seed. ``tests/faults/schedules.py`` is a
command, too, which says how far it is.
"""

from __future__ import annotations

import os
import random

import pytest

from tests.faults.schedules import look


def test_no_schedule_of_the_real_code_goes_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    """A failure shows the schedule as it was found, and the command that repeats it and makes it shorter, which takes minutes."""
    seconds = float(os.environ.get("TEST_SCHEDULES", "12"))
    seed = int(os.environ.get("TEST_SCHEDULES_SEED") or random.randrange(1 << 30))
    tally = look(seconds, seed, examples=40, shrink=False)
    with capsys.disabled():
        print(f"\nschedules from seed {seed}: {tally}")  # noqa: T201 - the seed of a run that holds
    assert len(tally.distinct) > 0.5 * tally.schedules
