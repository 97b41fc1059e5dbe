"""Search an explicit-state model, breadth first or by random walks. ``protocol_check`` and ``moves_check`` use it.

Visited states are kept as 64-bit hashes: a collision would hide a state, with a chance of about 1e-6 at ten million states.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypeVar

S = TypeVar("S")

PROTOCOL, FAULT, ENVIRONMENT = 0, 1, 2
"""What a step costs: PROTOCOL and ENVIRONMENT nothing, FAULT one of the faults left. At rest no PROTOCOL step is left."""

Label = tuple[object, ...]


class Result(NamedTuple):
    """``broken`` is None where nothing was found; ``complete``: because every reachable state was seen."""

    broken: str | None
    trace: list[Label]
    states: int = 0
    transitions: int = 0
    ends: Counter[str] = Counter()  # noqa: RUF012 - only read
    complete: bool = False


def search(
    first: S,
    steps: Callable[[S], Iterable[tuple[Label, int, S]]],
    unsafe: Callable[[S], str | None],
    unfinished: Callable[[S], str | None],
    outcome: Callable[[S], str],
    limit: int = 0,
) -> Result:
    """Breadth first, so that a violation comes with a shortest trace; stops after ``limit`` states unless that is 0.

    ``unsafe`` and ``unfinished``: the invariant that a state breaks, or None; the second is asked at rest only. ``outcome``
    describes a state at rest.
    """
    seen = {hash(first)}
    parents = [-1]
    labels: list[Label] = [("start",)]
    level, transitions, ends = [(0, first)], 0, Counter[str]()

    def result(broken: str | None, last: int = 0, complete: bool = False) -> Result:
        return Result(broken, trace(labels, parents, last), len(labels), transitions, ends, complete)

    while level:
        following: list[tuple[int, S]] = []
        found: tuple[str, int] | None = None
        for i, s in level:
            at_rest = True
            for label, cost, t in steps(s):
                if t == s:
                    continue
                transitions += 1
                at_rest = at_rest and cost != PROTOCOL
                if found or (key := hash(t)) in seen:
                    continue
                seen.add(key)
                parents.append(i)
                labels.append(label)
                following.append((len(labels) - 1, t))
                if broken := unsafe(t):
                    found = (broken, len(labels) - 1)  # unless a state of this level, one step shorter, is at rest and wrong
            if at_rest:
                if broken := unfinished(s):
                    return result(broken, i)
                ends[outcome(s)] += 1
            if limit and len(labels) >= limit:
                break
        if found or (limit and len(labels) >= limit):
            return result(*(found or (None,)))
        level = following
    return result(None, complete=True)


def trace(labels: Sequence[Label], parents: Sequence[int], last: int) -> list[Label]:
    """The steps from the first state to this one."""
    found = []
    while last > 0:
        found.append(labels[last])
        last = parents[last]
    return found[::-1]


def walks(walk: Callable[[random.Random], Result], count: int, seed: int) -> Result:
    """Up to ``count`` random walks; ``states`` and ``transitions`` of the result are the walks and their steps."""
    rng, length, ends = random.Random(seed), 0, Counter[str]()
    for n in range(count):
        found = walk(rng)
        length += len(found.trace)
        ends += found.ends
        if found.broken:
            return found._replace(states=n + 1, transitions=length, ends=ends)
    return Result(None, [], count, length, ends)


def show(found: Result, seconds: float) -> None:
    verdict = (
        f"BROKEN: {found.broken}" if found.broken else "holds, exhaustive" if found.complete else "no violation, NOT exhaustive"
    )
    print(f"  {verdict}: {found.states} states or walks, {found.transitions} transitions, {seconds:.0f} s")
    for n, label in enumerate(found.trace if found.broken else (), 1):
        print(f"   {n:2} {' '.join(str(part) for part in label)}")
    if found.ends:
        print("  ends: " + ", ".join(f"{end} x {n}" for end, n in sorted(found.ends.items())), flush=True)
