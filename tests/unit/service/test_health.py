"""The board tells what is wedged from what is idle, in bounded time."""

from __future__ import annotations

import threading
from collections.abc import Callable

from service.health import Board, HealthCheck, ProcessHealth, UnderWay
from service.periodic import wait_until

PATIENCE = 90.0


def refused(text: str) -> Callable[[], str]:
    def ask() -> str:
        raise ConnectionError(text)

    return ask


def troubles(found: ProcessHealth) -> dict[str, str]:
    return {finding.check: finding.trouble for finding in found.findings if finding.trouble}


def test_a_board_without_parts_is_well() -> None:
    assert Board().look_at_parts().is_well


def test_part_statements_and_errors_show_trouble_first() -> None:
    board = Board()
    parts = [
        HealthCheck("a", lambda: None),
        HealthCheck("b", lambda: "no rounds"),
        HealthCheck("c", refused("mysql://u:secret@h/ is away")),
    ]
    for part in parts:
        board.watch_part(part)
    found = board.look_at_parts(PATIENCE)
    assert not found.is_well
    assert [finding.check for finding in found.findings] == ["b", "c", "a"]
    assert troubles(found) == {"b": "no rounds", "c": "mysql://u:***@h/ is away"}


def test_who_is_forgotten_or_gone_is_not_asked() -> None:
    board = Board()
    kept, ended = HealthCheck("kept", lambda: None), HealthCheck("ended", lambda: "ended")
    board.watch_part(kept)
    board.watch_part(ended)
    board.watch_part(HealthCheck("gone", lambda: "gone"))
    board.forget_part(ended)
    assert wait_until(lambda: board.watched_parts() == [kept], PATIENCE)
    assert board.look_at_parts(PATIENCE).is_well


def test_a_silent_part_is_wedged_and_costs_one() -> None:
    board, going_on = Board(late=0.2), threading.Event()
    asked: list[None] = []

    def hang() -> None:
        asked.append(None)
        going_on.wait(PATIENCE)

    part = HealthCheck("database", hang)
    board.watch_part(part)
    try:
        assert wait_until(lambda: not board.look_at_parts(0.01).is_well, PATIENCE)
        (finding,) = board.look_at_parts(0.01).findings
        assert finding.trouble.startswith("no answer since")
        assert len(asked) == 1
    finally:
        going_on.set()
    assert wait_until(lambda: board.look_at_parts(0.01).is_well, PATIENCE)


def test_a_slow_part_is_well_and_noted() -> None:
    board, going_on = Board(late=PATIENCE * 10), threading.Event()
    part = HealthCheck("database", lambda: None if going_on.wait(PATIENCE) else "never")
    board.watch_part(part)
    found = board.look_at_parts(0.01)
    assert found.is_well
    assert found.findings[0].note
    going_on.set()


def test_work_under_way_is_stuck_after_long_only() -> None:
    work = UnderWay()
    with work:
        assert work.count_begun == 1
        assert not work.describe_trouble("request")
        work._begun = {1: -1e9}
        assert work.describe_trouble("request").startswith("1 of 1 requests under way do not end")
    assert UnderWay().count_begun == 0
