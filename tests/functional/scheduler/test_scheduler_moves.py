"""Destinations of resizes, migrations and evacuations, through the same call and with the same claims as boots."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
import sqlalchemy as sa

from conductor.tidy import reap_claims
from db.api.claims import claims
from db.api.rows.tables import instance_mappings
from objects import errors
from objects.cell import CellState
from objects.destination import Destination
from objects.group import GroupPolicy, ServerGroup
from objects.move import MoveKind
from objects.selection import Selection
from objects.spec import RequestSpec
from scheduler.manager import SchedulerManager
from tests.support import fleet
from tests.support.fleet import CELLS, CONTEXT, QUICK, Site

RESIZE, MIGRATE, EVACUATE = MoveKind.RESIZE, MoveKind.MIGRATE, MoveKind.EVACUATE
SAME_HOST = msgspec.structs.replace(QUICK, allow_resize_to_same_host=True)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """Four hosts in each of two cells: those with even numbers, and the others."""
    return Site.on_sqlite(tmp_path, [fleet.node(f"h{n}") for n in range(8)])


class Server:
    """One that is built, of a request of its own."""

    def __init__(self, site: Site, scheduler: SchedulerManager, **asked: Any) -> None:
        self.site, self.scheduler = site, scheduler
        self.spec = fleet.spec(**asked)
        leased = site.leased(self.spec)
        [self.uuid] = leased.fences
        [[first, *_]] = scheduler.select_destinations(CONTEXT, leased, [self.uuid])
        self.host = first.host
        site.built()

    def move(self, kind: MoveKind, **changes: Any) -> RequestSpec:
        return self.site.moving(kind, self.spec, self.uuid, self.host, **changes)

    def to(self, kind: MoveKind, **changes: Any) -> list[Selection]:
        return choose(self.scheduler, self.move(kind, **changes))


def choose(scheduler: SchedulerManager, asked: RequestSpec) -> list[Selection]:
    [answer] = scheduler.select_destinations(CONTEXT, asked, list(asked.fences))
    return answer


def in_cell(site: Site, cell: str) -> set[str]:
    return {host for host, home in site.homes.items() if home == cell}


class TestKinds:
    @pytest.mark.parametrize("kind", list(MoveKind))
    def test_a_move_claims_another_host_of_its_cell(self, site: Site, kind: MoveKind) -> None:
        server = Server(site, site.scheduler())
        asked = server.move(kind)
        first, *others = choose(server.scheduler, asked)
        hosts = [selection.host for selection in (first, *others)]
        assert server.host not in hosts
        assert set(hosts) <= in_cell(site, site.homes[server.host])
        assert len(set(hosts)) == 3
        [operation] = asked.fences
        assert site.claimed() == {server.uuid: server.host, operation: first.host}
        assert site.overfull() == []

    def test_asked_again_it_gives_the_same_answer(self, site: Site) -> None:
        asked = Server(site, site.scheduler()).move(MIGRATE)
        first = choose(site.scheduler(), asked)
        assert choose(site.scheduler(), asked) == first
        again = choose(site.scheduler(), site.refenced(asked))
        assert [(s.host, s.fence) for s in again] == [(s.host, 2) for s in first]
        assert len(site.claimed()) == 2

    def test_an_ended_operation_claims_nothing_and_frees_claims(self, site: Site) -> None:
        server = Server(site, site.scheduler())
        over, under_way = server.move(MIGRATE), server.move(MIGRATE)
        site.end_move(over)
        assert server.scheduler.select_destinations(CONTEXT, over, list(over.fences)) == [[]]
        choose(server.scheduler, under_way)
        reap_claims(site.database, site.ledger)
        assert len(site.claimed()) == 2
        site.end_move(under_way)
        assert site.database.read(claims.list_orphans) == list(under_way.fences)
        reap_claims(site.database, site.ledger)
        assert site.claimed() == {server.uuid: server.host}
        assert site.overfull() == []

    def test_a_resize_claims_the_new_size(self, site: Site) -> None:
        server = Server(site, site.scheduler())
        first, *_ = server.to(RESIZE, flavor=fleet.flavor(vcpus=16, memory_mb=2048))
        row = site.inventories()[first.host]
        assert (row.used_vcpus, row.used_memory_mb) == (16, 2048)
        with pytest.raises(errors.NoValidHost, match=r"by CoreFilter \(not enough vCPUs\)"):
            server.to(RESIZE, flavor=fleet.flavor(vcpus=17))

    def test_a_resize_may_stay_with_room_for_both(self, tmp_path: Path) -> None:
        site = Site.on_sqlite(tmp_path, [fleet.node("h0", vcpus=4)])
        server = Server(site, site.scheduler(SAME_HOST))
        with pytest.raises(errors.NoValidHost, match=r"0 were left by SourceHost \(the server is there already\)"):
            choose(site.scheduler(), server.move(RESIZE))
        with pytest.raises(errors.NoValidHost, match="CoreFilter"):
            server.to(RESIZE, flavor=fleet.flavor(vcpus=4))
        first, *_ = server.to(RESIZE, flavor=fleet.flavor(vcpus=3))
        assert first.host == "h0"
        assert site.inventories()["h0"].used_vcpus == 4
        with pytest.raises(errors.NoValidHost, match="SourceHost"):
            server.to(MIGRATE)

    def test_where_a_server_comes_from_may_be_full(self, tmp_path: Path) -> None:
        site = Site.on_sqlite(tmp_path, [fleet.node(f"h{n}", vcpus=1) for n in range(3)])
        server = Server(site, site.scheduler(), ignore_hosts=("h1", "h2"))
        [first] = server.to(MIGRATE)
        assert first.host == "h2"
        with pytest.raises(errors.NoValidHost):  # the first claim stands
            server.to(MIGRATE)

    def test_a_forced_boot_does_not_bind_the_move(self, site: Site) -> None:
        server = Server(site, site.scheduler(), force_hosts=("h3",), max_attempts=1)
        assert server.to(MIGRATE)[0].host in {"h1", "h5", "h7"}


class TestCells:
    def test_a_move_within_a_disabled_cell_goes_on(self, site: Site) -> None:
        server = Server(site, site.scheduler(), ignore_hosts=tuple(in_cell(site, CELLS[1])))
        closed = site.scheduler(states=(CellState.DRAINING, CellState.ENABLED))
        assert {s.host for s in choose(closed, server.move(EVACUATE))} <= in_cell(site, CELLS[0])
        with pytest.raises(errors.NoValidHost):
            site.boot(closed, fleet.spec(ignore_hosts=tuple(in_cell(site, CELLS[1]))))
        with pytest.raises(errors.NoValidHost):
            site.boot(closed, fleet.spec(requested_destination=Destination(cell_uuid=CELLS[0])))

    def test_it_leaves_a_full_cell_only_if_permitted(self, tmp_path: Path) -> None:
        nodes = [fleet.node("h0"), fleet.node("h1", memory_mb=2**20), fleet.node("h2", vcpus=2), fleet.node("h3", memory_mb=2**20)]
        site = Site.on_sqlite(tmp_path, nodes)
        server = Server(site, site.scheduler(), ignore_hosts=("h1", "h2", "h3"))
        freely = Destination(allow_cross_cell_move=True)
        assert server.to(MIGRATE, destination=freely)[0].host == "h2"
        with pytest.raises(errors.NoValidHost, match="by RequestedCell"):
            server.to(RESIZE, flavor=fleet.flavor(vcpus=3))
        first, *others = server.to(RESIZE, flavor=fleet.flavor(vcpus=3), destination=freely)
        assert {s.host for s in (first, *others)} == {"h1", "h3"}

    def test_permitted_servers_leave_a_drained_cell(self, site: Site) -> None:
        server = Server(site, site.scheduler(), ignore_hosts=tuple(in_cell(site, CELLS[1])))
        closed = site.scheduler(states=(CellState.DRAINING, CellState.ENABLED))
        freely = server.move(MIGRATE, destination=Destination(allow_cross_cell_move=True))
        assert {s.cell_uuid for s in choose(closed, freely)} == {CELLS[1]}
        there = server.move(MIGRATE, destination=Destination(cell_uuid=CELLS[0]))
        assert {s.cell_uuid for s in choose(closed, there)} == {CELLS[0]}

    def test_another_cell_must_be_allowed(self, site: Site) -> None:
        server = Server(site, site.scheduler(), ignore_hosts=tuple(in_cell(site, CELLS[1])))
        there = Destination(cell_uuid=CELLS[1])
        with pytest.raises(errors.Invalid, match="allow_cross_cell_move is needed"):
            server.to(MIGRATE, destination=there)
        allowed = msgspec.structs.replace(there, allow_cross_cell_move=True)
        assert {s.cell_uuid for s in server.to(MIGRATE, destination=allowed)} == {CELLS[1]}


class TestRequestedDestination:
    def test_a_requested_host_and_node_pass_all_filters(self, site: Site) -> None:
        scheduler = site.scheduler()
        [[first]] = site.boot(scheduler, fleet.spec(requested_destination=Destination(host="H3")))
        assert first.host == "h3"
        [[first]] = site.boot(scheduler, fleet.spec(requested_destination=Destination(node="h4")))
        assert first.host == "h4"
        apart = fleet.group(GroupPolicy.ANTI_AFFINITY)
        site.boot(scheduler, fleet.spec(group=apart, force_hosts=("h5",), max_attempts=1))
        with pytest.raises(errors.NoValidHost, match="AvailabilityZoneFilter"):
            site.boot(scheduler, fleet.spec(availability_zone="east", requested_destination=Destination(host="h3")))
        with pytest.raises(errors.NoValidHost, match=r"0 were left by RequestedDestination \(not the destination asked for\)"):
            site.boot(scheduler, fleet.spec(requested_destination=Destination(host="H3", node="H3")))

    def test_a_cell_that_was_asked_for(self, site: Site) -> None:
        answers = site.boot(site.scheduler(), fleet.spec(requested_destination=Destination(cell_uuid=CELLS[1])), 6)
        assert {s.cell_uuid for answer in answers for s in answer} == {CELLS[1]}
        with pytest.raises(errors.NoValidHost, match=r"by RequestedCell \(in another cell\)"):
            site.boot(site.scheduler(), fleet.spec(requested_destination=Destination(cell_uuid="unknown")))

    def test_a_move_goes_to_its_requested_host(self, site: Site) -> None:
        server = Server(site, site.scheduler(), ignore_hosts=tuple(in_cell(site, CELLS[1])))
        wanted = min(in_cell(site, CELLS[0]) - {server.host})
        assert [s.host for s in server.to(MIGRATE, destination=Destination(host=wanted))] == [wanted]
        for nowhere in (server.host, "h1"):
            with pytest.raises(errors.NoValidHost):
                server.to(MIGRATE, destination=Destination(host=nowhere))


class TestRetries:
    def test_a_new_fence_does_not_retry_failed_hosts(self, site: Site) -> None:
        """Its claim is replaced: the operation has given the host up."""
        asked = Server(site, site.scheduler()).move(MIGRATE)
        tried: list[str] = []
        for _ in range(3):
            tried.append(choose(site.scheduler(), asked)[0].host)
            asked = site.refenced(asked, excluded_hosts=tuple(host.upper() for host in tried))
        assert len(set(tried)) == 3
        with pytest.raises(errors.NoValidHost, match=r"0 by ExcludedHosts \(tried before, or held and no longer fit\)"):
            choose(site.scheduler(), asked)
        assert site.overfull() == []
        assert len(site.claimed()) == 2

    def test_a_move_leaves_an_unsuitable_cell_if_permitted(self, site: Site) -> None:
        server = Server(site, site.scheduler())
        [cell] = {site.homes[server.host]}
        stays, leaves = server.move(MIGRATE), server.move(MIGRATE, destination=Destination(allow_cross_cell_move=True))
        choose(server.scheduler, stays)
        with pytest.raises(errors.NoValidHost, match="ExcludedCells"):
            choose(server.scheduler, site.refenced(stays, excluded_cells=(cell,)))
        choose(server.scheduler, leaves)
        assert choose(server.scheduler, site.refenced(leaves, excluded_cells=(cell,)))[0].cell_uuid != cell


class TestGroups:
    def members(self, site: Site, scheduler: SchedulerManager, group: ServerGroup, count: int, **asked: Any) -> list[Server]:
        return [Server(site, scheduler, group=group, **asked) for _ in range(count)]

    def test_a_separated_member_blocks_its_destination_not_itself(self, tmp_path: Path) -> None:
        site = Site.on_sqlite(tmp_path, [fleet.node(f"h{2 * n if n < 4 else 2 * n - 7}") for n in range(8)])
        scheduler = site.scheduler(SAME_HOST)
        group = fleet.group(GroupPolicy.ANTI_AFFINITY)
        one, two, three = self.members(site, scheduler, group, 3, requested_destination=Destination(cell_uuid=CELLS[0]))
        assert one.to(RESIZE, destination=Destination(host=one.host))[0].host == one.host
        [last] = in_cell(site, CELLS[0]) - {one.host, two.host, three.host}
        assert [s.host for s in one.to(MIGRATE)] == [last]
        with pytest.raises(errors.NoValidHost, match="ServerGroupAntiAffinityFilter"):
            two.to(MIGRATE)

    def test_members_that_must_be_together_stay_together(self, site: Site) -> None:
        scheduler = site.scheduler(SAME_HOST)
        one, two = self.members(site, scheduler, fleet.group(GroupPolicy.AFFINITY), 2)
        assert one.host == two.host
        with pytest.raises(errors.NoValidHost, match="ServerGroupAffinityFilter"):
            one.to(MIGRATE)
        assert one.to(RESIZE)[0].host == one.host

    def test_while_the_only_member_moves_others_wait(self, site: Site) -> None:
        scheduler = site.scheduler()
        group = fleet.group(GroupPolicy.AFFINITY)
        one = Server(site, scheduler, group=group)
        move = one.move(MIGRATE)
        first, *others = choose(scheduler, move)
        assert others == [], "it holds no host for a retry, so none could be left to it alone"
        with pytest.raises(errors.Conflict, match="moves of other members"):
            site.boot(scheduler, fleet.spec(group=group))
        with pytest.raises(errors.NoValidHost, match="6 were left by CoreFilter, 0 by ServerGroup"):  # wherever it comes to be
            site.boot(scheduler, fleet.spec(fleet.flavor(vcpus=16), group=group))
        site.ledger.write(claims.release_claims, list(move.fences))
        site.ledger.write(claims.move_claims, [claims.ClaimMove(instance_uuid=one.uuid, host=first.host, node=first.host)])
        assert site.boot(scheduler, fleet.spec(group=group))[0][0].host == first.host

    def test_evacuated_servers_gather_on_one_host_with_room(self, tmp_path: Path) -> None:
        nodes = [fleet.node(f"h{n}", vcpus=2 if n == 2 else 4, memory_mb=2**20 if n == 2 else 65536) for n in range(6)]
        site = Site.on_sqlite(tmp_path, nodes)
        scheduler = site.scheduler()
        here = Destination(host="h0")
        members = self.members(site, scheduler, fleet.group(GroupPolicy.AFFINITY), 4, requested_destination=here)
        assert {member.host for member in members} == {"h0"}
        hosts = {choose(scheduler, member.move(EVACUATE))[0].host for member in members}
        assert hosts == {"h4"}, "h2 is the best for one, with room for two"
        assert site.overfull() == []

    def test_a_divided_group_takes_members_on_either_host(self, site: Site) -> None:
        """Its host came back before all had left it, so nothing is to be waited for."""
        scheduler = site.scheduler()
        group = fleet.group(GroupPolicy.AFFINITY)
        one, two, _ = self.members(site, scheduler, group, 3)
        move = one.move(EVACUATE)
        first, *_ = choose(scheduler, move)
        with pytest.raises(errors.Conflict, match="moves of other members"):
            two.to(MIGRATE)
        site.ledger.write(claims.release_claims, list(move.fences))
        site.ledger.write(claims.move_claims, [claims.ClaimMove(instance_uuid=one.uuid, host=first.host, node=first.host)])
        assert site.boot(scheduler, fleet.spec(group=group))[0][0].host in (first.host, two.host)
        assert two.to(MIGRATE)[0].host == first.host

    @pytest.mark.parametrize("leaving", ["hidden", "deleted"])
    def test_a_departing_body_makes_others_wait(self, site: Site, leaving: str) -> None:
        scheduler = site.scheduler()
        group = fleet.group(GroupPolicy.AFFINITY)
        one, two, _ = self.members(site, scheduler, group, 3)
        away = "h7" if two.host != "h7" else "h6"
        site.ledger.write(claims.move_claims, [claims.ClaimMove(instance_uuid=one.uuid, host=away, node=away)])
        of = instance_mappings.c
        statement = sa.update(instance_mappings).where(of.instance_uuid == one.uuid).values({leaving: True})
        site.database.write(lambda tx: tx.execute(statement))
        with pytest.raises(errors.Conflict, match="moves of other members"):
            two.to(MIGRATE, destination=Destination(allow_cross_cell_move=True))


class TestWrongCalls:
    def test_a_move_has_one_server_and_one_claim(self, site: Site) -> None:
        server = Server(site, site.scheduler())
        asked = server.move(MIGRATE)
        [operation] = asked.fences
        twice = msgspec.structs.replace(asked, fences={operation: 1, "other": 1})
        with pytest.raises(errors.Invalid, match="for one server, not for 2"):
            server.scheduler.select_destinations(CONTEXT, twice, list(twice.fences))
        own = msgspec.structs.replace(asked, fences={server.uuid: 1})
        with pytest.raises(errors.Invalid, match="a uuid of its own"):
            server.scheduler.select_destinations(CONTEXT, own, [server.uuid])
