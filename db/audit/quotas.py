"""What projects are charged for, compared with the servers that they have. Both change in the same transactions, so they agree.

They can differ where somebody else has written, such as an operator by hand.
"""

from __future__ import annotations

from typing import Any

import msgspec
import sqlalchemy as sa

from db.api.projects import quotas, user_quotas
from db.api.projects.user_quotas import TAKEN
from db.api.rows.tables import instance_mappings
from db.api.rows.tables import quotas as quota_rows
from db.api.rows.tables import user_quotas as user_rows
from db.sql.connection import ApiTransaction
from db.sql.readable import convert_readable
from objects.base import Object
from objects.quota import RESOURCES, QuotaUsage


class Drift(Object, frozen=True, kw_only=True):
    """A project that is charged for ``used``, and whose servers that are not deleted come to ``counted``.

    ``user_id``: it is this user in the project; None: the project as a whole.
    """

    project_id: str
    used: QuotaUsage
    counted: QuotaUsage
    user_id: str | None = None


_LIVE = instance_mappings.c.deleted == sa.false()  # MariaDB finds no index for IS
_COUNT = sa.select(*TAKEN.values()).where(instance_mappings.c.project_id == sa.bindparam("project"), _LIVE)


def _select_differences(servers: sa.Select[Any], charged: sa.Table, *owner: str) -> sa.Select[Any]:
    """One statement, as two would see two moments: what is counted and what is charged, one under the other, summed by owner.

    ``servers``: the mappings that count. ``charged``: the rows with the usage. ``owner``: the columns that both have of the owner.
    """
    none: list[sa.ColumnElement[int]] = [sa.literal_column("0")] * len(RESOURCES)
    counted = [TAKEN[name].label(f"counted_{name}") for name in RESOURCES]
    used = [zero.label(f"used_{name}") for zero, name in zip(none, RESOURCES, strict=True)]
    owners = [instance_mappings.c[name] for name in owner]
    taken = servers.with_only_columns(*owners, *counted, *used).where(_LIVE).group_by(*owners)
    paid = sa.select(*(charged.c[name] for name in owner), *none, *(charged.c[f"used_{name}"] for name in RESOURCES))
    both = sa.union_all(taken, paid).subquery()
    sums = {name: sa.func.sum(both.c[name]) for name in both.c.keys() if name not in owner}  # noqa: SIM118 - no dict
    named = [both.c[name] for name in owner]
    return (
        sa.select(*named, *(total.label(name) for name, total in sums.items()))
        .group_by(*named)
        .having(sa.or_(*(sums[f"counted_{name}"] != sums[f"used_{name}"] for name in RESOURCES)))
        .order_by(*named)
    )


_IS_LIMITED = sa.and_(user_rows.c.project_id == instance_mappings.c.project_id, user_rows.c.user_id == instance_mappings.c.user_id)
_OF_PROJECTS = _select_differences(sa.select(instance_mappings), quota_rows, "project_id")
_OF_USERS = _select_differences(
    sa.select(instance_mappings).join_from(instance_mappings, user_rows, _IS_LIMITED), user_rows, "project_id", "user_id"
)


def list_differences(tx: ApiTransaction) -> list[Drift]:
    """Every project that is not charged for what it has, then every such user with limits of its own.

    Work that goes on meanwhile shows as no difference. Reads every mapping that is not deleted.
    """
    return [
        *convert_readable(tx.execute(_OF_PROJECTS), _drift_from_row, quota_rows),
        *convert_readable(tx.execute(_OF_USERS), _drift_from_row, user_rows),
    ]


def _drift_from_row(row: sa.Row[Any]) -> Drift:
    return Drift(
        project_id=row.project_id,
        user_id=row._mapping.get("user_id"),
        used=QuotaUsage(**{name: int(row._mapping[f"used_{name}"]) for name in RESOURCES}),
        counted=QuotaUsage(**{name: int(row._mapping[f"counted_{name}"]) for name in RESOURCES}),
    )


def repair_charges(tx: ApiTransaction, project_id: str) -> list[Drift]:
    """Charge a project and its users for what they have; returns what was wrong. Harmless to repeat, and while work goes on."""
    charged = quotas.lock_project(tx, project_id).used
    # In statements of their own after the lock was taken: the previous holder of the lock has committed by then.
    row = tx.execute(_COUNT, {"project": project_id}).one()
    counted = QuotaUsage(**{name: int(value) for name, value in zip(RESOURCES, row, strict=True)})
    drifts = []
    if counted != charged:
        quotas.correct_usage(tx, project_id, counted)
        drifts.append(Drift(project_id=project_id, used=charged, counted=counted))
    users = user_quotas.of_project(tx, project_id)
    quotas.correct_users(tx, project_id, len(users))
    for user in users:
        counted = user_quotas.count_usage(tx, project_id, user.user_id)
        if counted != user.used:
            user_quotas.correct_usage(tx, msgspec.structs.replace(user, used=counted))
            drifts.append(Drift(project_id=project_id, user_id=user.user_id, used=user.used, counted=counted))
    return drifts
