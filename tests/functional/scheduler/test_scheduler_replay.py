"""Decisions of schedulers that race for hosts, taken again from their records alone."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest

from db.api.claims import decisions
from db.api.servers import mappings
from objects import errors
from objects.group import GroupPolicy
from objects.move import MoveKind
from objects.spec import RequestSpec
from scheduler.manager import SchedulerManager
from scheduler.what_if.replay import replay_decision
from tests.support import fleet
from tests.support.deciding import site_fixture
from tests.support.fleet import QUICK, Site

CELL_UUIDS = {"cell1": fleet.CELLS[0], "cell2": fleet.CELLS[1]}
HOSTS = 12


site = site_fixture(lambda: [fleet.node(f"h{n}", vcpus=2 + n % 3) for n in range(HOSTS)], embedded=True)
"""Hosts that are nearly as full as what is asked for, so that schedulers meet."""


@pytest.mark.parametrize("subset", [1, 3])
def test_each_gets_its_host_again(site: Site, subset: int) -> None:
    """Hosts are lost to others on the way, and batches of one transaction see what the others take."""
    settings = msgspec.structs.replace(QUICK, claim_window=0.005, host_subset_size=subset)
    schedulers = [site.scheduler(settings) for _ in range(3)]
    apart = fleet.group(GroupPolicy.ANTI_AFFINITY)

    def boot(number: int) -> None:
        scheduler: SchedulerManager = schedulers[number % 3]
        asked = fleet.spec(group=apart if number % 5 == 0 else None)
        try:
            site.boot(scheduler, asked, 2 if number % 7 == 0 else 1)
        except errors.Conflict:  # hosts are held for the retries of others of the group: nothing was decided
            assert asked.group is not None
        except errors.NoValidHost:
            assert number > HOSTS

    with ThreadPoolExecutor(9) as pool:
        list(pool.map(boot, range(30)))
    made = [decision for decision in site.decisions() if decision.basis is not None]
    assert len(made) >= 20
    for decision in made:
        assert decision.basis is not None
        assert decision.basis.ledger
        [spec] = site.database.read(mappings.specs_by_batch, [decision.batch_id]).values()
        again = replay_decision(site.database.read(decisions.get, decision.id), spec, CELL_UUIDS)
        assert again.is_same, (again.reasons, again.servers, decision)
        claimed = site.claimed()
        for server in again.servers:
            assert claimed[server.instance_uuid] == server.then
            assert server.now == server.then or not server.certain


def test_a_move_gets_its_host_again(site: Site) -> None:
    scheduler = site.scheduler()
    asked: RequestSpec = fleet.spec()
    [[selected, *_]] = site.boot(scheduler, asked)
    server = next(iter(site.claimed()))
    moving = site.moving(MoveKind.MIGRATE, asked, server, selected.host)
    scheduler.select_destinations(fleet.CONTEXT, moving, list(moving.fences))
    [decision] = [each for each in site.decisions() if each.batch_id == moving.batch_id]
    [spec] = site.database.read(mappings.specs_by_batch, [decision.batch_id]).values()
    again = replay_decision(decision, spec, CELL_UUIDS)
    assert (again.is_same, len(again.servers)) == (True, 1)
    assert again.servers[0].now not in (None, selected.host)
