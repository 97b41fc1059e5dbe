"""Logging: one set-up for every process, request ids where they are known, and no password in any line."""

from __future__ import annotations

import contextlib
import contextvars
import logging
import sys
from collections.abc import Iterator

from oslo_config import cfg
from oslo_log import log

from objects.mask import mask_url

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

FORMAT = "%(asctime)s.%(msecs)03d %(process)d %(levelname)s %(name)s [%(request_id)s] %(instance)s%(message)s"
"""Of a record made while a request id is bound; otherwise oslo.log's own default, which differs only in the brackets."""

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
        handler.setFormatter(Masking(handler.formatter or logging.Formatter()))


@contextlib.contextmanager
def bound(request_id: str) -> Iterator[None]:
    """While inside, log records of this thread carry ``request_id``. ``extra={"request_id": ...}`` on a record wins."""
    token = _REQUEST_ID.set(request_id)
    try:
        yield
    finally:
        _REQUEST_ID.reset(token)


def bind(request_id: str) -> None:
    """From here on, log records of this thread carry ``request_id``: for threads that always take up another one next."""
    _REQUEST_ID.set(request_id)


class Masking(logging.Formatter):
    """Hide the passwords of URLs in whatever another formatter made, tracebacks included."""

    def __init__(self, inner: logging.Formatter) -> None:
        super().__init__()
        self._inner = inner

    def format(self, record: logging.LogRecord) -> str:
        return mask_url(self._inner.format(record))


def add_request_id(record: logging.LogRecord) -> bool:
    """A filter that lets every record pass, with the request id that is bound where it has none of its own."""
    if not getattr(record, "request_id", ""):
        record.request_id = _REQUEST_ID.get()
    return True
