"""Custom resource classes in the ledger of claims: amounts by name, in one column beside those of what every host has.

The columns are NULL for hosts and claims without any. Usage is no number that a statement could add to: whoever changes it locks
the row, reads it and writes what it comes to.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping

import sqlalchemy as sa

from db.api.tables import inventories
from db.sql import dialect
from db.sql.connection import ApiTransaction
from db.sql.keyed import by_index
from objects import stored

Pairs = tuple[tuple[str, int], ...]
"""A change of amounts, by class in the order of their names; nothing that is 0."""

NONE: dict[str, int] = {}
"""What nearly every row has. Shared: not to be changed."""


def dump(amounts: Mapping[str, int]) -> str | None:
    """As a column holds it: equal amounts are equal texts."""
    there = pairs(amounts)
    return stored.dump(dict(there)) if there else None


def load(text: str | None) -> dict[str, int]:
    """Amounts by class; none where the text is unreadable, so that what is claimed on such a host can be released."""
    return (stored.load_or_none(text, dict[str, int]) or NONE) if text else NONE


def is_readable(text: str | None) -> bool:
    return not text or stored.load_or_none(text, dict[str, int]) is not None


def pairs(amounts: Mapping[str, int]) -> Pairs:
    return tuple(sorted((name, amount) for name, amount in amounts.items() if amount))


def plus(one: Pairs, other: Pairs) -> Pairs:
    if not other:
        return one
    total = Counter(dict(one))
    total.update(dict(other))
    return pairs(total)


def negated(amounts: Pairs) -> Pairs:
    return tuple((name, -amount) for name, amount in amounts)


def after(used: dict[str, int], change: Pairs) -> dict[str, int]:
    """Usage with the change in it."""
    return dict(plus(pairs(used), change)) if change else used


_READ = by_index(
    sa.select(inventories.c.id, inventories.c.used_resources)
    .where(inventories.c.id.in_(dialect.uuids("ids")))
    .order_by(inventories.c.id)
    .with_for_update(),
    inventories,
)
_SET = by_index(
    sa.update(inventories).where(inventories.c.id.in_(dialect.uuids("ids"))).values(used_resources=sa.bindparam("used")),
    inventories,
)


def add_usage(tx: ApiTransaction, changes: Mapping[int, Pairs]) -> None:
    """Add to the usage of these inventories, whose rows this transaction has changed or locked before.

    Rows with equal usage afterwards share one statement.
    """
    alike: defaultdict[str | None, list[int]] = defaultdict(list)
    for some in _in_lists(sorted(changes)):
        for row in tx.execute(_READ, {"ids": some}).all():
            alike[dump(after(load(row.used_resources), changes[row.id]))].append(row.id)
    for used, ids in alike.items():
        for some in _in_lists(ids):
            tx.execute(_SET, {"used": used, "ids": some})


def _in_lists(ids: list[int]) -> list[list[int]]:
    return [ids[start : start + dialect.IN_LIST] for start in range(0, len(ids), dialect.IN_LIST)]
