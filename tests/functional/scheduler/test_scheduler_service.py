"""The scheduler as a service: over the bus, from start to stop."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from cells.registry import CellRegistry
from db.api.claims import claims
from db.api.deployment import host_mappings
from db.cell import services
from objects import errors
from objects.cell import HostMapping
from objects.process import AGENT_BINARY
from objects.selection import Selection
from objects.spec import RequestSpec
from rpc.scheduler import SchedulerClient
from rpc.transport import Bus
from scheduler.framework.settings import SchedulerSettings
from scheduler.main import SchedulerService
from service.periodic import wait_until
from tests.support import fleet
from tests.support.cell_databases import Cells
from tests.support.fleet import CONTEXT, Site
from tests.support.ground import USUAL, Ground
from tests.support.threads import run_threads

FAST = SchedulerSettings(
    service_poll_interval=0.05,
    feed_poll_interval=0.05,
    claims_poll_interval=0.05,
    idle_interval=0.2,
    warm_up=0.0,
)


class Deployment:
    """One cell with three hosts, and the parts a scheduler needs."""

    def __init__(self, folder: Path, registry: CellRegistry, cells: Cells, bus: Bus) -> None:
        self.registry, self.bus, self.cells, self.folder = registry, bus, cells, folder
        self.cell = cells.add("east")
        hosts = ["e1", "e2", "e3"]
        cells.report("east", *hosts)
        cells.api.write(host_mappings.add_mappings, [HostMapping(host=h, cell_uuid=self.cell.uuid) for h in hosts], time.time())
        claims.Ledger(cells.api, "conductor").write(claims.set_inventory, [fleet.node(h, vcpus=8) for h in hosts], self.cell.uuid)
        self.site = Site(cells.api, [])

    def service(self, settings: SchedulerSettings = FAST) -> SchedulerService:
        return SchedulerService(settings, self.registry, self.cells.api, self.bus)

    def silence(self, since: float) -> None:
        """All agents were last heard of so many seconds ago, and are about to come back."""
        for host in ("e1", "e2", "e3"):
            self.beat(host, time.time() - since)

    def beat(self, host: str, at: float | None = None) -> None:
        database = self.cells.ground.open("east")
        database.write(services.record_heartbeats, [services.Beat(host=host, binary=AGENT_BINARY)], at)
        database.dispose_connections()


@pytest.fixture(params=USUAL)
def deployment(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Deployment]:
    place = Ground(request.param, tmp_path)
    cells = Cells(tmp_path, place)
    bus = Bus(place.bus("api"))
    with cells.registry() as registry:
        yield Deployment(tmp_path, registry, cells, bus)
    place.end(bus.close, cells.api.dispose_connections, place.release)


def test_hosts_are_chosen_over_the_bus(deployment: Deployment) -> None:
    service = deployment.service()
    service.start()
    try:
        leased = deployment.site.leased(fleet.spec(), 3)
        client = SchedulerClient(deployment.bus)
        answers = client.select_destinations(CONTEXT, leased, list(leased.fences))
        assert {answer[0].host for answer in answers} == {"e1", "e2", "e3"}
        assert all(s.cell_uuid == deployment.cell.uuid for answer in answers for s in answer)
        huge = deployment.site.leased(fleet.spec(fleet.flavor(vcpus=9)))
        with pytest.raises(errors.NoValidHost, match="CoreFilter") as refused:
            client.select_destinations(CONTEXT, huge, list(huge.fences))
        assert refused.value.decision_id == deployment.site.decisions()[-1].id
        assert deployment.site.decisions()[-1].cells.keys() == {"east"}
    finally:
        service.stop()


def test_two_schedulers_share_the_topic_and_the_room(deployment: Deployment) -> None:
    started = [deployment.service(), deployment.service()]
    for service in started:
        service.start()
    try:
        client = SchedulerClient(deployment.bus)
        asked = [deployment.site.leased(fleet.spec(fleet.flavor(vcpus=2))) for _ in range(12)]
        refused: list[errors.NoValidHost] = []

        def ask(spec: RequestSpec) -> None:
            try:
                client.select_destinations(CONTEXT, spec, list(spec.fences))
            except errors.NoValidHost as error:
                refused.append(error)

        run_threads([threading.Thread(target=ask, args=(each,)) for each in asked])
        assert len(deployment.site.claimed()) == 9  # three on each host, beside the two vCPUs of guests nobody knows
        assert len(refused) == 3
        assert deployment.site.overfull() == []
    finally:
        for service in started:
            service.stop()


def test_right_after_a_start_it_awaits_returning_hosts(deployment: Deployment) -> None:
    deployment.silence(3600.0)
    service = deployment.service(msgspec.structs.replace(FAST, warm_up=30.0))
    service.start()
    try:
        leased = deployment.site.leased(fleet.spec())
        answers: list[list[list[Selection]]] = []
        client = SchedulerClient(deployment.bus)
        asking = threading.Thread(target=lambda: answers.append(client.select_destinations(CONTEXT, leased, list(leased.fences))))
        asking.start()
        time.sleep(0.3)  # nothing may be decided in the meantime
        assert deployment.site.decisions() == []
        deployment.beat("e2")
        asking.join(20.0)
        assert [[[selection.host for selection in answer] for answer in each] for each in answers] == [[["e2"]]]
        hopeless = deployment.site.leased(fleet.spec(fleet.flavor(vcpus=9)))
        with pytest.raises(errors.NoValidHost):  # no host of that size will come back
            client.select_destinations(CONTEXT, hopeless, list(hopeless.fences))
    finally:
        service.stop()


def test_a_recently_mapped_host_is_waited_for(deployment: Deployment) -> None:
    """Its operator has been told that it is mapped; the conductor that takes its capacity from the cell comes a moment later."""
    service = deployment.service(msgspec.structs.replace(FAST, warm_up=30.0))
    service.start()
    try:
        mapping = HostMapping(host="e4", cell_uuid=deployment.cell.uuid)
        deployment.cells.api.write(host_mappings.add_mappings, [mapping], time.time())
        leased = deployment.site.leased(fleet.spec(fleet.flavor(vcpus=12)))
        answers: list[list[list[Selection]]] = []
        client = SchedulerClient(deployment.bus)
        asking = threading.Thread(target=lambda: answers.append(client.select_destinations(CONTEXT, leased, list(leased.fences))))
        asking.start()
        asking.join(0.3)
        assert asking.is_alive(), "neither refused nor placed before anything is known of the host"
        deployment.cells.report("east", "e4")
        ledger = claims.Ledger(deployment.cells.api, "conductor")
        ledger.write(claims.set_inventory, [fleet.node("e4", vcpus=16)], deployment.cell.uuid)
        asking.join(20.0)
        assert [[[selection.host for selection in answer] for answer in each] for each in answers] == [[["e4"]]]
    finally:
        service.stop()


def test_after_its_warm_up_it_refuses(deployment: Deployment) -> None:
    deployment.silence(3600.0)
    service = deployment.service(msgspec.structs.replace(FAST, warm_up=0.5))
    service.start()
    try:
        leased = deployment.site.leased(fleet.spec())
        with pytest.raises(errors.NoValidHost, match="0 were left by ComputeFilter"):
            SchedulerClient(deployment.bus).select_destinations(CONTEXT, leased, list(leased.fences))
    finally:
        service.stop()


def test_requests_fitting_a_fully_silent_cell_wait(deployment: Deployment) -> None:
    """The cell's bus is away, or its database: a boot that was accepted is not refused for that."""
    service = deployment.service(msgspec.structs.replace(FAST, service_down_time=0.5))
    service.start()
    client = SchedulerClient(deployment.bus)
    try:
        time.sleep(0.7)  # longer than the hosts' silence may be
        waiting = deployment.site.leased(fleet.spec())
        with pytest.raises(errors.CellUnavailable, match="nothing is heard from any host of cell east"):
            client.select_destinations(CONTEXT, waiting, list(waiting.fences))
        with pytest.raises(errors.CellUnavailable):
            client.select_destinations(CONTEXT, waiting, list(waiting.fences))
        [told] = deployment.site.decisions()  # what was said last, however often it is asked
        assert "nothing is heard from any host of cell east" in told.waits
        assert told.filters[-1].name == "ComputeFilter"
        huge = deployment.site.leased(fleet.spec(fleet.flavor(vcpus=9)))
        with pytest.raises(errors.NoValidHost):
            client.select_destinations(CONTEXT, huge, list(huge.fences))
        answers: list[list[Selection]] = []

        def chosen() -> bool:
            deployment.beat("e2", time.time())
            try:
                answers.extend(client.select_destinations(CONTEXT, waiting, list(waiting.fences)))
            except errors.CellUnavailable:
                return False
            return True

        assert wait_until(chosen, 90.0)
        assert [[selection.host for selection in answer] for answer in answers] == [["e2"]]
    finally:
        service.stop()


def test_a_silent_host_among_others_is_not_awaited(deployment: Deployment) -> None:
    service = deployment.service(msgspec.structs.replace(FAST, service_down_time=1.0))
    service.start()
    try:
        time.sleep(1.2)  # longer than a host's silence may be
        asked = deployment.site.leased(fleet.spec(force_hosts=("e2",)))
        client = SchedulerClient(deployment.bus)

        def refused() -> bool:
            deployment.beat("e1", time.time())
            try:
                client.select_destinations(CONTEXT, asked, list(asked.fences))
            except errors.NoValidHost:
                return True
            except errors.CellUnavailable:
                return False  # it has not heard of e1 yet
            raise AssertionError("placed on a host that is silent")

        assert wait_until(refused, 90.0)
    finally:
        service.stop()


def test_a_wrong_name_stops_it_before_it_starts(deployment: Deployment) -> None:
    with pytest.raises(errors.Misconfigured, match="RamFilter"):
        deployment.service(msgspec.structs.replace(FAST, enabled_filters=("NoSuchFilter",)))
