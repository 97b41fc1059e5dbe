"""Audits of deployments at work: nothing is found of what is merely on its way, and what lasts is put right by itself."""

from __future__ import annotations

import logging
import random
import threading
import time
from pathlib import Path

import msgspec
import pytest
import sqlalchemy as sa

from cells.registry import CellRegistry
from conductor.audit.audit import Audit
from conductor.audit.background import BackgroundAudit
from conductor.audit.places import Places
from db.api.claims import claims
from db.api.claims.claims import Ledger
from db.api.rows.tables import instance_mappings
from db.sql.connection import ApiTransaction
from db.sql.counting import StatementCounter
from db.sql.engine import Database
from service.periodic import wait_until
from tests.support import applying
from tests.support.auditing import Ground, flat
from tests.support.ground import USUAL
from tests.support.region import host, region
from tests.support.world import PATIENCE, QUICK, world

HOSTS = [host(f"{cell}-h{n}", cell, vcpus=8, memory_mb=8192, disk_gb=100) for cell in ("cell1", "cell2") for n in range(3)]
ROUNDS = 3


@pytest.mark.parametrize("on", USUAL)
def test_a_busy_region_gives_no_false_finding(tmp_path: Path, on: str) -> None:
    with region(tmp_path, HOSTS, on=on) as cloud:
        database = Database(cloud.folder.database_url("api"), name="audit")
        places = Places(database, Ledger(database, "audit"), cloud.registry, overdue=15.0)
        stopped = threading.Event()

        def work(number: int) -> None:
            while not stopped.is_set():
                uuid = cloud.boot(f"busy-{number}", metadata={"simulated:outcome": "fail"} if random.random() < 0.2 else {})
                time.sleep(random.random() * 0.3)  # the delete meets it anywhere on its way
                cloud.delete(uuid)

        workers = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for worker in workers:
            worker.start()
        try:
            for _ in range(ROUNDS):
                audit = Audit(places)
                first = audit.check_all()
                time.sleep(1.0)  # what was on its way at the first look has gone on
                assert [str(finding) for finding in flat(audit.check_again(first))] == []
        finally:
            stopped.set()
            for worker in workers:
                worker.join()
        cloud.settle()
        cloud.boot("quiet", count=6)
        cloud.settle()
        time.sleep(2 * cloud.pace.stats_interval)  # the agents have told of these guests
        at_rest = Audit(Places(database, Ledger(database, "audit"), cloud.registry, overdue=cloud.pace.stats_interval))
        assert wait_until(lambda: not flat(at_rest.check_all()), PATIENCE, pause=0.5), [str(f) for f in flat(at_rest.check_all())]
        database.dispose_connections()


@pytest.mark.parametrize("on", USUAL)
def test_the_background_audit_repairs_and_reports_once(tmp_path: Path, on: str, caplog: pytest.LogCaptureFixture) -> None:
    with world(tmp_path, {"cell1": ["a1", "a2"], "cell2": ["b1"]}, on) as cloud:
        site = Ground(cloud)
        claimless, orphan = site.active(2)
        cloud.keeper.ledger.write(_release, [claimless])
        site.api(sa.delete(instance_mappings).where(instance_mappings.c.instance_uuid == orphan))
        with caplog.at_level(logging.WARNING):
            cloud.start_conductor(msgspec.structs.replace(QUICK, audit_interval=0.2))
            assert wait_until(lambda: claimless in cloud.evidence().claims, PATIENCE)
            assert wait_until(lambda: orphan in caplog.text, PATIENCE)
            wait_until(lambda: False, 1.0)  # several rounds
        told = [record.getMessage() for record in caplog.records if "audit:" in record.getMessage()]
        [about] = [text for text in told if orphan in text and "row without mapping" in text]
        assert "verify --repair" in about
        assert [text for text in told if claimless in text and "will be given a claim now" in text]
        assert orphan not in {server.uuid for server in cloud.evidence().servers}, "nobody asked for that"


def test_the_background_audit_waits_longer_than_any_step(tmp_path: Path) -> None:
    with world(tmp_path, {"cell1": ["a1"], "cell2": ["b1"]}) as cloud:
        site, now = Ground(cloud), [0.0]
        [uuid] = site.active()
        cloud.keeper.ledger.write(_release, [uuid])
        background = BackgroundAudit(site.auditor.places, 100.0, clock=lambda: now[0])
        for moment in (0.0, 50.0, 99.0):
            now[0] = moment
            background.audit_once()
            assert uuid not in cloud.evidence().claims
        site.cloud.keeper.ledger.write(_release, [uuid])
        now[0] = 100.0
        background.audit_once()
        assert uuid in cloud.evidence().claims


def test_the_cost_of_looks_grows_with_pages_only(tmp_path: Path) -> None:
    with world(tmp_path, {"cell1": ["a1", "a2"], "cell2": ["b1"]}) as cloud:
        site = Ground(cloud)
        database = Database(cloud.folder.database_url("api"), name="counted")
        registry = CellRegistry(database, open_database=lambda mapping: Database(mapping.database_url, name="counted"))
        audit = Audit(Places(database, Ledger(database, "counted"), registry, overdue=60.0))
        site.active(2)
        audit.check_all()  # the first one opens connections
        before = _statements(audit)
        site.active(40, size=applying.SMALL)
        assert _statements(audit) == before
        registry.close()
        database.dispose_connections()


def _statements(audit: Audit) -> int:
    with StatementCounter() as counter:
        audit.check_all()
    return counter.totals_by_database()["counted"].executions


def _release(tx: ApiTransaction, stamp: claims.Stamp, uuids: list[str]) -> None:
    claims.release_claims(tx, stamp, uuids)
