"""Quotas: one row per project with its limits and usage. A transaction that adds or deletes servers of the project locks it.

At every commit the usage is the sum over the project's instance mappings that are not deleted: the transaction that inserts such a
mapping, or marks one deleted, also changes the usage. It does not depend on reports from cells. The same holds of the rows of users
with limits of their own (``db/api/projects/user_quotas.py``), whose number is in the project's row.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import msgspec
import sqlalchemy as sa

from db.api.projects import user_quotas
from db.api.rows import epochs
from db.api.rows.tables import quotas, server_groups
from db.sql.connection import ApiTransaction
from db.sql.dialect import Upsert
from db.sql.galera import compare_locks
from db.sql.readable import convert_readable, read_one
from objects import errors
from objects.quota import (
    OF_USER,
    RESOURCES,
    UNLIMITED,
    Admission,
    OwnLimits,
    Quota,
    QuotaLimits,
    QuotaUsage,
    Shares,
    UserQuota,
    admit_servers,
    check_limit,
    refuse_growth,
    refuse_user_growth,
)
from objects.spec import RequestSpec

_USED = {name: quotas.c[f"used_{name}"] for name in RESOURCES}
_MAX = {name: quotas.c[f"max_{name}"] for name in RESOURCES}

_CHARGE = Upsert(
    quotas,
    key=["project_id"],
    computed={column.name: column + sa.bindparam(f"more_{name}") for name, column in _USED.items()},
    beside=[epochs.judging_total("judging")],
)
_RELEASE = (
    sa.update(quotas)
    .where(quotas.c.project_id == sa.bindparam("project"))
    .values({column: column - sa.bindparam(f"less_{name}") for name, column in _USED.items()})
)
_RELEASE_UNSHARED = _RELEASE.where(quotas.c.limited_users == 0)
_LIMITED = (
    sa.update(quotas)
    .where(quotas.c.project_id == sa.bindparam("project"))
    .values(limited_users=quotas.c.limited_users + sa.bindparam("change"))
)
_COUNTED = sa.update(quotas).where(quotas.c.project_id == sa.bindparam("project")).values(limited_users=sa.bindparam("users"))
_DECIDE = (
    sa.update(quotas)
    .where(quotas.c.project_id == sa.bindparam("project"))
    .values({column: sa.bindparam(f"own_{name}") for name, column in _MAX.items()})
)
_PROJECTS = sa.select(quotas.c.project_id)
_GET = sa.select(quotas).where(quotas.c.project_id == sa.bindparam("project"))


def charge_project(tx: ApiTransaction, spec: RequestSpec, count: int, admission: Admission) -> int:
    """Charge the project for ``count`` servers of the batch, or for fewer if the admission allows that; return how many.

    A project without a row, whose default limits are too low anyway, is refused without inserting a row: if many transactions
    insert one row and all roll back, MariaDB deadlocks, because each that waited for the row locks the gap it left.
    This locks the project's row, so the second of two transactions sees the usage of the first. Raises errors.OverQuota, and
    epochs.Superseded if the batch was judged by rows that have changed; the caller must then roll back.
    """
    try:
        admit_servers(Quota(project_id=spec.project_id), spec.flavor, count, admission)
    except errors.OverQuota:
        if tx.execute(_GET, {"project": spec.project_id}).one_or_none() is None:
            raise
    more = QuotaUsage.of_flavor(spec.flavor, count)
    quota = _add_to_project(tx, spec.project_id, more, (admission.judged_by,))
    users = user_quotas.add_usage(tx, spec.project_id, {spec.user_id: more}) if quota.limited_users else []
    user = (
        UserQuota(project_id=spec.project_id, user_id=spec.user_id, own=users[0].own, used=_subtract_usage(users[0].used, more))
        if users
        else None
    )
    before = Quota(project_id=spec.project_id, own=quota.own, used=_subtract_usage(quota.used, more))
    admitted = admit_servers(before, spec.flavor, count, admission, user)
    if admitted < count:
        release_usage(tx, spec.project_id, {spec.user_id: QuotaUsage.of_flavor(spec.flavor, count - admitted)})
    return admitted


def admitted_count(tx: ApiTransaction, spec: RequestSpec, count: int, admission: Admission) -> int:
    """What ``charge_project`` would return, without a charge and without a lock. Raises errors.OverQuota."""
    quota = get(tx, spec.project_id)
    user = user_quotas.get(tx, spec.project_id, spec.user_id) if quota.limited_users else None
    return admit_servers(quota, spec.flavor, count, admission, user)


def charge_all(
    tx: ApiTransaction, project_id: str, more: Shares, defaults: QuotaLimits, judged_by: Collection[int | None] = ()
) -> None:
    """Charge the project for several batches at once, if the quotas have room for all of them.

    ``judged_by``: of the batches. Raises errors.OverQuota if there is no room, or may be none, and epochs.Superseded as
    ``charge_project`` does; the caller must then roll back.
    """
    total = QuotaUsage.sum_of(more.values())
    _refuse_beyond(OwnLimits().over_defaults(defaults), total, total)  # before inserting, as in ``charge_project``
    quota = _add_to_project(tx, project_id, total, judged_by)
    _refuse_beyond(quota.own.over_defaults(defaults), quota.used, total)
    for user in user_quotas.add_usage(tx, project_id, more) if quota.limited_users else ():
        _refuse_beyond(user.own.over_defaults(QuotaLimits()), user.used, more[user.user_id], OF_USER)


def charge_more(tx: ApiTransaction, project_id: str, more: Shares, defaults: QuotaLimits) -> None:
    """Charge the project for servers that grow. Raises errors.OverQuota; the caller must then roll back."""
    quota = lock_project(tx, project_id)
    refuse_growth(quota, QuotaUsage.sum_of(more.values()), defaults)
    for user_id, usage in more.items() if quota.limited_users else ():
        if (user := user_quotas.get(tx, project_id, user_id)) is not None:
            refuse_user_growth(user, usage)
    add_usage(tx, project_id, more)


def _refuse_beyond(limits: QuotaLimits, used: QuotaUsage, more: QuotaUsage, whose: str = "") -> None:
    for name in RESOURCES:
        limit = getattr(limits, name)
        if limit != UNLIMITED and getattr(more, name) and getattr(used, name) > limit:
            raise errors.OverQuota(f"Quota exceeded for {name}{whose}: several batches accepted together exceed it")


def release_usage(tx: ApiTransaction, project_id: str, less: Shares) -> None:
    """Subtract from the usage of the project and its users.

    While no user of the project has limits, this is one statement: its guard on ``limited_users`` holds.
    """
    values = {"project": project_id} | _prefixed_amounts("less", QuotaUsage.sum_of(less.values()))
    if tx.execute(_RELEASE_UNSHARED, values).rowcount == 0:
        tx.execute(_RELEASE, values)
        user_quotas.subtract_usage(tx, project_id, less)


def add_usage(tx: ApiTransaction, project_id: str, more: Shares) -> None:
    """Add to the usage of the project and its users, ignoring their limits, because these servers exist."""
    if _add_to_project(tx, project_id, QuotaUsage.sum_of(more.values())).limited_users:
        user_quotas.add_usage(tx, project_id, more)


def _add_to_project(tx: ApiTransaction, project_id: str, more: QuotaUsage, judged_by: Collection[int | None] = ()) -> Quota:
    """Add to the usage of the project only; returns the quota as it is now. Raises epochs.Superseded."""
    row = _CHARGE.upsert_one(tx, {"project_id": project_id} | _prefixed_amounts("used", more) | _prefixed_amounts("more", more))
    if any(known not in (None, row.judging) for known in judged_by):
        raise epochs.Superseded
    return read_one(row, _quota_from_row, quotas)


def _subtract_usage(used: QuotaUsage, less: QuotaUsage) -> QuotaUsage:
    return QuotaUsage(**{name: getattr(used, name) - getattr(less, name) for name in RESOURCES})


def get(tx: ApiTransaction, project_id: str) -> Quota:
    """The project's quota. An unknown project has no limits of its own and no usage."""
    row = tx.execute(_GET, {"project": project_id}).one_or_none()
    return Quota(project_id=project_id) if row is None else read_one(row, _quota_from_row, quotas)


