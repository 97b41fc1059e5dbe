"""An agent builds what its cell orders, once, and only after asking."""

from __future__ import annotations

import threading
from pathlib import Path

import msgspec
import pytest

from compute.disks import Disk, read_disk, write_to_disk
from compute.driver import GuestSpec
from objects.build import Origin, Report, ReportKind
from objects.flavor import Flavor
from objects.instance import FailureClass, State
from objects.selection import HostCapacity
from objects.spec import Image, ServerProperties
from objects.task import Power
from rpc.transport import Bus
from service.periodic import wait_until
from tests.support.agents import Agents
from tests.support.cell_conductor import CONTEXT, FLAVOR, PATIENCE, MemoryCell


def test_an_order_becomes_one_guest(cell: MemoryCell, agents: Agents) -> None:
    service = agents.start()
    one = cell.boot_active("h1")
    (guest,) = agents.guests()
    assert (guest.uuid, guest.attempt, guest.fence, guest.builder) == (one, 1, 1, service.builder)
    assert (guest.vcpus, guest.memory_mb, guest.disk_gb) == (1, 512, 1)
    assert cell.rows[one].builder == service.builder


def test_a_driver_gets_the_complete_guest_request(cell: MemoryCell, agents: Agents) -> None:
    agents.start()
    flavor = msgspec.structs.replace(FLAVOR, ephemeral_gb=2, swap_mb=512, extra_specs={"hw:cpu_policy": "dedicated"})
    (one,) = cell.stage("h1", flavor=flavor)
    asked = ServerProperties(
        metadata={"role": "web"},
        tags=("t",),
        key_name="k",
        public_key="ssh-ed25519 AAAA",
        config_drive=True,
        networks="auto",
        block_devices=({"boot_index": 0},),
    )
    image = Image(id="i", properties={"hw_disk_bus": "scsi"})
    cell.specs[one] = msgspec.structs.replace(cell.specs[one], image=image, properties=asked, availability_zone="z")
    cell.order(one)
    cell.wait(State.ACTIVE, one)
    assert agents.drivers["h1"].specs[one] == GuestSpec(
        project_id="p",
        user_id="u",
        flavor=flavor,
        hostname="server",
        image=image,
        networks="auto",
        block_devices=({"boot_index": 0},),
        key_name="k",
        public_key="ssh-ed25519 AAAA",
        config_drive=True,
        metadata={"role": "web"},
        tags=("t",),
        availability_zone="z",
    )
    assert "web" not in repr(agents.drivers["h1"].specs[one])


def test_a_batch_costs_one_accept_and_few_reports(cell: MemoryCell, agents: Agents) -> None:
    agents.start(audit_interval=3600.0)
    assert wait_until(lambda: cell.messages["holdings"] == 1, PATIENCE)
    uuids = cell.boot("h1", count=10)
    cell.wait(State.ACTIVE, *uuids)
    accepts = [report.kind for report in cell.reports[:10]]
    assert accepts == [ReportKind.ACCEPT] * 10
    assert cell.messages["report"] < 1 + 10, "active reports of a moment share a message"
    assert len(agents.guests()) == 10


def test_doubled_orders_are_ignored_at_any_time(cell: MemoryCell, agents: Agents) -> None:
    agents.start()
    driver = agents.block_driver("h1")
    (one,) = cell.boot("h1")
    cell.order(one)
    assert wait_until(lambda: driver.spawning == [one], PATIENCE)
    cell.order(one)
    driver.gate.set()
    cell.wait(State.ACTIVE, one)
    cell.order(one)
    other = cell.boot_active("h1")
    assert driver.spawning == [one, other]
    assert cell.count(ReportKind.FAILED, one) == 0
    assert len(agents.guests()) == 2


@pytest.mark.parametrize("changes", [{"attempt": 2}, {"fence": 2}, {"attempt": 7, "fence": 0}])
def test_an_order_not_in_force_is_refused(cell: MemoryCell, agents: Agents, changes: dict[str, int]) -> None:
    agents.start()
    uuids = cell.stage("h1")
    cell.order(*uuids, **changes)
    cell.wait_report(ReportKind.ACCEPT, uuids[0])
    other = cell.boot_active("h1")
    assert cell.state(uuids[0]) is State.STAGED
    assert [guest.uuid for guest in agents.guests()] == [other]


def test_the_order_in_force_beats_a_stale_one(cell: MemoryCell, agents: Agents) -> None:
    agents.start()
    (one,) = cell.stage("h1")
    cell.rows[one] = msgspec.structs.replace(cell.rows[one], state=State.SCHEDULED, attempt=2)
    cell.order(one, attempt=1)
    cell.wait_report(ReportKind.ACCEPT, one)
    assert wait_until(lambda: cell.sweep() or cell.state(one) is State.ACTIVE, PATIENCE)
    assert [guest.attempt for guest in agents.guests()] == [2]


