"""Quotas: one row per project with its limits and usage. A transaction that adds or deletes servers of the project locks it.

At every commit the usage is the sum over the project's instance mappings that are not deleted: the transaction that inserts such a
mapping, or marks one deleted, also changes the usage. It does not depend on reports from cells.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import sqlalchemy as sa

from db.api.tables import quotas, server_groups
from db.sql.connection import ApiTransaction
from db.sql.dialect import Upsert
from objects import errors
from objects.quota import RESOURCES, UNLIMITED, Admission, OwnLimits, Quota, QuotaLimits, QuotaUsage, admit, refuse_growth
from objects.spec import RequestSpec

_USED = {name: quotas.c[f"used_{name}"] for name in RESOURCES}
_MAX = {name: quotas.c[f"max_{name}"] for name in RESOURCES}

_CHARGE = Upsert(
    quotas, key=["project_id"], computed={column.name: column + sa.bindparam(f"more_{name}") for name, column in _USED.items()}
)
_RELEASE = (
    sa.update(quotas)
    .where(quotas.c.project_id == sa.bindparam("project"))
    .values({column: column - sa.bindparam(f"less_{name}") for name, column in _USED.items()})
)
_DECIDE = (
    sa.update(quotas)
    .where(quotas.c.project_id == sa.bindparam("project"))
    .values({column: sa.bindparam(f"own_{name}") for name, column in _MAX.items()})
)
_GET = sa.select(quotas).where(quotas.c.project_id == sa.bindparam("project"))


def charge(tx: ApiTransaction, spec: RequestSpec, wanted: int, admission: Admission) -> int:
    """Charge the project for ``wanted`` servers of the batch, or for fewer if the admission allows that; return how many.

    This locks the project's row, so the second of two transactions sees the usage of the first. Raises errors.OverQuota; the caller
    must then roll back.
    """
    _refuse_if_unknown(tx, spec, wanted, admission)
    more = QuotaUsage.of(spec.flavor, wanted)
    row = {"project_id": spec.project_id} | _named("used", more) | _named("more", more)
    quota = _quota(_CHARGE.one(tx, row))
    before = QuotaUsage(**{name: getattr(quota.used, name) - getattr(more, name) for name in RESOURCES})
    admitted = admit(Quota(project_id=spec.project_id, own=quota.own, used=before), spec.flavor, wanted, admission)
    if admitted < wanted:
        release(tx, spec.project_id, QuotaUsage.of(spec.flavor, wanted - admitted))
    return admitted


def admitted(tx: ApiTransaction, spec: RequestSpec, wanted: int, admission: Admission) -> int:
    """What ``charge`` would return, without a charge and without a lock. Raises errors.OverQuota."""
    return admit(get(tx, spec.project_id), spec.flavor, wanted, admission)


def charge_all(tx: ApiTransaction, project_id: str, more: Sequence[QuotaUsage], defaults: QuotaLimits) -> None:
    """Charge the project for several batches at once, if the quota has room for all of them.

    Raises errors.OverQuota if it has not, or may not have; the caller must then roll back.
    """
    total = QuotaUsage(**{name: sum(getattr(usage, name) for usage in more) for name in RESOURCES})
    _refuse_beyond(Quota(project_id=project_id, used=total), total, defaults)  # before inserting, as in ``_refuse_if_unknown``
    row = {"project_id": project_id} | _named("used", total) | _named("more", total)
    _refuse_beyond(_quota(_CHARGE.one(tx, row)), total, defaults)


def charge_more(tx: ApiTransaction, project_id: str, more: QuotaUsage, defaults: QuotaLimits) -> None:
    """Charge the project for servers that grow. Raises errors.OverQuota; the caller must then roll back."""
    quota = lock(tx, project_id)
    refuse_growth(quota, more, defaults)
    add(tx, project_id, more)


def _refuse_beyond(charged: Quota, more: QuotaUsage, defaults: QuotaLimits) -> None:
    limits = charged.own.over(defaults)
    for name in RESOURCES:
        limit = getattr(limits, name)
        if limit != UNLIMITED and getattr(more, name) and getattr(charged.used, name) > limit:
            raise errors.OverQuota(f"Quota exceeded for {name}: several batches accepted together exceed it")


def _refuse_if_unknown(tx: ApiTransaction, spec: RequestSpec, wanted: int, admission: Admission) -> None:
    """Raise errors.OverQuota, without inserting a row, for a project without a row whose default limits are too low anyway.

    If many transactions insert one row and all roll back, MariaDB deadlocks: each that waited for the row locks the gap it left.
    """
    try:
        admit(Quota(project_id=spec.project_id), spec.flavor, wanted, admission)
    except errors.OverQuota:
        if tx.execute(_GET, {"project": spec.project_id}).one_or_none() is None:
            raise


def release(tx: ApiTransaction, project_id: str, less: QuotaUsage) -> None:
    """Subtract from the project's usage."""
    tx.execute(_RELEASE, {"project": project_id} | _named("less", less))


