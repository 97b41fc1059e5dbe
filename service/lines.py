"""The usual line of the log, made in a tenth of the time that oslo.log's formatter takes for it."""

from __future__ import annotations

import logging
import time

from oslo_config import cfg
from oslo_log import formatters

from objects import text

FORMAT = "%(asctime)s.%(msecs)03d %(process)d %(levelname)s %(name)s [%(request_id)s] %(instance)s%(message)s"
"""Of a record made while a request id is bound; otherwise oslo.log's own default, which differs only in the brackets."""

SHIPPED = {
    "logging_context_format_string": FORMAT,
    "logging_default_format_string": FORMAT.replace("%(request_id)s", "-"),
    "instance_uuid_format": "[instance: %(uuid)s] ",
    "log_date_format": "%Y-%m-%d %H:%M:%S",
}
"""Options whose defaults this module knows by heart."""


class UsualLines(logging.Formatter):
    """Formats the records of INFO by itself, in the way of the shipped options, and leaves all others to oslo.log.

    oslo.log's looks up seven options and the time zone for each line: a third of what a line costs, and a boot has ten of them.
    What it does for other levels - tracebacks, summaries of errors, suffixes - it goes on doing.
    """

    def __init__(self, inner: logging.Formatter) -> None:
        super().__init__()
        self._inner = inner
        self._second = (0, "")

    def format(self, record: logging.LogRecord) -> str:
        if record.levelno != logging.INFO or record.exc_info or record.stack_info or getattr(record, "instance", None):
            return self._inner.format(record)
        second = int(record.created)
        known, date = self._second
        if known != second:
            date = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(second))
            self._second = second, date
        uuid = getattr(record, "instance_uuid", None)
        instance = f"[instance: {uuid}] " if uuid else ""
        request_id = getattr(record, "request_id", "") or "-"
        start = f"{date}.{int(record.msecs):03d} {record.process} {record.levelname} {record.name} [{request_id}] {instance}"
        return start + record.getMessage()


def contained(line: str, traceback: str | None) -> str:
    """What a formatter made of one record, where no text from outside can begin a line that looks like another record.

    Newlines before the traceback, whose lines each have a prefix, become ``\\n``; other control characters are escaped.
    """
    if "\n" in line:
        end = f"\n{traceback}" if traceback and line.endswith(f"\n{traceback}") else ""
        line = line[: len(line) - len(end)].replace("\n", "\\n") + end
    return text.escaped(line)


def usual(formatter: logging.Formatter, conf: cfg.ConfigOpts) -> logging.Formatter:
    """The same formatter, if ``conf`` asks for lines of another form than the usual one; else one that makes those faster."""
    shipped = all(conf[option] == default for option, default in SHIPPED.items())
    return UsualLines(formatter) if shipped and type(formatter) is formatters.ContextFormatter else formatter