def test_an_order_for_another_host_is_ignored(cell: MemoryCell, agents: Agents) -> None:
    agents.start()
    (one,) = cell.stage("h1")
    cell.order(one, host="h2")
    cell.boot_active("h1")
    assert cell.count(ReportKind.ACCEPT, one) == 0


def test_a_failed_build_tries_the_next_host(cell: MemoryCell, agents: Agents) -> None:
    agents.start("h1", simulated={"failure_rate": 1.0})
    agents.start("h2")
    (one,) = cell.boot("h1", "h2")
    cell.wait(State.ACTIVE, one)
    assert (cell.rows[one].host, cell.rows[one].attempt) == ("h2", 2)
    assert agents.guests("h1") == []
    assert agents.drivers["h1"].destroyed == [one], "destroyed before it was reported"
    assert cell.rows[one].history[0].failure.kind is FailureClass.HOST


def test_every_host_fails_it(cell: MemoryCell, agents: Agents) -> None:
    for host in ("h1", "h2", "h3"):
        agents.start(host)
    (one,) = cell.boot("h1", "h2", "h3", outcome="fail")
    cell.wait(State.ERROR, one)
    assert [attempt.host for attempt in cell.rows[one].history] == ["h1", "h2", "h3"]
    assert "Exceeded maximum number of attempts (3)" in (cell.rows[one].fault or "")
    assert not [guest for host in agents.services for guest in agents.guests(host)]


def test_an_abort_is_not_tried_elsewhere(cell: MemoryCell, agents: Agents) -> None:
    agents.start("h1")
    agents.start("h2")
    (one,) = cell.boot("h1", "h2", outcome="abort")
    cell.wait(State.ERROR, one)
    assert cell.rows[one].history[0].failure.kind is FailureClass.REQUEST
    assert agents.drivers["h2"].spawning == []


def test_a_hanging_spawn_is_cancelled_in_time(cell: MemoryCell, agents: Agents) -> None:
    agents.start("h1", spawn_timeout=0.3)
    (one,) = cell.boot("h1", outcome="hang")
    cell.wait(State.ERROR, one)
    failure = cell.rows[one].history[0].failure
    assert (failure.kind, failure.error) == (FailureClass.HOST, "SpawnTimeout")
    assert agents.guests() == []
    cell.boot_active("h1")


def test_missing_room_is_reported_without_marking_a_failure(cell: MemoryCell, agents: Agents) -> None:
    agents.start("h1", simulated={"memory_mb": 1024})
    agents.start("h2")
    big = Flavor(flavor_id="2", name="big", vcpus=1, memory_mb=2048, root_gb=1)
    (one,) = cell.boot("h1", "h2", flavor=big)
    cell.wait(State.ACTIVE, one)
    assert cell.rows[one].host == "h2"
    failure = cell.rows[one].history[0].failure
    assert failure.kind is FailureClass.NO_ROOM
    assert "2048 wanted" in failure.message or "2048 > 1024" in failure.message
    assert not [r for r in cell.reports if r.kind is ReportKind.ACCEPT and r.host == "h1"]
    assert agents.drivers["h1"].spawning == []


def test_limits_in_the_order_bind(cell: MemoryCell, agents: Agents) -> None:
    agents.start("h1")
    uuids = cell.stage("h1", count=3, limits=HostCapacity(vcpus=64, memory_mb=1024, disk_gb=100))
    cell.order(*uuids)
    assert wait_until(lambda: {cell.state(one) for one in uuids} == {State.ACTIVE, State.ERROR}, PATIENCE)
    assert wait_until(lambda: sum(cell.state(one) is State.ACTIVE for one in uuids) == 2, PATIENCE)
    assert len(agents.guests()) == 2


def test_builds_beyond_the_limit_are_reported_as_queued(cell: MemoryCell, agents: Agents) -> None:
    agents.start("h1", max_concurrent_builds=2)
    driver = agents.block_driver("h1")
    uuids = cell.boot("h1", count=6)
    cell.wait(State.BUILDING, *uuids)
    assert wait_until(lambda: len(driver.spawning) == 2, PATIENCE)
    assert wait_until(lambda: [stats.queued_builds for stats in cell.stats[-1:]] == [4], PATIENCE)
    driver.gate.set()
    cell.wait(State.ACTIVE, *uuids)
    assert wait_until(lambda: (cell.stats[-1].queued_builds, cell.stats[-1].running_vms) == (0, 6), PATIENCE)


@pytest.mark.parametrize("outcome", ["ok", "fail"])
def test_lost_answers_are_asked_for_again(cell: MemoryCell, agents: Agents, outcome: str) -> None:
    agents.start("h1")
    agents.start("h2")
    cell.lose_answers = 4
    (one,) = cell.boot("h1", "h2", outcome=outcome)
    cell.wait(State.ACTIVE if outcome == "ok" else State.ERROR, one)
    assert wait_until(lambda: cell.lose_answers == 0, PATIENCE)
    assert len(agents.guests("h1")) == (1 if outcome == "ok" else 0)
    assert agents.drivers["h1"].spawning == [one]
    assert len(cell.reports) > 3, "some were sent more than once"


