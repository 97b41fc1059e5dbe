"""Hosts die, are called dead wrongly, come back with guests nobody wants any more, or are too slow.

Each test ends with everything running until nothing is on its way any more; then claims, guests and rows must agree.
"""

from __future__ import annotations

import time
from typing import Any

import msgspec
import pytest

from compute.simulated import METADATA_KEY
from db.cell import compute_nodes, instances
from objects import lifecycle
from objects.context import RequestContext
from objects.instance import FailureClass, Instance, State
from objects.lifecycle import Change
from objects.process import AGENT_BINARY
from objects.spec import ServerProperties
from service.periodic import wait_until
from tests.support.batches import leave_guest
from tests.support.ground import CHOSEN, USUAL, on
from tests.support.world import PATIENCE, QUICK, World, world_fixture

HOSTS = ["a1", "a2", "a3"]
CELL = "cell1"


cloud = world_fixture({CELL: HOSTS}, CHOSEN)


@pytest.fixture
def booted(cloud: World) -> str:
    """One server that was handed over and ordered from its host, on which no agent is."""
    return cloud.conductor("one").drive(cloud.accept(), upto="ordered").uuids[0]


def accepted(cloud: World, uuid: str, *, active: bool = False) -> Instance:
    """An agent that is gone by now had taken the order, and had even reported it."""
    row = cloud.row(uuid)
    who = (row.host or "", row.fence, row.attempt, "gone")
    outcomes = cloud.databases[CELL].write(
        instances.transition_rows, [uuid], lambda r: lifecycle.accept_order(r, *who), time.time()
    )
    if active:
        outcomes = cloud.databases[CELL].write(
            instances.transition_rows, [uuid], lambda r: lifecycle.confirm_active(r, *who, 1.0), time.time()
        )
    assert isinstance(outcomes[uuid], Change)
    return cloud.row(uuid)


def call_dead(cloud: World, *hosts: str) -> None:
    """All others give a sign of life between two looks of the cell's sweep."""
    _, sweep = cloud.cell_conductor(CELL, down_time=0.0)
    sweep.dead_hosts()
    for host in HOSTS:
        if host not in hosts:
            cloud.appear(host)
    sweep.dead_hosts()


def start_all_but(cloud: World, *hosts: str) -> None:
    """Everything runs, but for these hosts' agents."""
    cloud.start_cells()
    for host in HOSTS:
        if host not in hosts:
            cloud.start_agent(host)
    cloud.start_conductor()


def ended(cloud: World, uuid: str, state: State) -> Instance:
    """Its row, at rest, in the state expected."""
    cloud.settle()
    row = cloud.row(uuid)
    assert row.state is state, row
    return row


