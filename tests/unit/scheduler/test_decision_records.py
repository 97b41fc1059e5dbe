"""What decisions tell beside where servers went: who was faster, what would have been enough, how old the news of cells was."""

from __future__ import annotations

from objects import stored
from objects.decision import Decision, FilterCount
from objects.inventory import Standing
from objects.selection import Selection
from scheduler.explain.decision_record import CELLS_SHOWN, _recorded_ages
from tests.support import fleet
from tests.support.attempts import Ledger, attempt, begun, job, overtaken


def test_a_sufficient_change_is_recorded_beside_placements() -> None:
    ledger = Ledger(4)
    jobs = [job(fleet.spec(fleet.flavor(vcpus=17)), 2), job(fleet.spec(fleet.flavor(vcpus=16)), 3)]
    made = attempt(ledger.table, jobs)
    assert not made.confirm_locked(ledger.rows(begun(made, jobs)))
    _, [refused, placed] = made.finish_plan()
    assert [one.as_text for one in refused.relaxations or ()] == ["with a flavor of 9 vCPUs less"]
    assert placed.relaxations is None
    assert (ledger.table.instances[:4] == 0).all()


def test_hosts_that_others_took_first() -> None:
    ledger, _, made, first, more = overtaken(6)
    assert not made.confirm_locked(ledger.rows(more))
    _, [decision] = made.finish_plan()
    assert (decision.conflicts, decision.taken) == (1, (f"h{first - 1}",))
    assert decision.choices[0].host not in decision.taken


def test_conflicts_count_over_all_attempts_of_a_call() -> None:
    ledger, jobs, lost, first, more = overtaken(2)
    assert more
    assert not lost.confirm_locked([])
    assert lost.finish_plan() == ([()], [])
    made = attempt(ledger.table, jobs)
    [second] = begun(made, jobs)
    assert not made.confirm_locked(ledger.rows({second}))
    _, [decision] = made.finish_plan()
    assert (decision.conflicts, decision.taken) == (2, (f"h{first - 1}", f"h{second - 1}")), "full, and in other hands"


def test_the_winner_is_always_among_the_scored_hosts() -> None:
    ledger = Ledger(40)
    for _ in range(10):
        jobs = [job(fleet.spec())]
        made = attempt(ledger.table, jobs, driver=fleet.driver(host_subset_size=40))
        assert not made.confirm_locked(ledger.rows(begun(made, jobs)))
        _, [decision] = made.finish_plan()
        [winner] = [each for each in decision.candidates if each.host == decision.choices[0].host]
        assert winner.parts["RAMWeigher"] == 1.0


def test_a_standing_claim_is_recorded_with_its_cell() -> None:
    ledger = Ledger(4)
    [asked] = jobs = [job(fleet.spec(), 2)]
    kept = Selection(host="h3", node="h3", cell_uuid=fleet.CELLS[1])
    made = attempt(ledger.table, jobs)
    standing = Standing(kept={asked.uuids[0]: (kept,)}, needed=asked.uuids[1:])
    assert not made.confirm_locked(ledger.rows(set(made.plan_jobs([], [standing], []))))
    _, [decision] = made.finish_plan()
    assert (decision.choices[0].host, decision.choices[0].cell) == ("h3", "cell2")


def test_filters_without_refusals_are_recorded_briefly_and_completely() -> None:
    ledger = Ledger(4)
    jobs = [job(fleet.spec())]
    made = attempt(ledger.table, jobs)
    assert not made.confirm_locked(ledger.rows(begun(made, jobs)))
    _, [decision] = made.finish_plan()
    text = stored.dump_value(decision)
    assert '{"name":"RamFilter","before":4,"after":4}' in text
    again = stored.load_text(text, Decision)
    assert {type(count) for count in again.filters} == {FilterCount}
    assert [(one.name, one.before, one.after, one.reason, one.partial) for one in again.filters] == [
        (one.name, one.before, one.after, one.reason, one.partial) for one in decision.filters
    ]


def test_few_cells_are_all_named() -> None:
    ages: dict[str, float | None] = {f"cell{n}": 0.1 for n in range(CELLS_SHOWN)}
    assert _recorded_ages(ages, ()) == ages


def test_only_relevant_cells_of_many_are_named() -> None:
    ages: dict[str, float | None] = {f"cell{n}": 0.1 for n in range(1000)}
    ages |= {"late": 90.0, "silent": None}
    assert _recorded_ages(ages, {"cell7", None}) == {"cell7": 0.1, "late": 90.0, "silent": None}
