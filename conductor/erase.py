"""Erase secrets whose work is done. They are sealed; erased they cannot be opened even by who comes by the keys later."""

from __future__ import annotations

import logging

from conductor.set_aside import SetAside
from db import secrets
from db.sql.engine import ApiDatabase, CellDatabase

LOG = logging.getLogger(__name__)


def erase_decided(api_database: ApiDatabase) -> None:
    """At the API level: of batches that no cell is owed any more, be they handed over, buried or deleted."""
    while batches := api_database.read(secrets.decided):
        api_database.write(secrets.erase_requests, batches)
        LOG.debug("erased the queued secrets of %d batches", len(batches))


def erase_finished(cell_database: CellDatabase, aside: SetAside) -> None:
    """In a cell: of batches without an unfinished build. One that is being staged just now is left for the next round."""
    batches = cell_database.read(secrets.finished)
    if batches:
        done = aside.run("secrets", lambda some: cell_database.write(secrets.erase_builds, some), batches)
        LOG.debug("erased the secrets of %d batches", sum(map(len, done.results)))
