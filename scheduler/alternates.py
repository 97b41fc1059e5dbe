"""Other hosts of the same cell, in case a build fails: so that a retry need not ask anyone above the cell."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from objects.group import Policy, ServerGroup
from objects.inventory import Slot
from scheduler import engine
from scheduler.arrays import Ints
from scheduler.drivers.base import Driver
from scheduler.request import Request
from scheduler.table import HostTable

SPARE = 8
"""Hosts looked at beyond those a cell's instances need."""

Chosen = tuple[str, int]
"""An instance uuid and its row."""


class Alternates:
    """Finds alternates for one batch that has been placed and is, for the time being, taken off the table's room."""

    def __init__(self, table: HostTable, driver: Driver, request: Request, found: engine.Survey) -> None:
        self._table, self._driver, self._request, self._found = table, driver, request, found
        self._wanted = request.spec.max_attempts - 1

    def of(self, chosen: Sequence[Chosen]) -> dict[str, list[int]]:
        """Up to ``max_attempts - 1`` rows for each of ``chosen``, best first, all on other hosts of its cell.

        They fit what is left when the whole batch has been placed, and are not claimed. Instances of one batch are given different
        ones as far as there are any. Members of an anti-affinity group hold theirs, so that no two can retry onto one host; members
        of an affinity group have none, because they may not leave the others.
        """
        answer: dict[str, list[int]] = {uuid: [] for uuid, _ in chosen}
        if self._wanted < 1 or self._request.policy is Policy.AFFINITY:
            return answer
        self._request.yielding = False
        by_cell: defaultdict[int, list[Chosen]] = defaultdict(list)
        for uuid, row in chosen:
            by_cell[int(self._table.cell[row])].append((uuid, row))
        for cell, members in by_cell.items():
            candidates = self._best(cell, self._wanted * len(members) + SPARE)
            if self._request.group is not None and self._request.policy is Policy.ANTI_AFFINITY:
                for _ in range(self._wanted):  # one for each before any has two
                    self._hold(self._request.group, members, candidates, answer)
            else:
                ranked = self._ranked(candidates)
                for position, (uuid, row) in enumerate(members):
                    answer[uuid] = _pick(self._table, ranked, [row], position * self._wanted, self._wanted)
        return answer

    def _hold(self, group: ServerGroup, members: Sequence[Chosen], candidates: Ints, answer: dict[str, list[int]]) -> None:
        """One more alternate for each member, held for it before the next one chooses."""
        for uuid, row in members:
            for other in _pick(self._table, self._ranked(candidates), [row, *answer[uuid]], 0, 1):
                answer[uuid].append(other)
                slot = Slot(group_uuid=group.uuid, instance_uuid=uuid, host=self._table.hosts[other], held=True)
                self._request.members.hold(slot)

    def _best(self, cell: int, enough: int) -> Ints:
        rows, scores = self._found.rows, self._found.scores
        mine = np.flatnonzero(self._table.cell[rows] == cell)
        if mine.size > enough:
            mine = mine[np.argpartition(scores[mine], -enough)[-enough:]]
        return rows[mine]

    def _ranked(self, rows: Ints) -> list[int]:
        """The rows that still fit, best first, as the table is now."""
        scores = engine.score(self._table, self._driver, self._request, self._found.parts, rows)
        order = np.argsort(-scores, kind="stable")
        return [int(rows[i]) for i in order if scores[i] > -np.inf]


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
