"""The checks of an audit. To add one, write a module with ``pages``, ``look`` and ``repair``, and add it to this list."""

from __future__ import annotations

from conductor.audit import (
    addresses,
    batches,
    claims,
    feeds,
    guests,
    hosts,
    late,
    letters,
    operations,
    permits,
    queue,
    quota,
    rows,
    secrets,
    servers,
    slots,
    usage,
)
from conductor.audit.finding import Check

CHECKS: tuple[Check, ...] = (
    queue,
    rows,
    servers,
    operations,
    permits,
    batches,
    claims,
    usage,
    slots,
    addresses,
    hosts,
    guests,
    secrets,
    quota,
    late,
    feeds,
    letters,
)
"""In the order of the repairs: mappings first, then what depends on them."""
