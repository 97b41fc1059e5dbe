"""Whether a cell's sweep has anything to do: one look says what the reads of the sweeps themselves would."""

from __future__ import annotations

import msgspec

from db import dead_letters, processes, secrets
from db.cell import due, feed, instances
from db.cell.due import Due
from db.sql.connection import CellTransaction
from objects.build import ReportKind
from objects.feed import EventKind
from objects.instance import State
from objects.process import CONDUCTOR_BINARY, About, Process
from tests.support.cell_site import SPEC, Site, said, site_fixture
from tests.support.ground import GROUNDS

site = site_fixture(GROUNDS, embedded=True)


EVENTS_BEFORE, RECORDS_AGE_S = 100.0, 3600.0


def look(site: Site, now: float = 1e9, before: float = 1e10) -> Due:
    """And that the reads agree."""
    found = site.database.read(due.look_for_work, now, before, EVENTS_BEFORE, RECORDS_AGE_S)
    assert found.overdue == bool(site.database.read(instances.list_overdue, now, before, 10))
    assert found.unaccepted == bool(site.database.read(instances.list_unaccepted, before, 10).orders)
    assert found.deleting == bool(site.database.read(instances.in_state, [State.DELETING], before, 10))
    assert found.finished == bool(site.database.read(secrets.list_finished))
    assert found.letters == bool(site.database.read(dead_letters.list_all, "cell"))
    under_way = [State.SCHEDULED, State.BUILDING, State.DELETING]
    assert found.live == bool(site.database.read(instances.in_state, under_way, 1e12, 10))
    return msgspec.structs.replace(found, live=False, old_events=False, dead_processes=False)


NOTHING = Due(overdue=False, unaccepted=False, deleting=False, finished=False)


def test_an_empty_or_unexpired_cell_has_no_work(site: Site) -> None:
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


def test_what_an_earlier_clock_wrote_is_due(site: Site) -> None:
    """The database's clock was set back by years. Its rows must not wait until it is there again."""
    site.stage("u1", deadline=2e9)
    site.activate("u1")
    site.database.write(instances.record_sent, ["u1"], 1e9 + 60.0)
    assert look(site, before=1e9) == NOTHING, "clocks are read with an error"
    site.database.write(instances.record_sent, ["u1"], 2e9)
    assert look(site, before=1e9) == Due(overdue=False, unaccepted=True, deleting=False, finished=False)
    site.build("u1")
    site.database.write(instances.delete, ["u1"], 2e9)
    assert look(site, before=1e9) == Due(overdue=False, unaccepted=False, deleting=True, finished=False)


def test_secrets_are_due_when_their_batch_is_finished(site: Site) -> None:
    site.stage("u1", deadline=2e9)
    site.database.write(secrets.keep_builds, {SPEC.batch_id: "sealed"}, 1.0)
    assert look(site) == NOTHING
    site.build("u1")
    assert look(site) == Due(overdue=False, unaccepted=False, deleting=False, finished=True)


def test_events_are_old_exactly_when_trimming_removes_any(site: Site) -> None:
    def are_old(before: float) -> bool:
        found = site.database.read(due.look_for_work, 1.0, 1.0, before, RECORDS_AGE_S).old_events
        assert found == bool(site.database.read(feed.read_head) and site.database.read(would_trim, before))
        return found

    def would_trim(tx: CellTransaction, before: float) -> bool:
        first = feed.read(tx, 0, 1)
        return bool(first.events) and not before <= times[first.events[0].sequence] <= before + feed.LONGEST_AGE_S

    times: dict[int, float] = {}
    assert not are_old(5.0)
    for number, written in enumerate((10.0, 20.0), start=1):
        event = feed.NewEvent(kind=EventKind.HOST, key="h1", version=0, payload="{}")
        site.database.write(feed.append_events, [event], written)
        times[number] = written
    assert not are_old(10.0)
    assert are_old(15.0)
    assert site.database.write(feed.trim_events, 15.0) == 1
    assert not are_old(15.0)
    assert are_old(20.0 - 2 * feed.LONGEST_AGE_S), "its time is impossible"
    assert site.database.write(feed.trim_events, 25.0) == 1
    assert not are_old(30.0)


def test_process_records_are_dead_exactly_when_forgettable(site: Site) -> None:
    def are_dead(age: float) -> bool:
        return site.database.read(due.look_for_work, 1.0, 1.0, 1.0, age).dead_processes

    about = About(release="1.0", messages="1.0", pid=7)
    record = Process(uuid="p1", binary=CONDUCTOR_BINARY, host="m1", about=about, started_at=0.0, last_seen=0.0, age=0.0)
    assert not are_dead(-10.0)
    site.database.write(processes.record_process, "cell", record)
    assert not are_dead(3600.0)
    assert are_dead(-10.0)
    assert site.database.write(processes.forget_dead, "cell", -10.0) == 1
    assert not are_dead(-10.0)