def read_usage(tx: ApiTransaction, project_id: str) -> tuple[Quota, int]:
    """The project's quota, and its number of server groups."""
    groups = sa.select(sa.func.count()).select_from(server_groups).where(server_groups.c.project_id == project_id)
    return get(tx, project_id), tx.execute(groups).scalar_one()


def list_all(tx: ApiTransaction) -> list[Quota]:
    """The quotas of all projects that have a row, by project id. Limits of its own or a first server give a project a row."""
    return convert_readable(tx.execute(sa.select(quotas).order_by(quotas.c.project_id)), _quota_from_row, quotas)


def list_projects(tx: ApiTransaction) -> list[str]:
    """The projects that have had servers, or limits."""
    return list(tx.execute(_PROJECTS).scalars())


def lock_project(tx: ApiTransaction, project_id: str) -> Quota:
    """Lock the project's row, inserting it if needed: until this transaction ends nobody adds or deletes servers of the project."""
    return _add_to_project(tx, project_id, QuotaUsage())


def change_limits(tx: ApiTransaction, project_id: str, changes: OwnLimits, *, force: bool = False) -> Quota:
    """Set a project's own limits; None in ``changes`` keeps a limit. Returns the new quota.

    ``force``: allow a limit below the usage, or below the sum of the limits of its users; the project then gets no more until its
    usage is lower. Raises errors.Invalid for such a limit without ``force``.
    """
    quota = lock_project(tx, project_id)
    of_users = user_quotas.other_limits(tx, project_id) if quota.limited_users and not force else QuotaUsage()
    for name in RESOURCES:
        limit = getattr(changes, name)
        if limit is not None and not force:
            check_limit(name, limit, max(getattr(quota.used, name), getattr(of_users, name)))
    return _store_limits(tx, quota, _merge_limits(quota.own, changes))


