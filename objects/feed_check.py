"""Validate a cell's instance events before they are used.

Each cell writes its own feed, and may have another release or another kind of database. Events that pass can be written to the API
database and shown by the API.
"""

from __future__ import annotations

import math
import re

import msgspec

from objects import errors, stored
from objects.feed import EventKind, FeedEvent, InstanceSummary
from objects.lifecycle import LARGEST_ATTEMPT, LARGEST_VERSION
from objects.text import FAULTS_SIZE, NAME_LENGTH, checked_name, clean_text, is_safe

STATES = frozenset(("building", "active", "error", "deleted"))
"""States of a server in summaries."""
LATEST_TIME_S = 253_402_300_799.0
"""The last second of the year 9999, in seconds since the epoch: later times cannot be shown as dates."""
_UUID = re.compile(r"[0-9A-Za-z-]{1,36}", re.ASCII)


def checked_event(event: FeedEvent) -> tuple[FeedEvent, InstanceSummary]:
    """The instance event with its fault cleaned and cut, and its summary. Raises errors.Invalid, naming the field."""
    _require_valid(_is_uuid(event.key), "key", event.key)
    _require_valid(_is_count(event.version, LARGEST_VERSION), "version", event.version)
    try:
        summary = stored.load_text(event.payload, InstanceSummary)
    except stored.UNREADABLE as error:
        raise errors.Invalid(f"payload cannot be decoded: {clean_text(str(error), 200)}") from None
    _require_valid(summary.state in STATES, "state", summary.state)
    _require_valid(_is_count(summary.task_number, LARGEST_VERSION), "task_number", summary.task_number)
    _require_valid(_is_count(summary.attempt, LARGEST_ATTEMPT), "attempt", summary.attempt)
    _require_valid(summary.batch_id is None or _is_uuid(summary.batch_id), "batch_id", summary.batch_id)
    zone = summary.availability_zone
    _require_valid(zone is None or (len(zone) <= NAME_LENGTH and is_safe(zone)), "availability_zone", zone)
    _require_valid(_is_time(summary.updated_at), "updated_at", summary.updated_at)
    for name, at in (("launched_at", summary.launched_at), ("terminated_at", summary.terminated_at)):
        _require_valid(at is None or _is_time(at), name, at)
    if event.kind is not EventKind.ENDED or summary.host or summary.node:
        checked_name("host", summary.host)
        checked_name("node", summary.node)
    fault = clean_text(summary.fault, FAULTS_SIZE) if summary.fault else summary.fault
    if fault == summary.fault:
        return event, summary
    summary = msgspec.structs.replace(summary, fault=fault)
    return msgspec.structs.replace(event, payload=stored.dump_value(summary)), summary


def _require_valid(right: bool, field: str, value: object) -> None:
    if not right:
        raise errors.Invalid(f"{field} is {clean_text(repr(value), 100)}")


def _is_uuid(value: object) -> bool:
    return isinstance(value, str) and _UUID.fullmatch(value) is not None


def _is_count(value: object, largest: int) -> bool:
    return isinstance(value, int) and 0 <= value <= largest


def _is_time(value: float) -> bool:
    return math.isfinite(value) and 0.0 <= value <= LATEST_TIME_S
