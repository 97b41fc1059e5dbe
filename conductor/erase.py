"""Erase secrets that are no longer needed. They are encrypted; after that, not even someone who gets the keys can read them."""

from __future__ import annotations

import logging

from conductor.set_aside import SetAside
from db import secrets
from db.sql.engine import ApiDatabase, CellDatabase

LOG = logging.getLogger(__name__)


def erase_decided(api_database: ApiDatabase) -> None:
    """At the API level: erase the secrets of batches whose requests were all handed over, buried or deleted."""
    while batches := api_database.read(secrets.decided):
        api_database.write(secrets.erase_requests, batches)
        LOG.debug("erased the queued secrets of %d batches", len(batches))


def erase_finished(cell_database: CellDatabase, aside: SetAside) -> None:
    """In a cell: erase the secrets of batches without an unfinished build. Batches being staged are left for the next round."""
    batches = cell_database.read(secrets.finished)
    if batches:
        done = aside.run("secrets", lambda some: cell_database.write(secrets.erase_builds, some), batches)
        LOG.debug("erased the secrets of %d batches", sum(map(len, done.results)))
