"""Other hosts of the same cell, in case a build fails: so that a retry need not ask anyone above the cell."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from objects.group import Policy
from objects.inventory import Slot
from scheduler import engine
from scheduler.arrays import Ints
from scheduler.drivers.base import Driver
from scheduler.request import Request
from scheduler.table import HostTable

SPARE = 8
"""Hosts looked at beyond those a cell's instances need."""


def alternates(
    table: HostTable, driver: Driver, request: Request, found: engine.Survey, chosen: Sequence[tuple[str, int]]
) -> dict[str, list[int]]:
    """Up to ``max_attempts - 1`` rows for each ``(instance uuid, row)``, best first, all on other hosts of that row's cell.

    They fit what is left when the whole batch has been placed, and are not claimed. Instances of one batch are given different
    ones as far as there are any. Members of an anti-affinity group hold theirs, so that no two can retry onto one host; members of
    an affinity group have none, because they may not leave the others.
    """
    wanted = request.spec.max_attempts - 1
    if wanted < 1 or request.policy is Policy.AFFINITY:
        return {uuid: [] for uuid, _ in chosen}
    request.yielding = False
    by_cell: defaultdict[int, list[tuple[str, int]]] = defaultdict(list)
    for uuid, row in chosen:
        by_cell[int(table.cell[row])].append((uuid, row))
    answer: dict[str, list[int]] = {}
    for cell, members in by_cell.items():
        candidates = _best(table, found, cell, wanted * len(members) + SPARE)
        ranked = _ranked(table, driver, request, found, candidates)
        held = request.policy is Policy.ANTI_AFFINITY
        for position, (uuid, row) in enumerate(members):
            answer[uuid] = _pick(table, ranked, 0 if held else position * wanted, row, wanted)
            if held and request.group is not None:
                for alternate in answer[uuid]:
                    request.members.hold(
                        Slot(group_uuid=request.group.uuid, instance_uuid=uuid, host=table.hosts[alternate], held=True)
                    )
                ranked = _ranked(table, driver, request, found, candidates)
    return answer


def _best(table: HostTable, found: engine.Survey, cell: int, enough: int) -> Ints:
    mine = np.flatnonzero(table.cell[found.rows] == cell)
    if mine.size > enough:
        mine = mine[np.argpartition(found.scores[mine], -enough)[-enough:]]
    return found.rows[mine]


def _ranked(table: HostTable, driver: Driver, request: Request, found: engine.Survey, rows: Ints) -> list[int]:
    """The rows that still fit, best first, as the table is now."""
    scores = engine.score(table, driver, request, found.parts, rows)
    order = np.argsort(-scores, kind="stable")
    return [int(rows[i]) for i in order if scores[i] > -np.inf]


def _pick(table: HostTable, ranked: list[int], start: int, row: int, wanted: int) -> list[int]:
    """``wanted`` rows from ``start`` on, round and round, each on another host, none on the host of ``row``."""
    picked: list[int] = []
    hosts = {table.hosts[row]}
    for offset in range(len(ranked)):
        other = ranked[(start + offset) % len(ranked)]
        if table.hosts[other] not in hosts:
            hosts.add(table.hosts[other])
            picked.append(other)
            if len(picked) == wanted:
                break
    return picked
