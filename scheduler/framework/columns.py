"""The types of columns, and what plug-ins compute with them."""

from scheduler.table.aggregation import Aggregates
from scheduler.table.arrays import Floats, Ints, Mask, divide_by
from scheduler.table.host_table import HostTable
from scheduler.table.kernels import are_below, are_equal, at_least

__all__ = ["Aggregates", "Floats", "HostTable", "Ints", "Mask", "are_below", "are_equal", "at_least", "divide_by"]
