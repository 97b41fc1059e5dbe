"""Planning within one claim transaction: what happens when the locked rows are not what was planned on."""

from __future__ import annotations

import time

import pytest

from objects import errors
from objects.decision import DecidedInstance
from objects.group import GroupPolicy
from objects.inventory import Slot
from objects.spec import RequestSpec
from scheduler.filters.adapter import Adapter
from scheduler.framework.hosts import HostState
from scheduler.framework.settings import SchedulerSettings
from tests.support import fleet
from tests.support.attempts import Ledger, attempt, begun, job, overtaken


def test_a_plan_on_rows_that_did_not_change_stands() -> None:
    ledger = Ledger(4)
    jobs = [job(fleet.spec(), 2)]
    made = attempt(ledger.table, jobs)
    wanted = begun(made, jobs)
    assert made.confirm_locked(ledger.rows(wanted)) == ()
    [placements], [decision] = made.finish_plan()
    assert {p.inventory_id for p in placements} == wanted
    assert [p.instance_uuid for p in placements] == list(jobs[0].uuids)
    assert decision.choices[0].host == placements[0].selections[0].host
    assert placements[0].selections[0].decision_id == decision.id


def test_room_taken_meanwhile_moves_an_instance_to_another_locked_host_if_one_has_room() -> None:
    ledger = Ledger(2, vcpus=2)
    jobs = [job(fleet.spec(), 2)]
    made = attempt(ledger.table, jobs)
    wanted = begun(made, jobs)
    assert wanted == {1, 2}
    ledger.taken = {1: 2}
    assert not made.confirm_locked(ledger.rows(wanted))
    [placements], _ = made.finish_plan()
    assert [p.inventory_id for p in placements] == [2, 2]


def test_where_no_locked_host_has_room_others_are_asked_for() -> None:
    ledger, _, made, first, more = overtaken(6)
    assert more
    assert first not in more
    assert not made.confirm_locked(ledger.rows(more))
    [[placement]], [decision] = made.finish_plan()
    assert placement.inventory_id in more
    assert decision.choices[0].host == placement.selections[0].host
    assert placement.selections[0].host not in [s.host for s in placement.selections[1:]]


def test_a_host_another_transaction_holds_is_given_up_for_one_that_is_free() -> None:
    ledger, _, made, _, more = overtaken(6)
    free = max(more)
    assert not made.confirm_locked(ledger.rows({free}))  # the others of ``more`` were locked
    [[placement]], _ = made.finish_plan()
    assert placement.inventory_id == free


def test_it_is_lost_not_refused_while_others_hold_hosts_that_may_have_room() -> None:
    _, jobs, made, _, more = overtaken(2)
    assert more
    assert not made.confirm_locked([])  # the one host left is locked by somebody else
    placements, decisions = made.finish_plan()
    assert (placements, decisions) == ([()], [])
    assert jobs[0].lost


def test_rounds_that_end_too_early_lose_the_job_only() -> None:
    ledger = Ledger(6, vcpus=1)
    jobs = [job(fleet.spec()), job(fleet.spec())]
    made = attempt(ledger.table, jobs)
    wanted = begun(made, jobs)
    loser = next(iter(jobs[0].rows.values())) + 1
    ledger.taken = {loser: 1}
    assert made.confirm_locked(ledger.rows(wanted))
    placements, decisions = made.finish_plan()
    assert jobs[0].lost
    assert [len(batch) for batch in placements] == [0, 1]
    assert len(decisions) == 1


def test_it_is_refused_with_counts_where_the_fresh_rows_leave_no_host() -> None:
    ledger = Ledger(1, vcpus=1)
    jobs = [job(fleet.spec())]
    made = attempt(ledger.table, jobs)
    wanted = begun(made, jobs)
    ledger.taken = {1: 1}
    assert not made.confirm_locked(ledger.rows(wanted))
    placements, [decision] = made.finish_plan()
    assert placements == [()]
    assert decision.filters[-1].name == "CoreFilter"
    assert decision.filters[-1].after == 0
    assert "CoreFilter (not enough vCPUs)" in decision.message


def test_jobs_of_one_transaction_do_not_share_room_and_a_failing_one_leaves_its_room_to_the_next() -> None:
    ledger = Ledger(2, vcpus=2)
    jobs = [job(fleet.spec(), 3), job(fleet.spec(), 4), job(fleet.spec(), 1)]
    made = attempt(ledger.table, jobs)
    wanted = begun(made, jobs)
    assert not made.confirm_locked(ledger.rows(wanted))
    placements, decisions = made.finish_plan()
    assert [len(batch) for batch in placements] == [3, 0, 1]
    assert jobs[1].short == 1
    assert len(decisions) == 3
    assert decisions[1].message.startswith("No valid host was found for instance 2 of 4")


def test_jobs_of_one_group_see_each_other() -> None:
    group = fleet.group(GroupPolicy.ANTI_AFFINITY)
    ledger = Ledger(4)
    jobs = [job(fleet.spec(group=group, max_attempts=1), 2) for _ in range(3)]
    made = attempt(ledger.table, jobs)
    wanted = begun(made, jobs)
    assert not made.confirm_locked(ledger.rows(wanted))
    placements, _ = made.finish_plan()
    assert [len(batch) for batch in placements] == [2, 2, 0]
    assert {p.inventory_id for batch in placements for p in batch} == {1, 2, 3, 4}


