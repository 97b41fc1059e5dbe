"""Real agents of two machines with the name of one host, at a real cell conductor: one of them acts as the host."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

from compute.machine import identify
from db.cell import services
from objects.process import AGENT_BINARY
from rpc.cell_conductor import serve_topic
from service.periodic import wait_until
from tests.support.agents import Agents
from tests.support.cell_conductor import PATIENCE
from tests.support.cell_site import Site
from tests.support.closing import closing_fixture
from tests.support.ground import Ground

HOST = "m1"


class TwoMachines:
    """Each machine is a folder: an agent is told apart by it."""

    def __init__(self, path: Path) -> None:
        self.site = Site(Ground("lite", path, embedded=True))
        self.first, self.second = (Agents(self.site.bus, path / name) for name in ("first", "second"))
        self._server = serve_topic(self.site.bus, "conductor-1", self.site.conductor)

    def close(self) -> None:
        self.first.stop()
        self.second.stop()
        self._server.stop()
        self.site.close()
        self.site.ground.release()

    def boot(self, count: int = 1) -> list[str]:
        """Instances that have become ACTIVE on the host."""
        uuids = [str(uuid4()) for _ in range(count)]
        self.site.stage(*uuids, host=HOST)
        self.site.activate(*uuids)
        self.site.conductor.resend_orders(uuids)
        assert wait_until(lambda: {self.site.state(each)[0] for each in uuids} == {"active"}, PATIENCE)
        return uuids

    def guests(self) -> tuple[set[str], set[str]]:
        first, second = ({guest.uuid for guest in agents.guests(HOST)} for agents in (self.first, self.second))
        return first, second

    def admitted(self) -> str | None:
        return self.site.database.read(services.get, HOST, AGENT_BINARY).machine

    def accept(self) -> None:
        self.site.database.write(services.accept_machine, HOST, AGENT_BINARY)


machines = closing_fixture(TwoMachines)


def test_the_second_takes_no_orders_and_says_why(machines: TwoMachines) -> None:
    first = machines.first.start(HOST)
    second = machines.second.start(HOST)
    assert (first.is_listening, second.is_listening) == (True, False)
    uuids = machines.boot(20)
    assert machines.guests() == (set(uuids), set())
    assert machines.admitted() == identify(str(machines.first.path)).id
    assert "two machines are called m1" in second.exclusion


def test_guests_of_the_refused_agent_stay_unreported(machines: TwoMachines) -> None:
    machines.second.start(HOST)
    [one] = machines.boot()
    machines.second.services[HOST].stop(0.0)
    machines.site.database.write(services.delete, HOST, AGENT_BINARY)
    machines.first.start(HOST)
    second = machines.second.start(HOST)
    assert not second.is_listening
    assert machines.guests() == (set(), {one})


def test_the_operator_hands_over_to_the_second_agent(machines: TwoMachines) -> None:
    first, second = machines.first.start(HOST), machines.second.start(HOST)
    [before] = machines.boot()
    machines.accept()
    assert wait_until(lambda: second.is_listening and not first.is_listening, PATIENCE)
    after = machines.boot(10)
    assert machines.guests() == ({before}, set(after))
