"""Epochs: one number per kind of row that processes cache. Every transaction that changes such a row raises it."""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping

import sqlalchemy as sa

from db.api.rows.tables import epochs
from db.sql import dialect
from db.sql.connection import ApiTransaction


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


class Superseded(Exception):
    """Rows that a request was judged by have changed since they were read. Judge it by the new ones, then retry."""


JUDGING = (Epoch.FLAVORS, Epoch.AGGREGATES, Epoch.GROUPS, Epoch.NETWORKS, Epoch.QUOTAS)
"""Of what an API process judges boots by."""

_BUMP = sa.update(epochs).where(epochs.c.name == sa.bindparam("kind")).values(epoch=epochs.c.epoch + 1)
_READ = sa.select(epochs.c.name, epochs.c.epoch)
_HOLD = (
    sa.select(epochs.c.name).where(epochs.c.name.in_(dialect.uuids_parameter("names"))).order_by(epochs.c.name).with_for_update()
)
_TOTAL = sa.select(sa.func.coalesce(sa.func.sum(epochs.c.epoch), 0)).where(epochs.c.name.in_(list(map(str, JUDGING))))


def bump_epoch(tx: ApiTransaction, name: str) -> None:
    """Raise the epoch, so that processes load their caches again. The epoch's row stays locked until the commit."""
    if tx.execute(_BUMP, {"kind": name}).rowcount == 0:
        dialect.insert_new(tx, epochs, [{"name": name, "epoch": 0}])
        tx.execute(_BUMP, {"kind": name})


def hold_epochs(tx: ApiTransaction, names: Collection[str]) -> None:
    """Lock these epochs, so that nobody else can commit a change of such rows before this transaction ends."""
    tx.execute(_HOLD, {"names": sorted(names)}).all()


def judging_total(label: str) -> sa.Label[int]:
    """A subquery for the sum of the epochs ``JUDGING``. They only rise, so equal sums mean equal epochs."""
    return _TOTAL.scalar_subquery().label(label)


def sum_judging(known: Mapping[str, int]) -> int:
    """The same sum of epochs that were read."""
    return sum(known.get(name, 0) for name in JUDGING)


def read(tx: ApiTransaction) -> dict[str, int]:
    """All epochs in one statement. Read them before the rows that they guard: the next check then sees a change in between."""
    return {row.name: row.epoch for row in tx.execute(_READ)}
