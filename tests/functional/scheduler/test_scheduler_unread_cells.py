"""Right after its start a scheduler has not read every cell. It refuses nothing that a cell which it is still reading may take."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
import sqlalchemy as sa

from cells.bulkhead import BulkheadSettings
from cells.registry import CellRegistry, open_database
from db.api.claims import claims
from db.api.deployment import host_mappings
from db.sql.engine import CellDatabase
from objects import errors
from objects.capacity import Capacity
from objects.cell import CellMapping, HostMapping
from objects.selection import Selection
from objects.spec import RequestSpec
from rpc.transport import Bus
from scheduler import table_updater
from scheduler.framework.settings import SchedulerSettings
from scheduler.main import SchedulerService
from scheduler.manager import SchedulerManager
from tests.support import fleet
from tests.support.cell_databases import SETTINGS, Cells
from tests.support.fleet import CONTEXT, Site
from tests.support.ground import Ground

IMPATIENT = SchedulerSettings(
    service_poll_interval=0.05, feed_poll_interval=0.05, claims_poll_interval=0.05, idle_interval=0.2, warm_up=0.0
)
PATIENT = msgspec.structs.replace(IMPATIENT, warm_up=3600.0)


class Gate:
    """Statements about ``table`` of the database of one cell stop here until it is opened. None: none do."""

    def __init__(self, table: str | None = None, cell: str = "west") -> None:
        self.table, self.cell = table, cell
        self.reached, self.opened = threading.Event(), threading.Event()
        self._databases: list[CellDatabase] = []

    def open_database(self, mapping: CellMapping) -> CellDatabase:
        made = open_database(mapping)
        if mapping.name == self.cell:
            self._databases.append(made)
        return made

    def hold(self, tx: sa.Connection, cursor: object, statement: str, *_: object) -> None:
        if re.search(rf"(FROM|JOIN) {self.table}\b", statement) and any(
            database.has_engine(tx.engine) for database in self._databases
        ):
            self.reached.set()
            assert self.opened.wait(60.0)


class Region:
    """Host e1 of cell east has 8 vCPUs, w1 of cell west has 16. Other cells may be silent."""

    def __init__(self, folder: Path, gate: Gate, answers_within: float = 60.0) -> None:
        self.place = Ground("lite", folder)
        self.cells = Cells(folder, self.place)
        self.bus = Bus(self.place.bus("api"))
        self.gate = gate
        self.site = Site(self.cells.api, [])
        for name, host, vcpus in (("east", "e1", 8), ("west", "w1", 16)):
            cell = self.cells.add(name)
            self.cells.report(name, host)
            self.enter(cell, host, vcpus)
        bulkhead = BulkheadSettings(timeout=answers_within, failures=2, pause=3600.0)
        settings = msgspec.structs.replace(SETTINGS, bulkhead=bulkhead)
        self.registry = CellRegistry(self.cells.api, settings, open_database=gate.open_database)

    def enter(self, cell: CellMapping, host: str, vcpus: int) -> None:
        """The host's mapping, and its row in the ledger of claims."""
        self.cells.api.write(host_mappings.add_mappings, [HostMapping(host=host, cell_uuid=cell.uuid)], time.time())
        claims.Ledger(self.cells.api, "conductor").write(claims.set_inventory, [fleet.node(host, vcpus=vcpus)], cell.uuid)

    def lose(self, host: str, vcpus: int) -> None:
        """A cell whose database is away, with this host."""
        self.enter(self.cells.add_unreachable("broken", f"sqlite:///{self.cells.folder}/no/such/folder.db"), host, vcpus)

    @contextmanager
    def scheduler(self, settings: SchedulerSettings) -> Iterator[SchedulerManager]:
        service = SchedulerService(settings, self.registry, self.cells.api, self.bus)
        try:
            service.start()
            yield service.manager
        finally:
            self.gate.opened.set()
            service.stop()

    def asked(self, vcpus: int) -> RequestSpec:
        return self.site.leased(fleet.spec(fleet.flavor(vcpus)))

    def end(self) -> None:
        self.gate.opened.set()
        self.place.end(self.registry.close, self.bus.close, self.cells.api.dispose_connections, self.place.release)


@contextmanager
def region(folder: Path, gate: Gate, answers_within: float = 60.0) -> Iterator[Region]:
    made = Region(folder, gate, answers_within)
    sa.event.listen(sa.Engine, "before_cursor_execute", gate.hold)
    try:
        yield made
    finally:
        sa.event.remove(sa.Engine, "before_cursor_execute", gate.hold)
        made.end()


