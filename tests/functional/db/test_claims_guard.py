"""Who may claim: fences, replays, adoption and replacement, on every server that answers."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec
import pytest

from db.api.queue import builds, leases
from db.api.queue.accepting import NewServer
from db.sql.engine import Database
from objects import errors
from tests.support import fleet
from tests.support.accepted import accept_batch
from tests.support.fleet import CELLS, CONTEXT, Site

ONE, TWO = CELLS


@pytest.fixture
def site(database: Database) -> Site:
    return Site.anew(database, [fleet.node(f"h{n}") for n in range(8)])


def test_a_claim_is_written_with_its_answer(site: Site) -> None:
    scheduler = site.scheduler()
    leased = site.leased(fleet.spec(fleet.flavor(2, 2048, 5)), 3)
    answers = scheduler.select_destinations(CONTEXT, leased, list(leased.fences))
    assert site.claimed() == {uuid: answer[0].host for uuid, answer in zip(leased.fences, answers, strict=True)}
    assert site.overfull() == []
    for answer in answers:
        assert [s.fence for s in answer] == [1] * len(answer)
        assert {s.cell_uuid for s in answer} == {answer[0].cell_uuid}
        assert len({s.host for s in answer}) == 3
    used = site.inventories()
    assert sum(row.used_vcpus for row in used.values()) == 6
    assert sum(row.instances for row in used.values()) == 3


def test_any_scheduler_repeats_the_same_answer(site: Site) -> None:
    leased = site.leased(fleet.spec(), 3)
    uuids = list(leased.fences)
    first = site.scheduler().select_destinations(CONTEXT, leased, uuids)
    generations = {host: row.generation for host, row in site.inventories().items()}
    assert site.scheduler().select_destinations(CONTEXT, leased, uuids) == first
    backwards = site.scheduler().select_destinations(CONTEXT, leased, uuids[::-1])
    assert backwards == first[::-1]
    assert {host: row.generation for host, row in site.inventories().items()} == generations
    assert len(site.decisions()) == 1


def test_a_part_that_has_its_claims_keeps_them(site: Site) -> None:
    leased = site.leased(fleet.spec(), 4)
    uuids = list(leased.fences)
    scheduler = site.scheduler()
    first = scheduler.select_destinations(CONTEXT, leased, uuids[:2])
    every = scheduler.select_destinations(CONTEXT, leased, uuids)
    assert every[:2] == first
    assert len(site.claimed()) == 4


@pytest.mark.parametrize("why", ["deleted", "queued again", "refenced", "never there"])
def test_a_request_not_leased_under_fence_changes_nothing(site: Site, why: str) -> None:
    leased = site.leased(fleet.spec(), 3)
    uuids = list(leased.fences)
    if why == "deleted":
        site.ledger.write(builds.delete, uuids[1], project_id=None, now=time.time())
    elif why == "queued again":
        site.database.write(leases.renew_leases, {uuids[1]: 1}, 0.0)
        site.database.write(leases.lease_batches, "another", [leased.batch_id], time.time(), 600.0)
    elif why == "refenced":
        site.database.write(leases.refence_requests, {uuids[1]: 1})
    else:
        uuids[1] = "00000000-0000-0000-0000-000000000000"
        leased = msgspec.structs.replace(leased, fences=leased.fences | {uuids[1]: 1})
    answers = site.scheduler().select_destinations(CONTEXT, leased, uuids)
    assert [bool(answer) for answer in answers] == [True, False, True]
    assert site.claimed().keys() == {uuids[0], uuids[2]}
    assert site.overfull() == []


def test_a_queued_request_is_not_claimed_for(site: Site) -> None:
    asked = fleet.spec()
    uuid = "00000000-0000-0000-0000-000000000001"
    site.database.write(accept_batch, asked, [NewServer(uuid=uuid, name="s")], now=0.0, deadline=1e12)
    asked = msgspec.structs.replace(asked, fences={uuid: 0})
    assert site.scheduler().select_destinations(CONTEXT, asked, [uuid]) == [[]]
    assert site.claimed() == {}


def test_a_claim_of_a_lower_fence_is_adopted(site: Site) -> None:
    leased = site.leased(fleet.spec(), 2)
    uuids = list(leased.fences)
    scheduler = site.scheduler()
    first = scheduler.select_destinations(CONTEXT, leased, uuids)
    newer = site.refenced(leased)
    second = scheduler.select_destinations(CONTEXT, newer, uuids)
    assert [[s.host for s in answer] for answer in second] == [[s.host for s in answer] for answer in first]
    assert {s.fence for answer in second for s in answer} == {2}
    assert scheduler.select_destinations(CONTEXT, leased, uuids) == [[], []]  # the old fence is over
    assert scheduler.select_destinations(CONTEXT, newer, uuids) == second
    assert site.overfull() == []


def test_a_claim_in_an_excluded_cell_is_replaced(site: Site) -> None:
    leased = site.leased(fleet.spec(), 4)
    uuids = list(leased.fences)
    scheduler = site.scheduler()
    first = scheduler.select_destinations(CONTEXT, leased, uuids)
    newer = site.refenced(leased, excluded_cells=(ONE,))
    second = scheduler.select_destinations(CONTEXT, newer, uuids)
    for before, after in zip(first, second, strict=True):
        assert {s.cell_uuid for s in after} == {TWO}
        if before[0].cell_uuid == TWO:
            assert after[0].host == before[0].host
    assert {s.fence for answer in second for s in answer} == {2}
    assert site.claimed() == {uuid: answer[0].host for uuid, answer in zip(uuids, second, strict=True)}
    assert site.overfull() == []


def test_an_irreplaceable_batch_keeps_its_claims(site: Site) -> None:
    leased = site.leased(fleet.spec(), 2)
    scheduler = site.scheduler()
    scheduler.select_destinations(CONTEXT, leased, list(leased.fences))
    before = site.claimed()
    newer = site.refenced(leased, excluded_cells=CELLS)
    with pytest.raises(errors.NoValidHost, match="ExcludedCells"):
        scheduler.select_destinations(CONTEXT, newer, list(newer.fences))
    assert site.claimed() == before
    assert site.overfull() == []


def test_all_or_nothing(site: Site) -> None:
    with pytest.raises(errors.NoValidHost):
        site.boot(site.scheduler(), fleet.spec(fleet.flavor(vcpus=16)), count=9)
    assert site.claimed() == {}
    assert all(row.used_vcpus == 0 for row in site.inventories().values())


@pytest.mark.parametrize(
    ("fences", "uuids", "field"),
    [({}, ["a"], "fences"), ({"a": 1}, ["a", "a"], "instance_uuids"), ({"a": 1}, ["a", "b"], "fences")],
)
def test_a_malformed_call_is_invalid(tmp_path: Path, fences: dict[str, int], uuids: list[str], field: str) -> None:
    site = Site.on_sqlite(tmp_path, [])
    with pytest.raises(errors.Invalid, match=field):
        site.scheduler().select_destinations(CONTEXT, fleet.spec(fences=fences), uuids)
