"""Hosts that are called dead are evacuated by the conductors, where that is configured."""

from __future__ import annotations

import msgspec
import pytest

from cells.emptying import Emptier, HostCondition, MoveOrder, Need
from conductor.context import ConductorContext
from conductor.feed_follower import FeedFollower, FeedSettings
from conductor.signals import NoSignals
from db.api.operations import operations
from db.api.operations.operations import OperationQuery
from db.api.servers import mappings
from db.api.servers.mappings import ServerQuery
from db.cell import services
from db.cell.services import Beat
from objects import errors
from objects.flavor import Flavor
from objects.operation import Operation, OperationKind, OperationState, Outcome
from objects.process import AGENT_BINARY
from service.periodic import wait_until
from tests.support import fleet
from tests.support.cell_conductor import PATIENCE
from tests.support.dead_hosts import WatchedHosts
from tests.support.world import QUICK, World

SMALL = fleet.flavor(vcpus=1, memory_mb=512, root_gb=1)
HUGE = fleet.flavor(vcpus=1, memory_mb=60000, root_gb=1)
"""A host has room for one."""


def boot(cloud: World, host: str = "a1", count: int = 1, size: Flavor = SMALL) -> list[str]:
    spec = cloud.accept(count, force_hosts=(host,), size=size)
    assert wait_until(lambda: {each.state for each in cloud.api.read(mappings.of_batch, spec.batch_id)} == {"active"}, PATIENCE)
    return cloud.uuids(spec)


def hosts(cloud: World) -> dict[str, str | None]:
    return {each.uuid: each.host for each in cloud.api.read(mappings.list_, ServerQuery())}


def history(cloud: World) -> list[Operation]:
    return cloud.api.read(operations.list_, OperationQuery(include_ended=True))


def call_dead(cloud: World, host: str) -> None:
    cell = cloud.homes[host]
    cloud.agents[cell].services.pop(host).stop(0.0)
    cloud.databases[cell].write(services.set_forced_down, host, AGENT_BINARY, True, cloud.api.current_time())


def watch_hosts(cloud: World) -> WatchedHosts:
    return WatchedHosts(cloud.keeper.ledger, cloud.keeper.registry)


def evacuate_silent(cloud: World) -> None:
    watch_hosts(cloud).wait_for_silence()