def test_a_soft_group_spreads_when_room_is_taken_meanwhile() -> None:
    """The host that is locked for another member has room, but a host without members is better."""
    ledger = Ledger(3, vcpus=2)
    jobs = [job(fleet.spec(group=fleet.group(GroupPolicy.SOFT_ANTI_AFFINITY), max_attempts=1), 2)]
    made = attempt(ledger.table, jobs)
    wanted = begun(made, jobs)
    assert len(wanted) == 2
    ledger.taken = {min(wanted): 2}
    more = set(made.confirm_locked(ledger.rows(wanted)))
    assert not made.confirm_locked(ledger.rows(more))
    [placements], _ = made.finish_plan()
    assert {p.inventory_id for p in placements} == {1, 2, 3} - {min(wanted)}


def test_an_instance_placed_anew_is_not_in_the_way_of_itself() -> None:
    group = fleet.group(GroupPolicy.ANTI_AFFINITY)
    ledger = Ledger(1)
    jobs = [job(fleet.spec(group=group))]
    slots = [Slot(group_uuid=group.uuid, instance_uuid=jobs[0].uuids[0], host="h0")]
    assert begun(attempt(ledger.table, jobs), jobs, slots) == {1}


def test_a_held_slot_is_left_to_whom_it_is_held_for() -> None:
    group = fleet.group(GroupPolicy.ANTI_AFFINITY)
    ledger = Ledger(1)
    jobs = [job(fleet.spec(group=group))]
    held = Slot(group_uuid=group.uuid, instance_uuid="other", host="h0", held=True)
    made = attempt(ledger.table, jobs)
    assert not begun(made, jobs, [held])
    placements, [told] = made.finish_plan()
    assert (placements, told.relaxations) == ([()], None)
    assert "held for retries" in told.waits
    with pytest.raises(errors.Conflict, match="held for retries"):
        jobs[0].selections_or_raise()


def test_a_filter_that_fails_fails_its_own_job_only() -> None:
    class Picky:
        def host_passes(self, host: object, spec: RequestSpec) -> bool:
            if spec.name == "poison":
                raise KeyError("rack")
            return True

    ledger = Ledger(3)
    jobs = [job(fleet.spec(name="poison")), job(fleet.spec())]
    made = attempt(ledger.table, jobs)
    made._driver.filters = (*made._driver.filters, Adapter(SchedulerSettings(), "Picky", Picky()))
    wanted = begun(made, jobs)
    assert not made.confirm_locked(ledger.rows(wanted))
    placements, _ = made.finish_plan()
    assert [len(batch) for batch in placements] == [0, 1]
    assert str(jobs[0].error) == "filter Picky failed: KeyError: 'rack'"


def test_a_filter_that_fails_where_alternates_are_looked_for_costs_its_own_job_these_only() -> None:
    class Picky:
        def host_passes(self, host: HostState, spec: RequestSpec) -> bool:
            if spec.name == "poison" and host.instances:  # not before another batch of the transaction has been placed
                raise RuntimeError("a bug of this site")
            return True

    ledger = Ledger(6)
    jobs = [job(fleet.spec(name="poison")), job(fleet.spec(), 5)]
    made = attempt(ledger.table, jobs)
    made._driver.filters = (*made._driver.filters, Adapter(SchedulerSettings(), "Picky", Picky()))
    wanted = begun(made, jobs)
    assert not made.confirm_locked(ledger.rows(wanted))
    [[poison], others], _ = made.finish_plan()
    assert len(poison.selections) == 1
    assert [len(each.selections) for each in others] == [3] * 5


class TestAYoungProcess:
    def test_does_not_refuse_what_a_silent_host_might_take(self) -> None:
        ledger = Ledger(2)
        jobs = [job(fleet.spec())]
        made = attempt(ledger.table, jobs, young=True, alive_since=time.monotonic() + 1000)
        assert begun(made, jobs) == set()
        assert made.finish_plan() == ([()], [])
        assert jobs[0].premature

    def test_refuses_what_no_host_could_take(self) -> None:
        ledger = Ledger(2)
        jobs = [job(fleet.spec(fleet.flavor(vcpus=999)))]
        made = attempt(ledger.table, jobs, young=True, alive_since=time.monotonic() + 1000)
        assert begun(made, jobs) == set()
        assert not jobs[0].premature
        assert len(made.finish_plan()[1]) == 1


def test_running_the_transaction_anew_starts_from_nothing() -> None:
    ledger = Ledger(3, vcpus=1)
    jobs = [job(fleet.spec(), 2)]
    made = attempt(ledger.table, jobs)
    first = begun(made, jobs)
    assert not made.confirm_locked(ledger.rows(first))
    assert begun(made, jobs) == first
    assert made.finish_plan()[0] == [()]  # the locks of the first run are gone
    assert begun(made, jobs) == first
    assert not made.confirm_locked(ledger.rows(first))
    [placements], _ = made.finish_plan()
    assert len(placements) == 2
    assert (ledger.table.instances[:3] == 0).all()


@pytest.mark.parametrize("policy", [None, *GroupPolicy])
@pytest.mark.parametrize("count", [1, 3])
def test_a_plan_that_stands_is_what_a_second_look_would_find(policy: GroupPolicy | None, count: int) -> None:
    """What is found with the plan - its alternates - is not looked for again."""
    asked = [fleet.spec(group=fleet.group(policy) if policy else None) for _ in range(2)]

    def chosen(*, twice: bool) -> list[DecidedInstance]:
        ledger = Ledger(12, vcpus=4)
        jobs = [job(spec, count) for spec in asked]
        made = attempt(ledger.table, jobs)
        assert not made.confirm_locked(ledger.rows(begun(made, jobs)))
        if twice:
            made._settle_jobs()
        return [choice for decision in made.finish_plan()[1] for choice in decision.choices]

    assert chosen(twice=False) == chosen(twice=True)
