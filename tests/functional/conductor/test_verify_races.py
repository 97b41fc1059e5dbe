"""Repairs of the ledger while schedulers claim and others release: what is counted is never wrong afterwards."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import sqlalchemy as sa

from db.api.claims import claim_repair, claims
from db.api.rows.ledger import Ledger
from db.api.rows.tables import inventories
from db.audit import claims as audit_claims
from db.sql.connection import ApiTransaction, Connection
from db.sql.engine import Database
from tests.support import fleet
from tests.support.databases import database_fixture
from tests.support.fleet import Site

ROUNDS = 12


database = database_fixture()


def wrong(tx: ApiTransaction) -> list[audit_claims.Sum]:
    ids = list(tx.execute(sa.select(inventories.c.id)).scalars())
    return [found for found in audit_claims.sum_claims(tx, ids) if found.counted != found.claimed]


def test_recounting_during_claims_and_releases_loses_nothing(database: Database) -> None:
    site = Site.anew(database, [fleet.node(f"h{n}", vcpus=64) for n in range(3)])
    ids = [row.id for row in database.read(claims.read_all)]
    done = threading.Event()

    def claim_and_release(number: int) -> None:
        scheduler, ledger = site.scheduler(), Ledger(database, f"conductor {number}")
        for _ in range(ROUNDS):
            asked = site.leased(fleet.spec(), 4)
            scheduler.select_destinations(fleet.CONTEXT, asked, list(asked.fences))
            ledger.write(claims.release_claims, list(asked.fences)[:3])

    def recount() -> int:
        ledger, counted = Ledger(database, "audit"), 0
        while not done.is_set():
            ledger.write(claim_repair.recount_usage, ids)
            counted += 1
        return counted

    with ThreadPoolExecutor(4) as pool:
        recounting = pool.submit(recount)
        work = [pool.submit(claim_and_release, number) for number in range(3)]
        try:
            for each in work:
                each.result()
        finally:
            done.set()
        assert recounting.result() > 1
    assert database.read(wrong) == []
    assert sum(row.instances for row in database.read(claims.read_all)) == 3 * ROUNDS


def test_repairs_succeed_in_the_middle_of_work(database: Database) -> None:
    site = Site.anew(database, [fleet.node(f"h{n}", vcpus=64) for n in range(3)])
    scheduler = site.scheduler()
    asked = site.leased(fleet.spec(), 6)
    scheduler.select_destinations(fleet.CONTEXT, asked, list(asked.fences))
    ids = [row.id for row in database.read(claims.read_all)]
    assert database.write(_spoil) == len(ids)
    with ThreadPoolExecutor(2) as pool:
        freed = pool.submit(site.ledger.write, claims.release_claims, list(asked.fences)[:2])
        pool.submit(Ledger(database, "audit").write, claim_repair.recount_usage, ids).result()
        freed.result()
    assert database.read(wrong) == []


def _spoil(tx: Connection) -> int:
    return tx.execute(sa.update(inventories).values(used_vcpus=inventories.c.used_vcpus + 5)).rowcount
