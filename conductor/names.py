"""Names that agents send, checked before they are written: one that a database refuses would cost others in its transaction."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from objects import errors, text
from objects.build import Report
from objects.process import About

BINARY_LENGTH = 64
RELEASE_LENGTH = 64
MESSAGES_LENGTH = 16
"""Characters that the columns hold."""

_LARGEST = 2**31 - 1


def check_reports(reports: Sequence[Report]) -> None:
    """Raises errors.Invalid for reports whose host, instance or builder has an invalid name."""
    for report in reports:
        text.checked_name("host", report.host)
        text.checked_name("instance", report.instance_uuid)
        if len(report.builder) > text.NAME_LENGTH or not text.is_safe(report.builder):
            raise errors.Invalid(f"builder {report.builder[:80]!r}: has control characters or is too long")


def check_service(host: str, binary: str, version: int = 1) -> None:
    """Raises errors.Invalid for a service with an invalid host, binary or version."""
    text.checked_name("host", host)
    if len(text.checked_name("binary", binary)) > BINARY_LENGTH:
        raise errors.Invalid(f"binary {binary[:80]!r}: a name has at most {BINARY_LENGTH} characters")
    if not 0 <= version <= _LARGEST:
        raise errors.Invalid(f"version {version}: is not a number from 0 to {_LARGEST}")


def checked_about(about: About, uptime: float) -> About:
    """What a process says of itself, as columns hold it. Raises errors.Invalid for numbers that they do not hold."""
    if not 0 <= about.pid <= _LARGEST or not math.isfinite(uptime):
        raise errors.Invalid(f"pid {about.pid}, uptime {uptime}: are not numbers that a process has")
    release, messages = text.clean(about.release, RELEASE_LENGTH), text.clean(about.messages, MESSAGES_LENGTH)
    return msgspec.structs.replace(about, release=release, messages=messages)
