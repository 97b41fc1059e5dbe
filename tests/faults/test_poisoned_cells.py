"""A poisoned row in a cell: a value that a database or a codec refuses. It costs itself only, and it ends all the same.

Beside it are innocent neighbours: a build past its deadline, a lost order, a lost delete, reports of one moment, an old feed.
"""

from __future__ import annotations

import contextlib
import time

import pytest
import sqlalchemy as sa

from conductor import sweep_cell
from db import dead_letters
from db.audit import cell_rows
from db.cell import feed, instances, minimal_end, rebuild, services
from db.cell.tables import instances as table
from db.sql.connection import Connection
from objects.build import Report, ReportKind
from objects.instance import State
from objects.process import AGENT_BINARY
from service.periodic import wait_until
from tests.support.cell_site import CONTEXT, NO_DISK, Site, said, site_fixture
from tests.support.ground import GROUNDS
from tests.support.spoiled_rows import COLUMNS, OF_DEADLINES, OF_ROWS, Poison, refusal
from tests.support.world import PATIENCE

BAD = "a-poison"


site = site_fixture(GROUNDS, embedded=True)


def spoil(site: Site, poison: Poison, uuid: str = BAD) -> None:
    if site.ground.name not in poison.grounds:
        pytest.skip("this database does not take that value")
    site.database.write(poison.spoil, uuid)


def raw(tx: Connection, uuid: str = BAD) -> tuple[str, int]:
    """State and attempt as they are stored."""
    row = tx.execute(sa.select(table.c.state, table.c.attempt).where(table.c.uuid == uuid)).one()
    return row.state, row.attempt


def sweep(site: Site, *, rounds: int = 2) -> None:
    """What a Periodic does: an error ends a round, and the next one comes."""
    made = site.sweep(feed_age=-10.0)
    for _ in range(rounds):
        with contextlib.suppress(Exception):
            made.sweep_cell()


class Neighbours:
    """Innocent ones, each of whom a sweep has something to do for."""

    def __init__(self, site: Site) -> None:
        self._site = site
        site.stage("n-late", deadline=100.0)
        site.stage("n-lost", "n-gone")
        site.activate("n-late", "n-lost")
        site.build("n-gone")
        site.database.write(instances.delete, ["n-gone"], 5.0)

    def check(self) -> None:
        """The deadline is enforced, the order and the delete are sent again, the feed is trimmed."""
        site = self._site
        assert site.state("n-late")[0] == "error"
        assert wait_until(lambda: ("n-lost", 1) in site.hosts["h1"].orders, PATIENCE), site.ordered()
        assert wait_until(lambda: ("n-gone", 1) in site.hosts["h1"].deletes, PATIENCE)
        page = site.database.read(feed.read, 0, 1000)
        assert page.trimmed
        assert len(page.events) < page.head


def poisons(*kinds: list[Poison]) -> pytest.MarkDecorator:
    every = [each for some in kinds for each in some]
    return pytest.mark.parametrize("poison", every, ids=[each.name for each in every])


