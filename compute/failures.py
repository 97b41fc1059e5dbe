"""Whose fault a failed spawn is: a table, so that a new cause is one more line."""

from __future__ import annotations

from objects import errors
from objects.instance import Failure, FailureClass

CLASSES: tuple[tuple[type[Exception], FailureClass], ...] = (
    (errors.BuildAborted, FailureClass.REQUEST),
    (errors.Invalid, FailureClass.REQUEST),
    (errors.Unsupported, FailureClass.HOST),  # this host's driver cannot, another's may
    (errors.BuildFailed, FailureClass.HOST),
    (Exception, FailureClass.HOST),  # a driver's own error, an OSError, a bug: says nothing about other hosts
)
"""First match wins. A cause that nobody foresaw lets another host try: aborting would punish the tenant for our surprise."""


def classify(error: Exception, now: float) -> Failure:
    """Turn what ``Driver.spawn`` raised into the failure that the attempt is reported with. ``now``: seconds since the epoch."""
    kind = next(kind for cause, kind in CLASSES if isinstance(error, cause))
    return Failure(kind=kind, error=type(error).__name__, message=str(error) or type(error).__name__, at=now)


def no_room(reason: str, now: float) -> Failure:
    """The host's own claim refused."""
    return Failure(kind=FailureClass.NO_ROOM, error="NoRoom", message=reason, at=now)


def timed_out(seconds: float, now: float) -> Failure:
    """The spawn was cancelled because it took too long."""
    return Failure(kind=FailureClass.HOST, error="SpawnTimeout", message=f"The guest did not run after {seconds:g} s.", at=now)


def restarted(now: float) -> Failure:
    """An earlier start of the agent accepted the build and died before its guest ran: this host may try again."""
    return Failure(kind=FailureClass.RESTARTED, error="AgentRestarted", message="The agent restarted during the build.", at=now)


def stopped(now: float) -> Failure:
    """The agent was told to stop and could not wait for the build: as if it had been killed, but said at once."""
    return Failure(kind=FailureClass.RESTARTED, error="AgentStopped", message="The agent was stopped during the build.", at=now)
