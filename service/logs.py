"""Logging: one set-up for every process, request IDs where they are known, and no password in any line."""

from __future__ import annotations

import contextlib
import contextvars
import logging
import sys
import time
from collections.abc import Callable, Mapping

from oslo_config import cfg
from oslo_log import log

from objects import text
from objects.mask import mask_url
from service.rate_limited_log import REPEAT_INTERVAL_S, RateLimitedLog

LOG = logging.getLogger(__name__)

FORMAT = "%(asctime)s.%(msecs)03d %(process)d %(levelname)s %(name)s [%(request_id)s] %(instance)s%(message)s"
"""The format of records made while a request ID is bound. Without one, oslo.log's default applies; only its brackets differ."""
LEVELS = (
    "alembic=WARNING",
    "amqp=WARNING",
    "futurist=WARNING",
    "kombu=WARNING",
    "oslo.messaging=INFO",
    "oslo_messaging=INFO",
    "oslo.service=INFO",
    "sqlalchemy=WARNING",
    "stevedore=WARNING",
    "urllib3=WARNING",
    "waitress=WARNING",
)
"""Log levels of libraries, also with ``debug = true``, which shows our own messages in full."""

REPETITIVE = ("oslo.messaging", "oslo_messaging")
"""Libraries that repeat a complaint for as long as its cause lasts."""

_REQUEST_ID: contextvars.ContextVar[str] = contextvars.ContextVar("request_id", default="")
# The only context that is bound to a thread instead of passed as an argument: only log lines read it.


def set_defaults() -> None:
    """Set our defaults for oslo.log's options, here and in the generated sample (entry point ``oslo.config.opts.defaults``)."""
    log.set_defaults(logging_context_format_string=FORMAT, default_log_levels=list(LEVELS))


def register_options(conf: cfg.ConfigOpts) -> None:
    """Add the logging options. Call this before ``conf``, because some are also command-line options."""
    set_defaults()
    log.register_options(conf)


def setup(conf: cfg.ConfigOpts) -> None:
    """Send log records where ``conf`` says (default: standard error), with passwords masked and the request ID added."""
    log.setup(conf, "superconductor", fix_eventlet=False)
    for handler in logging.getLogger().handlers:
        if isinstance(handler, logging.StreamHandler) and handler.stream is sys.stdout:
            handler.setStream(sys.stderr)  # standard output is for the results of commands
        handler.addFilter(add_request_id)
        handler.addFilter(LibraryRateLimit())
        handler.setFormatter(MaskingFormatter(handler.formatter or logging.Formatter()))
        handler.handleError = WriteErrorHandler(handler.handleError)  # type: ignore[method-assign]  # it is called, never looked at


class Bound:
    """While inside, log records of this thread carry a request id. ``extra={"request_id": ...}`` on a record wins."""

    __slots__ = ("_request_id", "_token")

    def __init__(self, request_id: str) -> None:
        self._request_id = request_id

    def __enter__(self) -> None:
        self._token = _REQUEST_ID.set(self._request_id)

    def __exit__(self, *_: object) -> None:
        _REQUEST_ID.reset(self._token)


def bind_request(request_id: str) -> None:
    """Set the request ID of this thread's log records: for threads that always bind another one next."""
    _REQUEST_ID.set(request_id)


def log_step(
    log: logging.Logger, event: str, instance: str, request_id: str | None = None, *, note: str = "", **fields: object
) -> None:
    """Log a step of a server, in the same form everywhere, so that its uuid or request ID finds its whole history.

        2026-01-31 12:00:00.000 4711 INFO conductor.stage [req-...] [instance: 9f0c...] staged cell=cell1 host=h7 attempt=1

    With ``use_json`` the fields are keys of ``extra``. No line is made while INFO is disabled.
    ``request_id``: if it differs from the one bound to the thread.
    ``fields``: ``cell``, ``host`` and ``attempt`` if known, and other short values; None is left out. ``note``: a sentence for
    people.
    """
    if not log.isEnabledFor(logging.INFO):
        return
    line = event
    known: dict[str, object] = {"instance": instance, "step": event}
    for name, value in fields.items():
        if value is not None:
            line = f"{line} {name}={value}"
            known[name] = value
    extra: dict[str, object] = {"instance_uuid": instance, "extra": known}
    if request_id:
        extra["request_id"] = request_id
    caller = sys._getframe(1)  # the caller; a logger would walk the stack to find it at each line
    code = caller.f_code
    if note:
        line = f"{line}: {note}"
    log.handle(log.makeRecord(log.name, logging.INFO, code.co_filename, caller.f_lineno, "%s", (line,), None, code.co_name, extra))


class MaskingFormatter(logging.Formatter):
    """Hide passwords of URLs in the inner formatter's output, tracebacks included, and keep it one record."""

    def __init__(self, inner: logging.Formatter) -> None:
        super().__init__()
        self._inner = inner

    def format(self, record: logging.LogRecord) -> str:
        return _contained_line(mask_url(self._inner.format(record)), record.exc_text and mask_url(record.exc_text))


def _contained_line(line: str, traceback: str | None) -> str:
    """A formatted record, changed so that text from outside cannot begin a line that looks like another record.

    Newlines before the traceback become ``\\n``; the traceback's own lines each have a prefix. Other control characters are
    escaped.
    """
    if "\n" in line:
        end = f"\n{traceback}" if traceback and line.endswith(f"\n{traceback}") else ""
        line = line[: len(line) - len(end)].replace("\n", "\\n") + end
    return text.escape_controls(line)


class LibraryRateLimit:
    """A filter that logs each complaint of a library once in a while, in one line.

    While a broker is down, each connection logs a complaint every second, some with a stack trace.
    """

    def __init__(self) -> None:
        self._complaints = RateLimitedLog(LOG)

    def __call__(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.WARNING or not record.name.startswith(REPETITIVE):
            return True
        fields = record.args if isinstance(record.args, Mapping) else {}
        same = [str(record.msg), *(str(fields.get(name)) for name in ("hostname", "port", "err_str"))]
        if self._complaints.count_suppressed("\n".join(same)) is None:
            return False
        record.exc_info = record.exc_text = None  # the formatter ends the line with the error all the same
        return True


class WriteErrorHandler:
    """Handles a record that a log handler cannot write. By default each one would print a stack trace on standard error.

    If the operating system is the cause (such as a full disk), one line is printed there once in a while.
    """

    def __init__(self, otherwise: Callable[[logging.LogRecord], None]) -> None:
        self._otherwise = otherwise
        self._next = 0.0

    def __call__(self, record: logging.LogRecord) -> None:
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            self._otherwise(record)
            return
        now = time.monotonic()
        if now >= self._next:
            self._next = now + REPEAT_INTERVAL_S
            with contextlib.suppress(OSError, ValueError):
                sys.stderr.write(f"superconductor: the log cannot be written, lines are missing in it: {error}\n")


def add_request_id(record: logging.LogRecord) -> bool:
    """A filter that lets every record pass and adds the bound request ID if the record has none.

    It is also added to ``extra``, which the JSON formatter shows.
    """
    request_id = getattr(record, "request_id", "") or _REQUEST_ID.get()
    record.request_id = request_id
    if request_id:
        record.extra = {"request_id": request_id, **getattr(record, "extra", {})}
    return True