class TestDead:
    @pytest.mark.parametrize("state", [State.SCHEDULED, State.BUILDING])
    def test_builds_of_a_dead_host_move_on(self, cloud: World, booted: str, state: State) -> None:
        first = accepted(cloud, booted) if state is State.BUILDING else cloud.row(booted)
        if state is State.SCHEDULED:
            cloud.keeper.keep()  # the settler activates it
            assert cloud.row(booted).state is State.SCHEDULED
        call_dead(cloud, first.host or "")
        moved = cloud.row(booted)
        assert (moved.state, moved.attempt, moved.host) == (State.SCHEDULED, 2, first.alternates[0].host)
        assert moved.history[0].failure.kind is FailureClass.HOST
        start_all_but(cloud, first.host or "")
        row = ended(cloud, booted, State.ACTIVE)
        assert (row.host, row.attempt) == (moved.host, 2)
        assert cloud.evidence().claims == {booted: row.host}

    def test_its_guest_is_destroyed_when_it_comes_back(self, cloud: World, booted: str) -> None:
        """It died between spawn and report, and another host has the instance now."""
        first = accepted(cloud, booted)
        leave_guest(cloud, first)
        call_dead(cloud, first.host or "")
        start_all_but(cloud, first.host or "")
        assert wait_until(lambda: cloud.row(booted).state is State.ACTIVE, PATIENCE)
        assert len(cloud.evidence().guests[first.host or ""]) == 1
        cloud.start_agent(first.host or "")
        row = ended(cloud, booted, State.ACTIVE)
        assert row.host != first.host

    def test_deletes_on_a_dead_host_succeed_at_once(self, cloud: World, booted: str) -> None:
        row = accepted(cloud, booted, active=True)
        leave_guest(cloud, row)
        cloud.delete(booted)
        cloud.keeper.deleter.run_round()
        assert cloud.row(booted).state is State.DELETING
        call_dead(cloud, row.host or "")
        assert cloud.row(booted).state is State.DELETED
        start_all_but(cloud, row.host or "")
        assert wait_until(lambda: not cloud.evidence().claims, PATIENCE)
        cloud.start_agent(row.host or "")
        ended(cloud, booted, State.DELETED)

    def test_what_was_active_there_stays_as_it_is(self, cloud: World, booted: str) -> None:
        """A guest that runs is not started a second time because its host is silent."""
        row = accepted(cloud, booted, active=True)
        leave_guest(cloud, row)
        call_dead(cloud, row.host or "")
        assert cloud.row(booted) == row
        cloud.start()
        assert ended(cloud, booted, State.ACTIVE).host == row.host

    def test_the_error_names_both_dead_hosts(self, cloud: World, booted: str) -> None:
        first = accepted(cloud, booted)
        leave_guest(cloud, first)
        for _ in HOSTS:
            call_dead(cloud, cloud.row(booted).host or "")
        row = cloud.row(booted)
        assert row.state is State.ERROR
        for number, host in enumerate([first.host, *(other.host for other in first.alternates)], start=1):
            assert f"Attempt {number} on {host}: HostDown" in (row.fault or "")
        cloud.start()  # they all come back, the first with its guest
        ended(cloud, booted, State.ERROR)
        assert cloud.evidence().claims == {}

    def test_silence_alone_tells_it_from_the_others(self, cloud: World) -> None:
        """Real agents beat; the host that nobody answers for is given up after a while."""
        driven = cloud.conductor("one").drive(cloud.accept(6), upto="ordered")
        dead = driven.placed[0].selection.host
        patient = msgspec.structs.replace(QUICK, service_down_time=2.0)
        for host in HOSTS:
            if host != dead:
                cloud.start_agent(host, report_interval=0.1)
        cloud.start_cells(patient)
        cloud.start_conductor()
        evidence = cloud.settle()
        assert {row.instance.state for row in evidence.rows} == {State.ACTIVE}
        assert dead not in set(evidence.claims.values())


class TestUnknown:
    """A host comes back, or is given to this cell, with a guest that no record tells of."""

    @on("cloud", *USUAL)
    @pytest.mark.parametrize("policy", ["report", "remove", "keep"])
    def test_the_policy_decides(self, cloud: World, policy: str) -> None:
        host, stray = HOSTS[0], "11111111-aaaa-4aaa-8aaa-111111111111"
        stranger = Instance(uuid=stray, state=State.ACTIVE, fence=7, host=host, node=host)
        leave_guest(cloud, stranger)
        cloud.start_agent(host, unknown_guests=policy, unknown_guest_age=0.5)
        cloud.start()
        uuids = set(cloud.uuids(cloud.accept(6)))
        if policy == "remove":
            assert {server.uuid: server.state for server in cloud.settle().servers} == dict.fromkeys(uuids, "active")
            assert stray not in cloud.evidence().guests[host]
            return
        assert wait_until(lambda: {server.state for server in cloud.evidence().servers} == {"active"}, PATIENCE)
        reported = {"unknown_guests": 1} if policy == "report" else {}
        assert wait_until(lambda: attributes_of(cloud, host) == reported, PATIENCE)
        assert stray in cloud.evidence().guests[host]
        assert stray not in cloud.evidence().claims


def attributes_of(cloud: World, host: str) -> dict[str, Any]:
    """What the cell has been told of the host besides its size."""
    [node] = [node for node in cloud.databases[CELL].read(compute_nodes.list_all) if node.host == host]
    return dict(node.attributes)


