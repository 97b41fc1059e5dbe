"""Other hosts of the same cell, in case a build fails: so that a retry need not ask anyone above the cell."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from objects.group import GroupPolicy, ServerGroup
from scheduler.plan import engine
from scheduler.plan.criteria import Criteria
from scheduler.plan.request import Request
from scheduler.plan.survey import Survey
from scheduler.table.arrays import Floats, Ints, tally
from scheduler.table.host_table import HostTable
from scheduler.table.kernels import mixed

SPARE = 24
"""Hosts looked at beyond those a cell's instances need."""
NEAR = 1.0
"""Hosts whose score is so close to the best count as good as it: the whole opinion of one weigher, at the usual multiplier."""

Chosen = tuple[str, int]
"""An instance uuid and its row."""


class Alternates:
    """Finds alternates for one batch that has been placed and is, for the time being, taken off the table's room."""

    def __init__(self, table: HostTable, driver: Criteria, request: Request, found: Survey) -> None:
        self._table, self._driver, self._request, self._found = table, driver, request, found
        self._wanted = request.spec.max_attempts - 1

    def of(self, chosen: Sequence[Chosen]) -> dict[str, list[int]]:
        """Up to ``max_attempts - 1`` rows for each of ``chosen``, all on other hosts of its cell.

        They fit what is left when the whole batch has been placed, and are not claimed. Instances of one batch are given different
        ones as far as there are any. Where in the row of the best hosts a batch begins follows from its seed: when a host dies, the
        builds it had do not all go to one and the same other. Members of an anti-affinity group hold theirs, so that no two can
        retry onto one host; members of an affinity group have none, because they may not leave the others.
        """
        answer: dict[str, list[int]] = {uuid: [] for uuid, _ in chosen}
        if self._wanted < 1 or self._request.policy is GroupPolicy.AFFINITY:
            return answer
        by_cell: defaultdict[int, list[Chosen]] = defaultdict(list)
        for uuid, row in chosen:
            by_cell[int(self._table.cell[row])].append((uuid, row))
        for cell, members in by_cell.items():
            candidates, scores = self._found.best_of_cell(cell, self._wanted * len(members) + SPARE)
            own = members[0][1] if len(members) == 1 else None
            ranked = self._ranked(candidates, scores, own)
            group = self._request.group
            if group is not None and group.policy is GroupPolicy.ANTI_AFFINITY:
                for _ in range(self._wanted):  # one for each before any has two
                    self._hold(group, members, ranked, answer)
            else:
                for position, (uuid, row) in enumerate(members):
                    answer[uuid] = _pick(self._table, ranked, [row], position * self._wanted, self._wanted)
        return answer

    def _hold(self, group: ServerGroup, members: Sequence[Chosen], ranked: list[int], answer: dict[str, list[int]]) -> None:
        """One more alternate for each member, held for it before the next one chooses. Hosts that are full leave ``ranked``."""
        for uuid, row in members:
            for other in _pick(self._table, ranked, [row, *answer[uuid]], 0, 1):
                answer[uuid].append(other)
                host = self._table.hosts[other]
                self._request.members.hold(host)
                if self._request.members.counts(with_held=True).get(host.lower(), 0) >= group.max_server_per_host:
                    ranked[:] = [each for each in ranked if self._table.hosts[each] != host]

    def _ranked(self, rows: Ints, scores: Floats, own: int | None = None) -> list[int]:
        """The rows that still fit, as the table is now: those as good as the best from where the seed says, then the others.

        Looked at again are those that have changed since the survey, but not ``own``, which nobody is going to pick.
        """
        if self._request.group is not None or self._driver.cell_wide:  # where one goes bears on others
            stale = list(range(rows.size))
        else:
            changed = self._table.changed_since(self._found.changes)
            some = changed != {own}
            stale = [position for position, row in enumerate(rows.tolist()) if row in changed and row != own] if some else []
        if stale:
            scores = scores.copy()
            scores[stale] = engine.score(self._table, self._driver, self._request, self._found.parts, rows[stale])
            order = np.argsort(-scores, kind="stable")[: tally(scores > -np.inf)]
            rows, scores = rows[order], scores[order]
        if not rows.size:
            return []
        near = int(tally(scores >= scores[0] - NEAR))
        start = mixed(self._request.seed) % near
        ranked: list[int] = rows.tolist()
        return ranked[start:near] + ranked[:start] + ranked[near:]


def _pick(table: HostTable, ranked: list[int], besides: Sequence[int], start: int, wanted: int) -> list[int]:
    """``wanted`` rows from ``start`` on, round and round, each on another host, none on the hosts of ``besides``."""
    picked: list[int] = []
    hosts = {table.hosts[row] for row in besides}
    for offset in range(len(ranked)):
        other = ranked[(start + offset) % len(ranked)]
        if table.hosts[other] not in hosts:
            hosts.add(table.hosts[other])
            picked.append(other)
            if len(picked) == wanted:
                break
    return picked
