"""One row per project, its limits and what it uses, locked by whoever adds to the project's servers or takes from them.

``used`` is the sum over the project's instance mappings that are not deleted, at every commit: whoever writes such a mapping, or
marks one deleted, changes both in one transaction. What a cell does or does not say has no part in it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import sqlalchemy as sa

from db.api.tables import quotas
from db.sql.connection import ApiTransaction
from db.sql.upsert import Upsert
from objects import errors
from objects.quota import RESOURCES, UNLIMITED, Admission, OwnLimits, Quota, QuotaLimits, QuotaUsage, admit
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
    """Charge the project for ``wanted`` servers of the batch, or for as many as it may have; returns how many.

    Two that charge one project wait for each other here, and the second sees what the first has left. Raises errors.OverQuota:
    the transaction must end with it.
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


def charge_all(tx: ApiTransaction, project_id: str, more: Sequence[QuotaUsage], defaults: QuotaLimits) -> None:
    """Charge the project for several batches at once, if there is room for all of them.

    Raises errors.OverQuota where there is not, or may not be: the transaction must end with it.
    """
    total = QuotaUsage(**{name: sum(getattr(usage, name) for usage in more) for name in RESOURCES})
    _refuse_beyond(Quota(project_id=project_id, used=total), total, defaults)  # before a row is made that nobody commits
    row = {"project_id": project_id} | _named("used", total) | _named("more", total)
    _refuse_beyond(_quota(_CHARGE.one(tx, row)), total, defaults)


def _refuse_beyond(charged: Quota, more: QuotaUsage, defaults: QuotaLimits) -> None:
    limits = charged.own.over(defaults)
    for name in RESOURCES:
        limit = getattr(limits, name)
        if limit != UNLIMITED and getattr(more, name) and getattr(charged.used, name) > limit:
            raise errors.OverQuota(f"Quota exceeded for {name}: not all of several batches of one moment fit")


def _refuse_if_unknown(tx: ApiTransaction, spec: RequestSpec, wanted: int, admission: Admission) -> None:
    """Refuse what is too much even for a project that has nothing, if it has no limits of its own: without making its row.

    A row that many insert at once and nobody commits makes rings on MariaDB: each who waited for it locks the gap that it left.
    """
    try:
        admit(Quota(project_id=spec.project_id), spec.flavor, wanted, admission)
    except errors.OverQuota:
        if tx.execute(_GET, {"project": spec.project_id}).one_or_none() is None:
            raise


def release(tx: ApiTransaction, project_id: str, less: QuotaUsage) -> None:
    """The project has this much less."""
    tx.execute(_RELEASE, {"project": project_id} | _named("less", less))


def add(tx: ApiTransaction, project_id: str, more: QuotaUsage) -> None:
    """The project has this much more, whatever its limits: these servers exist."""
    _CHARGE.one(tx, {"project_id": project_id} | _named("used", more) | _named("more", more))


def get(tx: ApiTransaction, project_id: str) -> Quota:
    """A project that was never heard of has no limits of its own, and nothing."""
    row = tx.execute(_GET, {"project": project_id}).one_or_none()
    return Quota(project_id=project_id) if row is None else _quota(row)


def list_all(tx: ApiTransaction) -> list[Quota]:
    """Of every project that has limits of its own or ever had a server, by project."""
    return [_quota(row) for row in tx.execute(sa.select(quotas).order_by(quotas.c.project_id))]


def lock(tx: ApiTransaction, project_id: str) -> Quota:
    """The row, made if need be; until this transaction ends nobody adds to the project's servers or takes from them."""
    nothing = QuotaUsage()
    row = {"project_id": project_id} | _named("used", nothing) | _named("more", nothing)
    return _quota(_CHARGE.one(tx, row))


def change(tx: ApiTransaction, project_id: str, changes: OwnLimits, *, force: bool = False) -> Quota:
    """Give a project limits of its own; those that are None in ``changes`` stay as they are. Returns what it has then.

    Raises errors.Invalid for a limit below what is used, unless by ``force``: the project gets nothing more until it has less.
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
    """Take a project's own limits of these resources away, so that the defaults hold again."""
    quota = lock(tx, project_id)
    values = {name: None if name in names else getattr(quota.own, name) for name in RESOURCES}
    return _decide(tx, quota, OwnLimits(**values))


def _decide(tx: ApiTransaction, quota: Quota, own: OwnLimits) -> Quota:
    tx.execute(_DECIDE, {"project": quota.project_id} | _named("own", own))
    return Quota(project_id=quota.project_id, own=own, used=quota.used)


def correct(tx: ApiTransaction, project_id: str, used: QuotaUsage) -> None:
    """Write down what the project really has, as counted under ``lock``."""
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
