"""Guests that are built from another body's disk, and that are not to run at once."""

from __future__ import annotations

from compute.disks import Disk, read_disk, write_to_disk
from objects.build import Origin
from objects.instance import FailureClass, State
from objects.task import Power
from tests.support.agents import Agents
from tests.support.cell_conductor import MemoryCell


def test_a_guest_copied_from_a_disk_is_off(cell: MemoryCell, agents: Agents) -> None:
    agents.start("h1")
    agents.start("h2", simulated={"copy_delay": 0.05})
    (one,) = cell.boot("h1")
    cell.wait(State.ACTIVE, one)
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
