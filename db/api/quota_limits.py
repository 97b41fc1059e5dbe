"""Limits that administrators have set: further ones of a project (``db/api/quotas.py`` has those of servers), and the defaults."""

from __future__ import annotations

from collections.abc import Mapping

import sqlalchemy as sa

from db.api import epochs
from db.api.epochs import Epoch
from db.api.tables import quota_limits
from db.sql.connection import ApiTransaction
from objects.base import Object

_C = quota_limits.c
DEFAULTS = ""
"""In place of a project: its rows are the default class, which replaces the configured limits."""


class OverriddenLimits(Object, frozen=True, kw_only=True):
    """Limits by name: of the default class, and further ones by project."""

    defaults: dict[str, int]
    projects: dict[str, dict[str, int]]


def read(tx: ApiTransaction) -> OverriddenLimits:
    """All limits that were set."""
    found: dict[str, dict[str, int]] = {}
    for row in tx.execute(sa.select(quota_limits)):
        found.setdefault(row.project_id, {})[row.name] = int(row.value)
    return OverriddenLimits(defaults=found.pop(DEFAULTS, {}), projects=found)


def of(tx: ApiTransaction, project_id: str) -> dict[str, int]:
    """The limits that were set for one project, or with DEFAULTS for all."""
    return {row.name: int(row.value) for row in tx.execute(sa.select(quota_limits).where(_C.project_id == project_id))}


def change(tx: ApiTransaction, project_id: str, limits: Mapping[str, int]) -> None:
    """Set limits; those that are not named stay."""
    if not limits:
        return
    epochs.bump(tx, Epoch.QUOTAS)  # first: it locks the epoch's row, so that one change waits for the other
    tx.execute(sa.delete(quota_limits).where(_C.project_id == project_id, _C.name.in_(sorted(limits))))
    tx.execute(
        sa.insert(quota_limits), [{"project_id": project_id, "name": name, "value": limits[name]} for name in sorted(limits)]
    )


def forget(tx: ApiTransaction, project_id: str) -> None:
    """Give the project the defaults again."""
    epochs.bump(tx, Epoch.QUOTAS)
    tx.execute(sa.delete(quota_limits).where(_C.project_id == project_id))
