"""Whether this process is wedged: what its parts say of themselves, and what those say that are asked for a sign of life.

Idle is well, and so is busy. What is wrong is a thread that has ended or never comes back, a sweep that does not turn, a database
that does not answer, a broker that brings a server no messages. One board per process; parts are forgotten when they are gone.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable
from typing import Protocol

from objects.base import Object
from objects.mask import mask_url

STUCK = 300.0
"""Seconds after which a piece of work that has not come back is called stuck, if nobody says otherwise: longer than any that is
bounded takes."""
PATIENCE = 3.0
"""Seconds that who asks is kept waiting at most."""
LATE = 20.0
"""Seconds in which a part must have answered. On a machine that is only busy, it has."""
KEEP = 2.0
"""Seconds that what a part said is said again: who asks often costs no more."""


class Part(Protocol):
    """Something that can be wedged."""

    @property
    def name(self) -> str:
        """What it is called in reports; no secrets."""
        ...

    def trouble(self) -> str:
        """Why it is wedged; empty if it is not. May block, and raise: both count as trouble."""
        ...


class HealthFinding(Object, frozen=True, kw_only=True):
    """What was found of one part; no trouble: it is well. ``note``: what else is to be said."""

    check: str
    trouble: str = ""
    note: str = ""


class ProcessHealth(Object, frozen=True, kw_only=True):
    """What was found of all of them, trouble first."""

    findings: tuple[HealthFinding, ...]

    @property
    def well(self) -> bool:
        return not any(finding.trouble for finding in self.findings)


class Board:
    """The parts of a process that can be wedged. Safe for threads.

    A part that does not answer within ``late`` seconds is wedged; until then what it said before holds.
    """

    def __init__(self, late: float = LATE) -> None:
        self.stuck = STUCK
        """Seconds after which parts call a piece of work stuck."""
        self._late = late
        self._lock = threading.Lock()
        self._parts: weakref.WeakKeyDictionary[Part, _Question] = weakref.WeakKeyDictionary()

    def watch(self, part: Part) -> None:
        """Ask ``part`` from now on, until it is forgotten or gone."""
        with self._lock:
            self._parts[part] = _Question(part.name, self._late)

    def forget(self, part: Part) -> None:
        """It has ended, as it was meant to."""
        with self._lock:
            self._parts.pop(part, None)

    def parts(self) -> list[Part]:
        """What is watched now."""
        with self._lock:
            return list(self._parts)

    def look(self, patience: float = PATIENCE) -> ProcessHealth:
        """Ask every part, all at the same time, and wait ``patience`` seconds at most for all of them."""
        with self._lock:
            asked = list(self._parts.items())
        for part, question in asked:
            question.put(part)
        end = time.monotonic() + patience
        findings = [question.answer(end) for _, question in asked]
        return ProcessHealth(findings=tuple(sorted(findings, key=lambda finding: (not finding.trouble, finding.check))))


class _Question:
    """One part being asked, by one thread at a time: a part that never answers costs one thread, however often it is asked."""

    def __init__(self, name: str, late: float) -> None:
        self._name = name
        self._late = late
        self._changed = threading.Condition()
        self._asked_at: float | None = None
        self._trouble = ""
        self._fresh_until = float("-inf")

    def put(self, part: Part) -> None:
        now = time.monotonic()
        with self._changed:
            if self._asked_at is not None or now < self._fresh_until:
                return
            self._asked_at = now
        threading.Thread(target=self._ask, args=(part,), name=f"health {self._name}", daemon=True).start()

    def answer(self, end: float) -> HealthFinding:
        with self._changed:
            self._changed.wait_for(lambda: self._asked_at is None, max(0.0, end - time.monotonic()))
            if self._asked_at is None:
                return HealthFinding(check=self._name, trouble=self._trouble)
            waits = time.monotonic() - self._asked_at
            note = f"no answer since {waits:.0f} s"
            if waits >= self._late:
                return HealthFinding(check=self._name, trouble=note)
            return HealthFinding(check=self._name, trouble=self._trouble, note=note)

    def _ask(self, part: Part) -> None:
        try:
            trouble = part.trouble()
        except Exception as error:  # noqa: BLE001 - it is the answer
            trouble = str(error) or type(error).__name__
        with self._changed:
            self._trouble = mask_url(" ".join(trouble.split()))
            self._asked_at = None
            self._fresh_until = time.monotonic() + KEEP
            self._changed.notify_all()


BOARD = Board()
"""Of this process."""


class HealthCheck:
    """A part that is one function: it raises, or returns, its trouble."""

    def __init__(self, name: str, ask: Callable[[], str | None]) -> None:
        self.name = name
        self._ask = ask

    def trouble(self) -> str:
        return self._ask() or ""


class UnderWay:
    """Pieces of work under way in the threads of one part."""

    def __init__(self) -> None:
        self._begun: dict[int, float] = {}

    def piece(self) -> UnderWay:
        """In a ``with``: while this thread is at one."""
        return self

    def __enter__(self) -> None:
        self._begun[threading.get_ident()] = time.monotonic()

    def __exit__(self, *_: object) -> None:
        self._begun.pop(threading.get_ident(), None)

    @property
    def count(self) -> int:
        return len(self._begun)

    def trouble(self, what: str) -> str:
        """What is stuck, ``what`` being the word for a piece of work; empty if nothing is."""
        now = time.monotonic()
        ages = [now - began for began in list(self._begun.values())]
        stuck = [age for age in ages if age > BOARD.stuck]
        if not stuck:
            return ""
        return f"{len(stuck)} of {len(ages)} {what}s under way do not end, the oldest has begun {max(stuck):.0f} s ago"
