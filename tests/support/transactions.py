"""Transactions that show whether an update was lost, and threads to run them in."""

from __future__ import annotations

import threading
from collections.abc import Callable

import sqlalchemy as sa

from db.api.rows.tables import epochs


def read_epoch(tx: sa.Connection, name: str = "cells") -> int:
    return int(tx.execute(sa.select(epochs.c.epoch).where(epochs.c.name == name)).scalar_one())


def lock_epoch(tx: sa.Connection, name: str = "cells") -> int:
    return int(tx.execute(sa.select(epochs.c.epoch).where(epochs.c.name == name).with_for_update()).scalar_one())


def write_epoch(tx: sa.Connection, value: int, name: str = "cells") -> None:
    tx.execute(sa.update(epochs).where(epochs.c.name == name).values(epoch=value))


def increment(tx: sa.Connection) -> None:
    """Read, then write what was read: an update is lost wherever two of these overlap."""
    write_epoch(tx, lock_epoch(tx) + 1)


def run_threads(count: int, work: Callable[[int], None]) -> list[Exception]:
    failed: list[Exception] = []

    def guarded(number: int) -> None:
        try:
            work(number)
        except Exception as error:  # noqa: BLE001 - returned to the test
            failed.append(error)

    threads = [threading.Thread(target=guarded, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return failed
