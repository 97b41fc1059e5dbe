"""Repair instance rows of a cell: write them to the feed again, or replace a lost row."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import msgspec

from db.cell import instances, rebuild, staging
from db.sql.connection import CellTransaction
from objects import lifecycle
from objects.base import Object
from objects.feed import EventKind
from objects.instance import Instance
from objects.lifecycle import Change, Outcome, Refused
from objects.spec import RequestSpec


class Read(Object, frozen=True, kw_only=True):
    """The row's version when it was looked at, and the last version that the API level had applied."""

    version: int
    seen: int


def retell_rows(tx: CellTransaction, read_by_uuid: Mapping[str, Read], now: float) -> list[str]:
    """Let the feed tell the state of these rows once more, under versions that the API level has not seen.

    A row that has changed since it was read is left alone: its own event is on the way. Returns the others.
    """
    faults = {row.uuid: row.fault for row in instances.read(tx, read_by_uuid)}
    versions = {uuid: read.version for uuid, read in read_by_uuid.items()}

    def decide_retold(row: Instance, kind: EventKind) -> Outcome:
        """With the fault, which a locked row comes without: the event carries it."""
        if kind not in rebuild.KINDS.get(row.state, ()):
            return Refused(reason=str(row.state))
        row = msgspec.structs.replace(row, fault=faults.get(row.uuid))
        return lifecycle.retell_row(row, versions[row.uuid], read_by_uuid[row.uuid].seen, kind)

    repeated: set[str] = set()
    for kind in (EventKind.MOVED, EventKind.ACTIVE, EventKind.ENDED):  # in this order a claim ends up where the row is
        for uuid, outcome in instances.transition_rows(tx, read_by_uuid, partial(decide_retold, kind=kind), now).items():
            if isinstance(outcome, Change):
                versions[uuid] = outcome.row.version
                repeated.add(uuid)
    return sorted(repeated)


def replace_lost(tx: CellTransaction, spec: RequestSpec, new: staging.NewInstance, seen: int, now: float) -> bool:
    """Write an ERROR row where a server has none, and tell the feed; False if there is one after all."""
    if not staging.replace_lost(tx, spec, new, now):
        return False
    return bool(retell_rows(tx, {new.instance.uuid: Read(version=0, seen=seen)}, now))
