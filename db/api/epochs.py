"""Epochs: one number per kind of row that processes cache. Every transaction that changes such a row raises it."""

from __future__ import annotations

import enum

import sqlalchemy as sa

from db.api.tables import epochs
from db.sql.connection import ApiTransaction
from db.sql.dialect import insert_new


class Epoch(enum.StrEnum):
    """The kinds of rows that have an epoch."""

    CELLS = "cells"
    HOSTS = "hosts"
    FLAVORS = "flavors"
    AGGREGATES = "aggregates"
    GROUPS = "groups"
    NETWORKS = "networks"
    QUOTAS = "quotas"
    FEEDS = "feeds"
    """Feed cursors, when they are set other than by applying the feed."""


_BUMP = sa.update(epochs).where(epochs.c.name == sa.bindparam("kind")).values(epoch=epochs.c.epoch + 1)
_READ = sa.select(epochs.c.name, epochs.c.epoch)


def bump(tx: ApiTransaction, name: str) -> None:
    """Raise the epoch, so that processes load their caches again. The epoch's row stays locked until the commit."""
    if tx.execute(_BUMP, {"kind": name}).rowcount == 0:
        insert_new(tx, epochs, [{"name": name, "epoch": 0}])
        tx.execute(_BUMP, {"kind": name})


def read(tx: ApiTransaction) -> dict[str, int]:
    """All epochs in one statement. Read them before the rows that they guard: the next check then sees a change in between."""
    return {row.name: row.epoch for row in tx.execute(_READ)}
