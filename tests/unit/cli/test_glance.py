"""What is said of a cell whose parts do not answer, or that has not been asked."""

from __future__ import annotations

from typing import Any

from cli.watch import overview

FINE: dict[str, Any] = {"reachable": True, "since": None, "reason": None}
CELL: dict[str, Any] = {
    "name": "east",
    "view": "answers",
    "hosts": {"UP": 2, "MAINTENANCE": 1, "DOWN": 4},
    "database": FINE,
    "bus": FINE,
}


def test_hosts_are_counted_where_they_are_known() -> None:
    assert overview.host_counts(CELL) == (3, 4)
    assert overview.view_word(CELL) == "answers"
    assert list(overview.trouble_sentences(CELL)) == []


def test_unread_hosts_of_a_returned_cell_are_unknown() -> None:
    late = CELL | {"view": "cell 'east': its database gave no answer within 2 s", "hosts": {}}
    assert overview.view_word(late) == "silent"
    assert overview.host_counts(late) == ("?", "?")
    assert list(overview.trouble_sentences(late)) == ["Cell east: its hosts are not known: its database gave no answer within 2 s"]


def test_hosts_read_before_the_database_failed_are_omitted() -> None:
    assert overview.host_counts(CELL | {"database": {"reachable": False, "since": None, "reason": "refused"}}) == ("?", "?")


def test_a_cell_never_queried_is_no_trouble() -> None:
    new = CELL | {"view": "not asked yet", "hosts": {}}
    assert overview.host_counts(new) == ("?", "?")
    assert list(overview.trouble_sentences(new)) == []


def test_each_part_that_is_silent_is_said_once() -> None:
    away = CELL | {"view": "cell 'east': refused", "bus": {"reachable": False, "since": None, "reason": "refused"}}
    away |= {"database": {"reachable": False, "since": "2026-01-01T00:00:00Z", "reason": "cell 'east': refused"}}
    assert list(overview.trouble_sentences(away)) == [
        "Cell east: its database is silent since 2026-01-01T00:00:00Z: refused",
        "Cell east: its broker is silent: refused",
    ]
