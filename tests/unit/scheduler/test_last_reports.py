"""When agents were last heard of, of many hosts in little memory."""

from __future__ import annotations

from collections.abc import Sequence

from db.cell.services import Signs
from scheduler.cell_reader import LastReports


def looked(
    reports: LastReports, mono: float, *hosts: str, counts: Sequence[int] = (), age: float = 0.0, disabled: bool = False
) -> tuple[list[float], list[bool]]:
    """When each was last heard of, and whether that is news."""
    no = [False] * len(hosts)
    signs = Signs(list(hosts), list(counts) or [1] * len(hosts), [age] * len(hosts), [disabled] * len(hosts), no, no, head=1)
    heard_at, news = reports.enter_signs(signs, mono)
    return heard_at.tolist(), news.tolist()


def test_first_looks_take_ages_and_later_ones_counts() -> None:
    reports = LastReports()
    assert looked(reports, 100.0, "h1", age=40.0) == ([60.0], [True])
    assert looked(reports, 110.0, "h1", age=50.0) == ([60.0], [False])
    assert looked(reports, 120.0, "h1", counts=[2], age=1.0) == ([120.0], [True])


def test_a_changed_flag_is_news_but_no_report() -> None:
    reports = LastReports()
    looked(reports, 100.0, "h1")
    assert looked(reports, 110.0, "h1", disabled=True) == ([100.0], [True])
    assert looked(reports, 120.0, "h1", disabled=True) == ([100.0], [False])


def test_some_of_many_have_news() -> None:
    reports = LastReports()
    assert looked(reports, 1.0, "h1", "h2", "h3") == ([1.0] * 3, [True] * 3)
    assert looked(reports, 2.0, "h4", "h3", "h1", counts=[1, 2, 1]) == ([2.0, 2.0, 1.0], [True, True, False])


def test_a_newcomer_takes_the_place_of_gone_hosts() -> None:
    reports = LastReports()
    for number, host in enumerate(("h1", "h2", "h3")):
        looked(reports, float(number), host)
    assert reports.forget_others({"h1", "h3"}) == ["h2"]
    assert looked(reports, 50.0, "h4", counts=[9]) == ([50.0], [True])
    assert looked(reports, 60.0, "h4", counts=[9]) == ([50.0], [False])
    assert looked(reports, 60.0, "h1", "h3", "h4", counts=[1, 1, 9]) == ([0.0, 2.0, 50.0], [False] * 3)
    assert looked(reports, 70.0, "h2") == ([70.0], [True])