class TestBuilds:
    @pytest.mark.one_in(3)
    @poisons(OF_ROWS, OF_DEADLINES)
    @pytest.mark.parametrize("begun", [False, True])
    def test_one_that_is_poisoned_ends_at_its_deadline(self, site: Site, poison: Poison, *, begun: bool) -> None:
        site.stage(BAD, deadline=100.0)
        site.activate(BAD)
        if begun:
            site.build(BAD, active=False)
        neighbours = Neighbours(site)
        spoil(site, poison)
        sweep(site)
        neighbours.check()
        assert site.database.read(raw)[0] == "error"
        row = site.database.read(instances.get, BAD)
        assert row is not None
        assert (row.fault or "").startswith("Build timed out")

    @pytest.mark.parametrize("refused", sorted(COLUMNS))
    @pytest.mark.parametrize("begun", [False, True])
    def test_a_build_with_refused_end_is_set_aside(self, site: Site, refused: str, *, begun: bool) -> None:
        site.stage(BAD, deadline=100.0)
        site.activate(BAD)
        if begun:
            site.build(BAD, active=False)
        neighbours = Neighbours(site)
        with refusal(site.database, refused, BAD, full_only=refused == "instance_faults"):
            sweep(site)
            neighbours.check()
            if refused in ("instance_faults", "builds"):
                row = site.database.read(instances.get, BAD)
                assert row is not None
                assert (row.state, row.fault, row.attempt) == (State.ERROR, minimal_end.TIMED_OUT, 2)
                if begun:
                    assert wait_until(lambda: (BAD, 1) in site.hosts["h1"].deletes, PATIENCE)
                return
            (letter,) = site.database.read(dead_letters.list_all, "cell")
            assert (letter.step, letter.key) == (sweep_cell.DEADLINES, BAD)
        site.database.write(dead_letters.retry_letters, "cell", letter.step, [BAD])
        sweep(site)
        assert site.database.read(raw)[0] == "error"
        assert site.database.read(dead_letters.list_all, "cell") == []

    def test_a_page_of_poisoned_builds_hides_no_others(self, site: Site) -> None:
        """Whose ends cannot be written at all, and whose orders cannot be read."""
        count = sweep_cell.SWEEP_PAGE_SIZE + 1
        stuck, illegible = ([f"a-{kind}-{number:03}" for number in range(count)] for kind in ("stuck", "illegible"))
        site.stage(*stuck, deadline=100.0)
        site.stage(*illegible)
        site.activate(*stuck, *illegible)

        def spoil_all(tx: Connection) -> None:
            tx.execute(sa.text("UPDATE instances SET version = -1 WHERE uuid LIKE 'a-stuck-%'"))
            tx.execute(sa.text("UPDATE builds SET spec = '{' WHERE instance_uuid LIKE 'a-illegible-%'"))

        site.database.write(spoil_all)
        neighbours = Neighbours(site)
        with refusal(site.database, "instances", BAD):
            sweep(site, rounds=3)
        neighbours.check()
        assert {site.database.read(raw, uuid)[0] for uuid in stuck} == {"error"}
        letters = site.database.read(dead_letters.list_all, "cell")
        assert {letter.key for letter in letters} == set(illegible)

    def test_a_newer_releases_build_can_be_deleted(self, site: Site) -> None:
        site.stage(BAD, deadline=100.0)
        site.build(BAD)
        site.database.write(lambda tx: tx.execute(sa.update(table).where(table.c.uuid == BAD).values(state="paused")))
        neighbours = Neighbours(site)
        sweep(site)
        neighbours.check()
        assert site.database.read(raw)[0] == "paused"
        assert site.report(said(ReportKind.ACTIVE, BAD))[0].keep
        site.database.write(instances.delete, [BAD, "n-lost"], 6.0)
        sweep(site)
        assert wait_until(lambda: (BAD, 1) in site.hosts["h1"].deletes, PATIENCE)
        assert site.report(said(ReportKind.GONE, BAD))[0].accepted
        assert site.database.read(raw)[0] == "deleted"

    @poisons(OF_ROWS)
    def test_a_poisoned_build_on_dead_hosts_delays_nobody(self, site: Site, poison: Poison) -> None:
        site.stage(BAD, "n-moves")
        site.build(BAD, "n-moves", active=False)
        spoil(site, poison)
        site.database.write(services.record_heartbeats, [services.Beat(host="h1", binary=AGENT_BINARY)])
        site.database.write(services.set_forced_down, "h1", AGENT_BINARY, True, 1.0)
        site.sweep().dead_hosts()
        assert site.state("n-moves") == ("scheduled", "h2", 2)
        assert wait_until(lambda: ("n-moves", 2) in site.hosts["h2"].orders, PATIENCE)


