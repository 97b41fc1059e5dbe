"""Choose hosts for a batch: filter, weigh, choose, take, repeat. Pure arithmetic over the host table.

Every function needs the table's lock, and sees what the plan has taken so far. The caller wraps it in ``table.tentative()``.

The ranges that scale raw weights are fixed when a batch is surveyed, over the hosts that passed the filters then. (Nova computes
them again for every instance.) A host's score then changes linearly with the instances on it, which spreads a batch evenly. A plan
costs one pass over the fleet and a few over the best hosts, not one pass per instance.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from objects import numa
from objects.decision import FilterCount
from objects.group import GroupPolicy
from scheduler.engine.criteria import Criteria
from scheduler.engine.survey import UNMAPPED, Survey, WeigherScale, tie_noise
from scheduler.framework.batch_request import Request
from scheduler.framework.filter import Filter
from scheduler.framework.hosts import Hosts
from scheduler.table.arrays import Floats, Ints, Mask, tally
from scheduler.table.host_table import HostTable

EXTRA_CANDIDATES = 8
"""Candidate hosts kept beyond one per instance."""


def narrow_hosts(filters: Sequence[Filter], hosts: Hosts, request: Request) -> tuple[Mask, tuple[FilterCount, ...]]:
    """Which hosts pass all filters, and how many were left after each. Filters after one that leaves none do not run."""
    mask = hosts.is_eligible.copy()
    reported = len(hosts.table) if hosts.rows is None else int(tally(hosts.cell_numbers >= 0))
    remaining = int(tally(mask))
    counts: list[FilterCount] = []
    if remaining < reported:
        counts.append(FilterCount(name=UNMAPPED.name, before=reported, after=remaining, reason=UNMAPPED.reason))
    for one in filters:
        if not remaining:
            break
        passed = _asked_one_by_one(one, hosts, request, mask) if one.host_by_host else one.passes(hosts, request)
        before = remaining
        if passed is not None:
            mask &= passed
            remaining = int(tally(mask))
        elif one.on_demand:
            continue
        reason = one.reason if remaining else one.explain_refusal(hosts, request)
        counts.append(FilterCount(name=one.name, before=before, after=remaining, reason=reason))
    return mask, tuple(counts)


def passing_rows(table: HostTable, driver: Criteria, request: Request) -> Ints:
    """The rows of the fleet that pass the request's filters. Nothing is weighed."""
    rows: Ints = np.flatnonzero(narrow_hosts(driver.chain_for(request).all_filters, Hosts(table, request), request)[0])
    return rows


def fitting_rows(driver: Criteria, table: HostTable, request: Request, rows: Ints, more: Ints | int = 0) -> Mask:
    """Which of these rows pass the request's filters, with ``more`` instances added to each."""
    return narrow_hosts(driver.chain_for(request).all_filters, Hosts(table, request, rows, more), request)[0]


def choose_rows(table: HostTable, driver: Criteria, request: Request, surveyed: Survey, count: int) -> list[int]:
    """Choose and take a row for each of ``count`` instances, in order; fewer if no host fits any more."""
    if count == 1 and driver.subset == 1:
        chosen: list[int] = surveyed.best_rows(1)[0].tolist()
        for row in chosen:
            take_row(table, request, row)
        return chosen
    is_cell_wide = any(part.weigher.cell_wide for part in surveyed.parts)
    front = (_FrontOfCells if is_cell_wide else _Front)(table, driver, request, surveyed, count)
    chosen = []
    while len(chosen) < count:
        best = front.best_position()
        if best is None:
            break
        row = int(front.rows[best])
        take_row(table, request, row)
        chosen.append(row)
        if len(chosen) < count:
            front.advance_position(best)
    return chosen


def take_row(table: HostTable, request: Request, row: int) -> None:
    """Take room for one instance on the row, with the NUMA nodes that it gets, and count it in its cell and group."""
    nodes = table.nodes_for(row, request.node_part) if table.classes.numa else ()
    request.nodes.append(nodes)
    table.take_room(row, request.vcpus, request.memory_mb, request.disk_gb, _amounts_with_nodes(request, nodes))
    cell = table.cell.item(row)
    request.in_cells[cell] = request.in_cells.get(cell, 0) + 1
    if request.server_group is not None:
        request.members.add_member(table.hosts[row], request.spec.fault_domain)


def amounts_on(table: HostTable, request: Request, row: int) -> Mapping[str, int]:
    """What an instance takes on the row by custom resource class, with the amounts of the NUMA nodes that it gets."""
    return _amounts_with_nodes(request, table.nodes_for(row, request.node_part))


