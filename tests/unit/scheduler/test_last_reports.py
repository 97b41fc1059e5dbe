"""When agents were last heard of, of many hosts in little memory."""

from __future__ import annotations

import pytest

from db.cell.services import Sign
from scheduler.watch import LastReports


def sign(host: str, count: int = 1, age: float = 0.0, *, disabled: bool = False) -> Sign:
    return Sign(host, count, age, disabled=disabled, forced_down=False, stopping=False)


def test_the_first_look_takes_the_age_and_later_ones_the_count() -> None:
    reports = LastReports()
    assert reports.look(sign("h1", age=40.0), mono=100.0)
    assert reports.at("h1") == 60.0
    assert not reports.look(sign("h1", age=50.0), mono=110.0)
    assert reports.at("h1") == 60.0
    assert reports.look(sign("h1", count=2, age=1.0), mono=120.0)
    assert reports.at("h1") == 120.0


def test_a_changed_flag_is_news_but_no_report() -> None:
    reports = LastReports()
    reports.look(sign("h1"), mono=100.0)
    assert reports.look(sign("h1", disabled=True), mono=110.0)
    assert not reports.look(sign("h1", disabled=True), mono=120.0)
    assert reports.at("h1") == 100.0


def test_a_newcomer_takes_the_place_of_a_host_that_is_gone() -> None:
    reports = LastReports()
    for number, host in enumerate(("h1", "h2", "h3")):
        reports.look(sign(host), mono=float(number))
    assert reports.forget_others({"h1", "h3"}) == ["h2"]
    with pytest.raises(KeyError):
        reports.at("h2")
    assert reports.look(sign("h4", count=9), mono=50.0)
    assert not reports.look(sign("h4", count=9), mono=60.0)
    assert [reports.at(host) for host in ("h1", "h3", "h4")] == [0.0, 2.0, 50.0]
    assert reports.look(sign("h2"), mono=70.0)
