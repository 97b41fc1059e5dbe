"""Reports to the cell: each is repeated until it is answered."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from objects import errors
from objects.build import Report, ReportKind, Verdict
from objects.context import RequestContext
from rpc.cell_conductor import CellConductorClient
from rpc.errors import Timeout, Unreachable
from service.rate_limited_log import RateLimitedLog
from service.retry import pause_after

LOG = logging.getLogger(__name__)

Answer = Callable[[Verdict], None]
Send = Callable[[RequestContext, Sequence[Report]], Sequence[Verdict]]

REPORTS_PER_MESSAGE = 500
"""Reports per message: one transaction of the cell handles this many easily."""

OUTAGE_ERRORS = (Timeout, Unreachable, errors.CellUnavailable, errors.DatabaseUnavailable)
"""Errors that are independent of the message. After any other error its reports go one by one: a bad one must not delay the
others."""

NOT_SENT = "The host reported a failure. Its error message could not be sent."
"""The failure message that replaces a refused one."""
REFUSALS_LIMIT = 2
"""How often a report sent alone must be refused before its failure message is replaced."""

_QUESTIONS = (ReportKind.ACCEPT, ReportKind.BEGIN)
"""Reports whose answer the agent waits for before it goes on."""

FIRST_RETRY_S = 0.1
"""Seconds before a report is first repeated; doubled for each further time."""


@dataclass(eq=False, slots=True)
class Pending:
    """One report that is not answered yet."""

    report: Report
    answer: Answer | None
    due: float
    tries: int = 0
    alone: bool = False  # its message was refused as a whole: send it alone
    refusals: int = 0  # how often it was refused when sent alone


class Reporter:
    """One thread that sends the reports of all others: questions at once, the rest after a short window, together in one message.

    While a message is under way, the next one collects reports, so under load messages grow instead of multiplying. Nothing is
    dropped while the process lives. An unanswered report is repeated after a pause that doubles up to ``longest_pause`` seconds,
    with jitter. Repeated reports are harmless: the cell judges each by fence, attempt and builder, and gives the same answer.

    If the text of a failure is refused, a fixed sentence replaces it: the cell must learn of the failure to try the next host.
    Several agents of one cell in one process may share a reporter, since every report names its host.
    """

    def __init__(self, client: CellConductorClient, context: RequestContext, *, window: float, longest_pause: float) -> None:
        self._client = client
        self._context = context
        self._window = window
        self._longest_pause = longest_pause
        self._changed = threading.Condition()
        self._pending: dict[tuple[str, str, ReportKind, int], Pending] = {}
        self._stopped = False
        self._alone_next = False
        """Whether the next message is a report sent alone. Single reports and groups alternate, so bad reports do not delay
        good ones."""
        self._complaints: RateLimitedLog | None = None
        """Created on the first failure after a success."""
        self._thread = threading.Thread(target=self._run, name="compute-reports", daemon=True)

    def start(self) -> Reporter:
        self._thread.start()
        return self

    def submit_reports(self, reports: Sequence[tuple[Report, Answer | None]], *, at_once: bool = False) -> None:
        """Send these soon. Each answer is called once, in the reporter's thread, and must not block.

        ``at_once``: do not wait for others to share the message.
        """
        now = time.monotonic()
        with self._changed:
            for report, answer in reports:
                key = (report.host, report.instance_uuid, report.kind, report.attempt)
                due = now if at_once or report.kind in _QUESTIONS else now + self._window
                self._pending[key] = Pending(report, answer, due)
            if reports:
                self._changed.notify_all()

    def flush_reports(self, host: str, timeout: float) -> bool:
        """Wait up to ``timeout`` seconds until every report of ``host`` is answered; return whether all are.

        The rest is dropped: the host's agent has stopped, and its next start reports again what still matters.
        """
        with self._changed:
            done = self._changed.wait_for(lambda: not any(key[0] == host for key in self._pending), timeout)
            self._pending = {key: pending for key, pending in self._pending.items() if key[0] != host}
            return done

    def stop(self) -> None:
        """End the thread after the current message."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def send(self, group: Sequence[Pending]) -> None:
        """Send these now, and handle the answers. Called by the reporter's thread."""
        failed = [pending for pending in group if pending.report.kind is ReportKind.FAILED]
        others = [pending for pending in group if pending.report.kind is not ReportKind.FAILED]
        if others:
            self._send(others, self._client.report)
        if failed:
            self._send(failed, self._client.build_instances)

    def _run(self) -> None:
        while (group := self._next_reports()) is not None:
            self.send(group)

    def _next_reports(self) -> list[Pending] | None:
        """Wait until a report is due, and return it together with all reports not sent before. None: stop."""
        with self._changed:
            while True:
                if self._stopped:
                    return None
                now = time.monotonic()
                first = min((pending.due for pending in self._pending.values()), default=None)
                if first is not None and first <= now:
                    return self._group_reports(now)
                self._changed.wait(None if first is None else first - now)

    def _group_reports(self, now: float) -> list[Pending]:
        """The reports of one message: at most one per instance, so that each verdict belongs to one report."""
        group: dict[str, Pending] = {}
        alone: Pending | None = None
        due = False
        for pending in self._pending.values():
            if pending.alone:
                if pending.due <= now and (alone is None or pending.due < alone.due):
                    alone = pending
            elif (pending.tries == 0 or pending.due <= now) and len(group) < REPORTS_PER_MESSAGE:
                group.setdefault(pending.report.instance_uuid, pending)
                due = due or pending.due <= now
        if alone is not None and (self._alone_next or not due):
            self._alone_next = False
            return [alone]
        self._alone_next = True
        return list(group.values())

    def _send(self, group: Sequence[Pending], send: Send) -> None:
        try:
            verdicts = send(self._context, [pending.report for pending in group])
            if [verdict.instance_uuid for verdict in verdicts] != [pending.report.instance_uuid for pending in group]:
                raise errors.Unsupported("The cell conductor's answer does not match the reports.")
        except Exception as error:  # noqa: BLE001 - after any error the reports must be repeated; the error is logged
            self._postpone_reports(group, error)
            return
        if self._complaints is not None:
            LOG.info("The cell conductor answers reports again.")
            self._complaints = None
        with self._changed:
            for pending in group:
                report = pending.report
                key = (report.host, report.instance_uuid, report.kind, report.attempt)
                if self._pending.get(key) is pending:  # otherwise it was submitted again meanwhile and waits for another answer
                    del self._pending[key]
            self._changed.notify_all()
        for pending, verdict in zip(group, verdicts, strict=True):
            try:
                if pending.answer is not None:
                    pending.answer(verdict)
            except Exception:  # handle the other answers of the message all the same
                LOG.exception("The answer to %s of instance %s could not be processed", pending.report.kind, verdict.instance_uuid)

    def _postpone_reports(self, group: Sequence[Pending], error: Exception) -> None:
        self._complaints = self._complaints or RateLimitedLog(LOG)
        text = f"{type(error).__name__}: {error}"
        message = "%d reports to the cell conductor were not answered and will be repeated: %s"
        self._complaints(text, logging.WARNING, message, len(group), text)
        with self._changed:
            now = time.monotonic()
            for pending in group:
                pending.tries += 1
                pending.due = now + pause_after(pending.tries, FIRST_RETRY_S, self._longest_pause, spread=0.5)
                if not isinstance(error, OUTAGE_ERRORS):
                    if len(group) == 1:
                        pending.refusals += 1
                        pending.report = _reduce_text(pending.report, pending.refusals)
                    pending.alone = True


def _reduce_text(report: Report, refusals: int) -> Report:
    """Replace the text of a failure that was refused repeatedly when sent alone by a fixed sentence."""
    if report.failure is None or refusals < REFUSALS_LIMIT:
        return report
    error = "BuildFailed" if report.kind is ReportKind.FAILED else "TaskFailed"
    failure = msgspec.structs.replace(report.failure, error=error, message=NOT_SENT)
    return msgspec.structs.replace(report, failure=failure)
