"""Online migrations: rows of an older release brought to what this one writes, in small transactions beside a running deployment.

A schema change that leaves rows to be filled in later adds a migration here. It stays for one release more than the code that reads
the older rows, and 'superconductor upgrade check' tells while rows are left.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from db.sql.engine import Database
from db.sql.sync import Kind

ROWS_PER_TRANSACTION = 200
"""Maximum number of rows that one transaction changes."""


class Migration(NamedTuple):
    """Rows of databases of one kind. ``count_left`` counts those that are still to be done. ``work`` does some and returns how
    many.

    It returns 0 when none is left. ``work`` must be harmless to repeat, and right while processes of both releases write.
    """

    name: str
    kind: Kind
    count_left: Callable[[Any], int]
    work: Callable[[Any, int], int]


MIGRATIONS: tuple[Migration, ...] = ()
"""None yet: the first release wrote every row as this one does."""


def migrations_of(kind: Kind) -> list[Migration]:
    """Those of databases of this kind, in the order in which they are to be done."""
    return [migration for migration in MIGRATIONS if migration.kind == kind]


def run(database: Database, migration: Migration, most: int | None = None) -> int:
    """Do it for ``most`` rows, None for all, in batches; return how many rows it was. Interrupted, the next run goes on."""
    done = 0
    while most is None or done < most:
        count = database.write(migration.work, ROWS_PER_TRANSACTION if most is None else min(ROWS_PER_TRANSACTION, most - done))
        if not count:
            break
        done += count
    return done
