"""Whose fault a failed spawn is."""

from __future__ import annotations

import math

import msgspec
import pytest

from compute.failures import agent_restarted, agent_stopping, classify_error, no_room, timed_out
from objects import errors, stored, text
from objects.instance import Failure, FailureClass


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (errors.BuildFailed("x"), FailureClass.HOST),
        (errors.BuildAborted("x"), FailureClass.REQUEST),
        (errors.Invalid("x"), FailureClass.REQUEST),
        (errors.NotFound("no such image"), FailureClass.REQUEST),
        (errors.Forbidden("over the quota"), FailureClass.REQUEST),
        (errors.PolicyViolated("x"), FailureClass.POLICY),
        (errors.Unsupported("x"), FailureClass.HOST),
        (OSError("disk"), FailureClass.HOST),
        (ZeroDivisionError("a bug"), FailureClass.HOST),
    ],
)
def test_class_by_cause(error: Exception, kind: FailureClass) -> None:
    failure = classify_error(error, 12.5)
    assert (failure.kind, failure.error, failure.message, failure.at) == (kind, type(error).__name__, str(error), 12.5)


def test_an_error_without_text_is_named() -> None:
    assert classify_error(KeyError(), 0.0).message == "KeyError"


def test_what_the_agent_finds_itself() -> None:
    assert no_room("No room.", 1.0).kind is FailureClass.NO_ROOM
    assert timed_out(600.0, 1.0).message == "The guest did not run after 600 s."
    assert timed_out(1, 1.0).kind is FailureClass.HOST
    assert [failure.kind for failure in (agent_restarted(1.0), agent_stopping(1.0))] == [
        FailureClass.RESTARTED,
        FailureClass.STOPPING,
    ]


class Mute(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


@pytest.mark.parametrize(
    "error",
    [
        OSError(b"no such file: /img/\xff".decode("utf-8", "surrogateescape")),
        OSError("bad \0 header"),
        OSError("é" * 70_000),
        OSError("\x1b]0;owned\x07"),
        Mute(),
    ],
)
def test_any_driver_exception_can_be_reported_and_stored(error: Exception) -> None:
    failure = classify_error(error, math.nan)
    assert failure.message
    assert text.is_safe(failure.message)
    assert len(failure.message.encode()) <= text.FAULT_SIZE
    assert stored.load_text(stored.dump_value(failure), Failure) == failure, "JSON carries it"
    assert failure.at == 0.0


def test_a_failure_of_another_release_is_cleaned() -> None:
    long = msgspec.json.encode({"kind": "host", "error": "E" * 300, "message": "x\0" * 40_000, "at": 1.0})
    failure = stored.load_text(long, Failure)
    assert len(failure.error) == text.NAME_LENGTH
    assert text.is_safe(failure.message)
    assert len(failure.message.encode()) <= text.FAULT_SIZE
