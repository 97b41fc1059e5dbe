"""A cell's conductor: what it answers to agents."""

from __future__ import annotations

import threading

from db.cell import compute_nodes, instances, services
from objects.build import Report, ReportKind
from objects.compute_node import ComputeNode
from objects.feed import EventKind
from objects.instance import Failure, FailureClass
from service.periodic import wait_until
from tests.support.cell_site import CONTEXT, NO_DISK, SPEC, Site, said
from tests.support.transactions import run_threads
from tests.support.world import PATIENCE


class TestReports:
    def test_verdicts_come_in_the_order_of_the_reports(self, site: Site) -> None:
        site.stage("u1", "u2", "u3")
        site.build("u2")
        verdicts = site.report(
            said(ReportKind.ACTIVE, "u2"),
            said(ReportKind.ACCEPT, "u3"),
            said(ReportKind.ACCEPT, "unknown"),
            said(ReportKind.ACTIVE, "u1", attempt=2),
        )
        assert [(v.instance_uuid, v.accepted) for v in verdicts] == [("u2", True), ("u3", True), ("unknown", False), ("u1", False)]
        assert verdicts[2].reason == "no such instance in this cell"
        assert verdicts[3].reason
        assert [site.state(u)[0] for u in ("u1", "u2", "u3")] == ["staged", "active", "building"]
        assert site.report() == []

    def test_a_repeated_report_is_accepted_and_changes_nothing(self, site: Site) -> None:
        site.stage("u1")
        for kind in (ReportKind.ACCEPT, ReportKind.ACTIVE):
            assert [v.accepted for _ in range(3) for v in site.report(said(kind, "u1"))] == [True] * 3
        assert site.events() == [("u1", EventKind.ACTIVE)]

    def test_two_reports_on_one_instance_are_judged_sequentially(self, site: Site) -> None:
        site.stage("u1")
        site.report(said(ReportKind.ACCEPT, "u1"), said(ReportKind.ACTIVE, "u1"))
        assert site.state("u1") == ("active", "h1", 1)

    def test_concurrent_reports_of_many_agents_are_judged_separately(self, site: Site) -> None:
        """Two agents' starts ask for every instance at the same time: one start has each."""
        uuids = [f"u{n}" for n in range(40)]
        site.stage(*uuids)
        start = threading.Barrier(8)
        won: dict[int, list[str]] = {}

        def ask(number: int) -> None:
            asked = [
                Report(kind=ReportKind.ACCEPT, instance_uuid=u, host="h1", fence=1, attempt=1, builder=f"start-{number}")
                for u in uuids
            ]
            start.wait(PATIENCE)
            won[number] = [v.instance_uuid for v in site.report(*asked) if v.accepted]

        assert run_threads(8, ask) == []
        assert sorted(uuid for mine in won.values() for uuid in mine) == sorted(uuids)
        for number, mine in won.items():
            for uuid in mine:
                row = site.database.read(instances.get, uuid)
                assert row is not None
                assert row.builder == f"start-{number}"

    def test_a_failed_build_tries_its_alternates_in_order(self, site: Site) -> None:
        site.stage("u1")
        site.build("u1", active=False)
        failed = site.conductor.build_instances(CONTEXT, [said(ReportKind.FAILED, "u1", failure=NO_DISK)])
        assert [v.accepted for v in failed] == [True]
        assert site.state("u1") == ("scheduled", "h2", 2)
        site.wait_for_orders({"h2": [("u1", 2)]})
        assert site.hosts["h2"].specs == [SPEC]
        site.conductor.build_instances(CONTEXT, [said(ReportKind.FAILED, "u1", "h2", 2, NO_DISK)])
        site.wait_for_orders({"h2": [("u1", 2)], "h3": [("u1", 3)]})
        site.conductor.build_instances(CONTEXT, [said(ReportKind.FAILED, "u1", "h3", 3, NO_DISK)])
        assert site.state("u1")[0] == "error"
        row = site.database.read(instances.get, "u1")
        assert row is not None
        assert [a.host for a in row.history] == ["h1", "h2", "h3"]
        assert site.events() == [("u1", EventKind.MOVED), ("u1", EventKind.MOVED), ("u1", EventKind.ENDED)]

    def test_a_failure_that_is_refused_moves_nothing(self, site: Site) -> None:
        """An earlier attempt's, said twice: the order in force is sent by nobody again for that."""
        site.stage("u1")
        first = said(ReportKind.FAILED, "u1", failure=NO_DISK)
        site.conductor.build_instances(CONTEXT, [first])
        site.wait_for_orders({"h2": [("u1", 2)]})
        assert [v.accepted for v in site.conductor.build_instances(CONTEXT, [first])] == [False]
        assert site.state("u1") == ("scheduled", "h2", 2)
        assert not wait_until(lambda: site.ordered() != {"h2": [("u1", 2)]}, 0.1)

    def test_an_unbuildable_request_is_tried_nowhere_else(self, site: Site) -> None:
        site.stage("u1")
        aborted = Failure(kind=FailureClass.REQUEST, error="BuildAborted", message="no such image", at=5.0)
        site.conductor.build_instances(CONTEXT, [said(ReportKind.FAILED, "u1", failure=aborted)])
        assert site.state("u1")[0] == "error"
        assert not wait_until(lambda: bool(site.ordered()), 0.1)

    def test_gone_ends_a_delete(self, site: Site) -> None:
        site.stage("u1", "u2")
        site.build("u1", "u2")
        site.database.write(instances.delete, ["u1"], 9.0)
        verdicts = site.report(said(ReportKind.GONE, "u1"), said(ReportKind.GONE, "u2"), said(ReportKind.GONE, "u1", attempt=2))
        assert [v.accepted for v in verdicts[1:]] == [False, True], "that it is gone already is an answer too"
        assert site.state("u1")[0] == "deleted"
        assert site.state("u2")[0] == "active"

    def test_holdings_of_a_host_exclude_staged_and_ended(self, site: Site) -> None:
        site.stage("staged", "scheduled", "building", "active", "deleting", "error", "deleted")
        site.stage("elsewhere", host="h2")
        site.activate("scheduled", "elsewhere")
        site.build("building", active=False)
        site.build("active", "deleting")
        site.database.write(instances.delete, ["deleting", "deleted"], 9.0)
        late = Failure(kind=FailureClass.REQUEST, error="E", message="m", at=1.0)
        site.conductor.build_instances(CONTEXT, [said(ReportKind.FAILED, "error", failure=late)])
        held = {holding.instance_uuid: holding for holding in site.conductor.holdings(CONTEXT, "h1")}
        assert {uuid: holding.state for uuid, holding in held.items()} == {
            uuid: uuid for uuid in ("scheduled", "building", "active", "deleting")
        }
        assert (held["active"].fence, held["active"].attempt, held["active"].builder) == (1, 1, "h1:a")

    def test_heartbeats_and_stats_are_kept(self, site: Site) -> None:
        assert run_threads(6, lambda n: site.conductor.report_state(CONTEXT, f"h{n % 3}", "superconductor-compute", 1)) == []
        site.conductor.report_state(CONTEXT, "h0", "superconductor-compute", 2)
        found = {s.host: s for s in site.database.read(services.list_all)}
        assert found.keys() == {"h0", "h1", "h2"}
        assert found["h0"].version == 2
        assert all(1 <= service.report_count <= 3 for service in found.values())
        node = ComputeNode(host="h1", node="h1", vcpus=4, memory_mb=4096, disk_gb=10)
        for _ in range(2):
            site.conductor.update_resource_stats(CONTEXT, node)
        assert site.database.read(compute_nodes.list_all) == [node]
        assert site.events() == [("h1", EventKind.HOST)]
