"""Classify spawn errors by the party at fault, in a table: a new cause is one more line.

``errors.ServiceUnavailable`` is not in the table: it is not a failure yet, and the agent itself retries.
"""

from __future__ import annotations

import msgspec

from objects import errors
from objects.instance import Failure, FailureClass
from objects.spec import BootSecrets

CLASSES: tuple[tuple[type[Exception], FailureClass], ...] = (
    (errors.BuildAborted, FailureClass.REQUEST),
    (errors.Invalid, FailureClass.REQUEST),
    (errors.NotFound, FailureClass.REQUEST),  # an image, a key, a volume that does not exist
    (errors.Forbidden, FailureClass.REQUEST),  # over a quota, or not the tenant's
    (errors.PolicyViolated, FailureClass.POLICY),
    (errors.HypervisorDown, FailureClass.STOPPING),  # the host takes no orders either, and uses up no attempt
    (errors.Unsupported, FailureClass.HOST),  # this host's driver cannot, another's may
    (errors.BuildFailed, FailureClass.HOST),
    (Exception, FailureClass.HOST),  # a driver's own error, an OSError or a bug says nothing about other hosts
)
"""The first match wins. An unknown error lets another host try: aborting would punish the tenant for our oversight."""


UNKNOWN_PROGRESS = "How far the task came is not known: do it again if it is still wanted."


def classify_error(error: Exception, now: float, secrets: BootSecrets | None = None) -> Failure:
    """Turn an error of ``Driver.spawn`` into the failure to report for the attempt. ``now``: seconds since the epoch.

    The message goes to logs and the server's fault, so ``secrets`` are masked in it: a driver may quote its arguments.
    """
    kind = next(kind for cause, kind in CLASSES if isinstance(error, cause))
    message = _text_of(error) or type(error).__name__
    return Failure(kind=kind, error=type(error).__name__, message=secrets.mask_text(message) if secrets else message, at=now)


def _text_of(error: Exception) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - a driver's error class is not our code; without its text the attempt is still reported
        return ""


def no_room(reason: str, now: float) -> Failure:
    """The host's own claim was refused."""
    return Failure(kind=FailureClass.NO_ROOM, error="NoRoom", message=reason, at=now)


def timed_out(seconds: float, now: float) -> Failure:
    """The spawn was cancelled because it took too long."""
    return Failure(kind=FailureClass.HOST, error="SpawnTimeout", message=f"The guest did not run after {seconds:g} s.", at=now)


def agent_restarted(now: float) -> Failure:
    """An earlier start of the agent accepted the build and died before its guest ran: this host may try again."""
    return Failure(kind=FailureClass.RESTARTED, error="AgentRestarted", message="The agent restarted during the build.", at=now)


def order_repeated(now: float) -> Failure:
    """The cell orders an attempt that has ended here, so its database has lost that end. This host may try again, as another
    attempt.
    """
    return Failure(kind=FailureClass.RESTARTED, error="OrderRepeated", message="The host had ended this attempt before.", at=now)


def hypervisor_down(trouble: str, now: float) -> Failure:
    """The hypervisor cannot be used: the agent hands back builds that have not begun."""
    return Failure(kind=FailureClass.STOPPING, error="HypervisorDown", message=trouble, at=now)


def task_lost(failure: Failure) -> Failure:
    """The hypervisor went down during a task."""
    return msgspec.structs.replace(failure, message=f"{failure.message} {UNKNOWN_PROGRESS}")


def agent_stopping(now: float) -> Failure:
    """The agent is about to stop: it hands back builds that have not begun, and those that it could not finish in time."""
    return Failure(kind=FailureClass.STOPPING, error="AgentStopping", message="The agent of this host was told to stop.", at=now)
