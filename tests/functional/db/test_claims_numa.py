"""NUMA nodes in the ledger: no node is over-committed under races, and a claim that moves takes nodes of its new host."""

from __future__ import annotations

import contextlib
import json
import threading
from collections import Counter
from typing import Any

import msgspec
import pytest
import sqlalchemy as sa

from db.api.claims import claims
from db.api.rows.tables import allocations, inventories
from db.audit import claims as audit_claims
from db.sql.connection import Connection
from db.sql.engine import Database
from objects import errors, numa
from objects.compute_node import ComputeNode
from objects.flavor import Flavor
from objects.move import MoveKind
from objects.numa import HostNumaNode
from objects.selection import Selection
from objects.spec import RequestSpec
from scheduler.manager import SchedulerManager
from tests.support import fleet
from tests.support.fleet import CONTEXT, Site
from tests.support.threads import run_threads


def host(name: str, *vcpus: int) -> ComputeNode:
    """A host whose nodes have so many vCPUs, and 16 GiB for each; without any, one of 16 vCPUs."""
    nodes = tuple(HostNumaNode(vcpus=each, memory_mb=each * 16384) for each in vcpus)
    sizes = {"vcpus": sum(vcpus), "memory_mb": sum(vcpus) * 16384} if vcpus else {"memory_mb": 2**20}
    return fleet.node(name, numa_nodes=nodes, **sizes)


def flavor(vcpus: int, nodes: int = 1) -> Flavor:
    return msgspec.structs.replace(fleet.flavor(vcpus, 1024, 0), extra_specs={"hw:numa_nodes": str(nodes)} if nodes > 1 else {})


def amounts(site: Site) -> dict[str, Counter[str]]:
    """Amounts by host and class, as the claims say, added up here. Usage must be the same, and no more than there is."""

    def read(tx: Connection) -> list[Any]:
        query = sa.select(inventories.c.host, allocations.c.resources).join(
            allocations, allocations.c.inventory_id == inventories.c.id
        )
        return list(tx.execute(query))

    claimed: dict[str, Counter[str]] = {name: Counter() for name in site.inventories()}
    for row in site.database.read(read):
        claimed[row.host].update(json.loads(row.resources or "{}"))
    for name, row in site.inventories().items():
        assert row.used_resources == claimed[name]
        assert all(amount <= row.cap_resources[kind] for kind, amount in claimed[name].items() if row.cap_resources)
    assert site.overfull() == []
    return claimed


def vcpus(site: Site, name: str) -> list[int]:
    """vCPUs that are claimed of each node of the host."""
    claimed = amounts(site)[name]
    return [claimed[numa.class_names(n)[0]] for n in range(2)]


def choose(scheduler: SchedulerManager, asked: RequestSpec) -> list[list[Selection]]:
    return scheduler.select_destinations(CONTEXT, asked, list(asked.fences))


def test_concurrent_schedulers_over_commit_no_node(database: Database) -> None:
    """As many servers of 3 vCPUs as fit on single nodes, and not one for each 3 vCPUs of a host."""
    site = Site.anew(database, [host("h0", 8, 8), host("h1", 5, 8), host("h2", 2, 13)])
    schedulers = [site.scheduler() for _ in range(3)]
    answers: list[list[list[Selection]] | errors.NoValidHost] = []

    def run(mine: list[RequestSpec], scheduler: SchedulerManager) -> None:
        for asked in mine:
            try:
                answers.append(choose(scheduler, asked))
            except errors.NoValidHost as full:
                answers.append(full)

    asked = [site.leased(fleet.spec(flavor(3))) for _ in range(18)]
    run_threads([threading.Thread(target=run, args=(asked[n::6], schedulers[n % 3])) for n in range(6)])
    refused = [answer for answer in answers if isinstance(answer, errors.NoValidHost)]
    assert (len(answers), len(refused)) == (18, 7)
    assert all("0 were left by NUMATopologyFilter (not enough room on one NUMA node)." in str(each) for each in refused)
    assert [vcpus(site, name) for name in ("h0", "h1", "h2")] == [[6, 6], [3, 6], [0, 12]]