class TestCalledDeadWrongly:
    def test_one_guest_is_left(self, cloud: World, booted: str) -> None:
        """The host is spawning when it is called dead: both build, and the one that is not in force goes."""
        first = cloud.row(booted)
        cloud.start_agent(first.host or "")
        driver = cloud.agents[CELL].drivers[first.host or ""]
        driver.gate.clear()  # before a cell conductor lets it accept anything
        cloud.start_cells()
        cloud.send_again(CELL, booted)
        assert wait_until(lambda: booted in driver.spawning, PATIENCE)
        assert cloud.row(booted).state is State.BUILDING

        def is_elsewhere() -> bool:
            call_dead(cloud, first.host or "")  # its own sign of life may come between the two looks
            return cloud.row(booted).host != first.host

        assert wait_until(is_elsewhere, PATIENCE)
        cloud.start()
        assert wait_until(lambda: cloud.row(booted).state is State.ACTIVE, PATIENCE)
        driver.gate.set()
        row = ended(cloud, booted, State.ACTIVE)
        assert row.host != first.host
        assert wait_until(lambda: booted in driver.destroyed, PATIENCE)
        ended(cloud, booted, State.ACTIVE)


class TestRestart:
    def test_a_build_lost_with_its_agent_is_rebuilt(self, cloud: World, booted: str) -> None:
        first = accepted(cloud, booted)
        cloud.start()
        row = ended(cloud, booted, State.ACTIVE)
        assert (row.host, row.attempt) == (first.host, 2)
        assert row.history[0].failure.kind is FailureClass.RESTARTED
        assert cloud.evidence().claims == {booted: first.host}

    def test_a_guest_whose_report_was_lost_becomes_active(self, cloud: World, booted: str) -> None:
        first = accepted(cloud, booted)
        leave_guest(cloud, first)
        cloud.start()
        row = ended(cloud, booted, State.ACTIVE)
        assert (row.host, row.attempt, row.builder) == (first.host, 1, "gone")


class TestStopping:
    def test_unfinished_builds_of_a_stopping_host_move_on(self, cloud: World) -> None:
        """Long before its silence would tell; and nobody is sent there meanwhile."""
        for host in HOSTS:
            cloud.start_agent(host, max_concurrent_builds=1, drain_timeout=0.2)
        cloud.start()
        stopped = HOSTS[0]
        agents = cloud.agents[CELL]
        agents.drivers[stopped].gate.clear()
        cloud.accept(9)
        assert wait_until(lambda: agents.drivers[stopped].spawning != [], PATIENCE)
        agents.services[stopped].stop()
        evidence = cloud.settle()
        assert {row.instance.state for row in evidence.rows} == {State.ACTIVE}
        assert stopped not in set(evidence.claims.values())
        reasons = {attempt.failure.kind for row in evidence.rows for attempt in row.instance.history}
        assert reasons == {FailureClass.STOPPING}
        assert len(evidence.claims) == 9
        after = cloud.accept(3)
        placed = cloud.settle().claims
        assert stopped not in {placed[uuid] for uuid in cloud.uuids(after)}

    def test_it_takes_builds_again_when_it_is_back(self, cloud: World) -> None:
        for host in HOSTS:
            cloud.start_agent(host)
        cloud.start()
        for host in HOSTS:
            cloud.agents[CELL].services[host].stop()

        def placed() -> set[str]:
            cloud.accept(timeout=3.0)  # one that was decided just before waits for its host, until then
            return set(cloud.settle().claims.values())

        assert wait_until(lambda: placed() == set(), PATIENCE), "there is no valid host"
        cloud.start_agent(HOSTS[0])
        assert wait_until(lambda: placed() == {HOSTS[0]}, PATIENCE)

    def test_killed_in_the_middle_of_stopping_is_killed(self, cloud: World, booted: str) -> None:
        """It had said that it stops, and nothing else: what it had begun is handed back by its next start."""
        first = accepted(cloud, booted)
        cell, _ = cloud.cell_conductor(CELL)
        cell.report_state(RequestContext(request_id="req-test"), first.host or "", AGENT_BINARY, 1, stopping=True)
        assert cloud.row(booted) == first, "what it has begun is its own"
        cloud.start()
        row = ended(cloud, booted, State.ACTIVE)
        assert (row.host, row.attempt) == (first.host, 2)


class TestMarked:
    def test_new_boots_go_elsewhere_for_a_while(self, cloud: World) -> None:
        """A host that breaks what it builds: what it was given moves on, and it is given no more."""
        broken = HOSTS[0]
        for host in HOSTS:
            cloud.start_agent(host, simulated={"failure_rate": 1.0 if host == broken else 0.0})
        cloud.start()

        def moved() -> bool:
            uuids = cloud.uuids(cloud.accept(3))
            rows = {row.instance.uuid: row.instance for row in cloud.settle().rows}
            assert {rows[uuid].state for uuid in uuids} == {State.ACTIVE}
            return any(rows[uuid].history for uuid in uuids)

        assert wait_until(moved, PATIENCE)
        assert wait_until(lambda: not moved(), PATIENCE), "the mark has reached the scheduler"
        assert not moved()


