"""What a compiled wheel has as one pass over an array (``fused.pyx``), and NumPy makes of several operations otherwise."""

from __future__ import annotations

try:
    from scheduler.table.fused import (
        add_scaled,
        at_least,
        below,
        equal,
        extremes,
        mixed,
        narrowed,
        noise,
        ordered,
        ordered_in,
        untied,
    )
except ImportError:  # not compiled, which is the default
    from scheduler.table.arrays import mixed
    from scheduler.table.reference import add_scaled, at_least, below, equal, extremes, narrowed, noise, ordered, ordered_in, untied

__all__ = [
    "add_scaled",
    "at_least",
    "below",
    "equal",
    "extremes",
    "mixed",
    "narrowed",
    "noise",
    "ordered",
    "ordered_in",
    "untied",
]
