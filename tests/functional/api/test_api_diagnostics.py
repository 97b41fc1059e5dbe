"""Diagnostics over HTTP: from a real agent, by a real super conductor's reader, and what is answered if a part is not there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import falcon.testing
import pytest
import sqlalchemy as sa

from api.opts import ApiSettings
from compute.driver import ComputeDriver
from compute.simulated import SimulatedDriver
from conductor.guest_reader import GuestReader
from db.cell.tables import services
from objects import errors
from objects.context import RequestContext
from objects.diagnostics import CpuDiagnostics, Diagnostics, DiskDiagnostics, GuestState, NicDiagnostics
from objects.task import Power
from rpc.compute import DIAGNOSING_VERSION
from tests.support.api import NEWEST, TENANT, Front, refusal
from tests.support.asked_guest import active_server, its_guest
from tests.support.fronts import front_fixture

OPERATOR = {"X-Project-Id": "operators", "X-Roles": "admin"}
ADMIN = NEWEST | OPERATOR
OLD_ADMIN = OPERATOR | {"OpenStack-API-Version": "compute 2.47"}
FULL = Diagnostics(
    state=GuestState.RUNNING,
    hypervisor="kvm",
    config_drive=True,
    memory_mb=512,
    memory_used_mb=256,
    cpus=(CpuDiagnostics(id=0, time=11), CpuDiagnostics(id=1)),
    disks=(DiskDiagnostics(device="vda", read_bytes=1, read_requests=2, write_bytes=3, write_requests=4),),
    nics=(
        NicDiagnostics(
            mac_address="fa:16:3e:00:00:01",
            device="vnet0",
            rx_octets=1,
            rx_packets=2,
            rx_errors=3,
            rx_drop=4,
            tx_octets=5,
            tx_packets=6,
            tx_errors=7,
            tx_drop=8,
        ),
        NicDiagnostics(mac_address="fa:16:3e:00:00:02"),
    ),
)


class FullReader(GuestReader):
    """The host knows all that a hypervisor may know."""

    def diagnostics(self, context: RequestContext, server_uuid: str, timeout: float) -> Diagnostics:
        return FULL


class OlderReader(GuestReader):
    """A super conductor that does not know the method."""

    def diagnostics(self, context: RequestContext, server_uuid: str, timeout: float) -> Diagnostics:
        raise errors.Unsupported("This release tells no diagnostics.")


front = front_fixture(ApiSettings(cell_timeout=1.0))


@pytest.fixture
def server(front: Front) -> str:
    return active_server(front)


@pytest.fixture
def driver(front: Front, server: str, tmp_path: Path) -> Iterator[SimulatedDriver]:
    with its_guest(front, server, tmp_path, vcpus=2, memory_mb=512) as driver:
        yield driver


def ask(front: Front, server: str, headers: dict[str, str] = ADMIN) -> falcon.testing.Result:
    return front.get(f"/v2.1/servers/{server}/diagnostics", headers)


def test_a_simulated_host_says_what_it_knows(front: Front, server: str, driver: SimulatedDriver) -> None:
    shown = ask(front, server).json
    assert shown.pop("uptime") >= 0
    assert shown == {
        "state": "running",
        "driver": "libvirt",
        "hypervisor": "simulated",
        "hypervisor_os": None,
        "config_drive": False,
        "num_cpus": 2,
        "num_disks": 1,
        "num_nics": 0,
        "cpu_details": [{"id": 0, "time": None, "utilisation": None}, {"id": 1, "time": None, "utilisation": None}],
        "disk_details": [
            dict.fromkeys(("read_bytes", "read_requests", "write_bytes", "write_requests", "errors_count")),
        ],
        "nic_details": [],
        "memory_details": {"maximum": 512, "used": None},
    }
    assert ask(front, server, OLD_ADMIN).json == {"memory": 512 * 1024}


@pytest.mark.parametrize(
    ("power", "state"),
    [(Power.PAUSED, "paused"), (Power.SUSPENDED, "suspended"), (Power.OFF, "shutdown"), (Power.HELD, "shutdown")],
)
def test_the_state_is_that_of_the_guest(front: Front, server: str, driver: SimulatedDriver, power: Power, state: str) -> None:
    driver.set_power(server, power, hard=True)
    assert ask(front, server).json["state"] == state


def test_all_counters_are_shown_in_both_forms(front: Front, server: str) -> None:
    front.doorbells.guests = FullReader(front.database, front.registry, 60.0)
    shown = ask(front, server).json
    assert (shown["hypervisor"], shown["config_drive"], shown["memory_details"]) == ("kvm", True, {"maximum": 512, "used": 256})
    assert (shown["num_cpus"], shown["num_disks"], shown["num_nics"]) == (2, 1, 2)
    assert shown["cpu_details"][0] == {"id": 0, "time": 11, "utilisation": None}
    disk = {"read_bytes": 1, "read_requests": 2, "write_bytes": 3, "write_requests": 4, "errors_count": None}
    assert shown["disk_details"] == [disk]
    counted = {"rx_octets": 1, "rx_packets": 2, "rx_errors": 3, "rx_drop": 4, "tx_octets": 5, "tx_packets": 6, "tx_errors": 7}
    rates = {"rx_rate": None, "tx_rate": None}
    assert shown["nic_details"][0] == {"mac_address": "fa:16:3e:00:00:01", "tx_drop": 8} | counted | rates
    assert shown["nic_details"][1] == {"mac_address": "fa:16:3e:00:00:02", "tx_drop": None} | dict.fromkeys(counted) | rates
    interface = {"vnet0_rx": 1, "vnet0_rx_packets": 2, "vnet0_rx_errors": 3, "vnet0_rx_drop": 4}
    interface |= {"vnet0_tx": 5, "vnet0_tx_packets": 6, "vnet0_tx_errors": 7, "vnet0_tx_drop": 8}
    blocks = {"vda_read": 1, "vda_read_req": 2, "vda_write": 3, "vda_write_req": 4}
    memory = {"memory": 512 * 1024, "memory-actual": 256 * 1024}
    assert ask(front, server, OLD_ADMIN).json == {"cpu0_time": 11} | memory | blocks | interface


def test_only_administrators_see_diagnostics(front: Front, server: str, driver: SimulatedDriver) -> None:
    assert "os-server-diagnostics" in refusal(ask(front, server, NEWEST | TENANT), 403)
    for unknown in ("3d4f8c5e-0000-4000-8000-000000000000", "no-uuid"):
        assert "could not be found" in refusal(ask(front, unknown), 404)


def test_a_server_without_a_guest_has_no_diagnostics(front: Front) -> None:
    """Queued, handed over, buried."""
    queued = front.boot("web", TENANT)
    assert "has no guest" in refusal(ask(front, queued), 409)
    front.hand_over()
    assert "has no guest" in refusal(ask(front, queued), 409)
    buried = front.boot("web", TENANT)
    front.bury("no room")
    assert "has no guest" in refusal(ask(front, buried), 409)


def test_a_guest_that_its_host_does_not_have(front: Front, server: str, driver: SimulatedDriver) -> None:
    driver.destroy(server)
    assert f"has no guest of instance {server}" in refusal(ask(front, server), 409)


def test_a_host_that_does_not_answer_is_named(front: Front, server: str) -> None:
    assert "Host 'h1' of cell 'cell1' cannot answer" in refusal(ask(front, server), 409)


@pytest.mark.parametrize(
    ("about_agent", "reason"),
    [({"forced_down": True}, "is down"), ({"version": DIAGNOSING_VERSION - 1}, "older release, which cannot answer this")],
)
def test_an_agent_unable_to_answer_gets_no_request(
    front: Front, server: str, driver: SimulatedDriver, about_agent: dict[str, object], reason: str
) -> None:
    front.cell.write(lambda tx: tx.execute(sa.update(services).values(**about_agent)))
    assert reason in refusal(ask(front, server), 409)


def test_a_cell_that_does_not_answer_is_named(front: Front, server: str, tmp_path: Path) -> None:
    front.cell.database.dispose_connections()
    (tmp_path / "cell1.db").rename(tmp_path / "away.db")
    assert "cell 'cell1'" in refusal(ask(front, server), 409)


def test_a_driver_of_an_earlier_release_tells_none(
    front: Front, server: str, driver: SimulatedDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It lacks the method, or has the empty one of the protocol."""
    monkeypatch.setattr(SimulatedDriver, "diagnostics", ComputeDriver.diagnostics)
    assert "tells no diagnostics" in refusal(ask(front, server), 501)
    monkeypatch.delattr(SimulatedDriver, "diagnostics")
    assert "tells no diagnostics" in refusal(ask(front, server), 501)


def test_a_super_conductor_of_an_older_release(front: Front, server: str) -> None:
    front.doorbells.guests = OlderReader(front.database, front.registry, 60.0)
    assert "tells no diagnostics" in refusal(ask(front, server), 409)