class TestDeletes:
    @pytest.mark.one_in(3)
    @poisons(OF_ROWS)
    @pytest.mark.parametrize("dead", [False, True])
    def test_of_one_that_is_poisoned_ends(self, site: Site, poison: Poison, *, dead: bool) -> None:
        """Its agent confirms it, or its host is called dead. One whose host is no name has no agent."""
        site.stage(BAD)
        site.build(BAD)
        site.database.write(instances.delete, [BAD], 5.0)
        neighbours = Neighbours(site)
        spoil(site, poison)
        if dead:
            site.database.write(services.record_heartbeats, [services.Beat(host="h1", binary=AGENT_BINARY)])
            site.database.write(services.set_forced_down, "h1", AGENT_BINARY, True, 1.0)
            sweep(site)
            assert site.state("n-gone")[0] == "deleted"
        else:
            sweep(site)
            neighbours.check()
            state, attempt = site.database.read(raw)
            if state == "deleting" and isinstance(attempt, int):
                [verdict, other] = site.report(said(ReportKind.GONE, BAD, attempt=attempt), said(ReportKind.GONE, "n-gone"))
                assert (verdict.accepted, other.accepted) == (True, True)
        assert site.database.read(raw)[0] == "deleted"

    @pytest.mark.parametrize("rolled_back", [None, "Another one failed."])
    def test_a_refused_delete_ends_by_the_agents_report(self, site: Site, rolled_back: str | None) -> None:
        site.stage(BAD)
        site.build(BAD)
        site.database.write(instances.delete, [BAD], 5.0)
        site.database.write(lambda tx: tx.execute(sa.update(table).where(table.c.uuid == BAD).values(rolled_back=rolled_back)))
        Neighbours(site)
        with refusal(site.database, "instance_faults", BAD, full_only=True):
            verdicts = site.report(said(ReportKind.GONE, BAD), said(ReportKind.GONE, "n-gone"))
        assert [verdict.accepted for verdict in verdicts] == [True, True]
        assert site.database.read(raw)[0] == ("deleted" if rolled_back is None else "error")


class TestReports:
    """Reports that come in one moment share a transaction."""

    def both(self, site: Site, bad: Report, good: Report) -> tuple[object, object]:
        """What two calls get whose reports are written together."""
        first, second = site.conductor._write([[bad], [good]])
        return first, second

    @pytest.mark.parametrize("kind", [ReportKind.ACCEPT, ReportKind.ACTIVE])
    def test_an_unwritable_report_costs_only_its_caller(self, site: Site, kind: ReportKind) -> None:
        site.stage(BAD, "good")
        if kind is ReportKind.ACTIVE:
            site.build(BAD, "good", active=False)
        with refusal(site.database, "instances", BAD):
            bad, good = self.both(site, said(kind, BAD), said(kind, "good"))
        assert isinstance(bad, Exception)
        assert not isinstance(good, Exception)
        assert site.state("good")[0] == ("building" if kind is ReportKind.ACCEPT else "active")
        (letter,) = site.database.read(dead_letters.list_all, "cell")
        assert letter.key == BAD
        assert site.report(said(kind, BAD))[0].accepted, "asked again once it can be written"
        assert site.database.read(dead_letters.list_all, "cell") == []

    def test_a_failure_that_cannot_be_stored_is_replaced(self, site: Site) -> None:
        site.stage(BAD, "good")
        site.build(BAD, "good", active=False)
        with_history = sa.text("UPDATE builds SET history = '[[[' WHERE instance_uuid = :uuid")
        site.database.write(lambda tx: tx.execute(with_history, {"uuid": BAD}))
        verdicts = site.conductor.build_instances(
            CONTEXT, [said(ReportKind.FAILED, uuid, failure=NO_DISK) for uuid in (BAD, "good")]
        )
        assert [verdict.accepted for verdict in verdicts] == [True, True]
        assert [site.state(uuid) for uuid in (BAD, "good")] == [("scheduled", "h2", 2)] * 2
        assert wait_until(lambda: {uuid for uuid, _ in site.hosts["h2"].orders} == {BAD, "good"}, PATIENCE)

    @poisons(OF_ROWS)
    def test_neighbours_of_a_poisoned_report_are_answered(self, site: Site, poison: Poison) -> None:
        site.stage(BAD, "good")
        spoil(site, poison)
        _, good = self.both(site, said(ReportKind.ACCEPT, BAD), said(ReportKind.ACCEPT, "good"))
        assert not isinstance(good, Exception)
        assert site.state("good")[0] == "building"


class TestReads:
    @poisons(OF_ROWS)
    def test_nothing_that_is_read_in_pages_raises(self, site: Site, poison: Poison) -> None:
        site.stage(BAD, "good")
        site.build(BAD, "good", active=False)
        spoil(site, poison)
        read = site.database.read
        now = time.time()
        assert "good" in {row.uuid for row in read(instances.read, [BAD, "good"])}
        assert "good" in {order.instance.uuid for order in read(instances.orders_of, [BAD, "good"]).orders}
        assert "good" in {holding.instance_uuid for holding in read(instances.list_holdings, "h1")}
        assert "good" in {found.uuid for found in read(instances.on_hosts, ["h1"], [State.BUILDING])}
        assert "good" in {event.key for event in read(rebuild.read_snapshot, "", 10, now).events}
        assert "good" in read(cell_rows.read_rows, [BAD, "good"]).rows