def test_batches_beside_releases_never_over_commit_a_node(database: Database) -> None:
    site = Site.anew(database, [host("h0", 8, 8), host("h1", 4, 12)])
    schedulers = [site.scheduler(), site.scheduler()]

    def boot_and_end(scheduler: SchedulerManager, size: Flavor, count: int) -> None:
        ledger = claims.Ledger(site.database, "conductor")
        for _ in range(6):
            leased = site.leased(fleet.spec(size), count)
            with contextlib.suppress(errors.NoValidHost):
                choose(scheduler, leased)
            for each in site.database.read(audit_claims.sum_claims, [row.id for row in site.inventories().values()]):
                assert each.counted == each.claimed
            ledger.write(claims.release_claims, list(leased.fences))

    kinds = ((flavor(3), 2), (flavor(8, 2), 1), (flavor(2), 3), (flavor(6), 1))
    run_threads([threading.Thread(target=boot_and_end, args=(schedulers[n % 2], *kind)) for n, kind in enumerate(kinds)])
    assert all(not claimed for claimed in amounts(site).values())


def test_an_uninformed_scheduler_takes_another_node_or_host(database: Database) -> None:
    site = Site.anew(database, [host("h0", 8, 8), host("h1"), host("h2", 8, 8)])
    first, second = site.scheduler(), site.scheduler()
    asked = fleet.spec(flavor(8), force_hosts=("h0",))
    taken = [site.boot(each, msgspec.structs.replace(asked, batch_id=fleet.spec().batch_id)) for each in (first, second)]
    assert [(selections[0].host, selections[0].numa_nodes) for [selections] in taken] == [("h0", (0,)), ("h0", (1,))]
    with pytest.raises(errors.NoValidHost, match=r"NUMATopologyFilter|CoreFilter"):
        site.boot(first, fleet.spec(flavor(1), force_hosts=("h0",)))
    [selections] = site.boot(second, fleet.spec(flavor(16, 2)))
    assert (selections[0].host, selections[0].numa_nodes) in (("h1", ()), ("h2", (0, 1)))


def test_a_retry_takes_nodes_chosen_on_its_alternate(database: Database) -> None:
    site = Site.anew(database, [host("h0", 2, 8), host("x"), host("h2", 8, 2)])
    [[first, other]] = site.boot(site.scheduler(), fleet.spec(flavor(6), ignore_hosts=("x",)))
    assert {(first.host, first.numa_nodes), (other.host, other.numa_nodes)} == {("h0", (1,)), ("h2", (0,))}
    [server] = site.claimed()

    def move(name: str) -> None:
        site.ledger.write(claims.move_claims, [claims.ClaimMove(instance_uuid=server, host=name, node=name)])

    for _ in range(2):
        move("h2")
        assert (vcpus(site, "h0"), vcpus(site, "h2")) == ([0, 0], [6, 0])
        move("h0")
        assert (vcpus(site, "h0"), vcpus(site, "h2")) == ([0, 6], [0, 0])
    move("x")  # nobody chose nodes there: it counts on none
    assert amounts(site)["x"] == Counter()
    site.ledger.write(claims.release_claims, [server])
    assert all(not claimed for claimed in amounts(site).values())


@pytest.mark.parametrize("kind", [MoveKind.MIGRATE, MoveKind.RESIZE, MoveKind.EVACUATE])
def test_a_move_takes_nodes_of_its_destination(database: Database, kind: MoveKind) -> None:
    site = Site.anew(database, [host("h0", 4, 8), host("x"), host("h2", 8, 4)])
    scheduler = site.scheduler()
    asked = fleet.spec(flavor(8), ignore_hosts=("x",))
    [[chosen, *_]] = site.boot(scheduler, asked)
    [server] = site.claimed()
    moving = site.moving(kind, asked, server, chosen.host)
    [[found, *_]] = choose(scheduler, moving)
    assert {(chosen.host, chosen.numa_nodes), (found.host, found.numa_nodes)} == {("h0", (1,)), ("h2", (0,))}
    assert (vcpus(site, "h0"), vcpus(site, "h2")) == ([0, 8], [8, 0])
