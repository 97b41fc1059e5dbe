"""Whether this process is wedged: its parts report their own state, and some are probed.

An idle or busy process is healthy. A process is wedged if a thread has ended or hangs, a sweep runs no rounds, a database does not
answer, or a broker delivers no messages to a server. There is one board per process; it forgets parts that no longer exist.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable
from typing import Protocol

from objects.base import Object
from objects.mask import mask_url
from service.threads import start_daemon

STUCK_AFTER_S = 300.0
"""Default number of seconds after which unfinished work counts as stuck: longer than any work with a bounded duration takes."""
CALLER_WAIT_S = 3.0
"""Seconds that a caller of ``Board.look_at_parts`` waits at most."""
ANSWER_TIMEOUT_S = 20.0
"""Seconds in which a part must have answered. A part on a machine that is only busy answers in time."""
CACHE_LIFETIME_S = 2.0
"""Seconds that an answer is cached, so that frequent health checks cost no more."""


class Part(Protocol):
    """Something that can be wedged."""

    @property
    def name(self) -> str:
        """Its name in reports; contains no secrets."""
        ...

    def find_trouble(self) -> str:
        """Why it is wedged; empty if it is not. May block, and raise: both count as trouble."""
        ...


class HealthFinding(Object, frozen=True, kw_only=True):
    """The state of one part. An empty ``trouble`` means healthy. ``note``: additional information."""

    check: str
    trouble: str = ""
    note: str = ""


class ProcessHealth(Object, frozen=True, kw_only=True):
    """The state of all parts, those with trouble first."""

    findings: tuple[HealthFinding, ...]

    @property
    def is_well(self) -> bool:
        return not any(finding.trouble for finding in self.findings)


class Board:
    """The parts of a process that can be wedged. Thread-safe.

    A part that does not answer within ``late`` seconds counts as wedged; until then its previous answer holds.
    """

    def __init__(self, late: float = ANSWER_TIMEOUT_S) -> None:
        self.stuck = STUCK_AFTER_S
        """Seconds after which parts call unfinished work stuck."""
        self._late = late
        self._lock = threading.Lock()
        self._parts: weakref.WeakKeyDictionary[Part, _Question] = weakref.WeakKeyDictionary()

    def watch_part(self, part: Part) -> None:
        """Ask ``part`` from now on, until it is forgotten or no longer exists."""
        with self._lock:
            self._parts[part] = _Question(part.name, self._late)

    def forget_part(self, part: Part) -> None:
        """Stop asking ``part``: it has ended as intended."""
        with self._lock:
            self._parts.pop(part, None)

    def watched_parts(self) -> list[Part]:
        """The parts that are watched now."""
        with self._lock:
            return list(self._parts)

    def look_at_parts(self, patience: float = CALLER_WAIT_S) -> ProcessHealth:
        """Ask all parts at the same time and wait at most ``patience`` seconds in all."""
        with self._lock:
            questions = list(self._parts.items())
        for part, question in questions:
            question.put_question(part)
        end = time.monotonic() + patience
        findings = [question.wait_answer(end) for _, question in questions]
        return ProcessHealth(findings=tuple(sorted(findings, key=lambda finding: (not finding.trouble, finding.check))))


class _Question:
    """Asks one part, in one thread at a time: a part that never answers holds one thread, however often it is asked."""

    def __init__(self, name: str, late: float) -> None:
        self._name = name
        self._late = late
        self._changed = threading.Condition()
        self._asked_at: float | None = None
        self._trouble = ""
        self._fresh_until = float("-inf")

    def put_question(self, part: Part) -> None:
        now = time.monotonic()
        with self._changed:
            if self._asked_at is not None or now < self._fresh_until:
                return
            self._asked_at = now
        if start_daemon(f"health {self._name}", self._ask_part, part) is None:
            with self._changed:
                self._asked_at = None  # its previous answer holds, and the next look asks again
                self._changed.notify_all()

    def wait_answer(self, end: float) -> HealthFinding:
        with self._changed:
            self._changed.wait_for(lambda: self._asked_at is None, max(0.0, end - time.monotonic()))
            if self._asked_at is None:
                return HealthFinding(check=self._name, trouble=self._trouble)
            waits = time.monotonic() - self._asked_at
            note = f"no answer since {waits:.0f} s"
            if waits >= self._late:
                return HealthFinding(check=self._name, trouble=note)
            return HealthFinding(check=self._name, trouble=self._trouble, note=note)

    def _ask_part(self, part: Part) -> None:
        try:
            trouble = part.find_trouble()
        except Exception as error:  # noqa: BLE001 - the error is the answer
            trouble = str(error) or type(error).__name__
        with self._changed:
            self._trouble = mask_url(" ".join(trouble.split()))
            self._asked_at = None
            self._fresh_until = time.monotonic() + CACHE_LIFETIME_S
            self._changed.notify_all()


BOARD = Board()
"""The board of this process."""


class HealthCheck:
    """A part made of one function, which raises or returns its trouble."""

    def __init__(self, name: str, ask: Callable[[], str | None]) -> None:
        self.name = name
        self._ask = ask

    def find_trouble(self) -> str:
        return self._ask() or ""


class UnderWay:
    """Work under way in the threads of one part: ``with under_way:`` while a thread does one piece of work."""

    def __init__(self) -> None:
        self._begun: dict[int, float] = {}

    def __enter__(self) -> None:
        self._begun[threading.get_ident()] = time.monotonic()

    def __exit__(self, *_: object) -> None:
        self._begun.pop(threading.get_ident(), None)

    @property
    def count_begun(self) -> int:
        return len(self._begun)

    def describe_trouble(self, piece: str) -> str:
        """Describe the stuck work; empty if there is none. ``piece``: the word for one piece of work."""
        now = time.monotonic()
        ages = [now - began for began in list(self._begun.values())]
        stuck = [age for age in ages if age > BOARD.stuck]
        if not stuck:
            return ""
        return f"{len(stuck)} of {len(ages)} {piece}s under way do not end, the oldest has begun {max(stuck):.0f} s ago"
