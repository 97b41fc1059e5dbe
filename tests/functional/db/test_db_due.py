"""Whether a cell's sweep has anything to do: one look says what the reads of the sweeps themselves would."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from db import secrets
from db.cell import due, instances
from db.cell.due import Due
from objects.build import ReportKind
from objects.instance import State
from tests.support.cell_site import SPEC, Site, said
from tests.support.ground import GROUNDS, Ground


@pytest.fixture(params=GROUNDS)
def site(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Site]:
    place = Ground(request.param, tmp_path, embedded=True)
    made = Site(place)
    yield made
    place.end(made.close, place.release)


def look(site: Site, now: float = 1e9, before: float = 1e10) -> Due:
    """And that the reads agree."""
    found = site.database.read(due.look, now, before)
    assert found.overdue == bool(site.database.read(instances.overdue, now, before, 10))
    assert found.unaccepted == bool(site.database.read(instances.unaccepted, before, 10).orders)
    assert found.deleting == bool(site.database.read(instances.in_state, [State.DELETING], before, 10))
    assert found.finished == bool(site.database.read(secrets.finished))
    under_way = [State.SCHEDULED, State.BUILDING, State.DELETING]
    assert found.live == bool(site.database.read(instances.in_state, under_way, 1e12, 10))
    return msgspec.structs.replace(found, live=False)


NOTHING = Due(overdue=False, unaccepted=False, deleting=False, finished=False)


def test_an_empty_cell_and_one_whose_builds_have_time_have_nothing_to_do(site: Site) -> None:
    assert look(site) == NOTHING
    site.stage("u1", deadline=2e9)
    assert look(site) == NOTHING
    site.build("u1")
    assert look(site, now=3e9) == NOTHING


def test_each_kind_of_work_is_seen(site: Site) -> None:
    site.stage("late", deadline=1.0)
    site.activate("late")
    assert look(site) == Due(overdue=True, unaccepted=True, deleting=False, finished=False)
    assert look(site, now=0.5, before=-1.0) == NOTHING
    site.build("late")
    assert look(site) == NOTHING
    site.database.write(instances.delete, ["late"], 5.0)
    assert look(site) == Due(overdue=False, unaccepted=False, deleting=True, finished=False)
    assert look(site, before=4.0) == NOTHING
    site.report(said(ReportKind.GONE, "late"))
    assert look(site) == NOTHING


def test_secrets_are_due_when_no_build_of_their_batch_is_unfinished(site: Site) -> None:
    site.stage("u1", deadline=2e9)
    site.database.write(secrets.keep_builds, {SPEC.batch_id: "sealed"}, 1.0)
    assert look(site) == NOTHING
    site.build("u1")
    assert look(site) == Due(overdue=False, unaccepted=False, deleting=False, finished=True)
