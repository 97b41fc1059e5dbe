"""Random schedules of the real code hold: as many as there is time for.

TEST_SCHEDULES=600 looks for ten minutes; TEST_SCHEDULES_SEED repeats the schedules of a seed. ``tests/faults/schedules.py`` is a
command, too, which says how far it is.
"""

from __future__ import annotations

import os
import random
from functools import partial

import pytest

from objects.build import Report, ReportKind
from rpc.cell_conductor import CellConductorClient
from tests.faults.schedule_judge import Look
from tests.faults.schedules import look, stage, walk
from tests.support.stepped_world import CONTEXT

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


def test_a_schedule_ends_after_its_feed_is_read() -> None:
    """Its agent comes after the reader of the feed in each round. It cannot start the guest, and reports one round later that it is
    off: the cell knows that before the API level does.
    """
    with stage() as machine:
        machine.world.task_failure_rate = 1.0
        schedule = machine()
        schedule.first(count=1, outcome="ok", hosts=set(), policy=None, operates=True)
        [server] = schedule.story.asked
        schedule.story.asked[server].operated = True
        body = Look(machine.world).shown(server)
        row = Look(machine.world).row_of(body)
        assert row is not None
        schedule.meanwhile(what="cut power", host=row.host or "")
        schedule.teardown()
        assert Look(machine.world).shown(server).power == "off"


def test_a_message_is_written_in_one_step() -> None:
    """All processes share what is known, and its lock. A process that stopped while it reads would hold up the others for ever."""
    with stage() as machine:
        world = machine.world
        world.reset()
        [cell] = [cell for cell in world.registry.list_cells() if cell.name == "cell1"]
        cell.know_peers({})  # nothing was read yet
        report = Report(kind=ReportKind.GONE, instance_uuid="u", host="a1", fence=1, attempt=1, builder="b")
        client = CellConductorClient(world.network.bus("cell1"))
        task = world.begin("a1", "report", partial(client.report, CONTEXT, [report]), True)
        world.go(task)
        assert task.at == "send"
        world.go(task)
        assert task.waits, task.at
        task.kill()
