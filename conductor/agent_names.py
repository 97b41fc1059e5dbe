"""Check names that agents send before they are written: a name that a database refuses fails the whole transaction."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from objects import errors, text
from objects.base import INT32_MAX
from objects.build import Report
from objects.context import RequestContext
from objects.process import AGENT_BINARY, About

MACHINE_LENGTH = 64
RELEASE_LENGTH = 64
MESSAGES_LENGTH = 16
"""Lengths of the columns, in characters."""


def check_reports(reports: Sequence[Report]) -> None:
    """Raises errors.Invalid for reports whose host, instance or builder has an invalid name."""
    for report in reports:
        text.checked_name("host", report.host)
        text.checked_name("instance", report.instance_uuid)
        if len(report.builder) > text.NAME_LENGTH or not text.is_safe(report.builder):
            raise errors.Invalid(f"builder {report.builder[:80]!r}: has control characters or is too long")


def check_service(host: str, binary: str, version: int = 1) -> None:
    """Raises errors.Invalid for a service with an invalid host or version, or of another kind than agents."""
    text.checked_name("host", host)
    text.checked_name("binary", binary)
    if binary != AGENT_BINARY:
        raise errors.Invalid(f"binary {binary[:80]!r}: an agent reports as {AGENT_BINARY}")
    if not 0 <= version <= INT32_MAX:
        raise errors.Invalid(f"version {version}: is not a number from 0 to {INT32_MAX}")


def checked_about(about: About, uptime: float) -> About:
    """A process's description, cleaned to fit its columns. Raises errors.Invalid for a pid or uptime that cannot be."""
    if not 0 <= about.pid <= INT32_MAX or not math.isfinite(uptime):
        raise errors.Invalid(f"pid {about.pid}, uptime {uptime}: are not numbers that a process has")
    release, messages = text.clean_text(about.release, RELEASE_LENGTH), text.clean_text(about.messages, MESSAGES_LENGTH)
    machine = text.clean_text(about.machine, text.NAME_LENGTH)
    return msgspec.structs.replace(about, release=release, messages=messages, machine=machine)


def checked_machine(context: RequestContext) -> str:
    """The machine that sent a message; empty if it does not say. Raises errors.Invalid for an ID that no machine has."""
    if not text.is_safe(context.machine) or len(context.machine) > MACHINE_LENGTH:
        raise errors.Invalid(f"machine {context.machine[:80]!r}: has control characters or is too long")
    return context.machine
