"""A frozen, a dead and a refusing resource behind a bulkhead."""

from __future__ import annotations

import threading

import pytest

from cells.bulkhead import Bulkhead, BulkheadSettings
from objects import errors
from service.periodic import wait_until


class Frozen:
    """A resource that does not answer until it is thawed, as a stopped server does. Counts who came through to it."""

    def __init__(self) -> None:
        self.thawed = threading.Event()
        self.calls = 0

    def __call__(self) -> str:
        self.calls += 1
        self.thawed.wait(30)
        return "answer"


def _bulkhead(*, inline: bool = False, pause: float = 3600.0) -> Bulkhead:
    settings = BulkheadSettings(timeout=0.2, threads=2, failures=3, pause=pause)
    return Bulkhead("cell 'east'", "database", settings, inline=inline, silent=(errors.DatabaseUnavailable,))


def _dead() -> None:
    raise errors.DatabaseUnavailable("Database mysql://sc:***@db/east cannot be used: connection refused")


def test_a_frozen_resource_is_abandoned_at_the_deadline() -> None:
    bulkhead, frozen = _bulkhead(), Frozen()
    with pytest.raises(errors.CellUnavailable, match=r"^cell 'east': its database gave no answer within 0\.2 s$"):
        bulkhead.run(frozen)
    frozen.thawed.set()


def test_callers_are_refused_at_once_after_enough_silence() -> None:
    bulkhead, frozen = _bulkhead(), Frozen()
    for _ in range(3):
        with pytest.raises(errors.CellUnavailable, match="gave no answer"):
            bulkhead.run(frozen)
    reached = frozen.calls
    for _ in range(50):
        with pytest.raises(errors.CellUnavailable, match=r"^cell 'east' has not answered since .* \(its database gave no answer"):
            bulkhead.run(frozen)
    assert frozen.calls == reached
    frozen.thawed.set()


def test_a_probe_succeeds_although_old_calls_still_hang() -> None:
    bulkhead, frozen = _bulkhead(pause=0.01), Frozen()
    for _ in range(3):
        with pytest.raises(errors.CellUnavailable):
            bulkhead.run(frozen)

    def answers() -> bool:
        try:
            return bulkhead.run(lambda: "well again", timeout=5) == "well again"
        except errors.CellUnavailable:
            return False

    assert wait_until(answers, 90.0)
    assert not frozen.thawed.is_set(), "the frozen calls never came back"
    assert bulkhead.breaker.silent_since is None
    frozen.thawed.set()


def test_callers_without_a_free_thread_open_no_breaker() -> None:
    settings = BulkheadSettings(timeout=10, threads=1, failures=1)
    bulkhead = Bulkhead("cell 'east'", "database", settings, inline=False)
    slow = Frozen()
    collect = bulkhead.begin_call(slow)
    for _ in range(5):
        with pytest.raises(errors.CellUnavailable, match="its database is busy"):
            bulkhead.run(lambda: None, timeout=0.01)
    slow.thawed.set()
    assert collect() == "answer"
    assert bulkhead.run(lambda: 7) == 7


@pytest.mark.parametrize("inline", [False, True])
def test_a_dead_resource_opens_the_breaker(inline: bool) -> None:
    bulkhead = _bulkhead(inline=inline)
    for _ in range(3):
        with pytest.raises(errors.CellUnavailable, match=r"^cell 'east': Database mysql.*connection refused"):
            bulkhead.run(_dead, timeout=10)
    with pytest.raises(errors.CellUnavailable, match=r"has not answered since .*connection refused"):
        bulkhead.run(lambda: None, timeout=10)


@pytest.mark.parametrize("inline", [False, True])
def test_errors_of_the_call_pass_as_answers(inline: bool) -> None:
    bulkhead = _bulkhead(inline=inline)

    def refuse() -> None:
        raise errors.NotFound("no such instance")

    for _ in range(10):
        with pytest.raises(errors.NotFound):
            bulkhead.run(refuse, timeout=10)
    assert bulkhead.breaker.silent_since is None
    assert bulkhead.run(lambda: 1, timeout=10) == 1


def test_only_inline_calls_run_in_the_callers_thread() -> None:
    me = threading.current_thread()
    assert _bulkhead(inline=True).run(threading.current_thread) is me
    assert _bulkhead().run(threading.current_thread, timeout=10) is not me


@pytest.mark.parametrize("inline", [False, True])
def test_begun_calls_bring_their_outcome_when_collected(inline: bool) -> None:
    bulkhead = _bulkhead(inline=inline)
    good, bad = bulkhead.begin_call(lambda: 1, timeout=10), bulkhead.begin_call(_dead, timeout=10)
    assert good() == 1
    with pytest.raises(errors.CellUnavailable):
        bad()


def test_a_call_begun_while_open_fails_when_collected() -> None:
    bulkhead = _bulkhead()
    for _ in range(3):
        with pytest.raises(errors.CellUnavailable):
            bulkhead.run(_dead, timeout=10)
    collect = bulkhead.begin_call(lambda: 1)
    with pytest.raises(errors.CellUnavailable, match="has not answered since"):
        collect()
