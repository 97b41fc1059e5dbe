"""Custom resource classes of inventories and claims: amounts by name, as JSON text in one column.

The column is NULL for hosts and claims without any. SQL cannot add to the text, so a change locks the row, reads it and writes the
new amounts.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping

import sqlalchemy as sa

from db.api.rows.tables import inventories
from db.sql import dialect
from db.sql.connection import ApiTransaction
from db.sql.keyed import by_index
from objects import stored

Pairs = tuple[tuple[str, int], ...]
"""Amounts by class, sorted by name, without zeros. As a change, negative amounts release."""

NONE: dict[str, int] = {}
"""No custom resource classes, as in nearly every row. Shared: do not change it."""


def dump_amounts(amounts: Mapping[str, int]) -> str | None:
    """The column's value. Equal amounts give equal texts."""
    there = nonzero_pairs(amounts)
    return stored.dump_value(dict(there)) if there else None


def read_amounts(text: str | None) -> dict[str, int] | None:
    """Amounts by class; None for an unreadable text."""
    return stored.load_or_none(text, dict[str, int]) if text else NONE


def load_amounts(text: str | None) -> dict[str, int]:
    """Amounts by class. An unreadable text gives none, so that claims on such a host can still be released."""
    return read_amounts(text) or NONE


def nonzero_pairs(amounts: Mapping[str, int]) -> Pairs:
    return tuple(sorted((name, amount) for name, amount in amounts.items() if amount))


def add_pairs(one: Pairs, other: Pairs) -> Pairs:
    total = Counter(dict(one))
    total.update(dict(other))
    return nonzero_pairs(total)


def negate_pairs(amounts: Pairs) -> Pairs:
    return tuple((name, -amount) for name, amount in amounts)


def usage_after(used: dict[str, int], change: Pairs) -> dict[str, int]:
    """The usage after the change."""
    return dict(add_pairs(nonzero_pairs(used), change))


_READ = by_index(
    sa.select(inventories.c.id, inventories.c.used_resources)
    .where(inventories.c.id.in_(dialect.uuids_parameter("ids")))
    .order_by(inventories.c.id)
    .with_for_update(),
    inventories,
)
_SET = by_index(
    sa.update(inventories).where(inventories.c.id.in_(dialect.uuids_parameter("ids"))).values(used_resources=sa.bindparam("used")),
    inventories,
)


def add_usage(tx: ApiTransaction, changes: Mapping[int, Pairs]) -> None:
    """Add to the usage of these inventories, whose rows this transaction has already changed or locked.

    Rows with the same resulting usage share one statement.
    """
    alike: defaultdict[str | None, list[int]] = defaultdict(list)
    for id_page in dialect.split_pages(sorted(changes)):
        for row in tx.execute(_READ, {"ids": id_page}).all():
            alike[dump_amounts(usage_after(load_amounts(row.used_resources), changes[row.id]))].append(row.id)
    for used, ids in alike.items():
        for id_page in dialect.split_pages(ids):
            tx.execute(_SET, {"used": used, "ids": id_page})
