"""Where work on many items fails, the items that make it fail are found and the others are processed."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from objects import errors
from service.bisect import isolate_failures


class Work:
    """Adds numbers up, and refuses ``bad`` ones."""

    def __init__(self, bad: Sequence[int] = ()) -> None:
        self.bad = bad
        self.calls = 0

    def __call__(self, items: Sequence[int]) -> int:
        self.calls += 1
        for item in items:
            if item in self.bad:
                raise ValueError(f"{item} cannot be written")
        return sum(items)


def test_work_that_succeeds_is_called_once() -> None:
    work = Work()
    assert isolate_failures(work, range(500)) == ([sum(range(500))], [])
    assert work.calls == 1


def test_without_items_work_is_not_called() -> None:
    work = Work()
    assert isolate_failures(work, []) == ([], [])
    assert work.calls == 0


@pytest.mark.parametrize("bad", [0, 249, 250, 499])
def test_one_bad_item_is_isolated_within_twenty_calls(bad: int) -> None:
    work = Work([bad])
    done = isolate_failures(work, range(500))
    assert sum(done.results) == sum(range(500)) - bad
    assert [(item, str(error)) for item, error in done.failed] == [(bad, f"{bad} cannot be written")]
    assert work.calls <= 20


def test_several_bad_items_fail_alone_and_in_order() -> None:
    work = Work([3, 4, 90])
    done = isolate_failures(work, range(100))
    assert [item for item, _ in done.failed] == [3, 4, 90]
    assert sum(done.results) == sum(range(100)) - 97


def test_a_single_bad_item_is_not_called_twice() -> None:
    work = Work([7])
    assert [item for item, _ in isolate_failures(work, [7]).failed] == [7]
    assert work.calls == 1


@pytest.mark.parametrize("error", [errors.DatabaseUnavailable("gone"), errors.CellUnavailable("gone"), errors.StorageFull("full")])
def test_an_error_about_no_item_is_raised_immediately(error: Exception) -> None:
    calls = []

    def work(items: Sequence[int]) -> None:
        calls.append(items)
        raise error

    with pytest.raises(type(error)):
        isolate_failures(work, range(10))
    assert len(calls) == 1


def test_the_caller_says_what_else_is_transient() -> None:
    def work(items: Sequence[int]) -> None:
        raise errors.Conflict("another was quicker")

    with pytest.raises(errors.Conflict):
        isolate_failures(work, range(10), transient=(errors.Transient, errors.Conflict))
    assert len(isolate_failures(work, range(10)).failed) == 10
