"""Two looks, and what is found at both."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby

from conductor.audit.checks import CHECKS
from conductor.audit.finding import PAGE, Check, Finding, Page
from conductor.audit.places import Places

LOG = logging.getLogger(__name__)

MOST = 10_000
"""Findings of one check that are kept. A region with more has one trouble rather than many, and this bounds the memory."""

Found = dict[Check, list[Finding]]


class Audit:
    """Looks at everything, then again at what did not agree, and repairs what it is told to."""

    def __init__(self, places: Places, checks: Sequence[Check] = CHECKS) -> None:
        self._places = places
        self._checks = checks

    def look(self) -> Found:
        """One look at everything. What is merely on its way is among the findings."""
        self._places.begin()
        return {check: self._look(check, check.pages(self._places)) for check in self._checks}

    def again(self, found: Mapping[Check, Sequence[Finding]]) -> Found:
        """What of it is still as it was. Only its keys are looked at."""
        return {check: [f for f in self._look(check, _pages(known)) if f in set(known)] for check, known in found.items()}

    def confirmed(self, pause: Callable[[], object]) -> Found:
        """What two looks have both seen, with a pause between them that is only made if there is something to look at again."""
        first = self.look()
        if not any(first.values()):
            return first
        pause()
        return self.again(first)

    def repair(self, found: Mapping[Check, Sequence[Finding]]) -> Found:
        """Put right what has a repair; returns what is still as it was, or cannot be looked at any more."""
        for check, findings in found.items():
            for scope, members in _by_scope(f for f in findings if f.repair):
                for start in range(0, len(members), PAGE):
                    if scope not in self._places.unknown:
                        check.repair(self._places, members[start : start + PAGE])
        left = self.again(found)
        lost = {self._places.name(cell_uuid) for cell_uuid in self._places.unknown}
        return {check: [f for f in known if f in set(left[check]) or f.cell in lost] for check, known in found.items()}

    def _look(self, check: Check, pages: Iterator[Page]) -> list[Finding]:
        found: dict[Finding, None] = {}
        for page in pages:
            found |= dict.fromkeys(check.look(self._places, page))
            if len(found) >= MOST:
                LOG.warning("the audit found %d times that something does not agree, and looks no further for this kind", MOST)
                break
        return list(found)


def _pages(findings: Iterable[Finding]) -> Iterator[Page]:
    for scope, members in _by_scope(findings):
        keys = sorted({finding.key for finding in members})
        for start in range(0, len(keys), PAGE):
            yield Page(cell_uuid=scope, keys=tuple(keys[start : start + PAGE]))


def _by_scope(findings: Iterable[Finding]) -> Iterator[tuple[str, list[Finding]]]:
    for scope, members in groupby(sorted(findings, key=lambda f: (f.scope, f.key)), key=lambda f: f.scope):
        yield scope, list(members)
