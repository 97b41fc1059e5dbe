"""A cell's own sweeps: what was lost, who died, what took too long."""

from __future__ import annotations

import time

from conductor import sweep_cell
from db.cell import instances, services
from objects.build import ReportKind
from objects.feed import EventKind
from objects.instance import FailureClass
from service.periodic import wait_until
from tests.support.cell_site import CONTEXT, Site, said
from tests.support.transactions import run_threads
from tests.support.world import PATIENCE


class TestSweeps:
    def test_unaccepted_orders_are_repeated_but_not_hastily(self, site: Site) -> None:
        site.stage("u1", "u2", "u3", "u4")
        site.activate("u1", "u2")
        site.build("u3", active=False)
        patient = site.sweep(age=3600.0)
        patient.resend_orders()
        site.wait_for_orders({"h1": [("u1", 1), ("u2", 1)]})
        patient.resend_orders()
        assert not wait_until(lambda: len(site.hosts["h1"].orders) > 2, 0.1)
        site.sweep().resend_orders()
        site.wait_for_orders({"h1": [("u1", 1), ("u2", 1)] * 2})

    def test_deletes_that_nobody_confirmed_are_sent_again(self, site: Site) -> None:
        site.stage("u1", "u2")
        site.build("u1", "u2")
        site.database.write(instances.delete, ["u1"], time.time())
        site.sweep(age=3600.0).resend_deletes()
        assert not wait_until(lambda: bool(site.hosts["h1"].deletes), 0.1)
        site.sweep().resend_deletes()
        assert wait_until(lambda: site.hosts["h1"].deletes == [("u1", 1)], PATIENCE)

    def test_many_unanswered_deletes_hide_no_others(self, site: Site) -> None:
        stuck = [f"stuck-{number}" for number in range(sweep_cell.SWEEP_PAGE_SIZE + 5)]
        site.stage(*stuck)
        site.build(*stuck)
        site.database.write(instances.delete, stuck, 5.0)
        site.stage("other", host="h2")
        site.report(said(ReportKind.ACCEPT, "other", "h2"))
        site.database.write(instances.delete, ["other"], 6.0)
        site.sweep().resend_deletes()
        assert wait_until(lambda: site.hosts["h2"].deletes == [("other", 1)], PATIENCE)

    def test_many_orders_that_nobody_accepts_take_turns(self, site: Site) -> None:
        uuids = [f"u{number}" for number in range(sweep_cell.SWEEP_PAGE_SIZE + 5)]
        site.stage(*uuids)
        site.activate(*uuids)
        for _ in range(2):
            site.sweep().resend_orders()
        assert wait_until(lambda: {uuid for uuid, _ in site.hosts["h1"].orders} == set(uuids), PATIENCE)

    def test_expired_builds_end_under_a_new_attempt(self, site: Site) -> None:
        site.stage("scheduled", "building", "active", "staged", deadline=100.0)
        site.stage("timely")
        site.activate("scheduled", "timely")
        site.build("building", active=False)
        site.build("active")
        site.sweep().end_overdue()
        assert [site.state(u)[0] for u in ("scheduled", "building", "active", "staged", "timely")] == [
            *("error", "error", "active", "staged", "scheduled")
        ]
        for uuid, stage in (("scheduled", "waiting for its host"), ("building", "building")):
            row = site.database.read(instances.get, uuid)
            assert row is not None
            assert row.attempt == 2
            assert f"timed out in {stage}" in (row.fault or "")
            assert row.history[-1].failure.kind is FailureClass.DEADLINE
        assert not site.report(said(ReportKind.ACTIVE, "building"))[0].accepted

    def beat(self, site: Site, *hosts: str, binary: str = "superconductor-compute") -> None:
        for host in hosts:
            site.database.write(services.record_heartbeats, [services.Beat(host=host, binary=binary)], time.time())

    def test_only_builds_on_hosts_that_are_silent_move(self, site: Site) -> None:
        sweep = site.sweep()
        self.beat(site, "h1", "h2", "h3")
        site.stage("u1", "u2", "s1")
        site.stage("other", host="h2")
        site.activate("u1", "other")
        site.build("u2", active=False)
        sweep.dead_hosts()
        assert site.state("u1") == ("scheduled", "h1", 1), "seen for the first time: it has the benefit of the doubt"
        self.beat(site, "h2", "h3")
        sweep.dead_hosts()
        assert site.state("u1") == site.state("u2") == ("scheduled", "h2", 2)
        assert site.state("s1") == ("staged", "h1", 1)
        assert site.state("other") == ("scheduled", "h2", 1)
        assert wait_until(lambda: sorted(site.hosts["h2"].orders) == [("u1", 2), ("u2", 2)], PATIENCE)
        self.beat(site, "h2", "h3")
        sweep.dead_hosts()
        assert site.state("u1") == ("scheduled", "h2", 2)

    def test_where_no_host_is_heard_of_nothing_moves(self, site: Site) -> None:
        """The broker is away, or the database took no heartbeats: no host could build what would be taken off another."""
        sweep = site.sweep()
        self.beat(site, "h1", "h2", "h3")
        site.stage("u1", "u2")
        site.activate("u1")
        site.build("u2", active=False)
        for _ in range(5):
            sweep.dead_hosts()
        assert site.state("u1") == ("scheduled", "h1", 1)
        assert site.state("u2") == ("building", "h1", 1)

    def test_the_host_of_an_expired_build_is_notified(self, site: Site) -> None:
        """Only where an agent may be at it; and its answer is taken for what it is."""
        site.stage("scheduled", "building", deadline=100.0)
        site.activate("scheduled")
        site.build("building", active=False)
        site.sweep().end_overdue()
        assert wait_until(lambda: site.hosts["h1"].deletes == [("building", 1)], PATIENCE)
        assert [verdict.accepted for verdict in site.report(said(ReportKind.GONE, "building"))] == [True]
        assert site.state("building") == ("error", "h1", 2)

    def test_unaccepted_builds_of_a_stopping_host_move_immediately(self, site: Site) -> None:
        site.stage("waits", "waits-too", "building", "active", "staged")
        site.stage("lonely", alternates=())
        site.stage("other", host="h3")
        site.activate("waits", "waits-too", "lonely", "other")
        site.build("building", active=False)
        site.build("active")
        site.conductor.report_state(CONTEXT, "h1", "superconductor-compute", 1, stopping=True)
        assert site.state("waits") == site.state("waits-too") == ("scheduled", "h2", 2)
        site.wait_for_orders({"h2": [("waits", 2), ("waits-too", 2)]})
        assert [site.state(u)[:2] for u in ("building", "active", "staged", "lonely", "other")] == [
            ("building", "h1"), ("active", "h1"), ("staged", "h1"), ("scheduled", "h1"), ("scheduled", "h3")
        ]  # fmt: skip
        row = site.database.read(instances.get, "waits")
        assert row is not None
        assert [(attempt.host, attempt.failure.kind) for attempt in row.history] == [("h1", FailureClass.STOPPING)]

    def test_the_sweep_finds_late_orders_of_stopping_hosts(self, site: Site) -> None:
        self.beat(site, "h2", "h3")
        site.conductor.report_state(CONTEXT, "h1", "superconductor-compute", 1, stopping=True)
        site.stage("u1")
        site.activate("u1")
        site.sweep(down_time=3600.0).dead_hosts()
        assert site.state("u1") == ("scheduled", "h2", 2)

    def test_a_restarted_host_keeps_its_builds(self, site: Site) -> None:
        site.conductor.report_state(CONTEXT, "h1", "superconductor-compute", 1, stopping=True)
        site.conductor.report_state(CONTEXT, "h1", "superconductor-compute", 1)
        site.stage("u1")
        site.activate("u1")
        site.sweep(down_time=3600.0).dead_hosts()
        assert site.state("u1") == ("scheduled", "h1", 1)

    def test_several_observers_of_a_stop_move_builds_once(self, site: Site) -> None:
        uuids = [f"u{n}" for n in range(20)]
        site.stage(*uuids)
        site.activate(*uuids)
        stop = ("h1", "superconductor-compute", 1, True)
        assert run_threads(4, lambda _: site.conductor.report_state(CONTEXT, *stop)) == []
        assert {site.state(uuid) for uuid in uuids} == {("scheduled", "h2", 2)}

    def test_a_host_forced_down_is_down_at_once(self, site: Site) -> None:
        self.beat(site, "h1", "h2", "h3")
        site.database.write(services.set_forced_down, "h1", "superconductor-compute", True, time.time())
        site.stage("u1")
        site.activate("u1")
        site.sweep(down_time=3600.0).dead_hosts()
        assert site.state("u1") == ("scheduled", "h2", 2)

    def test_another_services_silence_says_nothing_about_a_host(self, site: Site) -> None:
        sweep = site.sweep()
        self.beat(site, "h1")
        self.beat(site, "h1", binary="superconductor-network")
        site.stage("u1")
        site.activate("u1")
        sweep.dead_hosts()
        self.beat(site, "h1")
        sweep.dead_hosts()
        assert site.state("u1") == ("scheduled", "h1", 1)

    def test_a_dead_hosts_deletes_end_active_servers_stay(self, site: Site) -> None:
        sweep = site.sweep()
        self.beat(site, "h1", "h2")
        site.stage("deleting", "active")
        site.build("deleting", "active")
        site.database.write(instances.delete, ["deleting"], 9.0)
        sweep.dead_hosts()
        self.beat(site, "h2")
        sweep.dead_hosts()
        assert site.state("deleting")[0] == "deleted"
        assert site.state("active")[0] == "active"

    def test_a_decision_on_changed_rows_is_refused(self, site: Site) -> None:
        """Two sweeps find the same dead host: the build moves once for it."""
        self.beat(site, "h1", "h2", "h3")
        site.database.write(services.set_forced_down, "h1", "superconductor-compute", True, time.time())
        uuids = [f"u{n}" for n in range(20)]
        site.stage(*uuids)
        site.activate(*uuids)
        assert run_threads(4, lambda _: site.sweep(down_time=3600.0).dead_hosts()) == []
        assert {site.state(uuid) for uuid in uuids} == {("scheduled", "h2", 2)}

    def test_one_round_does_everything_and_trims_the_feed(self, site: Site) -> None:
        site.database.write(instances.delete, ["tombstone"], 9.0)
        site.stage("late", deadline=100.0)
        site.stage("lost", "doomed")
        site.activate("late", "lost")
        site.build("doomed")
        site.database.write(instances.delete, ["doomed"], 9.0)
        assert len(site.events()) == 2
        site.sweep(feed_age=3600.0).sweep_cell()
        assert site.state("late")[0] == "error"
        assert wait_until(lambda: (site.hosts["h1"].orders, site.hosts["h1"].deletes) == ([("lost", 1)], [("doomed", 1)]), PATIENCE)
        assert site.events() == [("doomed", EventKind.ACTIVE), ("late", EventKind.ENDED)], (
            "what is older than the feed's age is gone"
        )