def choose(scheduler: SchedulerManager, asked: RequestSpec) -> list[list[Selection]]:
    return scheduler.select_destinations(CONTEXT, asked, list(asked.fences))


def hosts(answers: list[list[Selection]]) -> list[str]:
    return [answer[0].host for answer in answers]


@pytest.fixture
def _brief_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_updater, "FIRST_READ_TIMEOUT_S", 0.2)


@pytest.mark.usefixtures("_brief_start")
@pytest.mark.parametrize("table", ["compute_nodes", "services"])
class TestACellThatIsBeingRead:
    """Its hosts are not in the table yet, or nothing is known of their agents."""

    def test_a_request_it_may_take_is_not_refused(self, table: str, tmp_path: Path) -> None:
        with region(tmp_path, Gate(table)) as site, site.scheduler(IMPATIENT) as scheduler:
            assert site.gate.reached.wait(60.0)
            large = site.asked(12)
            with pytest.raises(errors.Conflict, match="not all hosts are known yet"):
                choose(scheduler, large)
            [choice] = scheduler.select_for_each(CONTEXT, [large])
            with pytest.raises(errors.Conflict, match="not all hosts are known yet"):
                choice.get_selections()
            assert site.site.decisions() == []
            assert hosts(choose(scheduler, site.asked(2))) == ["e1"], "whoever fits elsewhere does not wait"
            with pytest.raises(errors.NoValidHost):
                choose(scheduler, site.asked(17))  # the ledger has no such host

    def test_it_waits_until_the_cell_has_been_read(self, table: str, tmp_path: Path) -> None:
        with (
            region(tmp_path, Gate(table)) as site,
            site.scheduler(PATIENT) as scheduler,
            ThreadPoolExecutor(1) as pool,
        ):
            assert site.gate.reached.wait(60.0)
            waiting: Future[list[list[Selection]]] = pool.submit(choose, scheduler, site.asked(12))
            assert hosts(choose(scheduler, site.asked(2))) == ["e1"]
            assert not waiting.done()
            site.gate.opened.set()
            assert hosts(waiting.result(60.0)) == ["w1"]

    def test_capacity_says_that_it_was_counted_early(self, table: str, tmp_path: Path) -> None:
        with region(tmp_path, Gate(table)) as site, site.scheduler(IMPATIENT) as scheduler:
            assert site.gate.reached.wait(60.0)
            found: Capacity = scheduler.capacity(CONTEXT, [fleet.spec(fleet.flavor(12))])
            assert (found.early, found.flavors[0].servers) == (True, 0)

    def test_one_that_stops_answering_is_not_waited_for(self, table: str, tmp_path: Path) -> None:
        with (
            region(tmp_path, Gate(table), answers_within=0.5) as site,
            site.scheduler(PATIENT) as scheduler,
            pytest.raises(errors.CellUnavailable, match="nothing is heard from any host of cell west"),
        ):
            choose(scheduler, site.asked(12))


def test_a_hanging_cell_takes_no_others_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_updater, "LOADS_LIMIT", 1)
    monkeypatch.setattr(table_updater, "FIRST_READ_TIMEOUT_S", 0.2)
    with region(tmp_path, Gate("feed_head", cell="east")) as site, site.scheduler(PATIENT) as scheduler:
        assert site.gate.reached.wait(60.0)
        assert hosts(choose(scheduler, site.asked(12))) == ["w1"]
        assert not site.gate.opened.is_set()


class TestACellThatIsDown:
    def test_the_start_does_not_wait_for_it(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(table_updater, "FIRST_READ_TIMEOUT_S", 3600.0)
        with region(tmp_path, Gate()) as site:
            site.lose("b1", 32)
            with site.scheduler(IMPATIENT) as scheduler:
                assert hosts(choose(scheduler, site.asked(12))) == ["w1"]

    def test_only_what_it_may_take_waits_for_it(self, tmp_path: Path) -> None:
        with region(tmp_path, Gate()) as site:
            site.lose("b1", 32)
            with site.scheduler(PATIENT) as scheduler:
                with pytest.raises(errors.CellUnavailable, match="cell broken"):
                    choose(scheduler, site.asked(20))
                with pytest.raises(errors.NoValidHost):
                    choose(scheduler, site.asked(33))
