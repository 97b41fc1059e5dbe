"""Process many items together. If that fails, find the items at fault, so that they do not delay the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple, TypeVar

from objects import errors

T = TypeVar("T")
R = TypeVar("R")

Transient = tuple[type[Exception], ...]


class Isolated(NamedTuple, Generic[T, R]):
    """The results of the successful calls, in order, and the items that failed alone, with their errors."""

    results: list[R]
    failed: list[tuple[T, Exception]]


def isolate_failures(
    work: Callable[[Sequence[T]], R], items: Sequence[T], *, transient: Transient = (errors.Transient,)
) -> Isolated[T, R]:
    """Call ``work(items)``. If it raises, call it with each half, and so on until the items at fault are alone.

    One bad item of 500 costs about 20 calls. ``work`` must be atomic: a call that raised has changed nothing, or may be repeated.

    Errors in ``transient`` say nothing about an item: the first one is raised at once, and the rest is left for the next round.
    ``work`` is not called if there are no items.
    """
    results: list[R] = []
    failed: list[tuple[T, Exception]] = []
    waiting = [items] if items else []
    while waiting:
        part = waiting.pop()
        try:
            results.append(work(part))
        except transient:
            raise
        except Exception as error:  # noqa: BLE001 - an item may make work raise anything; the error is returned with the item
            if len(part) == 1:
                failed.append((part[0], error))
            else:
                half = len(part) // 2
                waiting += [part[half:], part[:half]]
    return Isolated(results, failed)