def add(tx: ApiTransaction, project_id: str, more: QuotaUsage) -> None:
    """Add to the project's usage, ignoring its limits, because these servers exist."""
    _CHARGE.one(tx, {"project_id": project_id} | _named("used", more) | _named("more", more))


def get(tx: ApiTransaction, project_id: str) -> Quota:
    """The project's quota. An unknown project has no limits of its own and no usage."""
    row = tx.execute(_GET, {"project": project_id}).one_or_none()
    return Quota(project_id=project_id) if row is None else _quota(row)


def usage(tx: ApiTransaction, project_id: str) -> tuple[Quota, int]:
    """The project's quota, and its number of server groups."""
    groups = sa.select(sa.func.count()).select_from(server_groups).where(server_groups.c.project_id == project_id)
    return get(tx, project_id), tx.execute(groups).scalar_one()


def list_all(tx: ApiTransaction) -> list[Quota]:
    """The quotas of all projects that have a row, by project id. Limits of its own or a first server give a project a row."""
    return [_quota(row) for row in tx.execute(sa.select(quotas).order_by(quotas.c.project_id))]


def lock(tx: ApiTransaction, project_id: str) -> Quota:
    """Lock the project's row, inserting it if needed: until this transaction ends nobody adds or deletes servers of the project."""
    nothing = QuotaUsage()
    row = {"project_id": project_id} | _named("used", nothing) | _named("more", nothing)
    return _quota(_CHARGE.one(tx, row))


def change(tx: ApiTransaction, project_id: str, changes: OwnLimits, *, force: bool = False) -> Quota:
    """Set a project's own limits; None in ``changes`` keeps a limit. Returns the new quota.

    ``force``: allow a limit below the usage; the project then gets no more until its usage is lower.
    Raises errors.Invalid for a limit below the usage without ``force``.
    """
    quota = lock(tx, project_id)
    for name in RESOURCES:
        limit, used = getattr(changes, name), getattr(quota.used, name)
        if limit is not None and limit != UNLIMITED and limit < used and not force:
            text = f"Quota limit {limit} for {name} must be greater than or equal to already used and reserved {used}."
            raise errors.Invalid(text)
    values = {name: getattr(quota.own if getattr(changes, name) is None else changes, name) for name in RESOURCES}
    return _decide(tx, quota, OwnLimits(**values))


def forget(tx: ApiTransaction, project_id: str, names: Collection[str] = RESOURCES) -> Quota:
    """Remove a project's own limits of these resources, so that the defaults apply again. Returns the new quota."""
    quota = lock(tx, project_id)
    values = {name: None if name in names else getattr(quota.own, name) for name in RESOURCES}
    return _decide(tx, quota, OwnLimits(**values))


def _decide(tx: ApiTransaction, quota: Quota, own: OwnLimits) -> Quota:
    tx.execute(_DECIDE, {"project": quota.project_id} | _named("own", own))
    return Quota(project_id=quota.project_id, own=own, used=quota.used)


def correct(tx: ApiTransaction, project_id: str, used: QuotaUsage) -> None:
    """Set the project's usage to ``used``, which the caller counted under ``lock``."""
    tx.execute(sa.update(quotas).where(quotas.c.project_id == project_id).values(_named("used", used)))


def _named(prefix: str, amounts: QuotaUsage | OwnLimits) -> dict[str, Any]:
    return {f"{prefix}_{name}": getattr(amounts, name) for name in RESOURCES}


def _quota(row: sa.Row[Any]) -> Quota:
    values = row._mapping
    return Quota(
        project_id=row.project_id,
        own=OwnLimits(**{name: values[f"max_{name}"] for name in RESOURCES}),
        used=QuotaUsage(**{name: int(values[f"used_{name}"]) for name in RESOURCES}),
    )
