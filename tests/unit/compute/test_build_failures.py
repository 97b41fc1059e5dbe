"""Whose fault a failed spawn is."""

from __future__ import annotations

import pytest

from compute.failures import classify, no_room, restarted, stopping, timed_out
from objects import errors
from objects.instance import FailureClass


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
    failure = classify(error, 12.5)
    assert (failure.kind, failure.error, failure.message, failure.at) == (kind, type(error).__name__, str(error), 12.5)


def test_an_error_without_text_is_named() -> None:
    assert classify(KeyError(), 0.0).message == "KeyError"


def test_what_the_agent_finds_itself() -> None:
    assert no_room("No room.", 1.0).kind is FailureClass.NO_ROOM
    assert timed_out(600.0, 1.0).message == "The guest did not run after 600 s."
    assert timed_out(1, 1.0).kind is FailureClass.HOST
    assert [failure.kind for failure in (restarted(1.0), stopping(1.0))] == [FailureClass.RESTARTED, FailureClass.STOPPING]
