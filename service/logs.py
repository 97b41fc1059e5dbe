"""Logging: one set-up for every process, request ids where they are known, and no password in any line."""

from __future__ import annotations

import contextlib
import contextvars
import logging
import sys
import time
from collections.abc import Callable, Mapping

from oslo_config import cfg
from oslo_log import log

from objects.mask import mask_url
from service.lines import FORMAT, contained, usual
from service.rate_limited_log import REMIND, RateLimitedLog

LOG = logging.getLogger(__name__)

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
"""What libraries may say, also when our own messages are shown in full (``debug = true``)."""

REPETITIVE = ("oslo.messaging", "oslo_messaging")
"""Libraries that say the same for as long as it lasts."""

_REQUEST_ID: contextvars.ContextVar[str] = contextvars.ContextVar("request_id", default="")
# The one thing of ours that follows a thread instead of being passed: nothing but log lines ever reads it.


def set_defaults() -> None:
    """Our defaults for oslo.log's options, here and in the generated sample (entry point ``oslo.config.opts.defaults``)."""
    log.set_defaults(logging_context_format_string=FORMAT, default_log_levels=list(LEVELS))


def register(conf: cfg.ConfigOpts) -> None:
    """Add the options of logging; before ``conf`` is called, as some are command line options too."""
    set_defaults()
    log.register_options(conf)


def setup(conf: cfg.ConfigOpts) -> None:
    """Send log records where ``conf`` says (standard error if nowhere), masked and with their request id."""
    log.setup(conf, "superconductor", fix_eventlet=False)
    for handler in logging.getLogger().handlers:
        if isinstance(handler, logging.StreamHandler) and handler.stream is sys.stdout:
            handler.setStream(sys.stderr)  # standard output is for what a command was asked for
        handler.addFilter(add_request_id)
        handler.addFilter(SparingLibraries())
        handler.setFormatter(Masking(usual(handler.formatter or logging.Formatter(), conf)))
        handler.handleError = Unwritten(handler.handleError)  # type: ignore[method-assign]  # it is called, never looked at


class Bound:
    """While inside, log records of this thread carry a request id. ``extra={"request_id": ...}`` on a record wins."""

    __slots__ = ("_request_id", "_token")

    def __init__(self, request_id: str) -> None:
        self._request_id = request_id

    def __enter__(self) -> None:
        self._token = _REQUEST_ID.set(self._request_id)

    def __exit__(self, *_: object) -> None:
        _REQUEST_ID.reset(self._token)


def bind(request_id: str) -> None:
    """From here on, log records of this thread carry ``request_id``: for threads that always take up another one next."""
    _REQUEST_ID.set(request_id)


class Masking(logging.Formatter):
    """Hide the passwords of URLs in whatever another formatter made, tracebacks included, and keep it one record."""

    def __init__(self, inner: logging.Formatter) -> None:
        super().__init__()
        self._inner = inner

    def format(self, record: logging.LogRecord) -> str:
        return contained(mask_url(self._inner.format(record)), record.exc_text and mask_url(record.exc_text))


class SparingLibraries:
    """A filter that lets a library's complaint pass once in a while, in one line: with its broker down, each connection has one
    every second, some with a stack.
    """

    def __init__(self) -> None:
        self._complaints = RateLimitedLog(LOG)

    def __call__(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.WARNING or not record.name.startswith(REPETITIVE):
            return True
        told = record.args if isinstance(record.args, Mapping) else {}
        same = [str(record.msg), *(str(told.get(name)) for name in ("hostname", "port", "err_str"))]
        if self._complaints.due("\n".join(same)) is None:
            return False
        record.exc_info = record.exc_text = None  # the formatter ends the line with the error all the same
        return True


class Unwritten:
    """What a handler does with a record that it cannot write. By default each would leave a stack on standard error.

    Where that is the disk's fault, one line is said there now and then.
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
            self._next = now + REMIND
            with contextlib.suppress(OSError, ValueError):
                sys.stderr.write(f"superconductor: the log cannot be written, lines are missing in it: {error}\n")


def add_request_id(record: logging.LogRecord) -> bool:
    """A filter that lets every record pass, with the request id that is bound where it has none of its own.

    It is told to the JSON formatter too, which shows what is in ``extra``.
    """
    request_id = getattr(record, "request_id", "") or _REQUEST_ID.get()
    record.request_id = request_id
    if request_id:
        record.extra = {"request_id": request_id, **getattr(record, "extra", {})}
    return True
