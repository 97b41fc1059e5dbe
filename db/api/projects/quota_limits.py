"""Limits that administrators have set, beside those of servers (``db/api/projects/quotas.py``): of projects and users, and the
defaults.
"""

from __future__ import annotations

from collections.abc import Mapping

import sqlalchemy as sa

from db.api.rows import epochs
from db.api.rows.epochs import Epoch
from db.api.rows.tables import quota_limits, user_quota_limits
from db.sql.connection import ApiTransaction
from db.sql.readable import sound_rows
from objects.base import Object

_C, _U = quota_limits.c, user_quota_limits.c
DEFAULTS = ""
"""In place of a project: its rows are the default class, which replaces the configured limits."""


class OverriddenLimits(Object, frozen=True, kw_only=True):
    """Limits by name: of the default class, and further ones by project, and by project and user."""

    defaults: dict[str, int]
    projects: dict[str, dict[str, int]]
    users: dict[tuple[str, str], dict[str, int]]


def read(tx: ApiTransaction) -> OverriddenLimits:
    """All limits that were set."""
    limits_by_project: dict[str, dict[str, int]] = {}
    for row in sound_rows(tx.execute(sa.select(quota_limits)), quota_limits):
        limits_by_project.setdefault(row.project_id, {})[row.name] = row.value
    users: dict[tuple[str, str], dict[str, int]] = {}
    for row in sound_rows(tx.execute(sa.select(user_quota_limits)), user_quota_limits):
        users.setdefault((row.project_id, row.user_id), {})[row.name] = row.value
    return OverriddenLimits(defaults=limits_by_project.pop(DEFAULTS, {}), projects=limits_by_project, users=users)


def limits_of(tx: ApiTransaction, project_id: str) -> dict[str, int]:
    """The limits that were set for one project, or with DEFAULTS for all."""
    rows = tx.execute(sa.select(quota_limits).where(_C.project_id == project_id))
    return {row.name: row.value for row in sound_rows(rows, quota_limits)}


def change_limits(tx: ApiTransaction, project_id: str, limits: Mapping[str, int]) -> None:
    """Set limits; those that are not named stay."""
    if not limits:
        return
    epochs.bump_epoch(tx, Epoch.QUOTAS)  # first: it locks the epoch's row, so that one change waits for the other
    tx.execute(sa.delete(quota_limits).where(_C.project_id == project_id, _C.name.in_(sorted(limits))))
    tx.execute(
        sa.insert(quota_limits), [{"project_id": project_id, "name": name, "value": limits[name]} for name in sorted(limits)]
    )


def forget_limits(tx: ApiTransaction, project_id: str) -> None:
    """Give the project the defaults again."""
    epochs.bump_epoch(tx, Epoch.QUOTAS)
    tx.execute(sa.delete(quota_limits).where(_C.project_id == project_id))


def of_user(tx: ApiTransaction, project_id: str, user_id: str) -> dict[str, int]:
    """The limits that were set for a user in a project."""
    query = sa.select(user_quota_limits).where(_U.project_id == project_id, _U.user_id == user_id)
    return {row.name: row.value for row in sound_rows(tx.execute(query), user_quota_limits)}


def other_limits(tx: ApiTransaction, project_id: str, user_id: str | None = None) -> dict[str, int]:
    """The sums of the limits of the project's users, except this one."""
    sums: dict[str, int] = {}
    for row in sound_rows(tx.execute(sa.select(user_quota_limits).where(_U.project_id == project_id)), user_quota_limits):
        if row.user_id != user_id:
            sums[row.name] = sums.get(row.name, 0) + max(0, row.value)
    return sums


def change_user(tx: ApiTransaction, project_id: str, user_id: str, limits: Mapping[str, int]) -> None:
    """Set limits of a user in a project; those that are not named stay."""
    if not limits:
        return
    epochs.bump_epoch(tx, Epoch.QUOTAS)
    named = sorted(limits)
    tx.execute(sa.delete(user_quota_limits).where(_U.project_id == project_id, _U.user_id == user_id, _U.name.in_(named)))
    tx.execute(
        sa.insert(user_quota_limits),
        [{"project_id": project_id, "user_id": user_id, "name": name, "value": limits[name]} for name in named],
    )


def forget_users(tx: ApiTransaction, project_id: str, user_id: str | None = None) -> None:
    """Leave a user of the project, or all of them, only the project's limits."""
    epochs.bump_epoch(tx, Epoch.QUOTAS)
    statement = sa.delete(user_quota_limits).where(_U.project_id == project_id)
    tx.execute(statement if user_id is None else statement.where(_U.user_id == user_id))