def test_a_late_answer_is_requested_again(cell: MemoryCell, agents: Agents) -> None:
    """The call times out while the conductor is at it; it had taken effect, and taking effect again says the same."""
    agents.start("h1", call_timeout=0.2)
    release = threading.Event()

    def hold_the_first(report: Report) -> None:
        if cell.count(report.kind, report.instance_uuid) == 1:
            release.wait(PATIENCE)

    cell.hold = hold_the_first
    one = cell.boot_active("h1")
    release.set()
    assert cell.count(ReportKind.ACCEPT, one) > 1
    assert agents.drivers["h1"].spawning == [one]


def test_stats_are_sent_on_change_and_heartbeats_always(cell: MemoryCell, agents: Agents) -> None:
    agents.start("h1", reserved_memory_mb=100)
    assert wait_until(lambda: cell.heartbeats["h1"] >= 3 and len(cell.stats) > 0, PATIENCE)
    (first,) = cell.stats
    assert (first.host, first.node, first.vcpus, first.reserved_memory_mb) == ("h1", "h1", 16, 100)
    (one,) = cell.boot("h1")
    assert wait_until(lambda: cell.stats[-1].memory_mb_used == 512, PATIENCE)
    cell.wait(State.ACTIVE, one)
    cell.delete(one)
    assert wait_until(lambda: cell.stats[-1].memory_mb_used == 0, PATIENCE)


def test_unchanged_stats_are_repeated_now_and_then(cell: MemoryCell, agents: Agents) -> None:
    agents.start("h1", stats_full_interval=0.5)
    assert wait_until(lambda: len(cell.stats) >= 3, PATIENCE)
    assert len({repr(msgspec.structs.replace(stats, reported_at=0.0)) for stats in cell.stats}) == 1


def test_the_agent_waits_for_its_conductor(bus: Bus, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    agents = Agents(bus, tmp_path)
    agents.start("h1", call_timeout=0.1)
    try:
        assert wait_until(lambda: "waits for its cell conductor" in caplog.text, PATIENCE)
        cell = MemoryCell(bus)
        assert wait_until(lambda: cell.heartbeats["h1"] > 0 and len(cell.stats) > 0, PATIENCE)
        cell.boot_active("h1")
    finally:
        agents.stop()
    assert caplog.text.count("waits for its cell conductor") == 1


def test_nothing_is_forgotten_while_the_conductor_is_away(cell: MemoryCell, agents: Agents) -> None:
    agents.start("h1", call_timeout=0.2)
    driver = agents.block_driver("h1")
    (one,) = cell.boot("h1")
    assert wait_until(lambda: driver.spawning == [one], PATIENCE)
    cell.stop()
    driver.gate.set()
    assert wait_until(lambda: len(agents.guests()) == 1, PATIENCE)
    assert cell.state(one) is State.BUILDING
    cell.start_again()
    cell.wait(State.ACTIVE, one)


def test_the_bus_offers_nothing_but_the_orders(bus: Bus, agents: Agents, cell: MemoryCell) -> None:
    agents.start("h1")
    client = bus.make_client("compute").on_server("h1")
    for name in ("build", "start", "stop", "__init__"):
        with pytest.raises(Exception, match="No method is called"):
            client.call(CONTEXT, name, type(None))


def test_a_guest_copied_from_a_disk_is_off(cell: MemoryCell, agents: Agents) -> None:
    agents.start("h1")
    agents.start("h2", simulated={"copy_delay": 0.05})
    one = cell.boot_active("h1")
    write_to_disk(str(agents.path), "h1", one)
    (twin,) = cell.stage("h2")
    cell.order(twin, origin=Origin(instance_uuid=one, host="h1"), power=Power.OFF, server_uuid=one)
    cell.wait(State.ACTIVE, twin)
    guest = agents.guest(twin, "h2")
    assert (guest.uuid, guest.server_uuid, guest.power) == (twin, one, Power.OFF)
    assert read_disk(str(agents.path), "h2", twin) == Disk(server_uuid=one, writes=2)
    assert agents.guest(one, "h1").power is Power.ON


def test_a_missing_origin_fails_the_build(cell: MemoryCell, agents: Agents) -> None:
    agents.start("h1")
    (twin,) = cell.stage("h1")
    cell.order(twin, origin=Origin(instance_uuid="gone", host="h1"))
    cell.wait(State.ERROR, twin)
    failure = cell.rows[twin].history[0].failure
    assert (failure.kind, failure.error) == (FailureClass.HOST, "BuildFailed")
    assert "cannot be copied" in failure.message
    assert agents.guests("h1") == []
    assert list((agents.path / "h1.disks").iterdir()) == []
