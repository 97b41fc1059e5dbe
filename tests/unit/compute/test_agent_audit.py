"""What an agent concludes from its cell's records."""

from __future__ import annotations

import pytest

from compute.audit import compare_entries
from compute.build import Phase
from compute.driver import Guest
from objects.build import DeleteOrder, Holding

GUEST = Guest(uuid="a", name="", node="n", fence=3, attempt=2, builder="h:1", vcpus=1, memory_mb=1, disk_gb=1)


def a_holding(state: str = "active", *, fence: int = 3, attempt: int = 2, builder: str | None = "h:1") -> Holding:
    return Holding(instance_uuid="a", state=state, fence=fence, attempt=attempt, builder=builder)


def test_a_confirmed_guest_needs_nothing() -> None:
    findings = compare_entries({"a": (Phase.RUNNING, GUEST)}, [a_holding()])
    assert (findings.unconfirmed_guests, findings.deleted, findings.handed_back, findings.missing) == ((), (), (), frozenset())


@pytest.mark.parametrize(
    "holding",
    [
        None,
        a_holding("scheduled"),
        a_holding("building"),
        a_holding("error"),
        a_holding(attempt=3),
        a_holding(attempt=1),
        a_holding(fence=4),
        a_holding(builder="h:2"),
        a_holding(builder=None),
        a_holding("deleting", attempt=1),
    ],
)
def test_any_other_record_of_a_guest_is_queried(holding: Holding | None) -> None:
    findings = compare_entries({"a": (Phase.RUNNING, GUEST)}, [holding] if holding else [])
    assert findings.unconfirmed_guests == ("a",)
    assert findings.handed_back == ()


@pytest.mark.parametrize("phase", [phase for phase in Phase if phase is not Phase.RUNNING])
def test_what_is_under_way_is_left_alone(phase: Phase) -> None:
    for holding in (a_holding("building"), a_holding("active"), a_holding("scheduled")):
        findings = compare_entries({"a": (phase, GUEST)}, [holding])
        assert (findings.unconfirmed_guests, findings.handed_back, findings.missing) == ((), (), frozenset())


@pytest.mark.parametrize("phase", [Phase.QUEUED, Phase.SPAWNING])
def test_a_build_not_building_on_record_is_queried(phase: Phase) -> None:
    entries = {"a": (phase, GUEST)}
    assert compare_entries(entries, [a_holding("building")]).unconfirmed_builds == ()
    assert compare_entries(entries, [a_holding("deleting")]).unconfirmed_builds == (), "the delete ends it"
    for records in ([], [a_holding("scheduled")], [a_holding("building", attempt=3)], [a_holding("building", builder="h:2")]):
        assert compare_entries(entries, records).unconfirmed_builds == ("a",)


@pytest.mark.parametrize("phase", [phase for phase in Phase if phase not in (Phase.QUEUED, Phase.SPAWNING)])
def test_nothing_else_is_asked_for(phase: Phase) -> None:
    """What has not been granted is asking already; the grant of what runs is no longer the question."""
    assert compare_entries({"a": (phase, GUEST)}, []).unconfirmed_builds == ()


def test_recorded_deletes_are_done_with_or_without_guest() -> None:
    order = DeleteOrder(instance_uuid="a", attempt=2, fence=3)
    assert compare_entries({"a": (Phase.RUNNING, GUEST)}, [a_holding("deleting")]).deleted == (order,)
    assert compare_entries({"a": (Phase.RUNNING, GUEST)}, [a_holding("deleting")]).unconfirmed_guests == ()
    assert compare_entries({}, [a_holding("deleting")]).deleted == (order,)


def test_a_build_nobody_has_is_handed_back() -> None:
    assert compare_entries({}, [a_holding("building")]).handed_back == (a_holding("building"),)
    assert compare_entries({}, [a_holding("scheduled")]).handed_back == (), "its order will come"


def test_a_guest_that_is_not_there_is_missed() -> None:
    assert compare_entries({}, [a_holding("active")]).missing == {"a"}
