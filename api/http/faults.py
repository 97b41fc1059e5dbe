"""Errors in the format of the Compute API: ``{"itemNotFound": {"code": 404, "message": ...}}``."""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

import falcon
import msgspec

from api.http.rate_limit import TooFast
from objects import errors
from objects.mask import HIDDEN
from service.rate_limited_log import RateLimitedLog

LOG = logging.getLogger(__name__)


class SchedulerSilent(errors.Transient):
    """No scheduler answers, or none that can answer this."""


NAMES = {
    400: "badRequest",
    401: "unauthorized",
    403: "forbidden",
    404: "itemNotFound",
    405: "badMethod",
    409: "conflictingRequest",
    413: "overLimit",
    415: "badMediaType",
    429: "overLimit",
    501: "notImplemented",
    503: "serviceUnavailable",
}
"""Keys of the error body by status; any other status is a ``computeFault``."""

_STATUS: tuple[tuple[type[errors.SuperconductorError], int], ...] = (
    (errors.Invalid, 400),
    (errors.Forbidden, 403),
    (errors.NotFound, 404),
    (errors.KeyReused, 422),
    (errors.Conflict, 409),
    (TooFast, 429),
    (errors.NotOffered, 501),
    (errors.TooCostly, 503),
    (SchedulerSilent, 503),
    (errors.StorageFull, 503),
    (errors.ReadOnlyDatabase, 503),
    (errors.DatabaseUnavailable, 503),
    (errors.BusUnavailable, 503),
    (errors.CellUnavailable, 503),
    (errors.ServiceUnavailable, 503),
)

_MESSAGE_BY_STATUS = {
    500: "Unexpected API error. The log of the service says more, under the request id in this answer's headers.",
    503: "The service cannot reach one of its databases. Try again in a moment.",
}
"""Messages that replace the error's own, which may name machines."""

_FULL = (
    "The service has no room left to store new requests. Accepted requests continue. "
    "It accepts new ones once its operator has freed space; the log says where."
)
_SHARED = "The service cannot reach the image store. Try again in a moment; the log says more."
_READ_ONLY = "A database of the service takes no writes. What is stored can be read; try again in a moment, the log says more."
_BLOCKED = "A message broker of the service does not answer, or takes no messages. Try again in a moment; the log says more."
_MESSAGE_BY_ERROR: dict[type[errors.SuperconductorError], str] = {
    errors.StorageFull: _FULL,
    errors.ServiceUnavailable: _SHARED,
    errors.ReadOnlyDatabase: _READ_ONLY,
    errors.BusUnavailable: _BLOCKED,
}
"""Messages that replace those of some errors, for the same reason."""
_SHOWABLE_ERRORS = (errors.TooCostly, SchedulerSilent)
"""Errors of the service whose own messages are shown: they name no machine."""
RETRY_AFTER_S = 5
"""Seconds after which a client may retry a request that failed because a database was unavailable."""


def install_handlers(app: falcon.App[falcon.Request, falcon.Response]) -> None:
    """Return every error of the app in this format."""
    app.set_error_serializer(_serialize_error)
    app.add_error_handler(errors.SuperconductorError, partial(_send_fault, RateLimitedLog(LOG)))
    app.add_error_handler(Exception, _send_unexpected)


def write(resp: falcon.Response, status: int, message: str) -> None:
    body = {NAMES.get(status, "computeFault"): {"code": status, "message": message}}
    resp.status = status
    resp.content_type = falcon.MEDIA_JSON
    resp.data = msgspec.json.encode(body)


def _serialize_error(req: falcon.Request, resp: falcon.Response, error: falcon.HTTPError) -> None:
    message = error.description
    if error.status_code in (404, 405):  # a path without a handler, or a method without one
        message = message or f"{req.method} {req.path[:200]} is not offered by this service."
    write(resp, error.status_code, message or error.title or "")


def _send_fault(
    complaints: RateLimitedLog, req: falcon.Request, resp: falcon.Response, error: Exception, params: dict[str, Any]
) -> None:
    for kind, status in _STATUS:
        if isinstance(error, kind):
            if status >= 500 and status != 501:  # what is not offered is no trouble of this service
                complaints(str(error), logging.WARNING, "%s: %s %s: %s", _request_id(req), req.method, _loggable_path(req), error)
            shown = (
                str(error)
                if kind in _SHOWABLE_ERRORS
                else _MESSAGE_BY_ERROR.get(kind) or _MESSAGE_BY_STATUS.get(status, str(error))
            )
            write(resp, status, shown)
            if isinstance(error, TooFast):
                resp.set_header("Retry-After", str(error.retry_after))
            elif status == 503:
                resp.set_header("Retry-After", str(RETRY_AFTER_S))
            return
    _send_unexpected(req, resp, error, params)


def _send_unexpected(req: falcon.Request, resp: falcon.Response, error: Exception, params: dict[str, Any]) -> None:
    LOG.error("%s: %s %s failed", _request_id(req), req.method, _loggable_path(req), exc_info=error)
    write(resp, 500, _MESSAGE_BY_STATUS[500])


def _loggable_path(req: falcon.Request) -> str:
    """The path as logs may show it. A token of a console opens the console."""
    before, marker, _ = req.path.partition("/os-console-auth-tokens/")
    return f"{before}{marker}{HIDDEN}" if marker else req.path


def _request_id(req: falcon.Request) -> str:
    return str(req.context.get("request_id", "-"))
