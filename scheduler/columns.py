"""The columns of the host table: growable NumPy arrays of equal length."""

from __future__ import annotations

from typing import Any

import numpy as np

from scheduler.arrays import Floats, Ints, Mask, Words

_COLUMNS: dict[str, tuple[Any, Any]] = {
    # name: (type, value of a row that nothing is known of)
    "salt": (np.uint64, 0),
    "inventory": (np.int64, 0),
    "generation": (np.int64, -1),
    "cell": (np.int64, -1),
    "home": (np.int64, -1),
    "zone": (np.int64, 0),
    "cap_vcpus": (np.float64, 0.0),
    "cap_memory_mb": (np.float64, 0.0),
    "cap_disk_gb": (np.float64, 0.0),
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
    "instances": (np.int64, 0),
    "changed_at": (np.float64, -np.inf),
    "failed_builds": (np.float64, 0.0),
    "hypervisor_version": (np.int64, 0),
    "heard_at": (np.float64, -np.inf),
    "disabled": (np.bool_, False),
    "forced_down": (np.bool_, False),
    "cell_open": (np.bool_, False),
    "eligible": (np.bool_, False),
}


class Columns:
    """One attribute, one array. Rows beyond ``size`` exist only as room to grow; rows below it may be free for reuse.

    ``cell`` is the cell that reports the host, ``home`` the one it is mapped to; the two must agree. ``claimed`` is what our
    ledger says, ``reported`` what the agent counts in all, ``unaccounted`` how much more that is; ``free`` is capacity less
    claimed less unaccounted, negative on an over-full host. ``eligible``: mapped, known to the ledger and not forced down, so that
    it may be chosen at all. ``heard_at`` and ``changed_at`` are seconds of this process's monotonic clock.
    """

    salt: Words
    inventory: Ints
    generation: Ints
    cell: Ints
    home: Ints
    zone: Ints
    cap_vcpus: Floats
    cap_memory_mb: Floats
    cap_disk_gb: Floats
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
    instances: Ints
    changed_at: Floats
    failed_builds: Floats
    hypervisor_version: Ints
    heard_at: Floats
    disabled: Mask
    forced_down: Mask
    cell_open: Mask
    eligible: Mask

    def __init__(self, room: int = 64) -> None:
        self.size = 0
        self._room = room
        for name, (kind, unknown) in _COLUMNS.items():
            setattr(self, name, np.full(room, unknown, dtype=kind))

    def append(self) -> int:
        """A new row of which nothing is known; the arrays double when they are full."""
        if self.size == self._room:
            for name, (kind, unknown) in _COLUMNS.items():
                grown = np.full(self._room * 2, unknown, dtype=kind)
                grown[: self._room] = getattr(self, name)
                setattr(self, name, grown)
            self._room *= 2
        self.size += 1
        return self.size - 1

    def clear(self, row: int) -> None:
        """Make the row one of which nothing is known."""
        for name, (_, unknown) in _COLUMNS.items():
            getattr(self, name)[row] = unknown
