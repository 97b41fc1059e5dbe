"""Online migrations: rows of an older release brought to what this one writes, in small transactions beside a running deployment.

A schema change that leaves rows to be filled in later adds a migration here. It stays for one release more than the code that reads
the older rows, and 'superconductor upgrade check' tells while rows are left.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from db.api.rows import spec_fields
from db.api.servers import hostnames
from db.audit import quotas
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


MIGRATIONS: tuple[Migration, ...] = (
    # since API schema 0003: servers accepted before there were quotas, or by a process of that release since
    Migration("charge-older-servers", "api", quotas.count_unmeasured, quotas.charge_unmeasured),
    # since API schemas 0013 and 0023 (server groups): specs written by a process of an older release since
    Migration("index-request-specs", "api", spec_fields.count_unfilled, spec_fields.fill_page),
    # mappings written by a release that left the hostname to be made of the name, or by a repair
    Migration("store-hostnames", "api", hostnames.count_missing, hostnames.fill_page),
)


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
