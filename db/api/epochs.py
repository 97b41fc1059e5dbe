"""One number per kind of thing that processes cache; it rises in the transaction of every change."""

from __future__ import annotations

import enum

import sqlalchemy as sa

from db.api.tables import epochs
from db.sql.connection import ApiTransaction
from db.sql.dialect import insert_new


class Epoch(enum.StrEnum):
    """The kinds."""

    CELLS = "cells"
    HOSTS = "hosts"
    FLAVORS = "flavors"
    AGGREGATES = "aggregates"
    GROUPS = "groups"
    FEEDS = "feeds"
    """Positions in the cells' feeds that were set otherwise than by applying them."""


_BUMP = sa.update(epochs).where(epochs.c.name == sa.bindparam("kind")).values(epoch=epochs.c.epoch + 1)
_READ = sa.select(epochs.c.name, epochs.c.epoch)


def bump(tx: ApiTransaction, name: str) -> None:
    """Tell every process that caches this kind, when the transaction commits. Until then the epoch's row is locked for others."""
    if tx.execute(_BUMP, {"kind": name}).rowcount == 0:
        insert_new(tx, epochs, [{"name": name, "epoch": 0}])
        tx.execute(_BUMP, {"kind": name})


def read(tx: ApiTransaction) -> dict[str, int]:
    """All epochs in one statement. Read them before what they guard: then a change that comes between is seen the next time."""
    return {row.name: row.epoch for row in tx.execute(_READ)}
