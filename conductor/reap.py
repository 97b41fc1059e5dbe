"""Free claims that nothing stands on any more.

Only the API database is asked: a cell's silence about an instance says nothing about it. Every fact used is final, and a claim's
guard lets nothing be created again after it, so there need be no lock between the reading and the freeing.
"""

from __future__ import annotations

import logging

from conductor.set_aside import SetAside
from db.api import claims
from db.sql.engine import ApiDatabase

LOG = logging.getLogger(__name__)


STEP = "reap"
"""The step of dead letters about claims that cannot be freed. Their keys are the uuids of instances."""


def reap(api_database: ApiDatabase, ledger: claims.Ledger, aside: SetAside | None = None) -> None:
    """One round of the claim reaper."""
    orphans = api_database.read(claims.orphans)
    if orphans:
        aside = aside or SetAside(api_database, "api")
        done = aside.run(STEP, lambda uuids: ledger.write(claims.release, uuids), orphans)
        LOG.info("freed %d claims whose requests have ended", sum(done.results))
