"""What an audit looks at. One more: a module with ``pages``, ``look`` and ``repair``, and its name in this list."""

from __future__ import annotations

from conductor.audit import batches, claims, feeds, guests, hosts, late, letters, queue, quota, rows, secrets, servers, slots, usage
from conductor.audit.finding import Check

CHECKS: tuple[Check, ...] = (
    queue,
    rows,
    servers,
    batches,
    claims,
    usage,
    slots,
    hosts,
    guests,
    secrets,
    quota,
    late,
    feeds,
    letters,
)
"""In the order in which they are repaired: what is mapped first, then what stands on the mappings."""