class TestEnded:
    def test_a_hanging_spawn_ends_with_the_build_deadline(self, cloud: World) -> None:
        """The cell tells the host, which frees its thread, its room and what was half made."""
        for host in HOSTS:
            cloud.start_agent(host, max_concurrent_builds=1, audit_interval=3600.0)
        cloud.start()
        [uuid] = cloud.uuids(cloud.accept(timeout=4.0, properties=ServerProperties(metadata={METADATA_KEY: "hang"})))
        ended(cloud, uuid, State.ERROR)
        drivers = cloud.agents[CELL].drivers
        assert wait_until(lambda: any(uuid in driver.destroyed for driver in drivers.values()), PATIENCE)
        cloud.accept(6)
        assert [server.state for server in cloud.settle().servers].count("active") == 6

    def test_an_outage_uses_up_neither_hosts_nor_tries(self, cloud: World) -> None:
        for host in HOSTS:
            cloud.start_agent(host)
        cloud.start()
        [uuid] = cloud.uuids(cloud.accept(timeout=4.0, properties=ServerProperties(metadata={METADATA_KEY: "unavailable"})))
        row = ended(cloud, uuid, State.ERROR)
        assert [attempt.failure.kind for attempt in row.history] == [FailureClass.DEADLINE]


class TestTooSlow:
    def test_waiting_for_its_host(self, cloud: World) -> None:
        driven = cloud.conductor("one").drive(cloud.accept(timeout=0.5), upto="ordered")
        [uuid] = driven.uuids
        cloud.start_cells()
        cloud.start_conductor()
        assert wait_until(lambda: cloud.row(uuid).state is State.ERROR, PATIENCE)
        assert "BuildTimeout: timed out in waiting for its host" in (cloud.row(uuid).fault or "")
        cloud.start()  # the host comes, with the order still in its queue
        ended(cloud, uuid, State.ERROR)
        assert not any(cloud.spawned(host) for host in HOSTS)
        assert cloud.evidence().claims == {}

    def test_building(self, cloud: World) -> None:
        """The guest that is there in the end is refused."""
        for host in HOSTS:
            cloud.start_agent(host)
            cloud.agents[CELL].drivers[host].gate.clear()
        cloud.start()
        [uuid] = cloud.uuids(cloud.accept(timeout=5.0))
        assert wait_until(lambda: cloud.mapped(uuid).cell_uuid is not None, PATIENCE)
        assert wait_until(lambda: cloud.row(uuid).state is State.ERROR, PATIENCE)
        assert "BuildTimeout: timed out in building" in (cloud.row(uuid).fault or "")
        for driver in cloud.agents[CELL].drivers.values():
            driver.gate.set()
        ended(cloud, uuid, State.ERROR)
        assert cloud.evidence().claims == {}

    def test_hanging_on_one_host_after_the_other(self, cloud: World) -> None:
        hanging = ServerProperties(metadata={METADATA_KEY: "hang"})
        for host in HOSTS:
            cloud.start_agent(host, spawn_timeout=0.2)
        cloud.start()
        cloud.accept(properties=hanging)
        [server] = cloud.settle().servers
        assert "Attempt 3" in (ended(cloud, server.uuid, State.ERROR).fault or "")

    def test_in_the_queue_while_there_is_no_scheduler(self, cloud: World) -> None:
        cloud.scheduler.stop()
        cloud.accept(2, timeout=0.5)
        patient = cloud.accept()
        cloud.start()
        assert wait_until(lambda: cloud.requests().keys() == set(cloud.uuids(patient)), PATIENCE)
        cloud.start_scheduler()
        evidence = cloud.settle()
        states = {server.batch_id == patient.batch_id: server.state for server in evidence.servers}
        assert states == {True: "active", False: "error"}
        late = [server for server in evidence.servers if server.state == "error"]
        assert {server.fault for server in late} == {"Build timed out in scheduling."}
