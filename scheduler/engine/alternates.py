"""Alternates: other hosts of the same cell, so that a retry after a failed build need not call the API level."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Sequence

import numpy as np

from objects.group import GroupPolicy, ServerGroup
from scheduler.engine import engine
from scheduler.engine.criteria import Criteria
from scheduler.engine.survey import Survey
from scheduler.framework.batch_request import Request
from scheduler.table.arrays import Floats, Ints, mix_bits, tally
from scheduler.table.host_table import HostTable

EXTRA_CANDIDATES_PER_CELL = 24
"""Candidates considered per cell beyond those that its instances need."""
NEAR_BEST_SCORE = 1.0
"""Hosts whose score is within this of the best count as equally good. It is the full range of one weigher with multiplier 1."""

Chosen = tuple[str, int]
"""An instance uuid and its row."""
Candidates = tuple[Ints, Floats]
"""Rows of one cell with their scores, best first."""


class Alternates:
    """Finds alternates for one batch that has been placed, while the table shows what the batch takes."""

    def __init__(self, table: HostTable, driver: Criteria, request: Request, surveyed: Survey) -> None:
        self._table, self._driver, self._request, self._surveyed = table, driver, request, surveyed
        self._per_instance = request.spec.max_attempts - 1

    def choose_rows(self, chosen: Sequence[Chosen]) -> dict[str, list[int]]:
        """Choose up to ``max_attempts - 1`` rows for each of ``chosen``, all on other hosts of its cell.

        Alternates fit into what is free after the whole batch is placed, and are not claimed. Instances of one batch get different
        alternates as far as possible. The batch's seed determines the first alternate among the best hosts. So when a host dies,
        its builds do not all retry on the same host.

        Members of an anti-affinity group hold their alternates, so that no two can retry onto one host.
        """
        answer: dict[str, list[int]] = {uuid: [] for uuid, _ in chosen}
        if not self._request.wants_alternates:
            return answer
        by_cell: defaultdict[int, list[Chosen]] = defaultdict(list)
        for uuid, row in chosen:
            by_cell[self._table.cell.item(row)].append((uuid, row))
        candidates = {
            cell: self._surveyed.best_of_cell(cell, self._per_instance * len(members) + EXTRA_CANDIDATES_PER_CELL)
            for cell, members in by_cell.items()
        }
        candidates = self._looked_at_again(candidates, chosen[0][1] if len(chosen) == 1 else None)
        for cell, members in by_cell.items():
            ranked = self._rank_rows(*candidates[cell])
            group = self._request.server_group
            if group is not None and group.policy is GroupPolicy.ANTI_AFFINITY:
                self._hold_alternates(group, members, ranked, answer)
            else:
                for position, (uuid, row) in enumerate(members):
                    answer[uuid] = _pick_rows(self._table, ranked, [row], position * self._per_instance, self._per_instance)
        return answer

    def _hold_alternates(
        self, group: ServerGroup, members: Sequence[Chosen], ranked: Sequence[int], answer: dict[str, list[int]]
    ) -> None:
        """Give each member its alternates, and hold each before the next is chosen.

        Every member gets one before any gets a second.
        """
        full: set[str] = set()
        first = 0  # all of ``ranked`` before it are on hosts that are full
        for _ in range(self._per_instance):
            for uuid, row in members:
                while first < len(ranked) and self._table.hosts[ranked[first]] in full:
                    first += 1
                own_hosts = {self._table.hosts[member_row] for member_row in (row, *answer[uuid])}
                other = self._first_open(ranked, first, full, own_hosts)
                if other is None:
                    continue
                answer[uuid].append(other)
                host = self._table.hosts[other]
                self._request.members.hold_slot(host)
                if len(members) > 1 and self._count_members(other) >= group.max_server_per_host:
                    full.add(host)

    def _count_members(self, row: int) -> int:
        """Members and held slots of the group on the host of the row."""
        return self._request.members.of_rows(self._table.named_rows, np.array([row], np.int64), with_held=True).item(0)

    def _first_open(self, ranked: Sequence[int], first: int, full: Container[str], own_hosts: Container[str]) -> int | None:
        """The first row from position ``first`` on that is on none of these hosts."""
        for position in range(first, len(ranked)):
            host = self._table.hosts[ranked[position]]
            if host not in full and host not in own_hosts:
                return ranked[position]
        return None

    def _looked_at_again(self, candidates: dict[int, Candidates], own_cell: int | None) -> dict[int, Candidates]:
        """The candidates by cell with their scores as they are now, best first, without those that do not fit any more.

        The score of ``own_cell`` stays: the only host of a batch of one is no alternate.
        """
        changed = self._changed_rows()
        if not candidates or changed == {own_cell}:
            return candidates
        rows = np.concatenate([rows for rows, _ in candidates.values()])
        if isinstance(changed, range):
            stale = np.flatnonzero(rows != own_cell)
        else:
            stale = np.array([at for at, row in enumerate(rows.tolist()) if row in changed and row != own_cell], np.int64)
        if not stale.size:
            return candidates
        scores = np.concatenate([scores for _, scores in candidates.values()])
        scores[stale] = engine.score_rows(self._table, self._driver, self._request, self._surveyed.parts, rows[stale])
        cells = np.repeat(np.arange(len(candidates)), [rows.size for rows, _ in candidates.values()])
        order = np.lexsort((-scores, cells))
        order = order[scores[order] > -np.inf]
        rows, scores, ends = rows[order], scores[order], cells[order].searchsorted(np.arange(len(candidates) + 1)).tolist()
        return {cell: (rows[start:end], scores[start:end]) for cell, start, end in zip(candidates, ends, ends[1:], strict=False)}

    def _changed_rows(self) -> Container[int]:
        """The rows of which the scores may have changed since the survey."""
        table, request = self._table, self._request
        if self._driver.cell_wide or not (request.server_group is None or self._driver.chain_for(request).per_host):
            return range(table.size)  # placing an instance changes the scores of other rows
        changed = table.changed_since(self._surveyed.changes)
        if request.server_group is None or isinstance(changed, range):
            return changed
        hosts = request.members.taken_hosts  # other batches of the group may hold some
        return changed.union(*(table.rows_of.get(host, ()) for host in hosts))

    def _rank_rows(self, rows: Ints, scores: Floats) -> list[int]:
        """The rows as good as the best, rotated by the seed, then the others by score."""
        if not rows.size:
            return []
        near = int(tally(scores >= scores[0] - NEAR_BEST_SCORE))
        start = mix_bits(self._request.seed) % near
        ranked: list[int] = rows.tolist()
        return ranked[start:near] + ranked[:start] + ranked[near:]


def _pick_rows(table: HostTable, ranked: list[int], besides: Sequence[int], start: int, count: int) -> list[int]:
    """Up to ``count`` rows from ``start`` on, with wrap-around, each on a different host and none on a host of ``besides``."""
    picked: list[int] = []
    hosts = {table.hosts[row] for row in besides}
    for offset in range(len(ranked)):
        other = ranked[(start + offset) % len(ranked)]
        if table.hosts[other] not in hosts:
            hosts.add(table.hosts[other])
            picked.append(other)
            if len(picked) == count:
                break
    return picked
