"""Dead letters: items that a step could not process, set aside with the reason until they are tried again, ended or skipped.

The API level has a table, and so has each cell. All times are the database's. Nothing here is needed while nothing fails: a step
writes a letter after an item failed alone, and who runs steps reads the table now and then (``conductor/quarantine.py``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

import sqlalchemy as sa
from sqlalchemy import Connection

from db.api.rows import tables as api
from db.cell import tables as cell
from db.sql import clock, dialect
from db.sql.readable import convert_readable
from objects.base import Object
from objects.text import clean_text
from service.retry import pause_after

Level = Literal["api", "cell"]

FIRST_RETRY_S = 5.0
"""Seconds until an item that failed once is tried again. Each further failure doubles them, up to LONGEST_RETRY_S."""
LONGEST_RETRY_S = 600.0
"""Longest pause in seconds between two attempts."""
REASON_SIZE = 1024
"""Number of bytes kept of a reason."""
KEY_LENGTH = 255
LIST_LIMIT = 10_000
"""Maximum number of letters that are read, to bound the memory. More of them usually have one common cause."""
STALE_AFTER_S = 3600.0
"""Seconds after its retry was due at which a letter is removed. An item that was not retried by then needs no retry."""


class DeadLetter(Object, frozen=True, kw_only=True):
    """An item that ``step`` could not process. Times in seconds since the epoch; ``wait``: seconds until it is tried again."""

    step: str
    key: str
    reason: str
    tries: int
    first_at: float
    last_at: float
    due: float
    skipped: bool
    wait: float


_TABLES: Mapping[str, sa.Table] = {"api": api.api_dead_letters, "cell": cell.cell_dead_letters}


def put_letters(tx: Connection, level: Level, step: str, reasons: Mapping[str, str]) -> None:
    """Note that these items failed now, once more or for the first time. ``reasons``: by key."""
    table = _TABLES[level]
    now = clock.read(tx)
    texts = {key_of(key): clean_text(reason, REASON_SIZE) for key, reason in reasons.items()}
    for keys in dialect.split_pages(sorted(texts)):
        new = {"step": step, "tries": 0, "first_at": now, "last_at": now, "due": now, "skipped": False}
        dialect.insert_new(tx, table, [new | {"key": key, "reason": texts[key]} for key in keys])
        known_tries = sa.select(table.c.key, table.c.tries).where(table.c.step == step, table.c.key.in_(keys))
        tries = {row.key: row.tries for row in tx.execute(known_tries.order_by(table.c.key).with_for_update())}
        tx.execute(
            sa.update(table).where(table.c.step == step, table.c.key == sa.bindparam("of")),
            [
                {"of": k, "reason": texts[k], "tries": n + 1, "last_at": now, "due": now + retry_wait(n + 1)}
                for k, n in tries.items()
            ],
        )


def remove_letters(tx: Connection, level: Level, step: str, keys: Iterable[str]) -> int:
    """These items need no further try: they were processed, or are gone. Returns how many there were."""
    table = _TABLES[level]
    gone = 0
    for chunk in dialect.split_pages(sorted(map(key_of, keys))):
        gone += tx.execute(sa.delete(table).where(table.c.step == step, table.c.key.in_(chunk))).rowcount
    return gone


def list_all(tx: Connection, level: Level, limit: int = LIST_LIMIT) -> list[DeadLetter]:
    """By step and key."""
    table = _TABLES[level]
    query = sa.select(table, clock.Now().label("now")).order_by(table.c.step, table.c.key).limit(limit)
    return convert_readable(tx.execute(query), _letter_from_row, table)


def get(tx: Connection, level: Level, keys: Iterable[str]) -> list[DeadLetter]:
    """The letters about these items, of whatever step."""
    table = _TABLES[level]
    query = sa.select(table, clock.Now().label("now")).order_by(table.c.step, table.c.key)
    letters: list[DeadLetter] = []
    for chunk in dialect.split_pages(sorted(map(key_of, keys))):
        letters += convert_readable(tx.execute(query.where(table.c.key.in_(chunk))), _letter_from_row, table)
    return letters


def count_by_step(tx: Connection, level: Level) -> dict[str, int]:
    """How many there are, by step."""
    table = _TABLES[level]
    return {
        row.step: row.number for row in tx.execute(sa.select(table.c.step, sa.func.count().label("number")).group_by(table.c.step))
    }


def retry_letters(tx: Connection, level: Level, step: str, keys: Iterable[str]) -> int:
    """Let these be tried again at once, also those that were skipped. Returns how many there were."""
    return _update_letters(tx, level, step, keys, {"due": 0.0, "skipped": False})


def skip_letters(tx: Connection, level: Level, step: str, keys: Iterable[str]) -> int:
    """Let these not be tried again. Returns how many there were."""
    return _update_letters(tx, level, step, keys, {"skipped": True})


def forget_stale(tx: Connection, level: Level) -> int:
    """Remove letters that should have been tried again ``STALE_AFTER_S`` seconds ago: a try that fails puts them off."""
    table = _TABLES[level]
    return tx.execute(
        sa.delete(table).where(
            table.c.skipped.is_(sa.false()),
            table.c.due < clock.Now() - STALE_AFTER_S,
            table.c.last_at < clock.Now() - STALE_AFTER_S,
        )
    ).rowcount


def forget_ended_builds(tx: Connection, step: str) -> int:
    """Remove letters of the API level about requests that are gone: they were deleted, or ended by another process."""
    table, requests = api.api_dead_letters, api.build_requests
    waits = sa.exists().where(requests.c.instance_uuid == table.c.key)
    return tx.execute(sa.delete(table).where(table.c.step == step, ~waits)).rowcount


def retry_wait(tries: int) -> float:
    """Seconds between a failure and the next try, if it was the ``tries``-th."""
    return pause_after(tries, FIRST_RETRY_S, LONGEST_RETRY_S)


def key_of(key: str) -> str:
    """The key as it is stored: what cannot be written may be what the item is named by."""
    return clean_text(key[:KEY_LENGTH], 4 * KEY_LENGTH)


def _update_letters(tx: Connection, level: Level, step: str, keys: Iterable[str], values: Mapping[str, Any]) -> int:
    table = _TABLES[level]
    changed = 0
    for chunk in dialect.split_pages(sorted(map(key_of, keys))):
        changed += tx.execute(sa.update(table).where(table.c.step == step, table.c.key.in_(chunk)).values(values)).rowcount
    return changed


def _letter_from_row(row: sa.Row[Any]) -> DeadLetter:
    return DeadLetter(
        step=row.step,
        key=row.key,
        reason=row.reason,
        tries=row.tries,
        first_at=row.first_at,
        last_at=row.last_at,
        due=row.due,
        skipped=row.skipped,
        wait=max(0.0, row.due - row.now),
    )
