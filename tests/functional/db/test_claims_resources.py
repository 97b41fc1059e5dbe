"""Custom resource classes in the ledger: exact under races, given back and moved with the claim, put right where they are wrong."""

from __future__ import annotations

import contextlib
import json
import threading
from collections import Counter
from typing import Any

import msgspec
import pytest
import sqlalchemy as sa

from db.api.claims import claim_repair, claims
from db.api.claims.inventories import UsageChange
from db.api.rows.tables import allocations, inventories
from db.audit import claims as audit_claims
from db.sql.connection import Connection
from db.sql.counting import StatementCounter
from db.sql.engine import Database
from objects import errors
from objects.selection import Selection
from objects.spec import Image, RequestSpec
from scheduler.manager import SchedulerManager
from tests.support import fleet
from tests.support.fleet import CELLS, CONTEXT, Site
from tests.support.threads import run_threads

GPU = "CUSTOM_GPU"


def with_gpus(database: Database, *amounts: int) -> Site:
    """Hosts h0, h1... that offer so many GPUs."""
    return Site.anew(database, [fleet.node(f"h{n}", resources={GPU: amount} if amount else {}) for n, amount in enumerate(amounts)])


def asking(amount: int, **asked: Any) -> RequestSpec:
    return fleet.spec(fleet.flavor_asking({GPU: amount}), **asked)


def sums(site: Site) -> dict[str, int]:
    """GPUs by host, as the claims say, added up here. Usage must be the same, and no more than there is."""

    def read(tx: Connection) -> list[Any]:
        query = sa.select(inventories.c.host, allocations.c.resources).join(
            allocations, allocations.c.inventory_id == inventories.c.id
        )
        return list(tx.execute(query))

    claimed: Counter[str] = Counter()
    for row in site.database.read(read):
        claimed[row.host] += json.loads(row.resources or "{}").get(GPU, 0)
    for host, row in site.inventories().items():
        assert row.used_resources == ({GPU: claimed[host]} if claimed[host] else {})
    site.overfull()
    return +claimed


def test_30_requests_for_20_units_get_exactly_20(database: Database) -> None:
    site = with_gpus(database, 7, 0, 2, 11, 0)
    schedulers = [site.scheduler() for _ in range(3)]
    answers: list[list[list[Selection]] | errors.NoValidHost] = []

    def run(mine: list[RequestSpec], scheduler: SchedulerManager) -> None:
        for spec in mine:
            try:
                answers.append(scheduler.select_destinations(CONTEXT, spec, list(spec.fences)))
            except errors.NoValidHost as full:
                answers.append(full)

    asked = [site.leased(asking(1)) for _ in range(30)]
    run_threads([threading.Thread(target=run, args=(asked[n::6], schedulers[n % 3])) for n in range(6)])
    refused = [answer for answer in answers if isinstance(answer, errors.NoValidHost)]
    assert (len(answers), len(refused)) == (30, 10)
    assert all(str(each).endswith("0 were left by ResourceClassFilter (not enough CUSTOM_GPU).") for each in refused)
    assert sums(site) == {"h0": 7, "h2": 2, "h3": 11}


def test_batches_beside_releases_never_exceed_the_resources(database: Database) -> None:
    site = with_gpus(database, 4, 4, 3)
    room = {row.id: row.cap_resources[GPU] for row in site.inventories().values()}
    schedulers = [site.scheduler(), site.scheduler()]
    seen: list[tuple[UsageChange, UsageChange, int]] = []

    def boot_and_end(scheduler: SchedulerManager, amount: int, count: int) -> None:
        ledger = claims.Ledger(site.database, "conductor")
        for _ in range(6):
            leased = site.leased(asking(amount), count)
            with contextlib.suppress(errors.NoValidHost):
                scheduler.select_destinations(CONTEXT, leased, list(leased.fences))
            seen.extend((each.counted, each.claimed, room[each.id]) for each in site.database.read(audit_claims.sum_claims, room))
            ledger.write(claims.release_claims, list(leased.fences))

    sizes = ((1, 3), (2, 2), (3, 1), (1, 5))
    run_threads([threading.Thread(target=boot_and_end, args=(schedulers[n % 2], *size)) for n, size in enumerate(sizes)])
    assert sums(site) == {}
    assert len(seen) == 4 * 6 * 3
    assert all(counted == claimed for counted, claimed, _ in seen)
    assert all(amount <= most for counted, _, most in seen for _, amount in counted.resources)
    assert any(counted.resources for counted, _, _ in seen)


