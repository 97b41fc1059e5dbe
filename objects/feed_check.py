"""Validate a cell's instance events before they are used.

Each cell writes its own feed, and may have another release or another kind of database. Events that pass can be written to the API
database and shown by the API.
"""

from __future__ import annotations

import re

from objects import errors, stored
from objects.feed import EventKind, FeedEvent, InstanceEvent, InstanceSummary
from objects.lifecycle import LARGEST_ATTEMPT, LARGEST_VERSION
from objects.text import NAME_LENGTH, checked_name, clean_text, is_safe

STATES = frozenset(("building", "active", "error", "deleted"))
"""States of a server in summaries."""
LATEST_TIME_S = 253_402_300_799.0
"""The last second of the year 9999, in seconds since the epoch: later times cannot be shown as dates."""
_UUID = re.compile(r"[0-9A-Za-z-]{1,36}", re.ASCII)


def checked_event(event: FeedEvent) -> InstanceEvent:
    """The instance event with its summary. Raises errors.Invalid, naming the field."""
    try:
        summary = stored.load_text(event.payload, InstanceSummary)
    except stored.UNREADABLE as error:
        raise errors.Invalid(f"payload cannot be decoded: {clean_text(str(error), 200)}") from None
    zone, batch_id = summary.availability_zone, summary.batch_id
    checks: list[tuple[str, object, bool]] = [
        ("key", event.key, isinstance(event.key, str) and _UUID.fullmatch(event.key) is not None),
        ("version", event.version, isinstance(event.version, int) and 0 <= event.version <= LARGEST_VERSION),
        ("state", summary.state, summary.state in STATES),
        ("task_number", summary.task_number, 0 <= summary.task_number <= LARGEST_VERSION),
        ("attempt", summary.attempt, 0 <= summary.attempt <= LARGEST_ATTEMPT),
        ("batch_id", batch_id, batch_id is None or _UUID.fullmatch(batch_id) is not None),
        ("availability_zone", zone, zone is None or (len(zone) <= NAME_LENGTH and is_safe(zone))),
    ]
    times = {name: getattr(summary, name) for name in ("updated_at", "launched_at", "terminated_at")}
    checks += [(name, at, at is None or 0.0 <= at <= LATEST_TIME_S) for name, at in times.items()]
    for field, value, is_valid in checks:
        if not is_valid:
            raise errors.Invalid(f"{field} is {clean_text(repr(value), 100)}")
    if event.kind is not EventKind.ENDED or summary.host or summary.node:
        checked_name("host", summary.host)
        checked_name("node", summary.node)
    return InstanceEvent(kind=event.kind, key=event.key, version=event.version, summary=summary)
