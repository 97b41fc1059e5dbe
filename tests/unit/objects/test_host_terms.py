"""What of a report counts: sizes near the accepted one, and ratios that no agent says."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from objects.errors import Invalid
from objects.host_limits import CLASSES_LIMIT, NODES_LIMIT, HostLimits
from objects.host_terms import GROWTH_FACTOR, HostTerms, OwnRatios, Ratios, Sizes
from tests.support import fleet

ACCEPTED = Sizes(vcpus=16, memory_mb=1000, disk_gb=100, resources={"CUSTOM_GPU": 4})
AMOUNTS = st.integers(0, 100)
SIZES = st.builds(
    Sizes,
    vcpus=AMOUNTS,
    memory_mb=AMOUNTS,
    disk_gb=AMOUNTS,
    resources=st.dictionaries(st.sampled_from(["CUSTOM_A", "CUSTOM_B"]), st.integers(1, 100)),
)


def changed(**amounts: object) -> Sizes:
    return msgspec.structs.replace(ACCEPTED, **amounts)


@pytest.mark.parametrize(
    ("reported", "counted"),
    [
        (ACCEPTED, ACCEPTED),
        (changed(vcpus=24), changed(vcpus=24)),
        (changed(vcpus=25), ACCEPTED),
        (changed(vcpus=25, memory_mb=1200), ACCEPTED),
        (changed(vcpus=25, memory_mb=10), changed(memory_mb=10)),
        (changed(vcpus=1, resources={}), changed(vcpus=1, resources={})),
        (changed(resources={"CUSTOM_GPU": 7}), ACCEPTED),
        (changed(resources={"CUSTOM_GPU": 4, "CUSTOM_NEW": 1}), ACCEPTED),
    ],
)
def test_growth_beyond_the_factor_waits_and_shrinking_counts(reported: Sizes, counted: Sizes) -> None:
    terms = HostTerms(accepted=ACCEPTED).after_report(reported)
    assert terms.counted_sizes(reported) == counted
    assert terms.waiting == (None if counted == reported else reported)
    assert terms.accepted == ACCEPTED


@given(reports=st.lists(SIZES, min_size=1, max_size=6))
def test_repeated_reports_never_exceed_the_growth_factor(reports: list[Sizes]) -> None:
    terms = HostTerms(accepted=ACCEPTED)
    for reported in reports:
        terms = terms.after_report(reported)
        assert not terms.counted_sizes(reported).exceeds_by(ACCEPTED, GROWTH_FACTOR)
        assert not terms.counted_sizes(reported).exceeds_by(reported)


def test_what_waits_is_forgotten_with_the_accepted_size() -> None:
    terms = HostTerms(accepted=ACCEPTED).after_report(changed(vcpus=100))
    assert terms.after_report(changed(vcpus=20)).counted_sizes(changed(vcpus=20)) == ACCEPTED
    assert terms.after_report(ACCEPTED) == HostTerms(accepted=ACCEPTED)


def test_it_says_what_is_more() -> None:
    reported = changed(vcpus=100, memory_mb=1, resources={"CUSTOM_GPU": 4, "CUSTOM_NEW": 1})
    assert reported.describe_growth(ACCEPTED) == "vcpus 100 (counts 16), CUSTOM_NEW 1 (counts 0)"


def test_own_ratios_go_before_the_configured_ones() -> None:
    assert OwnRatios(cpu=2.0, disk=0.0).over_configured(Ratios(cpu=9.0, ram=8.0, disk=7.0)) == Ratios(cpu=2.0, ram=8.0, disk=0.0)


def test_nodes_and_classes_of_a_host_are_limited() -> None:
    many = [fleet.node("h1", node=f"n{number}", vcpus=1, memory_mb=1, disk_gb=1) for number in range(NODES_LIMIT)]
    HostLimits().check_node(many[0], many[1:])
    with pytest.raises(Invalid, match="at most 256 nodes"):
        HostLimits().check_node(many[0], many)
    classes = {f"CUSTOM_{number}": 1 for number in range(CLASSES_LIMIT + 1)}
    with pytest.raises(Invalid, match="at most 256 custom resource classes"):
        HostLimits().check_node(fleet.node("h1", resources=classes))
