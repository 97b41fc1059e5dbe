"""The ages of cells in a decision's record."""

from __future__ import annotations

from scheduler.explain.decision_record import CELLS_SHOWN, _recorded_ages


def test_few_cells_are_all_named() -> None:
    ages: dict[str, float | None] = {f"cell{n}": 0.1 for n in range(CELLS_SHOWN)}
    assert _recorded_ages(ages, ()) == ages


def test_only_relevant_cells_of_many_are_named() -> None:
    ages: dict[str, float | None] = {f"cell{n}": 0.1 for n in range(1000)}
    ages |= {"late": 90.0, "silent": None}
    assert _recorded_ages(ages, {"cell7", None}) == {"cell7": 0.1, "late": 90.0, "silent": None}