def test_a_configured_conductor_evacuates_dead_hosts(cloud: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("conductor.main.LOOK_INTERVAL_S", 0.2)
    cloud.start_cells_and_agents()
    cloud.start_conductor(cloud.quick)
    uuids = boot(cloud, count=3)
    call_dead(cloud, "a1")
    cloud.start_conductor(msgspec.structs.replace(cloud.quick, evacuate_dead_hosts=True, service_down_time=1.0))
    assert wait_until(lambda: hosts(cloud) == dict.fromkeys(uuids, "a2"), PATIENCE)
    assert {(each.kind, each.user_id) for each in history(cloud)} == {(OperationKind.EVACUATE, "conductor")}


def test_the_default_is_not_to() -> None:
    assert not QUICK.evacuate_dead_hosts


def test_servers_of_other_hosts_stay(cloud: World) -> None:
    """Also those of a host that is only silent, however many look at once."""
    cloud.start()
    [stays], [goes] = boot(cloud, "b1"), boot(cloud)
    cloud.agents["cell2"].services.pop("b1").stop(0.0)
    call_dead(cloud, "a1")
    for _ in range(3):
        evacuate_silent(cloud)
    assert [each.server_uuid for each in history(cloud)] == [goes]
    assert wait_until(lambda: hosts(cloud) == {stays: "b1", goes: "a2"}, PATIENCE)


def test_a_failed_evacuation_is_not_repeated_immediately(cloud: World, monkeypatch: pytest.MonkeyPatch) -> None:
    cloud.start()
    [stays], _ = boot(cloud, size=HUGE), boot(cloud, "a2", size=HUGE)
    call_dead(cloud, "a1")
    evacuate_silent(cloud)
    [first] = history(cloud)
    assert cloud.ended(first).outcome is Outcome.GIVEN_UP
    evacuate_silent(cloud)
    assert [each.uuid for each in history(cloud)] == [first.uuid]
    monkeypatch.setattr("conductor.evacuate.RETRY_AFTER_S", -60.0)
    evacuate_silent(cloud)
    again = history(cloud)
    assert [each.server_uuid for each in again] == [stays, stays]
    assert all(cloud.ended(each).outcome is Outcome.GIVEN_UP for each in again)


def test_the_feed_reports_a_dead_host_immediately(cloud: World) -> None:
    cloud.start_cells()
    cloud.start_agent("a1")
    looks: list[str] = []

    class Looks(NoSignals):
        def check_services(self) -> None:
            looks.append("look")

    cell = cloud.keeper.cell("cell1")
    context = ConductorContext(cloud.keeper.ledger, cloud.keeper.registry, signals=Looks())
    follower = FeedFollower(context, cell, FeedSettings(settle_age=60.0))
    assert wait_until(lambda: bool(cell.read(services.list_hosts, AGENT_BINARY)), PATIENCE)
    while follower.keep_up():
        pass
    assert looks == []
    call_dead(cloud, "a1")
    while follower.keep_up():
        pass
    assert looks == ["look"]


def test_a_migration_waiting_for_a_dead_host_ends(cloud: World) -> None:
    cloud.start()
    [uuid] = boot(cloud)
    call_dead(cloud, "a1")
    migration = cloud.operate(uuid, OperationKind.MIGRATE, timeout=3600.0)
    assert wait_until(lambda: [each.state for each in history(cloud)] == [OperationState.HOLDING], PATIENCE)
    evacuate_silent(cloud)
    assert cloud.ended(migration).outcome is Outcome.GIVEN_UP
    evacuate_silent(cloud)
    assert wait_until(lambda: hosts(cloud) == {uuid: "a2"}, PATIENCE)


def test_a_returned_host_is_not_evacuated(cloud: World) -> None:
    """Although its servers were judged while it was called dead: they would run twice."""
    cloud.start()
    [uuid] = boot(cloud)
    database, now = cloud.databases["cell1"], cloud.api.current_time()
    database.write(services.set_forced_down, "a1", AGENT_BINARY, True, now)
    order = MoveOrder(kinds={HostCondition.DEAD: OperationKind.EVACUATE}, user_id="u")
    emptier = Emptier(cloud.keeper.ledger, cloud.keeper.cell("cell1"), order)
    [judged] = emptier.list_occupants(["a1"])
    assert (judged.server_uuid, judged.need) == (uuid, Need.MOVE)
    database.write(services.set_forced_down, "a1", AGENT_BINARY, False, now)
    accepted, refused = emptier.accept_moves([judged])
    assert accepted == []
    assert isinstance(refused[uuid], errors.Conflict)
    assert "host a1 has come back" in str(refused[uuid])
    assert history(cloud) == []
    assert [each.need for each in emptier.list_occupants(["a1"])] == [Need.STUCK]


def test_servers_refusing_their_moves_delay_no_others(cloud: World) -> None:
    """All are accepted in one transaction, which fails for one that was deleted meanwhile and one that is paused."""
    cloud.start()
    uuids = boot(cloud, count=5)
    order = MoveOrder(kinds={HostCondition.UP: OperationKind.MIGRATE}, user_id="u")
    emptier = Emptier(cloud.keeper.ledger, cloud.keeper.cell("cell1"), order)
    judged = [each for each in emptier.list_occupants(["a1", "a2"]) if each.need is Need.MOVE]
    assert sorted(each.server_uuid for each in judged) == sorted(uuids)
    cloud.delete(uuids[1])
    cloud.operate(uuids[3], OperationKind.PAUSE)
    accepted, refused = emptier.accept_moves(judged)
    assert sorted(each.server_uuid for each in accepted) == sorted(set(uuids) - {uuids[1], uuids[3]})
    assert {uuid: type(error) for uuid, error in refused.items()} == {uuids[1]: errors.NotFound, uuids[3]: errors.Conflict}
    assert all(each.kind is OperationKind.MIGRATE and each.twin_uuid for each in accepted)
    ended = [cloud.ended(each) for each in accepted]
    assert {each.outcome for each in ended} == {Outcome.DONE}


def test_an_unreachable_cell_blocks_no_others_history(cloud: World) -> None:
    cloud.start()
    [uuid] = boot(cloud)
    call_dead(cloud, "a1")
    cloud.keeper.databases["cell2"].away = True
    evacuate_silent(cloud)
    assert [each.server_uuid for each in history(cloud)] == [uuid]


def test_a_host_that_reports_is_not_evacuated(cloud: World, caplog: pytest.LogCaptureFixture) -> None:
    """As one that has come back since the backup from which its cell's database was restored."""
    cloud.start()
    [uuid] = boot(cloud)
    call_dead(cloud, "a1")
    watched = watch_hosts(cloud)
    watched.look()
    watched.pass_by(600.0, reporting=["a1"])
    assert history(cloud) == []
    [logged] = [record.getMessage() for record in caplog.records if "is called dead but reports" in record.getMessage()]
    assert "'superconductor host set a1 --up'" in logged
    watched.pass_by(120.0)
    assert [each.server_uuid for each in history(cloud)] == [uuid]


def test_silence_before_the_first_look_is_ignored(cloud: World) -> None:
    """A restored database says when a host was last heard before the backup."""
    cloud.start()
    [uuid] = boot(cloud)
    call_dead(cloud, "a1")
    long_ago = cloud.api.current_time() - 86400.0
    beat = Beat(host="a1", binary=AGENT_BINARY, version=1)
    cloud.databases["cell1"].write(services.record_heartbeats, [beat], long_ago)
    watched = watch_hosts(cloud)
    watched.look()
    watched.pass_by(40.0)
    assert history(cloud) == []
    watched.pass_by(80.0)
    assert [each.server_uuid for each in history(cloud)] == [uuid]


def test_a_silence_of_all_hosts_is_ignored(cloud: World) -> None:
    """While the conductors of a restored cell are stopped, nobody writes what its hosts report."""
    cloud.start()
    boot(cloud)
    for host in cloud.homes:
        call_dead(cloud, host)
    watched = watch_hosts(cloud)
    watched.look()
    watched.pass_by(600.0)
    assert history(cloud) == []
