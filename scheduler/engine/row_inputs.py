"""Which hosts a request singles out: those that it names, and those with members of its group.

A filter with ``row_inputs`` answers alike for all other hosts. So its answer for a whole fleet follows from these hosts and one
other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from scheduler.framework.batch_request import Request
from scheduler.framework.filter import Filter
from scheduler.framework.hosts import Hosts
from scheduler.table.arrays import Ints
from scheduler.table.host_table import HostTable


def _rows_of_racks(table: HostTable, request: Request) -> Ints:
    """The rows in racks where its group has members, and those in no rack."""
    hosts = set(request.members.counts_by_host(with_held=not request.yielding))
    if request.spec.fault_domain is not None:
        hosts |= request.members.of_other_domains(request.spec.fault_domain)
    racks = {rack for rack, _ in table.racks_named(hosts)}
    return np.sort(table.by_rack.rows_of((-1, *racks)))


ROW_INPUTS: Mapping[str, Callable[[HostTable, Request], Ints]] = {
    "group": lambda table, request: request.rows_with_members(table.named_rows),
    "racks": _rows_of_racks,
    "ignore_hosts": lambda table, request: table.rows_named(request.spec.ignore_hosts),
    "excluded_hosts": lambda table, request: table.rows_named(request.spec.excluded_hosts),
}
"""The rows, in order, that each input singles out."""


class Exceptions(NamedTuple):
    """``rows``: the only ones, in order, that a filter lets pass, if ``pass_alone``; otherwise the only ones that it refuses."""

    rows: Ints
    pass_alone: bool


def has_inputs(inputs: Sequence[str], request: Request) -> bool:
    """Whether the request has all of these inputs. Otherwise a filter lets all hosts pass, and a weigher weighs none."""
    return ("group" not in inputs or request.server_group is not None) and ("racks" not in inputs or request.spec.keeps_to_racks)


def singled_out(inputs: Sequence[str], table: HostTable, request: Request) -> Ints:
    """The rows, in order, that these inputs single out."""
    if len(inputs) == 1:
        return ROW_INPUTS[inputs[0]](table, request)
    return np.unique(np.concatenate([ROW_INPUTS[name](table, request) for name in inputs]))


def exceptions_of(one: Filter, table: HostTable, request: Request, rows: Ints) -> Exceptions | None:
    """The answer for the whole table of a filter whose ``row_inputs`` single out ``rows``; None: the request does not use it."""
    has_gap = rows.size > 0 and rows.item(-1) >= rows.size
    other = int((rows != np.arange(rows.size)).argmax()) if has_gap else rows.size  # the first row that is not among them
    sampled_rows = np.append(rows, other) if other < table.size else rows
    passed = one.passes(Hosts(table, request, sampled_rows), request)
    if passed is None:
        return None
    pass_alone = other < table.size and not passed[-1]
    answers = passed[: rows.size]
    return Exceptions(rows[answers if pass_alone else ~answers], pass_alone)
