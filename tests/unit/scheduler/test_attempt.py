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


def test_a_plan_on_unchanged_rows_stands() -> None:
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


def test_taken_room_moves_an_instance_to_another_host() -> None:
    ledger = Ledger(2, vcpus=2)
    jobs = [job(fleet.spec(), 2)]
    made = attempt(ledger.table, jobs)
    wanted = begun(made, jobs)
    assert wanted == {1, 2}
    ledger.taken = {1: 2}
    assert not made.confirm_locked(ledger.rows(wanted))
    [placements], _ = made.finish_plan()
    assert [p.inventory_id for p in placements] == [2, 2]


def test_other_hosts_are_locked_when_none_has_room() -> None:
    ledger, _, made, first, more = overtaken(6)
    assert more
    assert first not in more
    assert not made.confirm_locked(ledger.rows(more))
    [[placement]], [decision] = made.finish_plan()
    assert placement.inventory_id in more
    assert decision.choices[0].host == placement.selections[0].host
    assert placement.selections[0].host not in [s.host for s in placement.selections[1:]]


def test_a_free_host_replaces_a_locked_one() -> None:
    ledger, _, made, _, more = overtaken(6)
    free = max(more)
    assert not made.confirm_locked(ledger.rows({free}))  # the others of ``more`` were locked
    [[placement]], _ = made.finish_plan()
    assert placement.inventory_id == free


def test_a_job_is_lost_while_locked_hosts_remain() -> None:
    _, jobs, made, _, more = overtaken(2)
    assert more
    assert not made.confirm_locked([])  # the one host left is locked by somebody else
    placements, decisions = made.finish_plan()
    assert (placements, decisions) == ([()], [])
    assert jobs[0].lost


def test_rounds_ending_early_lose_only_the_job() -> None:
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


def test_a_job_is_refused_with_counts_without_hosts() -> None:
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


def test_a_failing_job_frees_room_for_the_next() -> None:
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


def test_a_soft_group_spreads_when_room_is_taken() -> None:
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


def test_an_instance_placed_anew_does_not_block_itself() -> None:
    group = fleet.group(GroupPolicy.ANTI_AFFINITY)
    ledger = Ledger(1)
    jobs = [job(fleet.spec(group=group))]
    slots = [Slot(group_uuid=group.uuid, instance_uuid=jobs[0].uuids[0], host="h0")]
    assert begun(attempt(ledger.table, jobs), jobs, slots) == {1}


def test_a_held_slot_is_reserved_for_its_holder() -> None:
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


def test_a_failing_filter_fails_only_its_job() -> None:
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


def test_a_filter_failing_for_alternates_costs_only_these() -> None:
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
    def test_a_silent_host_that_might_fit_prevents_refusal(self) -> None:
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
def test_a_standing_plan_equals_a_second_look(policy: GroupPolicy | None, count: int) -> None:
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
