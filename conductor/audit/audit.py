"""Run the checks twice, and report what both runs find."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby

from conductor.audit.checks import CHECKS
from conductor.audit.finding import AUDIT_PAGE_SIZE, AuditPage, Check, Finding
from conductor.audit.places import Places
from conductor.quarantine import reason_of
from objects import errors
from service.bisect import isolate_failures

LOG = logging.getLogger(__name__)

FINDINGS_LIMIT = 10_000
"""Findings kept of one check, to bound the memory. More of them usually have one common cause."""

FindingsByCheck = dict[Check, list[Finding]]


class Audit:
    """Checks everything, checks the findings again, and repairs those it is given."""

    def __init__(self, places: Places, checks: Sequence[Check] = CHECKS) -> None:
        self._places = places
        self._checks = checks

    def check_all(self) -> FindingsByCheck:
        """Check everything once. The findings include operations that are still in progress."""
        self._places.begin_check()
        return {check: self._check_pages(check, check.list_pages(self._places)) for check in self._checks}

    def check_again(self, findings: Mapping[Check, Sequence[Finding]]) -> FindingsByCheck:
        """Check only the keys of these findings again; return the findings that are unchanged."""
        return {
            check: [f for f in self._check_pages(check, _finding_pages(known)) if f in set(known)]
            for check, known in findings.items()
        }

    def confirm_findings(self, pause: Callable[[], object]) -> FindingsByCheck:
        """The findings of two checks with a pause between them. Without findings the second check and the pause are skipped."""
        first = self.check_all()
        if not any(first.values()):
            return first
        pause()
        return self.check_again(first)

    def repair_findings(self, findings_by_check: Mapping[Check, Sequence[Finding]]) -> FindingsByCheck:
        """Repair the findings that have a repair; return those still found, and those that cannot be checked any more.

        A finding counts as still found even if its facts differ: another repair of this round may have changed them.
        """
        for check, findings in findings_by_check.items():
            for scope, members in _by_scope(f for f in findings if f.repair):
                for start in range(0, len(members), AUDIT_PAGE_SIZE):
                    if scope not in self._places.unknown:
                        self._repair_part(check, members[start : start + AUDIT_PAGE_SIZE])
        remaining = {
            check: {_finding_identity(f) for f in self._check_pages(check, _finding_pages(known))}
            for check, known in findings_by_check.items()
        }
        lost = {self._places.name_of(cell_uuid) for cell_uuid in self._places.unknown}
        return {
            check: [f for f in known if _finding_identity(f) in remaining[check] or f.cell in lost]
            for check, known in findings_by_check.items()
        }

    def _check_pages(self, check: Check, pages: Iterator[AuditPage]) -> list[Finding]:
        findings: dict[Finding, None] = {}
        try:
            for page in pages:
                findings |= dict.fromkeys(self._look_at(check, page))
                if len(findings) >= FINDINGS_LIMIT:
                    LOG.warning("audit: %s stopped after %d findings", _check_name(check), FINDINGS_LIMIT)
                    break
        except errors.Transient:
            raise
        except Exception as error:  # noqa: BLE001 - the other checks must run; this one's part is reported as unknown
            self._note_unknown(_check_name(check), f"{_check_name(check)} could not list its items", error)
        return list(findings)

    def _look_at(self, check: Check, page: AuditPage) -> list[Finding]:
        """Check these keys. A key that makes the check fail is noted as unknown, and does not affect the others."""
        look = partial(_look_at, check, self._places, page.cell_uuid)
        done = isolate_failures(look, page.keys)
        for key, error in done.failed:
            self._note_unknown(f"{_check_name(check)} {key}", f"{_check_name(check)} could not check {key}", error)
        return [finding for findings in done.results for finding in findings]

    def _repair_part(self, check: Check, findings: Sequence[Finding]) -> None:
        """Repair these findings. A repair that fails is logged; the finding will be found again."""
        done = isolate_failures(lambda members: check.repair_findings(self._places, members), findings)
        for finding, error in done.failed:
            LOG.error("audit: %s; it could not be repaired: %s", finding, reason_of(error), exc_info=error)

    def _note_unknown(self, key: str, description: str, error: Exception) -> None:
        self._places.unknown[key] = f"{description}: {reason_of(error)}"
        LOG.error("audit: %s: %s", description, reason_of(error), exc_info=error)


def _look_at(check: Check, places: Places, cell_uuid: str, keys: Sequence[str]) -> list[Finding]:
    return check.find_inconsistent(places, AuditPage(cell_uuid=cell_uuid, keys=tuple(keys)))


def _check_name(check: Check) -> str:
    return str(getattr(check, "__name__", check)).rpartition(".")[2]


def _finding_identity(finding: Finding) -> tuple[str, str, str]:
    return finding.kind, finding.scope, finding.key


def _finding_pages(findings: Iterable[Finding]) -> Iterator[AuditPage]:
    for scope, members in _by_scope(findings):
        keys = sorted({finding.key for finding in members})
        for start in range(0, len(keys), AUDIT_PAGE_SIZE):
            yield AuditPage(cell_uuid=scope, keys=tuple(keys[start : start + AUDIT_PAGE_SIZE]))


def _by_scope(findings: Iterable[Finding]) -> Iterator[tuple[str, list[Finding]]]:
    for scope, members in groupby(sorted(findings, key=lambda f: (f.scope, f.key)), key=lambda f: f.scope):
        yield scope, list(members)