def test_a_claim_carries_the_limits_of_its_host(database: Database) -> None:
    site = with_gpus(database, 4, 2, 3, 3)
    [[selection, *others]] = site.boot(site.scheduler(), asking(2))
    offered = {host: row.cap_resources for host, row in site.inventories().items()}
    assert others
    assert all(each.limits is not None and each.limits.resources == offered[each.host] for each in (selection, *others))
    [[plain, *_]] = site.boot(site.scheduler())
    assert plain.limits is not None
    assert plain.limits.resources == {}


def test_what_is_claimed_comes_back_and_goes_along(database: Database) -> None:
    site = with_gpus(database, 4, 4)
    scheduler = site.scheduler()
    first, second = (site.leased(asking(amount, force_hosts=("h0",))) for amount in (1, 2))
    for each in (first, second):
        scheduler.select_destinations(CONTEXT, each, list(each.fences))
    assert sums(site) == {"h0": 3}
    [moved] = first.fences
    site.ledger.write(claims.move_claims, [claims.ClaimMove(instance_uuid=moved, host="h1", node="h1")])
    assert sums(site) == {"h0": 2, "h1": 1}
    site.ledger.write(claims.move_claims, [claims.ClaimMove(instance_uuid=moved, host="newcomer", node="n")])
    assert sums(site) == {"h0": 2, "newcomer": 1}, "recorded, though that host has none as far as we know"
    site.ledger.write(claims.release_claims, [moved, *second.fences])
    assert sums(site) == {}


def test_a_move_to_a_full_host_is_recorded(database: Database) -> None:
    site = with_gpus(database, 2, 2)
    answers = [site.boot(site.scheduler(), asking(2, force_hosts=(host,))) for host in ("h0", "h1")]
    [mine] = [uuid for uuid, host in site.claimed().items() if host == "h1"]
    assert len(answers) == 2
    site.ledger.write(claims.move_claims, [claims.ClaimMove(instance_uuid=mine, host="h0", node="h0")])
    assert sums(site) == {"h0": 4}
    assert [each.host for each in site.boot(site.scheduler(), asking(1))[0]] == ["h1"]


def test_a_claim_that_is_replaced_is_counted_once(database: Database) -> None:
    site = with_gpus(database, 4, 4)
    leased = site.leased(asking(3, force_hosts=("h0",)), 1)
    scheduler = site.scheduler()
    scheduler.select_destinations(CONTEXT, leased, list(leased.fences))
    again = site.refenced(leased, excluded_cells=(CELLS[0],), force_hosts=())
    [[selection, *_]] = scheduler.select_destinations(CONTEXT, again, list(again.fences))
    assert selection.host == "h1"
    assert sums(site) == {"h1": 3}
    [[same, *_]] = scheduler.select_destinations(CONTEXT, again, list(again.fences))
    assert (same.host, sums(site)) == ("h1", {"h1": 3})


@pytest.mark.parametrize(("asked", "updates"), [(fleet.spec(), 1), (asking(2), 2)])
def test_many_hosts_are_written_in_few_statements(database: Database, asked: RequestSpec, updates: int) -> None:
    """The numbers of all hosts; and, of a class, what all of them come to have used."""
    site = with_gpus(database, *[2] * 24)
    leased, scheduler = site.leased(asked, 24), site.scheduler()
    with StatementCounter() as counter:
        scheduler.select_destinations(CONTEXT, leased, list(leased.fences))
    counted = counter.count_by_statement().items()
    assert sum(count.executions for (_, text), count in counted if text.startswith("UPDATE") and "inventories" in text) == updates
    assert sums(site) == ({f"h{n}": 2 for n in range(24)} if updates == 2 else {})


