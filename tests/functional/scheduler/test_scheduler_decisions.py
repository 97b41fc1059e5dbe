"""What a call for hosts decides, what it writes about it, and what it costs."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import msgspec
import pytest

from db.api.claims import claims, decisions
from db.sql.counting import StatementCounter
from objects import errors
from objects.context import RequestContext
from objects.group import GroupPolicy
from objects.selection import HostCapacity
from objects.spec import RequestSpec
from scheduler.framework.settings import DEFAULT_FILTERS, SchedulerSettings
from scheduler.manager import SchedulerManager
from tests.support import fleet
from tests.support.deciding import site_fixture
from tests.support.fleet import CELLS, CONTEXT, QUICK, Site
from tests.support.ground import on
from tests.support.threads import run_threads

site = site_fixture(lambda: [fleet.node(f"h{n}") for n in range(8)], embedded=True)


class TestRecords:
    def test_a_decision_is_stored_and_named_in_selections(self, site: Site) -> None:
        asked = fleet.spec()
        answers = site.boot(site.scheduler(), asked, 2)
        [decision] = site.decisions()
        assert {s.decision_id for answer in answers for s in answer} == {decision.id}
        assert site.database.read(decisions.of_batch, asked.batch_id) == [decision]
        assert (decision.batch_id, decision.request_id, decision.driver) == (asked.batch_id, "req-test", "filter")
        assert decision.hosts == 8
        assert decision.message == ""
        assert decision.cells == {"cell1": 0.0, "cell2": 0.0}
        assert [c.host for c in decision.choices] == [answer[0].host for answer in answers]
        assert [c.alternates for c in decision.choices] == [tuple(s.host for s in answer[1:]) for answer in answers]

    def test_the_best_hosts_are_listed_with_weights(self, site: Site) -> None:
        [[first, *_]] = site.boot(site.scheduler())
        [decision] = site.decisions()
        assert len(decision.candidates) == 5
        assert decision.candidates[0].host == first.host
        assert decision.candidates[0].parts == {"RAMWeigher": 1.0, "CPUWeigher": 1.0, "DiskWeigher": 1.0}
        assert decision.candidates[0].score == pytest.approx(3.0)

    def test_a_refusal_counts_remaining_hosts_per_filter(self, site: Site) -> None:
        scheduler = site.scheduler(zones=dict.fromkeys(("h0", "h1", "h2"), "east"))
        asked = fleet.spec(fleet.flavor(memory_mb=10**6), availability_zone="east", ignore_hosts=("h1",))
        with pytest.raises(errors.NoValidHost) as refused:
            site.boot(scheduler, asked)
        [decision] = site.decisions()
        assert refused.value.decision_id == decision.id
        assert str(refused.value) == decision.message
        assert decision.message == (
            "No valid host was found: of 8 hosts 7 were left by IgnoreHosts, 2 by AvailabilityZoneFilter, "
            "0 by RamFilter (not enough memory)."
        )
        assert [(c.name, c.before, c.after) for c in decision.filters] == [
            ("IgnoreHosts", 8, 7),
            ("ComputeFilter", 7, 7),
            ("AvailabilityZoneFilter", 7, 2),
            ("RamFilter", 2, 0),
        ]
        assert [c.host for c in decision.choices] == [None]

    def test_no_host_is_named_to_the_tenant(self, site: Site) -> None:
        with pytest.raises(errors.NoValidHost) as refused:
            site.boot(site.scheduler(), fleet.spec(fleet.flavor(vcpus=17)))
        assert not any(host in str(refused.value) for host in site.inventories())

    def test_a_partly_fitting_batch_says_where_it_ended(self, site: Site) -> None:
        with pytest.raises(errors.NoValidHost, match="for instance 9 of 10"):
            site.boot(site.scheduler(), fleet.spec(fleet.flavor(vcpus=16)), 10)

    def test_a_decision_can_be_repeated_from_its_seed(self, tmp_path: Path) -> None:
        nodes = [fleet.node(f"h{n}") for n in range(30)]
        asked = fleet.spec()
        hosts = []
        for name in ("first", "second"):
            (tmp_path / name).mkdir()
            site = Site.on_sqlite(tmp_path / name, nodes)
            hosts.append([[s.host for s in answer] for answer in site.boot(site.scheduler(), asked, 12)])
        assert hosts[0] == hosts[1]


class TestAnswers:
    def test_limits_and_zone_go_with_a_selection(self, tmp_path: Path) -> None:
        site = Site.on_sqlite(tmp_path, [fleet.node("h", vcpus=8, cpu_allocation_ratio=2.0, reserved_memory_mb=536)])
        [[selection]] = site.boot(site.scheduler(zones={"h": "east"}))
        assert selection.limits == HostCapacity(vcpus=16.0, memory_mb=65000.0, disk_gb=1000.0)
        assert selection.availability_zone == "east"
        assert selection.cell_uuid == CELLS[0]

    def test_a_batch_losing_no_host_waits_for_nothing(self, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
        pauses: list[float] = []
        scheduler, spec = site.scheduler(), fleet.spec()
        with monkeypatch.context() as there:
            there.setattr(time, "sleep", pauses.append)
            site.boot(scheduler, spec, 2)
            scheduler.select_for_each(CONTEXT, [site.leased(fleet.spec(), 2), site.leased(fleet.spec(), 1)])
            scheduler.select_for_each(CONTEXT, [])
        assert pauses == []

    def test_answers_come_in_the_order_asked(self, site: Site) -> None:
        leased = site.leased(fleet.spec(), 6)
        uuids = list(leased.fences)[::-1]
        answers = site.scheduler().select_destinations(CONTEXT, leased, uuids)
        claimed = site.claimed()
        assert [answer[0].host for answer in answers] == [claimed[uuid] for uuid in uuids]

    def test_forced_hosts_are_kept_to(self, site: Site) -> None:
        answers = site.boot(site.scheduler(), fleet.spec(force_hosts=("H3",)), 4)
        assert {s.host for answer in answers for s in answer} == {"h3"}
        with pytest.raises(errors.NoValidHost, match=r"0 were left by ForceHosts \(not the host asked for\)"):
            site.boot(site.scheduler(), fleet.spec(force_hosts=("h99",)))

    def test_members_requested_one_by_one_follow_their_group(self, site: Site) -> None:
        scheduler = site.scheduler()
        apart, together = fleet.group(GroupPolicy.ANTI_AFFINITY), fleet.group(GroupPolicy.AFFINITY)
        hosts = set()
        for _ in range(8):
            hosts.add(site.boot(scheduler, fleet.spec(group=apart))[0][0].host)
            site.built()
        assert len(hosts) == 8
        with pytest.raises(errors.NoValidHost, match="ServerGroupAntiAffinityFilter"):
            site.boot(scheduler, fleet.spec(group=apart))
        assert len({site.boot(scheduler, fleet.spec(group=together))[0][0].host for _ in range(4)}) == 1

    def test_a_held_slot_is_waited_for(self, tmp_path: Path) -> None:
        """The cell of the member it is held for knows of it, and asks nobody before a retry."""
        site = Site.on_sqlite(tmp_path, [fleet.node(f"h{n}") for n in range(16)])
        other_cell = tuple(f"h{n}" for n in range(1, 16, 2))
        group = fleet.group(GroupPolicy.ANTI_AFFINITY)
        scheduler = site.scheduler()
        site.boot(scheduler, fleet.spec(group=group, ignore_hosts=other_cell), 4)
        held = [slot.host for slot in site.slots() if slot.held]
        assert len(held) == 4  # 8 hosts: four members, and one host held for each
        decisions = len(site.decisions())
        with pytest.raises(errors.Conflict, match="held for retries"):
            site.boot(scheduler, fleet.spec(group=group, ignore_hosts=other_cell), 3)
        [told] = site.decisions()[decisions:]
        assert "held for retries" in told.waits, "it is not the last word"
        site.built()
        answers = site.boot(scheduler, fleet.spec(group=group, ignore_hosts=other_cell), 4)
        assert {answer[0].host for answer in answers} == set(held)
        with pytest.raises(errors.NoValidHost, match="too many members"):
            site.boot(scheduler, fleet.spec(group=group, ignore_hosts=other_cell))

    def test_the_chance_driver(self, site: Site) -> None:
        scheduler = site.scheduler(msgspec.structs.replace(QUICK, driver="chance"))
        answers = site.boot(scheduler, count=20)
        assert len({answer[0].host for answer in answers}) > 3
        assert site.overfull() == []
        with pytest.raises(errors.NoValidHost, match="Could not find another compute"):
            site.boot(scheduler, fleet.spec(ignore_hosts=tuple(f"h{n}" for n in range(8))))
        assert site.decisions()[0].driver == "chance"


class TestFreshClaims:
    def test_a_scheduler_sees_others_changes_while_planning(self, tmp_path: Path) -> None:
        site = Site.on_sqlite(tmp_path, [fleet.node(f"h{n}", vcpus=1) for n in range(2)])
        one, two = site.scheduler(), site.scheduler()
        leased = site.leased(fleet.spec())
        [[first]] = one.select_destinations(CONTEXT, leased, list(leased.fences))
        [[second]] = site.boot(two)
        assert first.host != second.host
        site.ledger.write(claims.release_claims, list(leased.fences))
        [[third]] = site.boot(two)
        assert third.host == first.host
        with pytest.raises(errors.NoValidHost):
            site.boot(one)


class TestGroupCommit:
    def ask_together(self, scheduler: SchedulerManager, asked: list[RequestSpec]) -> list[object]:
        answers: dict[int, object] = {}

        def ask(n: int) -> None:
            try:
                answers[n] = scheduler.select_destinations(CONTEXT, asked[n], list(asked[n].fences))
            except errors.SuperconductorError as error:
                answers[n] = error

        run_threads([threading.Thread(target=ask, args=(n,)) for n in range(len(asked))])
        return [answers[n] for n in range(len(asked))]

    def test_concurrent_calls_share_a_transaction_but_not_refusals(self, site: Site) -> None:
        scheduler = site.scheduler(SchedulerSettings(warm_up=0.0, claim_window=0.3))
        asked = [site.leased(fleet.spec(fleet.flavor(vcpus=99 if n == 3 else 1)), 2) for n in range(6)]
        with StatementCounter(site.database) as counter:
            answers = self.ask_together(scheduler, asked)
            inserts = [
                count for (_, text), count in counter.count_by_statement().items() if text.startswith("INSERT INTO allocations")
            ]
        assert [type(answer) for answer in answers] == [list, list, list, errors.NoValidHost, list, list]
        assert sum(count.rows for count in inserts) == 10
        assert sum(count.executions for count in inserts) < 5
        assert len(site.claimed()) == 10
        assert site.overfull() == []

    def test_the_same_instances_requested_twice_share_an_answer(self, site: Site) -> None:
        scheduler = site.scheduler(SchedulerSettings(warm_up=0.0, claim_window=0.2))
        leased = site.leased(fleet.spec(), 3)
        first, *others = self.ask_together(scheduler, [leased] * 4)
        assert isinstance(first, list)
        assert others == [first] * 3
        assert len(site.claimed()) == 3


def count_statements(site: Site, scheduler: SchedulerManager, leased: RequestSpec, context: RequestContext = CONTEXT) -> int:
    """How many of the API database a call for these costs."""
    with StatementCounter(site.database) as counter:
        scheduler.select_destinations(context, leased, list(leased.fences))
        return counter.totals_by_database()[site.database.name].executions


class TestCost:
    @on("site", "lite")  # it counts the statements of the process, and a test before may still be ending elsewhere
    def test_a_single_boot_takes_six_statements(self, site: Site) -> None:
        scheduler = site.scheduler()
        site.boot(scheduler)
        leased = site.leased(fleet.spec())
        assert count_statements(site, scheduler, leased) == 6  # requests with claims, log, lock, allocation, usage, decision

    @on("site", "lite")  # it counts the statements of the process, and a test before may still be ending elsewhere
    def test_a_batch_takes_hardly_more(self, site: Site) -> None:
        scheduler = site.scheduler()
        site.boot(scheduler)
        leased = site.leased(fleet.spec(), 50)
        # One UPDATE of usage for each number of instances that a host got: 5, 6, 7.
        assert count_statements(site, scheduler, leased) <= 8

    @on("site", "lite")  # it counts the statements of the process, and a test before may still be ending elsewhere
    def test_asking_again_takes_two(self, site: Site) -> None:
        scheduler = site.scheduler()
        leased = site.leased(fleet.spec(), 3)
        scheduler.select_destinations(CONTEXT, leased, list(leased.fences))
        assert count_statements(site, scheduler, leased, RequestContext(request_id="again")) == 2


WITH = msgspec.structs.replace(fleet.QUICK, enabled_filters=(*DEFAULT_FILTERS, "SameHostFilter", "DifferentHostFilter"))


def test_a_server_goes_near_or_away_from_another(tmp_path: Path) -> None:
    site = Site.on_sqlite(tmp_path, [fleet.node(f"h{n}") for n in range(3)])
    scheduler = site.scheduler(WITH)
    [[first, *_]] = site.boot(scheduler)
    [uuid] = site.claimed()
    for _ in range(3):
        [[same, *_]] = site.boot(scheduler, fleet.spec(scheduler_hints={"same_host": (uuid,)}))
        [[other, *alternates]] = site.boot(scheduler, fleet.spec(scheduler_hints={"different_host": (uuid,)}))
        assert same.host == first.host
        assert first.host not in {other.host, *(alternate.host for alternate in alternates)}


def test_servers_of_other_projects_are_nowhere(tmp_path: Path) -> None:
    site = Site.on_sqlite(tmp_path, [fleet.node("h1")])
    scheduler = site.scheduler(WITH)
    site.boot(scheduler)
    [uuid] = site.claimed()
    with pytest.raises(errors.NoValidHost, match="not with the servers of the hint same_host"):
        site.boot(scheduler, fleet.spec(project_id="other", scheduler_hints={"same_host": (uuid,)}))
    site.boot(scheduler, fleet.spec(project_id="other", scheduler_hints={"different_host": (uuid,)}))
