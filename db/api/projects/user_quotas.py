"""Quotas of users inside a project: one row per user that has limits of servers of its own.

``db/api/projects/quotas.py`` writes these rows, and locks the project's row before. That row counts them, so where a project has
none, a charge or a release does not look for any.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from db.api.rows.tables import instance_mappings, server_groups, user_quotas
from db.sql.connection import ApiTransaction
from db.sql.readable import convert_readable, read_one
from objects.quota import RESOURCES, OwnLimits, QuotaUsage, Shares, UserQuota

_C = user_quotas.c
_USED = {name: _C[f"used_{name}"] for name in RESOURCES}
_ONE = sa.and_(_C.project_id == sa.bindparam("project"), _C.user_id == sa.bindparam("user"))
_GET = sa.select(user_quotas).where(_ONE)
_OF_PROJECT = sa.select(user_quotas).where(_C.project_id == sa.bindparam("project")).order_by(_C.user_id)
_ADD = sa.update(user_quotas).where(_ONE).values({column: column + sa.bindparam(f"more_{name}") for name, column in _USED.items()})
_DECIDE = sa.update(user_quotas).where(_ONE).values({_C[f"max_{name}"]: sa.bindparam(f"own_{name}") for name in RESOURCES})
_CORRECT = sa.update(user_quotas).where(_ONE).values({column: sa.bindparam(f"now_{name}") for name, column in _USED.items()})

_M = instance_mappings.c
TAKEN: Mapping[str, sa.ColumnElement[Any]] = {
    "instances": sa.func.coalesce(sa.func.sum(sa.case((_M.hidden == sa.false(), 1), else_=0)), 0),
    "cores": sa.func.coalesce(sa.func.sum(_M.vcpus), 0),
    "ram": sa.func.coalesce(sa.func.sum(_M.memory_mb), 0),
}
"""What mappings that are not deleted come to."""
_COUNT = sa.select(*TAKEN.values()).where(
    _M.project_id == sa.bindparam("project"), _M.user_id == sa.bindparam("user"), _M.deleted == sa.false()
)
_GROUPS = (
    sa.select(sa.func.count())
    .select_from(server_groups)
    .where(server_groups.c.project_id == sa.bindparam("project"), server_groups.c.user_id == sa.bindparam("user"))
)


def get(tx: ApiTransaction, project_id: str, user_id: str) -> UserQuota | None:
    """None for a user without limits of servers of its own."""
    row = tx.execute(_GET, {"project": project_id, "user": user_id}).one_or_none()
    return None if row is None else read_one(row, _quota_from_row, user_quotas)


def of_project(tx: ApiTransaction, project_id: str) -> list[UserQuota]:
    """Those of all such users of a project, by user."""
    return convert_readable(tx.execute(_OF_PROJECT, {"project": project_id}), _quota_from_row, user_quotas)


def list_all(tx: ApiTransaction) -> list[UserQuota]:
    """Those of all projects, by project and user."""
    return convert_readable(tx.execute(sa.select(user_quotas).order_by(_C.project_id, _C.user_id)), _quota_from_row, user_quotas)


def count_usage(tx: ApiTransaction, project_id: str, user_id: str) -> QuotaUsage:
    """The usage by the user's servers. Under the lock of the project's row, in a statement after it, this is what to charge."""
    row = tx.execute(_COUNT, {"project": project_id, "user": user_id}).one()
    return QuotaUsage(**{name: int(value) for name, value in zip(RESOURCES, row, strict=True)})


def count_groups(tx: ApiTransaction, project_id: str, user_id: str) -> int:
    """The number of the user's server groups."""
    return int(tx.execute(_GROUPS, {"project": project_id, "user": user_id}).scalar_one())


def other_limits(tx: ApiTransaction, project_id: str, user_id: str | None = None) -> QuotaUsage:
    """The sums of the limits of the project's users, except this one. A user without a limit takes nothing away."""
    owns = [quota.own for quota in of_project(tx, project_id) if quota.user_id != user_id]
    return QuotaUsage(**{name: sum(max(0, getattr(limits, name) or 0) for limits in owns) for name in RESOURCES})


def add_usage(tx: ApiTransaction, project_id: str, more: Shares) -> list[UserQuota]:
    """Add to the usage of those of these users that have limits; returns their quotas as they are now."""
    quotas: list[UserQuota] = []
    for user_id, usage in sorted(more.items()):
        values = {f"more_{name}": getattr(usage, name) for name in RESOURCES}
        if tx.execute(_ADD, {"project": project_id, "user": user_id} | values).rowcount:
            quotas += filter(None, [get(tx, project_id, user_id)])
    return quotas


def subtract_usage(tx: ApiTransaction, project_id: str, less: Shares) -> None:
    """Subtract from the usage of those of these users that have limits."""
    for user_id, usage in sorted(less.items()):
        values = {f"more_{name}": -getattr(usage, name) for name in RESOURCES}
        tx.execute(_ADD, {"project": project_id, "user": user_id} | values)


def insert_quota(tx: ApiTransaction, quota: UserQuota) -> None:
    limits = {f"max_{name}": getattr(quota.own, name) for name in RESOURCES}
    used = {f"used_{name}": getattr(quota.used, name) for name in RESOURCES}
    tx.execute(sa.insert(user_quotas), {"project_id": quota.project_id, "user_id": quota.user_id} | limits | used)


def store_limits(tx: ApiTransaction, quota: UserQuota) -> None:
    """Write the user's limits."""
    limits = {f"own_{name}": getattr(quota.own, name) for name in RESOURCES}
    tx.execute(_DECIDE, {"project": quota.project_id, "user": quota.user_id} | limits)


def correct_usage(tx: ApiTransaction, quota: UserQuota) -> None:
    """Write the user's usage, which the caller counted under the lock of the project's row."""
    used = {f"now_{name}": getattr(quota.used, name) for name in RESOURCES}
    tx.execute(_CORRECT, {"project": quota.project_id, "user": quota.user_id} | used)


def delete(tx: ApiTransaction, project_id: str, user_id: str) -> None:
    tx.execute(sa.delete(user_quotas).where(_C.project_id == project_id, _C.user_id == user_id))


def delete_all(tx: ApiTransaction, project_id: str) -> None:
    """The same of all users of a project."""
    tx.execute(sa.delete(user_quotas).where(_C.project_id == project_id))


def _quota_from_row(row: sa.Row[Any]) -> UserQuota:
    values = row._mapping
    return UserQuota(
        project_id=row.project_id,
        user_id=row.user_id,
        own=OwnLimits(**{name: values[f"max_{name}"] for name in RESOURCES}),
        used=QuotaUsage(**{name: int(values[f"used_{name}"]) for name in RESOURCES}),
    )