@pytest.mark.parametrize(
    ("specs", "properties", "said"),
    [
        ({"resources:FOO": "1"}, {}, "resources:FOO: there is no resource class 'FOO'"),
        ({"trait:SSD": "maybe"}, {}, "trait:SSD: 'maybe' is not required or forbidden"),
        ({}, {"trait:SSD": "forbidden"}, "trait:SSD: 'forbidden' is not required"),
    ],
)
def test_a_request_the_api_forbids_has_no_host(
    database: Database, specs: dict[str, str], properties: dict[str, str], said: str
) -> None:
    """What one of an earlier version accepted is refused at once, and takes nothing."""
    site = with_gpus(database, 4)
    flavor = msgspec.structs.replace(fleet.flavor(), extra_specs=specs)
    with pytest.raises(errors.NoValidHost, match=f"^No valid host was found. {said}"):
        site.boot(site.scheduler(), fleet.spec(flavor, image=Image(id="i", properties=properties)))
    assert site.claimed() == {}


class TestOffers:
    def test_a_change_is_followed_without_touching_usage(self, database: Database) -> None:
        site = with_gpus(database, 4)
        site.boot(site.scheduler(), asking(3))
        before = site.inventories()["h0"]
        site.ledger.write(claims.set_inventory, [fleet.node("h0", resources={GPU: 2, "CUSTOM_NIC": 1})], CELLS[0])
        after = site.inventories()["h0"]
        assert (after.cap_resources, after.used_resources) == ({GPU: 2, "CUSTOM_NIC": 1}, {GPU: 3})
        assert after.generation == before.generation + 1
        site.ledger.write(claims.set_inventory, [fleet.node("h0")], CELLS[0])
        assert (site.inventories()["h0"].cap_resources, sums(site)) == ({}, {"h0": 3})

    def test_nothing_is_written_where_nothing_changed(self, database: Database) -> None:
        site = with_gpus(database, 4)
        before = site.inventories()
        site.ledger.write(claims.set_inventory, [fleet.node("h0", resources={GPU: 4, "CUSTOM_NIC": 0})], CELLS[0])
        assert site.inventories() == before

    def test_other_schedulers_hear_of_claims_and_of_offers(self, database: Database) -> None:
        site = with_gpus(database, 1)
        one, other = site.scheduler(), site.scheduler()
        site.boot(one, asking(1))
        with pytest.raises(errors.NoValidHost, match="not enough CUSTOM_GPU"):
            site.boot(other, asking(1))
        site.ledger.write(claims.set_inventory, [fleet.node("h0", resources={GPU: 2})], CELLS[0])
        assert len(site.boot(other, asking(1))) == 1
        assert sums(site) == {"h0": 2}


class TestRepair:
    def test_sums_match_claims_and_wrong_usage_is_recounted(self, database: Database) -> None:
        site = with_gpus(database, 4, 4)
        for amount in (1, 2):
            site.boot(site.scheduler(), asking(amount, force_hosts=("h0",)))
        site.boot(site.scheduler(), fleet.spec(force_hosts=("h0",)), 3)
        keys = {row.host: row.id for row in site.inventories().values()}
        before = site.inventories()
        read = site.database.read(audit_claims.sum_claims, keys.values())
        assert [each.claimed for each in read] == [each.counted for each in read]
        assert {each.host: each.claimed.resources for each in read} == {"h0": ((GPU, 3),), "h1": ()}
        assert next(each.claimed for each in read if each.host == "h0").instances == 5
        wrong = sa.update(inventories).values(used_resources='{"CUSTOM_GPU":9}')
        site.database.write(lambda tx: tx.execute(wrong))
        assert site.ledger.write(claim_repair.recount_usage, list(keys.values())) == 2
        assert sums(site) == {"h0": 3}
        assert {h: (row.used_vcpus, row.instances) for h, row in site.inventories().items()} == {
            h: (row.used_vcpus, row.instances) for h, row in before.items()
        }
        assert site.ledger.write(claim_repair.recount_usage, list(keys.values())) == 0


def test_changes_add_up_and_cancel_out() -> None:
    one = UsageChange(1, 2, 3, 1, (("CUSTOM_A", 1), ("CUSTOM_B", 2)))
    assert one.add_change(UsageChange(1, 1, 1, 1, (("CUSTOM_B", -2), ("CUSTOM_C", 5)))) == UsageChange(
        2, 3, 4, 2, (("CUSTOM_A", 1), ("CUSTOM_C", 5))
    )
    assert one.add_change(one.negate_change()) == UsageChange(0, 0, 0, 0)
    assert one.add_change(UsageChange(0, 0, 0, 0)) == one
