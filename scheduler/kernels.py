"""What a compiled wheel has as one pass over an array (``fused.pyx``), and NumPy makes of a dozen operations otherwise."""

from __future__ import annotations

try:
    from scheduler.fused import in_order, noise
except ImportError:  # not compiled, which is the default
    from scheduler.arrays import noise
    from scheduler.ranking import in_order

__all__ = ["in_order", "noise"]