def _amounts_with_nodes(request: Request, nodes: tuple[int, ...] | None) -> Mapping[str, int]:
    return {**request.resources, **numa.taken_by_class(nodes, request.vcpus, request.memory_mb)} if nodes else request.resources


def score_rows(
    table: HostTable, driver: Criteria, request: Request, parts: tuple[WeigherScale, ...], rows: Ints, more: Ints | int = 0
) -> Floats:
    """Total scores of the rows as the table is now; -inf for rows that a filter refuses."""
    hosts = Hosts(table, request, rows, more)
    scores = np.zeros(rows.size)
    for part in parts:
        raw = part.weigher.weigh(hosts, request)
        if raw is not None:
            scores = part.add_scores(scores, hosts, raw)
    if driver.shuffle:
        scores += tie_noise(table, rows, request.seed)
    scores[~narrow_hosts(driver.chain_for(request).all_filters, hosts, request)[0]] = -np.inf
    return scores


class Savepoint:
    """Remembers the state at the beginning of a planning step, so that the step can be undone."""

    def __init__(self, table: HostTable, request: Request) -> None:
        self._table, self._request, self._mark = table, request, table.undo_mark
        self._members_mark = request.members.undo_mark
        self._in_cells = dict(request.in_cells)
        self._nodes = len(request.nodes)

    def undo(self) -> None:
        """Undo everything that was taken since the step began."""
        self._table.give_back(self._mark)
        self._request.in_cells = dict(self._in_cells)
        del self._request.nodes[self._nodes :]
        self._request.members.give_back(self._members_mark)


class _Front:
    """The best rows of a survey, with their scores after 0, 1, 2... more instances of the batch on each.

    An instance usually changes only the score of its own row, and all instances are alike. So unused rows keep the order of the
    survey, ``count`` of them (and a few more) are enough, and each score level is computed once for all rows. This also holds for
    members of an anti-affinity group and of groups with soft policies.

    Where hosts have several nodes, an instance of a group changes the scores of all nodes of its host. If the group is limited per
    rack, it may close the rack. The first member of an affinity group closes all other hosts. Then all rows are kept, and those of
    the host or rack are scored again.
    """

    def __init__(self, table: HostTable, driver: Criteria, request: Request, surveyed: Survey, count: int) -> None:
        self._table, self._driver, self._request = table, driver, request
        self._by_rack = request.racks_limited
        self._by_host = request.server_group is not None and (
            request.group_policy is GroupPolicy.AFFINITY or table.hosts_have_several_nodes or self._by_rack
        )
        self._founding = request.founds_group
        self._parts = tuple(part for part in surveyed.parts if not part.weigher.cell_wide)
        enough = count + EXTRA_CANDIDATES + driver.subset
        keeps_all = self._by_host or surveyed.passing_count <= enough
        self.rows, self._now = (
            (surveyed.passing_rows, surveyed.passing_scores.copy()) if keeps_all else self._best_of(surveyed, enough)
        )
        self._level: Ints = np.zeros(self.rows.size, dtype=np.int64)
        self._steps: list[Floats] = [self._now.copy()]

    def _best_of(self, surveyed: Survey, enough: int) -> tuple[Ints, Floats]:
        rows, scores = surveyed.best_rows(enough)
        order = np.argsort(rows)
        return rows[order], scores[order]

    def best_position(self) -> int | None:
        """The position of the row to take next; None if no row fits."""
        if not self.rows.size:
            return None
        if self._driver.subset > 1:
            return self._draw_position()
        position = self._first_position()
        return position if self._now[position] > -np.inf else None

    def _first_position(self) -> int:
        """The position of the best row."""
        return int(self._now.argmax())

    def advance_position(self, position: int) -> None:
        """Update the scores after the row at ``position`` was taken."""
        if self._by_host:
            self._look_again_at_host(position)
        else:
            self._raise_level(position)

    def _raise_level(self, position: int) -> None:
        self._level[position] += 1
        level = int(self._level[position])
        if level == len(self._steps):
            # the table already counts the instances on a row, so only the difference is added
            self._steps.append(score_rows(self._table, self._driver, self._request, self._parts, self.rows, level - self._level))
        self._enter_scores(position, self._steps[level][position])

    def _look_again_at_host(self, position: int) -> None:
        if self._by_rack:
            racks = self._table.racks_of(self.rows)
            host_positions = np.flatnonzero(racks == racks[position])
        else:
            host = self._table.hosts[self.rows[position]]
            host_positions = np.flatnonzero(np.isin(self.rows, self._table.rows_of[host.lower()]))
        if self._founding:
            self._now[:] = -np.inf
            self._founding = False
        self._enter_scores(
            host_positions, score_rows(self._table, self._driver, self._request, self._parts, self.rows[host_positions])
        )

    def _enter_scores(self, positions: int | Ints, scores: float | Floats) -> None:
        """These are the scores now, without what cell-wide weighers add."""
        self._now[positions] = scores

    def _draw_position(self) -> int | None:
        open_rows = np.flatnonzero(self._now > -np.inf)
        if not open_rows.size:
            return None
        subset = min(self._driver.subset, open_rows.size)
        # by score and inventory, not by row: another scheduler that knows the same has its rows in another order
        order = np.lexsort((self._table.inventory[self.rows[open_rows]], -self._now[open_rows]))
        return int(open_rows[order[self._request.draw_below(subset)]])


