"""The periodic audit in the super conductor."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from conductor.audit.audit import Audit
from conductor.audit.finding import Check, Finding
from conductor.audit.places import Places
from objects.base import Object

LOG = logging.getLogger(__name__)

Key = tuple[Check, Finding]


class FirstSeen(Object, frozen=True, kw_only=True):
    """``since``: first of the consecutive rounds that found it, in seconds of ``clock``. ``logged``: whether it was logged."""

    since: float
    logged: bool = False


class BackgroundAudit:
    """Checks everything once a round. A finding that every round of ``distance`` seconds shows is logged once and repaired if safe.

    At least two rounds must show it. ``distance`` is longer than any protocol step takes, so operations in progress are excluded.
    """

    def __init__(self, places: Places, distance: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._places = places
        self._audit = Audit(places)
        self._distance = distance
        self._clock = clock
        self._seen: dict[Key, FirstSeen] = {}
        self._silent: set[str] = set()

    def audit_once(self) -> None:
        """Check everything once, and log or repair lasting findings."""
        findings_by_check = self._audit.check_all()
        now = self._clock()
        self._log_silent_cells()
        keys = [(check, finding) for check, findings in findings_by_check.items() for finding in findings]
        self._seen = {key: self._seen.get(key, FirstSeen(since=now)) for key in keys}
        lasting = [key for key, seen in self._seen.items() if now - seen.since >= self._distance]
        if not lasting:
            return
        due: dict[Check, list[Finding]] = {}
        for check, finding in lasting:
            if not self._seen[check, finding].logged:
                self._log_finding(finding)
                self._seen[check, finding] = FirstSeen(since=self._seen[check, finding].since, logged=True)
            if finding.safe:
                due.setdefault(check, []).append(finding)
        remaining = self._audit.repair_findings(due)
        repaired = sum(map(len, due.values())) - sum(map(len, remaining.values()))
        if repaired:
            LOG.warning("audit: repaired %d findings", repaired)

    def _log_finding(self, finding: Finding) -> None:
        hint = f"with 'superconductor verify --repair' it would be {finding.repair}" if finding.repair else finding.advice
        LOG.warning("audit: %s; %s", finding, f"it will be {finding.repair} now" if finding.safe else hint)

    def _log_silent_cells(self) -> None:
        """Log each cell whose part becomes unknown."""
        for cell_uuid, reason in self._places.unknown.items():
            if cell_uuid not in self._silent:
                LOG.warning("audit: %s; its part is unknown", reason)
        self._silent = set(self._places.unknown)
