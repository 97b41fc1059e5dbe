"""How many servers a project may have more, and the words in which it is told that it may not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from objects import errors
from objects.flavor import Flavor
from objects.quota import (
    RESOURCES,
    Admission,
    OwnLimits,
    Quota,
    QuotaLimits,
    QuotaUsage,
    UserQuota,
    admit_servers,
    check_limit,
    lower_limit,
    sum_shares,
)

FLAVOR = Flavor(flavor_id="1", name="m1", vcpus=2, memory_mb=512)


def refused(quota: Quota, limits: QuotaLimits, wanted: int, at_least: int | None = None) -> str:
    with pytest.raises(errors.OverQuota) as refusal:
        admit_servers(quota, FLAVOR, wanted, Admission(limits=limits, at_least=at_least))
    return str(refusal.value)


def test_a_refusal_names_the_shortage_in_api_words() -> None:
    full = Quota(project_id="p", used=QuotaUsage(instances=50, cores=100, ram=25600))
    assert refused(full, QuotaLimits(instances=50), 1) == (
        "Quota exceeded for instances: Requested 1, but already used 50 of 50 instances"
    )
    assert refused(full, QuotaLimits(instances=50, cores=101, ram=25600), 2) == (
        "Quota exceeded for cores, instances, ram: Requested 4, 2, 1024, but already used 100, 50, 25600 of 101, 50, 25600 "
        "cores, instances, ram"
    )
    assert refused(full, QuotaLimits(instances=51), 5, at_least=2) == (
        "Quota exceeded for instances: Requested 2-5, but already used 50 of 51 instances"
    )


def test_specific_limits_override_defaults_in_both_directions() -> None:
    more = Quota(project_id="p", own=OwnLimits(instances=-1), used=QuotaUsage(instances=9))
    assert admit_servers(more, FLAVOR, 3, Admission(limits=QuotaLimits(instances=1))) == 3
    less = Quota(project_id="p", own=OwnLimits(ram=0))
    assert "0 of 0 ram" in refused(less, QuotaLimits(), 1)


def test_a_project_over_its_limit_gets_nothing() -> None:
    assert "already used 9 of 3" in refused(
        Quota(project_id="p", used=QuotaUsage(instances=9)), QuotaLimits(instances=3), 5, at_least=1
    )


def test_users_are_bound_by_user_and_project_limits() -> None:
    quota = Quota(project_id="p", used=QuotaUsage(instances=5))
    user = UserQuota(project_id="p", user_id="u", own=OwnLimits(instances=3), used=QuotaUsage(instances=1))
    admission = Admission(limits=QuotaLimits(instances=10), at_least=1)
    assert admit_servers(quota, FLAVOR, 4, admission, user) == 2
    assert admit_servers(quota, FLAVOR, 4, Admission(limits=QuotaLimits(instances=6), at_least=1), user) == 1
    assert admit_servers(quota, FLAVOR, 4, admission) == 4
    with pytest.raises(errors.OverQuota) as refusal:
        admit_servers(quota, FLAVOR, 3, Admission(limits=QuotaLimits(instances=10)), user)
    assert str(refusal.value) == "Quota exceeded for instances: Requested 3, but already used 1 of 3 instances of this user"
    with pytest.raises(errors.OverQuota, match=r"already used 5 of 6 instances$"):
        admit_servers(quota, FLAVOR, 3, Admission(limits=QuotaLimits(instances=6)), user)


@pytest.mark.parametrize(
    ("limit", "least", "most", "text"),
    [
        (2, 3, 9, "Quota limit 2 for cores must be greater than or equal to already used and reserved 3."),
        (10, 3, 9, "Quota limit 10 for cores must be less than or equal to 9."),
        (-1, 3, 9, "Quota limit -1 for cores must be less than or equal to 9."),
    ],
)
def test_an_invalid_limit_is_refused_in_api_words(limit: int, least: int, most: int, text: str) -> None:
    with pytest.raises(errors.Invalid) as refusal:
        check_limit("cores", limit, least, most)
    assert str(refusal.value) == text
    for fitting in (least, most):
        check_limit("cores", fitting, least, most)
    check_limit("cores", -1, least)


def test_the_lower_of_two_limits_applies() -> None:
    assert (lower_limit(3, 5), lower_limit(-1, 5), lower_limit(5, -1), lower_limit(-1, -1), lower_limit(0, -1)) == (3, 5, 5, -1, 0)


def test_usage_is_summed_by_project_and_user() -> None:
    one = QuotaUsage(instances=1, cores=2, ram=3)
    found = sum_shares([("q", "u", one), ("p", "v", one), ("p", "u", one), ("p", "v", one)])
    assert list(found) == ["p", "q"]
    assert found == {"p": {"u": one, "v": QuotaUsage(instances=2, cores=4, ram=6)}, "q": {"u": one}}


AMOUNT = st.integers(0, 40)
LIMIT = st.integers(-1, 40)


@given(
    used=st.builds(QuotaUsage, instances=AMOUNT, cores=AMOUNT, ram=AMOUNT),
    limits=st.builds(QuotaLimits, instances=LIMIT, cores=LIMIT, ram=LIMIT),
    size=st.tuples(st.integers(0, 4), st.integers(0, 4)),
    wanted=st.integers(1, 12),
    least=st.integers(1, 12),
)
def test_what_is_admitted_is_the_most_that_fits(
    used: QuotaUsage, limits: QuotaLimits, size: tuple[int, int], wanted: int, least: int
) -> None:
    flavor = Flavor(flavor_id="1", name="m1", vcpus=size[0], memory_mb=size[1])
    least = min(least, wanted)

    def fits(count: int) -> bool:
        more = QuotaUsage.of_flavor(flavor, count)
        return all(
            getattr(limits, name) == -1
            or not getattr(more, name)
            or getattr(used, name) + getattr(more, name) <= getattr(limits, name)
            for name in RESOURCES
        )

    fitting = [count for count in range(least, wanted + 1) if fits(count)]
    try:
        admitted = admit_servers(Quota(project_id="p", used=used), flavor, wanted, Admission(limits=limits, at_least=least))
    except errors.OverQuota:
        assert fitting == []
    else:
        assert admitted == max(fitting)
