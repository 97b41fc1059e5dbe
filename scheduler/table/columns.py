"""The columns of the host table: growable NumPy arrays of equal length."""

from __future__ import annotations

from typing import Any

import numpy as np

from scheduler.table.arrays import Counts, Floats, Ints, Mask, Words

LEAST_CAPACITY = 1e-9
"""Capacities below count as this much, where something is divided by them."""
CHANGES_KEPT = 65536
"""Number of latest changes whose rows are known."""
GUEST_REMOVAL_WAIT_S = 10.0
"""Seconds after a host's claims have fallen in which its agent may still count guests that are gone. A surplus in its count is used
only when the agent has reported again, or later."""
SETTLE_ALL_INTERVAL_S = 60.0
"""Seconds after which all quiet rows are compared again; otherwise only those that have become quiet since the last time."""
SETTLE_AFTER_S = 30.0
"""Seconds without a change of a host's claims after which they are compared with the agent's count again."""

_COLUMNS: dict[str, tuple[Any, Any]] = {
    # name: (type, value in a row without data)
    "salt": (np.uint64, 0),
    "inventory": (np.int64, 0),
    "generation": (np.int64, -1),
    "cell": (np.int64, -1),
    "home": (np.int64, -1),
    "zone": (np.int64, 0),
    "aggregation": (np.int64, 0),
    "cap_vcpus": (np.float64, 0.0),
    "cap_memory_mb": (np.float64, 0.0),
    "cap_disk_gb": (np.float64, 0.0),
    "ratio_vcpus": (np.float64, 1.0),
    "ratio_memory_mb": (np.float64, 1.0),
    "ratio_disk_gb": (np.float64, 1.0),
    "claimed_vcpus": (np.float64, 0.0),
    "claimed_memory_mb": (np.float64, 0.0),
    "claimed_disk_gb": (np.float64, 0.0),
    "reported_vcpus": (np.float64, 0.0),
    "reported_memory_mb": (np.float64, 0.0),
    "reported_disk_gb": (np.float64, 0.0),
    "unaccounted_vcpus": (np.float64, 0.0),
    "unaccounted_memory_mb": (np.float64, 0.0),
    "unaccounted_disk_gb": (np.float64, 0.0),
    "free_vcpus": (np.float64, 0.0),
    "free_memory_mb": (np.float64, 0.0),
    "free_disk_gb": (np.float64, 0.0),
    "instances": (np.int32, 0),
    "mapped_at": (np.float64, -np.inf),
    "changed_at": (np.float64, -np.inf),
    "fell_at": (np.float64, -np.inf),
    "guests": (np.int32, 0),
    "building": (np.int32, 0),
    "failed_builds": (np.float64, 0.0),
    "hypervisor_version": (np.int64, 0),
    "address_high": (np.uint64, 0),
    "address_low": (np.uint64, 0),
    "heard_at": (np.float64, -np.inf),
    "disabled": (np.bool_, False),
    "forced_down": (np.bool_, False),
    "service_event": (np.int64, 0),
    "behind": (np.bool_, False),
    "ambiguous": (np.bool_, False),
    "cell_open": (np.bool_, False),
    "enabled": (np.bool_, False),
    "eligible": (np.bool_, False),
}


class _Ring:
    """The last ``room`` of ``count`` numbers."""

    def __init__(self, room: int) -> None:
        self.count = 0
        self._room = room
        self._numbers: Ints = np.zeros(room, np.int64)

    def append_number(self, number: int) -> None:
        self._numbers[self.count % self._room] = number
        self.count += 1

    def append_numbers(self, numbers: Ints) -> None:
        retained = numbers[-self._room :]
        self.count += numbers.size
        self._numbers[np.arange(self.count - retained.size, self.count) % self._room] = retained

    def latest_numbers(self, count: int) -> Ints:
        """So many of them, at most ``room``, in any order."""
        end = self.count % self._room
        if count <= end:
            return self._numbers[end - count : end]
        return np.concatenate((self._numbers[:end], self._numbers[self._room - (count - end) :]))


