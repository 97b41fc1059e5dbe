"""The registry follows the table of cells and the host mappings; real SQLite databases and embedded buses."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from cells.bulkhead import BulkheadSettings
from cells.opts import RegistrySettings
from cells.registry import CellRegistry
from cells.template import Local
from db.api.deployment import cell_mappings, host_mappings
from db.cell import services
from objects import errors
from objects.cell import CELL0_UUID, CellMapping, CellState, HostMapping
from rpc.transport import Bus
from service.periodic import wait_until
from tests.support.cell_databases import SETTINGS, Cells, cells_on, closed_port, silent_port
from tests.support.ground import USUAL, on


@pytest.fixture(params=USUAL)
def cells(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Cells]:
    with cells_on(request.param, tmp_path) as made:
        yield made


def test_cells_come_and_go_while_the_registry_lives(cells: Cells, registry: CellRegistry) -> None:
    assert registry.list_cells() == ()
    cells.add("cell0", cell0=True)
    east, west = cells.add("east"), cells.add("west")
    assert [cell.name for cell in registry.list_cells()] == ["east", "west"]
    cells.change(msgspec.structs.replace(east, name="orient"))
    cells.api.write(cell_mappings.delete, west.uuid)
    assert [cell.name for cell in registry.list_cells()] == ["orient"]
    with pytest.raises(errors.NotFound, match=west.uuid):
        registry.get(west.uuid)


def test_an_unchanged_cell_stays_the_same_object(cells: Cells, registry: CellRegistry) -> None:
    east = cells.add("east")
    before = registry.get(east.uuid)
    cells.add("west")
    cells.change(msgspec.structs.replace(east, state=CellState.DISABLED))
    registry.refresh_cells()
    assert registry.get(east.uuid) is before
    assert before.current_mapping.state is CellState.DISABLED, "whoever holds it sees the new state"


def test_a_moved_database_is_used_at_once(cells: Cells, registry: CellRegistry) -> None:
    east = cells.add("east")
    cells.report("east", "old-host")
    before = registry.get(east.uuid)
    elsewhere = cells.add("elsewhere")
    cells.report("elsewhere", "new-host")
    cells.api.write(cell_mappings.delete, elsewhere.uuid)
    cells.change(msgspec.structs.replace(east, database_url=elsewhere.database_url))
    after = registry.get(east.uuid)
    assert after is not before
    assert [s.host for s in after.read(services.list_all)] == ["new-host"]
    assert [s.host for s in before.read(services.list_all)] == ["old-host"], "who still holds the old one is not cut off"


def test_cell0_is_apart(cells: Cells, registry: CellRegistry) -> None:
    with pytest.raises(errors.NotFound, match="superconductor cell create cell0"):
        _ = registry.cell0
    cells.add("cell0", cell0=True)
    assert registry.cell0.uuid == CELL0_UUID
    assert registry.cell0.compute is None
    assert registry.list_cells() == ()
    assert registry.get(CELL0_UUID) is registry.cell0


def test_mapped_hosts_are_known_before_the_next_poll(cells: Cells) -> None:
    east = cells.add("east")
    with cells.registry(RegistrySettings(poll_interval=3600.0)) as registry:
        with pytest.raises(errors.HostNotMapped, match="'node-1' is not mapped"):
            registry.of_host("node-1")
        cells.api.write(host_mappings.add_mappings, [HostMapping(host="node-1", cell_uuid=east.uuid)], 0.0)
        west = cells.add("west")
        assert registry.of_host("node-1").uuid == east.uuid
        assert registry.get(west.uuid).name == "west", "a uuid that is not known is looked for too"


def test_a_host_of_a_removed_cell_stays_unmapped(cells: Cells, registry: CellRegistry) -> None:
    gone = "11111111-1111-4111-8111-111111111111"
    cells.api.write(host_mappings.add_mappings, [HostMapping(host="orphan", cell_uuid=gone)], 0.0)
    with pytest.raises(errors.HostNotMapped, match="does not exist"):
        registry.of_host("orphan")


def test_a_malformed_url_costs_only_its_own_cell(cells: Cells, registry: CellRegistry) -> None:
    east, west = cells.add("east"), cells.add("west")
    cells.api.write(host_mappings.add_mappings, [HostMapping(host="node-1", cell_uuid=west.uuid)], 0.0)
    cells.change(msgspec.structs.replace(west, database_url="nonsense://u:secret@h/x"))
    assert [cell.name for cell in registry.list_cells()] == ["east"]
    with pytest.raises(errors.CellUnavailable, match="cell 'west' cannot be used"):
        registry.of_host("node-1")
    assert list(registry.reasons_by_uuid()) == [west.uuid]
    assert "secret" not in registry.reasons_by_uuid()[west.uuid]
    cells.change(west)
    assert registry.of_host("node-1").name == "west"
    assert registry.get(east.uuid).name == "east"


@on("cells", "lite")  # its file is taken away
def test_the_registry_works_without_the_api_database(cells: Cells, registry: CellRegistry) -> None:
    east = cells.add("east")
    cells.report("east", "node-1")
    known = registry.get(east.uuid)
    cells.api.dispose_connections()
    (cells.folder / "api.db").rename(cells.folder / "away.db")
    assert registry.list_cells() == (known,)
    assert [s.host for s in known.read(services.list_all)] == ["node-1"]


class WatchedBus(Bus):
    """A bus that tells when it is closed."""

    def __init__(self, mapping: CellMapping) -> None:
        super().__init__(mapping.transport_url)
        self.closed = threading.Event()

    def close(self) -> None:
        super().close()
        self.closed.set()


def test_removed_cells_are_closed_after_a_while(cells: Cells) -> None:
    buses: dict[str, WatchedBus] = {}

    def open_bus(mapping: CellMapping) -> Bus:
        return buses.setdefault(mapping.transport_url, WatchedBus(mapping))

    east, west, north = cells.add("east"), cells.add("west"), cells.add("north")
    registry = CellRegistry(cells.api, msgspec.structs.replace(SETTINGS, linger=0.05), open_bus=open_bus)
    assert len(registry.list_cells()) == 3
    cells.change(msgspec.structs.replace(east, transport_url=cells.bus("elsewhere")))
    cells.api.write(cell_mappings.delete, west.uuid)
    gone = (buses[east.transport_url], buses[west.transport_url])
    assert wait_until(lambda: len(registry.list_cells()) == 2 and all(bus.closed.is_set() for bus in gone), 90.0)
    staying = (buses[north.transport_url], buses[cells.bus("elsewhere")])
    assert not any(bus.closed.is_set() for bus in staying)
    registry.close()
    assert all(bus.closed.is_set() for bus in staying)


def test_threads_see_equal_cells_while_the_table_changes(cells: Cells, registry: CellRegistry) -> None:
    east = cells.add("east")
    before = registry.get(east.uuid)
    found, failures, stop = set(), [], threading.Event()

    def reader() -> None:
        while not stop.is_set():
            try:
                found.add(id(registry.get(east.uuid)))
            except Exception as error:  # noqa: BLE001 - any at all is a failure of the test
                failures.append(error)

    threads = [threading.Thread(target=reader) for _ in range(4)]
    for thread in threads:
        thread.start()
    for number in range(5):
        cells.add(f"cell{number}")
    stop.set()
    for thread in threads:
        thread.join(10)
    assert failures == []
    assert found == {id(before)}


def test_a_missing_database_file_opens_the_breaker(cells: Cells, registry: CellRegistry) -> None:
    east = cells.add("east")
    west = cells.add_unreachable("west", f"sqlite:///{cells.folder}/no/such/west.db")
    for _ in range(2):
        with pytest.raises(errors.CellUnavailable, match=r"^cell 'west': Database .* does not exist"):
            registry.get(west.uuid).read(services.list_all)
    with pytest.raises(errors.CellUnavailable, match=r"^cell 'west' has not answered since"):
        registry.get(west.uuid).read(services.list_all)
    assert registry.get(west.uuid).silent_since is not None
    assert registry.get(east.uuid).read(services.list_all) == []
    assert registry.get(east.uuid).silent_since is None


def test_a_closed_port_shows_no_password(cells: Cells, registry: CellRegistry) -> None:
    dead = cells.add_unreachable("dead", f"mysql+pymysql://sc:secret@127.0.0.1:{closed_port()}/cell")
    with pytest.raises(errors.CellUnavailable, match="cell 'dead'") as caught:
        registry.get(dead.uuid).read(services.list_all)
    assert "secret" not in str(caught.value)


def test_a_mute_server_blocks_nobody_past_the_deadline(cells: Cells) -> None:
    with silent_port() as port:
        frozen = cells.add_unreachable("frozen", f"postgresql+psycopg://sc:secret@127.0.0.1:{port}/cell?connect_timeout=30")
        patience = RegistrySettings(poll_interval=0.0, bulkhead=BulkheadSettings(timeout=0.2, failures=2, pause=3600.0))
        with cells.registry(patience) as registry:
            cell = registry.get(frozen.uuid)
            for _ in range(2):
                with pytest.raises(errors.CellUnavailable, match=r"its database gave no answer within 0\.2 s"):
                    cell.read(services.list_all)
            with pytest.raises(errors.CellUnavailable, match="has not answered since"):
                cell.write(services.record_heartbeats, [services.Beat(host="node", binary="binary")], 0.0)
            with pytest.raises(errors.CellUnavailable, match="has not answered since"):
                cell.with_timeout(60.0).read(services.list_all)


@on("cells", "lite")  # what the template says is a folder
def test_processes_fill_templates_in_from_their_own_configuration(cells: Cells) -> None:
    east = cells.add("east")
    cells.report("east", "node-1")
    apart = cells.ground.path / "apart"
    apart.mkdir()
    (cells.folder / "east.db").rename(apart / "east.db")
    cells.change(
        msgspec.structs.replace(east, database_url="sqlite:////{path}/east.db", transport_url="{scheme}://{hostname}/east")
    )
    here = Local(database_url=f"sqlite:///{apart}", transport_url="embedded://somewhere/api")
    with cells.registry(msgspec.structs.replace(SETTINGS, local=here)) as one, cells.registry() as other:
        cell = one.get(east.uuid)
        assert [s.host for s in cell.read(services.list_all)] == ["node-1"]
        assert cell.current_mapping.database_url == "sqlite:////{path}/east.db", "nothing that was expanded is kept"
        cell.check_bus()
        one.refresh_cells()
        cells.add("west")
        assert one.get(east.uuid) is cell, "a template is compared with itself"
        assert "needs {path}, which comes from [api_database] connection" in other.reasons_by_uuid()[east.uuid]
        assert [cell.name for cell in other.list_cells()] == ["west"]
