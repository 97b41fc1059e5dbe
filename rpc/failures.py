"""Errors as answers: the form that oslo.messaging gives them, and what a caller makes of one, whatever a peer has written there."""

from __future__ import annotations

import sys

import msgspec
import oslo_messaging as om

from objects import errors, typed
from objects.text import FAULTS_SIZE, clean_text

ERROR_MODULES = ("objects.errors", "rpc.errors")
"""Modules of the errors that keep their class across the bus."""

NAME_SIZE = 100
"""Maximum number of bytes quoted of the name of an error's class."""


class _Failure(msgspec.Struct, kw_only=True):
    kind: str = msgspec.field(name="class")
    module: str
    message: str = ""
    args: list[str | int | float | None] = []


def encode_error(error: BaseException) -> str:
    """The error as JSON. Its traceback stays here."""
    args = [_plain_value(arg) for arg in error.args]
    kind, message = type(error), clean_text(str(error), FAULTS_SIZE)
    parts = {"class": kind.__name__, "module": kind.__module__, "message": message, "tb": [], "args": args, "kwargs": {}}
    return msgspec.json.encode(parts).decode()


def decode_error(text: str) -> Exception:
    """The error of an answer: one of ours as itself, any other as om.RemoteError. Text is bounded and safe to show."""
    try:
        failure = typed.decode_json(text, _Failure)
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        return _foreign_error("Unreadable", clean_text(str(error), FAULTS_SIZE))
    message = clean_text(failure.message, FAULTS_SIZE)
    kind = _known_error(failure)
    if kind is None:
        return _foreign_error(clean_text(failure.kind, NAME_SIZE), message)
    try:
        return kind(*map(_plain_value, failure.args))
    except TypeError:  # another release's error has other arguments
        return kind(message)


def _foreign_error(kind: str, message: str) -> Exception:
    error: Exception = om.RemoteError(kind, message)
    return error


def _known_error(failure: _Failure) -> type[errors.SuperconductorError] | None:
    if failure.module not in ERROR_MODULES:
        return None
    kind = getattr(sys.modules.get(failure.module), failure.kind, None)
    return kind if isinstance(kind, type) and issubclass(kind, errors.SuperconductorError) else None


def _plain_value(arg: object) -> str | int | float | None:
    """What JSON can carry: an error's text may hold what is no text, such as lone surrogates."""
    return arg if isinstance(arg, int | float | None) else clean_text(str(arg), FAULTS_SIZE)
