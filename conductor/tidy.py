"""Forget what nobody asks for any more: old decisions, client tokens past their use, processes that died."""

from __future__ import annotations

import logging
import time

from cells.presence import REMEMBERED
from db import builds, decisions, processes
from db.engine import Database

LOG = logging.getLogger(__name__)


def tidy(api_database: Database, decision_age: float, token_age: float) -> None:
    """One round; ages in seconds."""
    now = time.time()
    forgotten = _forget_decisions(api_database, now - decision_age)
    tokens = api_database.write(builds.forget_tokens, now - token_age)
    api_database.write(processes.forget, "api", REMEMBERED)
    if forgotten or tokens:
        LOG.info("forgot %d decisions and %d client tokens", forgotten, tokens)


def _forget_decisions(api_database: Database, before: float) -> int:
    """In many small transactions: an hour of a busy region leaves a lot of them."""
    forgotten = 0
    after: str | None = ""
    while after is not None:
        gone, after = api_database.write(decisions.trim, before, after)
        forgotten += gone
    return forgotten
