"""Console output over HTTP: from a real agent, by a real super conductor's reader, and what is answered if a part is not there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import falcon.testing
import pytest
import sqlalchemy as sa

from api.main import build_app
from api.opts import ApiSettings
from compute.simulated import SimulatedDriver
from conductor.guest_reader import GuestReader
from db.cell import services
from db.cell.tables import services as table
from objects import console, errors
from objects.process import AGENT_BINARY
from objects.task import Power
from rpc.compute import ANSWERING_VERSION
from rpc.transport import Bus
from tests.support.api import NEWEST, OTHER_TENANT, TENANT, Front, refusal, with_status
from tests.support.asked_guest import active_server, its_guest
from tests.support.bus import embedded_url
from tests.support.fronts import front_fixture

ADMIN = NEWEST | {"X-Project-Id": "operators", "X-Roles": "admin"}
READER = TENANT | {"X-Roles": "reader"}


front = front_fixture(ApiSettings(cell_timeout=1.0))


@pytest.fixture
def server(front: Front) -> str:
    return active_server(front)


@pytest.fixture
def driver(front: Front, server: str, tmp_path: Path) -> Iterator[SimulatedDriver]:
    with its_guest(front, server, tmp_path) as driver:
        yield driver


def ask(front: Front, server: str, value: Any, headers: dict[str, str] = TENANT) -> falcon.testing.Result:
    path = f"/v2.1/servers/{server}/action"
    return front.client.simulate_post(path, headers=headers, json={"os-getConsoleOutput": value})


def output(front: Front, server: str, **value: Any) -> str:
    answer = with_status(ask(front, server, value), 200)
    return str(answer.json["output"])


def test_the_last_lines_of_output_are_returned(front: Front, server: str, driver: SimulatedDriver) -> None:
    boot = output(front, server).splitlines()
    assert (boot[0], boot[-1]) == ("web: boots from image none on h1", "web: ready")
    assert len(boot) > 10
    driver.set_power(server, Power.OFF, hard=False)
    driver.set_power(server, Power.ON, hard=False)
    every = [*boot, "web: is off", "web: is on"]
    for length in (None, -1, "-1", 100):
        assert output(front, server, length=length).splitlines() == every
    assert output(front, server, length="3") == "web: is off\nweb: is on\n", "what follows the last newline is a line, as in Nova"
    assert output(front, server, length=0) == ""


def test_what_the_guest_writes_breaks_nothing(front: Front, server: str, driver: SimulatedDriver) -> None:
    log = driver._consoles._path / server
    log.parent.mkdir()
    log.write_bytes(b"x" * console.CONSOLE_BYTES + b"\xff\x1b]0;you\x07\r\n\x9b\xc2\x9b31m\ttab\n")
    shown = output(front, server)
    assert shown.endswith("x\ufffd]0;you\n\ufffd31m\ttab\n")
    assert len(shown) < console.CONSOLE_BYTES


def test_members_read_consoles_of_their_own_servers(front: Front, server: str, driver: SimulatedDriver) -> None:
    assert ask(front, server, {}, ADMIN).status_code == 200
    assert "os-console-output" in refusal(ask(front, server, {}, READER), 403)
    unknown = "3d4f8c5e-0000-4000-8000-000000000000"
    for uuid, headers in ((server, OTHER_TENANT), (unknown, TENANT), ("no-uuid", TENANT)):
        assert "could not be found" in refusal(ask(front, uuid, {}, headers), 404)


@pytest.mark.parametrize("value", [None, {"length": -2}, {"length": "many"}, {"length": 1.5}, {"length": True}, {"lines": 1}])
def test_a_length_that_is_none_is_refused(front: Front, server: str, value: Any) -> None:
    assert "os-getConsoleOutput" in refusal(ask(front, server, value), 400)


def test_a_server_without_a_guest_has_no_console(front: Front) -> None:
    """Queued, handed over, buried."""
    queued = front.boot("web", TENANT)
    assert "has no guest" in refusal(ask(front, queued, {}), 409)
    assert "has no guest" in refusal(ask(front, queued, {}, ADMIN), 409)
    front.hand_over()
    assert "has no guest" in refusal(ask(front, queued, {}), 409)
    buried = front.boot("web", TENANT)
    front.bury("no room")
    assert "has no guest" in refusal(ask(front, buried, {}), 409)


def test_administrators_see_the_name_of_a_silent_host(front: Front, server: str) -> None:
    """It counts for the host alone: orders to the others of its cell are sent."""
    for _ in range(4):
        assert "Host 'h1' of cell 'cell1' cannot answer: compute did not" in refusal(ask(front, server, {}, ADMIN), 409)
    assert front.cell.bus_silent_since is None
    assert front.cell.ask_agent(lambda: "asked", 1.0) == "asked"
    told = refusal(ask(front, server, {}), 409)
    assert "its host does not answer" in told
    assert "h1" not in told


@pytest.mark.parametrize(
    ("about_agent", "reason"),
    [
        ({"forced_down": True}, "is down"),
        ({"stopping": True}, "is down"),
        ({"last_seen": 0.0}, "is down"),
        ({"version": ANSWERING_VERSION - 1}, "older release"),
    ],
)
def test_an_agent_unable_to_answer_gets_no_request(
    front: Front, server: str, driver: SimulatedDriver, about_agent: dict[str, Any], reason: str
) -> None:
    front.cell.write(lambda tx: tx.execute(sa.update(table).values(**about_agent)))
    assert reason in refusal(ask(front, server, {}, ADMIN), 409)


def test_a_host_that_never_reported_is_down(front: Front, server: str) -> None:
    front.cell.write(services.delete, "h1", AGENT_BINARY)
    assert "is down" in refusal(ask(front, server, {}, ADMIN), 409)


def test_a_driver_without_consoles(front: Front, server: str, driver: SimulatedDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that was written for an earlier release."""
    monkeypatch.delattr(SimulatedDriver, "console_output")
    assert "keeps no console output" in refusal(ask(front, server, {}), 501)


def test_an_older_or_absent_super_conductor_is_reported(front: Front, server: str) -> None:
    front.doorbells.guests = NoConsoles(front.database, front.registry, 60.0)
    assert "offers no consoles" in refusal(ask(front, server, {}, ADMIN), 409)
    bus = Bus(embedded_url())  # nobody listens there
    front.bus.close()
    alone = falcon.testing.TestClient(build_app(front.settings, front.registry, front.database, bus))
    answer = alone.simulate_post(f"/v2.1/servers/{server}/action", headers=TENANT, json={"os-getConsoleOutput": {}})
    assert answer.status_code == 503
    bus.close()


class NoConsoles(GuestReader):
    """A super conductor that does not know the method."""

    def console_output(self, *arguments: object) -> str:
        raise errors.Unsupported("This release offers no consoles.")


def test_administrators_see_the_name_of_a_silent_cell(front: Front, server: str, tmp_path: Path) -> None:
    front.cell.database.dispose_connections()
    (tmp_path / "cell1.db").rename(tmp_path / "away.db")
    assert "cell 'cell1'" in refusal(ask(front, server, {}, ADMIN), 409)
    assert "cell1" not in refusal(ask(front, server, {}), 409)
