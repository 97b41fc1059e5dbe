"""Audits for tests: what two looks have found, and what is left after a repair."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import sqlalchemy as sa

from conductor.audit import guests as guest_check
from conductor.audit.audit import Audit, FindingsByCheck
from conductor.audit.checks import CHECKS
from conductor.audit.finding import Finding
from conductor.audit.places import Places
from db.sql.connection import Connection
from db.sql.engine import Database
from tests.support import applying
from tests.support.conductor_process import Conductor
from tests.support.world import EVER, World

LATE = -1000.0
"""An age at which everything is overdue."""
LONG_AGO = 1000.0
"""When what tests make old happened, in seconds since the epoch."""


class Auditor:
    """Two looks without a pause, so that everything that does not agree now is found.

    ``guests``: these too. Where a test plays the cells, no agent reports any.
    """

    def __init__(self, conductor: Conductor, overdue: float = LATE, *, guests: bool = False) -> None:
        self.places = Places(conductor.database, conductor.ledger, conductor.registry, overdue=overdue)
        self.places.heard_within = EVER  # where a test plays the agents, they are heard once
        self.before: set[Finding] = set()
        """What was there before the test, and is not its own."""
        self.audit = Audit(self.places, [check for check in CHECKS if guests or check is not guest_check])

    def confirmed(self, between: Callable[[], object] = lambda: None) -> FindingsByCheck:
        return self.audit.confirm_findings(between)

    def findings(self) -> list[Finding]:
        return [finding for finding in flat(self.confirmed()) if finding not in self.before]

    def kinds(self) -> list[tuple[str, str]]:
        """Kind and key of each finding."""
        return [(finding.kind, finding.key) for finding in self.findings()]

    def repair(self) -> list[tuple[str, str]]:
        """Repair what there is; kind and key of what is left."""
        left = flat(self.audit.repair_findings(self.confirmed()))
        return [(finding.kind, finding.key) for finding in left if finding not in self.before]


def flat(found: FindingsByCheck) -> list[Finding]:
    return [finding for findings in found.values() for finding in findings]


class Ground:
    """A world whose conductor, agents and cells the test plays."""

    def __init__(self, cloud: World) -> None:
        self.cloud = cloud
        self.conductor = cloud.conductor("auditor")
        self.auditor = Auditor(self.conductor)

    def ordered(self, count: int = 1, **asked: Any) -> list[str]:
        """Servers handed over to cell1, STAGED there."""
        return applying.ordered(self.cloud, self.conductor, count, timeout=1e9, **asked)

    def active(self, count: int = 1, **asked: Any) -> list[str]:
        """Servers that are ACTIVE in cell1, and known to be."""
        uuids = self.ordered(count, **asked)
        applying.build(self.cloud, uuids)
        self.keep()
        return uuids

    def keep(self) -> None:
        """Apply feeds and settle. The first round may learn that an audit has applied some."""
        self.conductor.keep()
        self.conductor.keep()

    def buried(self) -> str:
        driven = self.conductor.lease(self.cloud.accept().batch_id)
        driven.bury()
        return driven.uuids[0]

    def api(self, statement: sa.Update | sa.Insert | sa.Delete, *rows: dict[str, Any]) -> None:
        change(self.cloud.api, statement, *rows)

    def cell(self, name: str, statement: sa.Update | sa.Insert | sa.Delete, *rows: dict[str, Any]) -> None:
        change(self.cloud.databases[name], statement, *rows)

    def read(self, query: sa.Select[Any], cell: str | None = None) -> list[dict[str, Any]]:
        """Rows of the API database, or of a cell's."""
        database = self.cloud.databases[cell] if cell else self.cloud.api
        return database.read(lambda tx: [dict(row) for row in tx.execute(query).mappings()])

    def uuid_of(self, cell: str) -> str:
        return self.conductor.cell(cell).uuid


def change(database: Database, statement: sa.Update | sa.Insert | sa.Delete, *rows: dict[str, Any]) -> None:
    """Write behind everybody's back."""

    def write(tx: Connection) -> None:
        if rows:
            tx.execute(statement, list(rows))
        else:
            tx.execute(statement)

    database.write(write)


@contextmanager
def away(*databases: Any) -> Iterator[None]:
    """These databases do not answer."""
    for database in databases:
        database.away = True
    try:
        yield
    finally:
        for database in databases:
            database.away = False


@pytest.fixture(autouse=True)
def consistent(site: Ground) -> Iterator[None]:
    """Every test leaves a world in which everything agrees, as far as it did before."""
    site.auditor.before = set(flat(site.auditor.confirmed()))
    yield
    assert site.auditor.kinds() == []
