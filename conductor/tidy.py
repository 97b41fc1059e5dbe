"""Forget what nobody asks for any more: old decisions, client tokens past their use, processes that died."""

from __future__ import annotations

import logging

from cells.presence import REMEMBERED
from db import processes
from db.api import builds, decisions
from db.sql.engine import ApiDatabase
from service.periodic import Steps

LOG = logging.getLogger(__name__)


def tidy(api_database: ApiDatabase, decision_age: float, token_age: float) -> None:
    """One round; ages in seconds."""
    now = api_database.now()
    with Steps() as steps:
        forgotten = steps.run(_forget_decisions, api_database, now - decision_age)
        tokens = steps.run(api_database.write, builds.forget_tokens, now - token_age)
        steps.run(api_database.write, processes.forget, "api", REMEMBERED)
    if forgotten or tokens:
        LOG.info("forgot %d decisions and %d client tokens", forgotten or 0, tokens or 0)


def _forget_decisions(api_database: ApiDatabase, before: float) -> int:
    """In many small transactions: an hour of a busy region leaves a lot of them."""
    forgotten = 0
    after: str | None = ""
    while after is not None:
        gone, after = api_database.write(decisions.trim, before, after)
        forgotten += gone
    return forgotten