class Columns:
    """One attribute, one array. Rows beyond ``size`` exist only as room to grow; rows below it may be free for reuse.

    ``cell`` is the cell that reports the host, ``home`` the one it is mapped to; the two must agree. ``aggregation`` is the
    combination of aggregates it is in. ``cap`` is capacity with the host's own allocation ``ratio`` applied. ``claimed`` is what
    our ledger says, ``reported`` what the agent counts in all, ``unaccounted`` how much more that is; ``free`` is capacity less
    claimed less unaccounted, negative on an over-full host. ``ambiguous``: agents in several cells report the host.
    ``enabled``: neither the host nor its cell is disabled. ``service_event``: the ledger says that the cell's feed must be read up
    to this event first; ``behind``: this process has not yet. ``eligible``: mapped, known to the ledger, neither forced down nor
    ambiguous nor behind, so it may be chosen. ``guests`` is how many the agent runs, ``building`` how many fewer than
    ``instances`` that is. ``address_high`` and ``address_low`` are the halves of the host's address as IPv6, 0 if it reports none.
    ``heard_at``, ``mapped_at`` (when the host was mapped to a cell), ``changed_at`` and ``fell_at`` (of the claims: when they
    changed, and when they became less) are seconds of this process's monotonic clock. ``change_count`` counts what has happened to
    any row so far.
    """

    salt: Words
    inventory: Ints
    generation: Ints
    cell: Ints
    home: Ints
    zone: Ints
    aggregation: Ints
    cap_vcpus: Floats
    cap_memory_mb: Floats
    cap_disk_gb: Floats
    ratio_vcpus: Floats
    ratio_memory_mb: Floats
    ratio_disk_gb: Floats
    claimed_vcpus: Floats
    claimed_memory_mb: Floats
    claimed_disk_gb: Floats
    reported_vcpus: Floats
    reported_memory_mb: Floats
    reported_disk_gb: Floats
    unaccounted_vcpus: Floats
    unaccounted_memory_mb: Floats
    unaccounted_disk_gb: Floats
    free_vcpus: Floats
    free_memory_mb: Floats
    free_disk_gb: Floats
    instances: Counts
    mapped_at: Floats
    changed_at: Floats
    fell_at: Floats
    guests: Counts
    building: Counts
    failed_builds: Floats
    hypervisor_version: Ints
    address_high: Words
    address_low: Words
    heard_at: Floats
    disabled: Mask
    forced_down: Mask
    service_event: Ints
    behind: Mask
    ambiguous: Mask
    cell_open: Mask
    enabled: Mask
    eligible: Mask

    def __init__(self, room: int = 64) -> None:
        self.size = 0
        self._changed = _Ring(CHANGES_KEPT)
        self._ahead: set[int] = set()
        self._settled_until, self._settle_all_at = -np.inf, -np.inf
        self._inverses: dict[str, Floats] = {}
        self._room = room
        for name, (kind, unknown) in _COLUMNS.items():
            setattr(self, name, np.full(room, unknown, dtype=kind))

    def append_row(self) -> int:
        """A new row of which nothing is known; the arrays double when they are full."""
        if self.size == self._room:
            for name, (kind, unknown) in _COLUMNS.items():
                grown = np.full(self._room * 2, unknown, dtype=kind)
                grown[: self._room] = getattr(self, name)
                setattr(self, name, grown)
            self._room *= 2
            self._inverses.clear()
        self.size += 1
        return self.size - 1

    def clear_row(self, row: int) -> None:
        """Make the row one of which nothing is known."""
        for name, (_, unknown) in _COLUMNS.items():
            getattr(self, name)[row] = unknown
        self._set_capacity(row, 0.0, 0.0)
        self._ahead.discard(row)
        self.note_changed(row)

    def inverse_capacity(self, resource: str) -> Floats:
        """1 / ``cap`` of vcpus or memory_mb of each row, computed once: capacities seldom change."""
        inverse = self._inverses.get(resource)
        if inverse is None:
            inverse = self._inverses[resource] = 1.0 / np.maximum(getattr(self, f"cap_{resource}"), LEAST_CAPACITY)
        return inverse

    def _set_capacity(self, row: int, cap_vcpus: float, cap_memory_mb: float) -> None:
        """The capacity of the host is this now."""
        self.cap_vcpus[row], self.cap_memory_mb[row] = cap_vcpus, cap_memory_mb
        for resource, inverse in self._inverses.items():
            inverse[row] = 1.0 / max(getattr(self, f"cap_{resource}").item(row), LEAST_CAPACITY)

    def note_changed(self, rows: int | Ints) -> None:
        """What is known of these rows has changed."""
        if isinstance(rows, int):
            self._changed.append_number(rows)
        else:
            self._changed.append_numbers(rows)

    @property
    def change_count(self) -> int:
        return self._changed.count

    def changed_since(self, changes: int) -> set[int] | range:
        """The rows that have changed since ``changes`` was counted; all of them where that is long ago."""
        count = self.change_count - changes
        if count > CHANGES_KEPT:
            return range(self.size)
        return set(self._changed.latest_numbers(count).tolist())

    def rows_since(self, changes: int, most: int) -> Ints | None:
        """The same rows, in order; None if there are more than ``most`` of them, or nobody knows which."""
        count = self.change_count - changes
        if count > CHANGES_KEPT:
            return None
        rows = np.unique(self._changed.latest_numbers(count))
        return rows if rows.size <= most else None

    def settle_counts(self, now: float) -> Ints:
        """Compare agents' counts with the claims again where these have been quiet.

        Between a claim, a move or a release and the agent's next report the two differ for a while, and either way round: so the
        difference is taken as it is when a report comes, and taken anew once nothing has moved for a while. Returns the rows that
        were compared.
        """
        changed_at, until = self.changed_at[: self.size], now - SETTLE_AFTER_S
        is_quiet = changed_at < until
        if now < self._settle_all_at:
            is_quiet &= changed_at >= self._settled_until
        else:
            self._settle_all_at = now + SETTLE_ALL_INTERVAL_S
        self._settled_until = until
        quiet: Ints = np.flatnonzero(is_quiet)
        if self._ahead:
            quiet = np.setdiff1d(quiet, sorted(self._ahead))
        moved = np.zeros(quiet.size, np.bool_)
        for resource in ("vcpus", "memory_mb", "disk_gb"):
            unaccounted = getattr(self, f"unaccounted_{resource}")
            beyond = np.maximum(getattr(self, f"reported_{resource}")[quiet] - getattr(self, f"claimed_{resource}")[quiet], 0.0)
            moved |= beyond != unaccounted[quiet]
            unaccounted[quiet] = beyond
        self._recount_free(quiet[moved])
        return quiet

    def _account_reports(self, rows: int | Ints) -> None:
        """Compare the agents' counts with the claims, as they are now."""
        for resource in ("vcpus", "memory_mb", "disk_gb"):
            beyond = getattr(self, f"reported_{resource}")[rows] - getattr(self, f"claimed_{resource}")[rows]
            getattr(self, f"unaccounted_{resource}")[rows] = np.maximum(beyond, 0.0)
        self._recount_free(rows)

    def _account_later(self, rows: Ints) -> None:
        """The same for hosts that have reported before: what agents count more of now counts once the ledger has been read again.

        It may be guests whose claims this process has not read yet: their room would be taken twice, others refused for nothing.
        """
        more = np.zeros(rows.size, np.bool_)
        for resource in ("vcpus", "memory_mb", "disk_gb"):
            unaccounted = getattr(self, f"unaccounted_{resource}")
            beyond = np.maximum(getattr(self, f"reported_{resource}")[rows] - getattr(self, f"claimed_{resource}")[rows], 0.0)
            more |= beyond > unaccounted[rows]
            unaccounted[rows] = np.minimum(beyond, unaccounted[rows])
        self._ahead.update(rows[more].tolist())
        self._recount_free(rows)

    def take_rows_ahead(self) -> Ints:
        """The rows of which reports may be ahead of what is known of claims, from here on no more: the ledger is to be read now."""
        rows, self._ahead = self._ahead, set()
        return np.array(sorted(rows), np.int64)

    def _fell_lately(self, rows: Ints, now: float) -> Ints:
        """Those of the rows whose claims fell lately: a report that was under way then counts guests whose claims are gone.

        They are looked at again with the next ones that are taken ahead.
        """
        late: Ints = rows[self.fell_at[rows] > now - GUEST_REMOVAL_WAIT_S]
        self._ahead.update(late.tolist())
        return late

    def _recount_free(self, rows: int | Ints) -> None:
        """Say what is free, and how many builds are under way."""
        self.building[rows] = self.instances[rows] - self.guests[rows]
        self.free_vcpus[rows] = self.cap_vcpus[rows] - self.claimed_vcpus[rows] - self.unaccounted_vcpus[rows]
        self.free_memory_mb[rows] = self.cap_memory_mb[rows] - self.claimed_memory_mb[rows] - self.unaccounted_memory_mb[rows]
        self.free_disk_gb[rows] = self.cap_disk_gb[rows] - self.claimed_disk_gb[rows] - self.unaccounted_disk_gb[rows]
        self.note_changed(rows)