def forget_limits(tx: ApiTransaction, project_id: str, names: Collection[str] = RESOURCES) -> Quota:
    """Remove a project's own limits of these resources, so that the defaults apply again. Returns the new quota."""
    quota = lock_project(tx, project_id)
    return _store_limits(tx, quota, _limits_without(quota.own, names))


def _merge_limits(limits: OwnLimits, changes: OwnLimits) -> OwnLimits:
    return OwnLimits(**{name: getattr(limits if getattr(changes, name) is None else changes, name) for name in RESOURCES})


def _limits_without(limits: OwnLimits, names: Collection[str]) -> OwnLimits:
    return OwnLimits(**{name: None if name in names else getattr(limits, name) for name in RESOURCES})


# -- users -----------------------------------------------------------------------------------------------------------------------


def of_user(tx: ApiTransaction, project_id: str, user_id: str) -> tuple[Quota, UserQuota, int]:
    """The project's quota, the user's in it with the usage, and the number of the user's server groups."""
    user = user_quotas.get(tx, project_id, user_id)
    if user is None:
        user = UserQuota(project_id=project_id, user_id=user_id, used=user_quotas.count_usage(tx, project_id, user_id))
    return get(tx, project_id), user, user_quotas.count_groups(tx, project_id, user_id)


def change_user(
    tx: ApiTransaction, project_id: str, user_id: str, changes: OwnLimits, defaults: QuotaLimits, *, force: bool = False
) -> tuple[Quota, UserQuota]:
    """Set limits of a user in a project; None in ``changes`` keeps a limit. Returns the project's quota and the user's new one.

    ``defaults``: of projects. ``force``: allow a limit below the user's usage, or above what the project's limit leaves beside
    those of its other users. Raises errors.Invalid for such a limit without ``force``.
    """
    quota = lock_project(tx, project_id)
    compare_locks(tx, "quota", [project_id])  # whoever changes another user's limits may leave the row as it is
    before = user_quotas.get(tx, project_id, user_id)
    user = before or UserQuota(project_id=project_id, user_id=user_id, used=user_quotas.count_usage(tx, project_id, user_id))
    others, limits = user_quotas.other_limits(tx, project_id, user_id), quota.own.over_defaults(defaults)
    for name in RESOURCES:
        limit, most = getattr(changes, name), getattr(limits, name)
        if limit is not None and not force:
            available = most if most == UNLIMITED else max(0, most - getattr(others, name))
            check_limit(name, limit, getattr(user.used, name), available)
    changed = msgspec.structs.replace(user, own=_merge_limits(user.own, changes))
    if before is not None:
        user_quotas.store_limits(tx, changed)
    elif changes != OwnLimits():
        user_quotas.insert_quota(tx, changed)
        tx.execute(_LIMITED, {"project": project_id, "change": 1})
    return quota, changed


def forget_user(tx: ApiTransaction, project_id: str, user_id: str, names: Collection[str] = RESOURCES) -> None:
    """Remove a user's limits of these resources, so that only the project's apply."""
    lock_project(tx, project_id)
    user = user_quotas.get(tx, project_id, user_id)
    if user is None:
        return
    limits = _limits_without(user.own, names)
    if limits != OwnLimits():
        user_quotas.store_limits(tx, msgspec.structs.replace(user, own=limits))
    else:
        user_quotas.delete(tx, project_id, user_id)
        tx.execute(_LIMITED, {"project": project_id, "change": -1})


def forget_users(tx: ApiTransaction, project_id: str) -> None:
    """The same of all users of the project."""
    if lock_project(tx, project_id).limited_users:
        user_quotas.delete_all(tx, project_id)
        correct_users(tx, project_id, 0)


def _store_limits(tx: ApiTransaction, quota: Quota, limits: OwnLimits) -> Quota:
    tx.execute(_DECIDE, {"project": quota.project_id} | _prefixed_amounts("own", limits))
    return msgspec.structs.replace(quota, own=limits)


def correct_usage(tx: ApiTransaction, project_id: str, used: QuotaUsage) -> None:
    """Set the project's usage to ``used``, which the caller counted under ``lock_project``."""
    tx.execute(sa.update(quotas).where(quotas.c.project_id == project_id).values(_prefixed_amounts("used", used)))


def correct_users(tx: ApiTransaction, project_id: str, users: int) -> None:
    """Set the number of users with limits of their own."""
    tx.execute(_COUNTED, {"project": project_id, "users": users})


def _prefixed_amounts(prefix: str, amounts: QuotaUsage | OwnLimits) -> dict[str, Any]:
    return {f"{prefix}_{name}": getattr(amounts, name) for name in RESOURCES}


def _quota_from_row(row: sa.Row[Any]) -> Quota:
    values = row._mapping
    return Quota(
        project_id=row.project_id,
        own=OwnLimits(**{name: values[f"max_{name}"] for name in RESOURCES}),
        used=QuotaUsage(**{name: int(values[f"used_{name}"]) for name in RESOURCES}),
        limited_users=row.limited_users,
    )
