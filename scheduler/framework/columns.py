"""The types of columns, and what plug-ins compute with them."""

from scheduler.table.aggregation import Aggregates
from scheduler.table.arrays import Floats, Ints, Mask, divided
from scheduler.table.host_table import HostTable
from scheduler.table.kernels import at_least, below, equal

__all__ = ["Aggregates", "Floats", "HostTable", "Ints", "Mask", "at_least", "below", "divided", "equal"]
