"""The protocol's guards are enough in a small world, and the check of them would notice a missing one."""

from __future__ import annotations

import random

import pytest

from tests.faults.protocol_check import search, walk
from tests.faults.protocol_model import GUARDS, Model

ONE_HOST = [("a1", "A")]
TWO_CELLS = [("a1", "A"), ("b1", "B")]
THREE_HOSTS = [("a1", "A"), ("a2", "A"), ("b1", "B")]


def test_no_guarded_state_of_small_worlds_is_wrong() -> None:
    found = search(Model(TWO_CELLS, faults=1))

    assert (found.broken, found.complete) == (None, True)
    assert found.states == 38_612
    in_a_cell = {"ACTIVE attempt 1", "ACTIVE attempt 2", "ERROR attempt 2", "ERROR attempt 3"}
    assert set(found.ends) == {*in_a_cell, "ERROR cell0", "deleted"}


def test_guarded_walks_of_two_requests_come_to_rest() -> None:
    model, rng = Model(THREE_HOSTS, requests=2, faults=8), random.Random(7)

    assert [found.trace for found in (walk(model, rng) for _ in range(40)) if found.broken] == []


def test_guarded_walks_ending_in_cell0_come_to_rest() -> None:
    model, rng = Model(ONE_HOST, faults=8, capacity=0), random.Random(7)

    assert [found.trace for found in (walk(model, rng) for _ in range(400)) if found.broken] == []


BATCHES = [
    (Model(TWO_CELLS, faults=0, sibling=True), 17_922),
    (Model(ONE_HOST, faults=1, conductors=1, deletes=False, sibling=True), 31_195),
]
"""All-or-nothing batches, and how many states they have: one member on all its ways; of the other, what the API level can know."""


@pytest.mark.parametrize(("model", "states"), BATCHES, ids=["deletes", "faults"])
def test_no_state_of_a_guarded_batch_is_wrong(model: Model, states: int) -> None:
    found = search(model)

    assert (found.broken, found.complete) == (None, True)
    assert found.states == states


def test_guarded_walks_of_a_batch_come_to_rest() -> None:
    model, rng = Model(THREE_HOSTS, requests=2, faults=8, batch=True), random.Random(7)

    assert [found.trace for found in (walk(model, rng) for _ in range(40)) if found.broken] == []


def test_no_state_of_a_guarded_hold_is_wrong() -> None:
    found = search(Model(ONE_HOST, faults=1, hold=True))

    assert (found.broken, found.complete) == (None, True)
    assert "ACTIVE attempt 1" in found.ends
    assert "deleted" in found.ends


def test_guarded_walks_of_holds_come_to_rest() -> None:
    model, rng = Model(THREE_HOSTS, requests=2, faults=8, hold=True), random.Random(7)

    assert [found.trace for found in (walk(model, rng) for _ in range(40)) if found.broken] == []


WHY = [
    ("inert-stage", 8),
    ("no-undo", 11),
    ("no-loser-free", 10),
    ("handover-fence", 10),
    ("claim-guard", 10),
    ("tombstone", 12),
    ("settler", 5),
    ("accept", 9),
    ("audit", 12),
    ("reap-rule", 7),
    ("resend", 8),
    ("delete-sweep", 6),
]
"""A guard, and in how few steps an invariant breaks without it when at most two faults happen."""


@pytest.mark.one_in(4)
@pytest.mark.parametrize(("guard", "length"), WHY)
def test_a_missing_guard_is_detected(guard: str, length: int) -> None:
    found = search(Model(THREE_HOSTS, without=[guard]), limit=100_000)

    assert found.broken is not None, GUARDS[guard]
    assert len(found.trace) == length


WHY_OF_BATCHES = [("verdict-once", 13), ("guest-first", 14), ("rollback-sweep", 17)]
"""The same of an all-or-nothing batch, on one host and without any fault."""


@pytest.mark.one_in(4)
@pytest.mark.parametrize(("guard", "length"), WHY_OF_BATCHES)
def test_a_missing_batch_guard_is_detected(guard: str, length: int) -> None:
    found = search(Model(ONE_HOST, faults=0, conductors=1, sibling=True, without=[guard]), limit=100_000)

    assert found.broken is not None, GUARDS[guard]
    assert len(found.trace) == length


WHY_OF_HOLDS = [("hold-first", 5), ("hold-row", 5), ("hold-once", 3)]
"""The same of a hold."""


@pytest.mark.one_in(4)
@pytest.mark.parametrize(("guard", "length"), WHY_OF_HOLDS)
def test_a_missing_hold_guard_is_detected(guard: str, length: int) -> None:
    found = search(Model(ONE_HOST, faults=0, conductors=1, hold=True, without=[guard]), limit=100_000)

    assert found.broken is not None, GUARDS[guard]
    assert len(found.trace) == length