class _FrontOfCells(_Front):
    """The same with cell-wide weighers: an instance changes all scores of its cell alike.

    The order then holds within each cell, so that many rows of each cell are kept, side by side. The best score of each cell is
    known, so that an instance costs a look at its cell and one at these.
    """

    def __init__(self, table: HostTable, driver: Criteria, request: Request, surveyed: Survey, count: int) -> None:
        super().__init__(table, driver, request, surveyed, count)
        cells = table.cell[self.rows]
        order = np.argsort(cells.astype(np.min_scalar_type(len(table.cells))), kind="stable")  # of narrow numbers it is faster
        self.rows, self._now, cells = self.rows[order], self._now[order], cells[order]
        self._starts: Ints = np.flatnonzero(np.diff(cells, prepend=-2))
        self._ends = np.append(self._starts[1:], cells.size)
        self._cell_wide = tuple(part for part in surveyed.parts if part.weigher.cell_wide)
        self._differs_by_host = any(part.multiplier is None for part in self._cell_wide)  # multipliers of aggregates do
        self._by_cell = self._weights_by_cell(self.rows)
        self._steps = [self._now - self._by_cell]
        self._tops = self._best_of_each()

    def _best_of(self, surveyed: Survey, enough: int) -> tuple[Ints, Floats]:
        rows = surveyed.passing_rows
        cells = np.flatnonzero(np.bincount(self._table.cell[rows])).tolist()
        if len(cells) * enough >= rows.size:
            return rows, surveyed.passing_scores.copy()
        rows, scores = map(np.concatenate, zip(*(surveyed.best_of_cell(cell, enough) for cell in cells), strict=True))
        order = np.argsort(rows)
        return rows[order], scores[order]

    def _best_of_each(self) -> Floats:
        return np.maximum.reduceat(self._now, self._starts) if self.rows.size else self._now

    def _first_position(self) -> int:
        best: int | None = None
        for cell in np.flatnonzero(self._tops == self._tops.max()).tolist():
            start = self._starts.item(cell)
            position = start + int(self._now[start : self._ends.item(cell)].argmax())
            if best is None or self.rows[position] < self.rows[best]:  # of equals the first in the table
                best = position
        return best or 0

    def _enter_scores(self, positions: int | Ints, scores: float | Floats) -> None:
        super()._enter_scores(positions, scores + self._by_cell[positions])

    def advance_position(self, position: int) -> None:
        super().advance_position(position)
        cell = int(self._starts.searchsorted(position, "right")) - 1
        cell_slice = slice(self._starts.item(cell), self._ends.item(cell))
        positions = cell_slice if self._differs_by_host else slice(position, position + 1)
        change = self._weights_by_cell(self.rows[positions]) - self._by_cell[positions]
        self._by_cell[cell_slice] += change
        self._now[cell_slice] += change
        if self._by_host:
            self._tops = self._best_of_each()
        else:
            self._tops[cell] = self._now[cell_slice].max()

    def _weights_by_cell(self, rows: Ints) -> Floats:
        """What the cell-wide weighers add to the scores of these rows, as the table is now."""
        hosts, weights = Hosts(self._table, self._request, rows), np.zeros(rows.size)
        for part in self._cell_wide:
            raw = part.weigher.weigh(hosts, self._request)
            if raw is not None:
                weights = part.add_scores(weights, hosts, raw)
        return weights


def _asked_one_by_one(one: Filter, hosts: Hosts, request: Request, mask: Mask) -> Mask | None:
    remaining = np.flatnonzero(mask)
    rows = remaining if hosts.rows is None else hosts.rows[remaining]
    more = hosts.more if isinstance(hosts.more, int) else hosts.more[remaining]
    answers = one.passes(Hosts(hosts.table, request, rows, more), request)
    if answers is None:
        return None
    passed = np.zeros(mask.size, dtype=np.bool_)
    passed[remaining] = answers
    return passed
