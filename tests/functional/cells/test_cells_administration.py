"""Cells are created with care: checked first, saved last, and never twice at one place."""

from __future__ import annotations

from pathlib import Path

import pytest

from cells.administration import NewCell, create_cell, find_cell, list_cells
from db.api.deployment import cell_mappings
from db.api.rows import epochs
from db.sql.engine import Database
from objects import errors
from objects.cell import CELL0_UUID, CellMapping, CellState
from tests.support.databases import api_database

EAST = NewCell(name="east", database_url="mysql://sc:secret@db/east", transport_url="rabbit://sc:secret@mq/east")


@pytest.fixture
def api(tmp_path: Path) -> Database:
    return api_database(tmp_path)


def _new(**changes: object) -> NewCell:
    values: dict[str, object] = {"name": "west", "database_url": "mysql://sc@db/west", "transport_url": "rabbit://sc@mq/west"}
    return NewCell(**{**values, **changes})  # type: ignore[arg-type]  # the table of bad input holds values of many types


def test_a_cell_is_saved_and_the_epoch_rises(api: Database) -> None:
    before = api.read(epochs.read).get("cells", 0)
    created = create_cell(api, EAST)
    assert api.read(cell_mappings.list_all) == [created]
    assert (created.database_url, created.transport_url) == (EAST.database_url, EAST.transport_url)
    assert created.state is CellState.ENABLED
    assert api.read(epochs.read)["cells"] > before


def test_cell0_has_its_uuid_and_no_transport(api: Database) -> None:
    created = create_cell(api, NewCell(name="cell0", database_url="mysql://sc@db/cell0", cell0=True))
    assert (created.uuid, created.transport_url) == (CELL0_UUID, "none:///")
    with pytest.raises(errors.Conflict, match="it is cell0 already"):
        create_cell(api, NewCell(name="again", database_url="mysql://sc@db/again", cell0=True))


@pytest.mark.parametrize(
    ("changes", "error", "text"),
    [
        ({"name": ""}, errors.Invalid, "Cell name ''"),
        ({"name": "two words"}, errors.Invalid, "Cell name"),
        ({"name": "-x"}, errors.Invalid, "Cell name"),
        ({"name": "x" * 256}, errors.Invalid, "Cell name"),
        ({"database_url": ""}, errors.Misconfigured, "Database URL"),
        ({"database_url": "sqlite:///west.db"}, errors.Invalid, "must name a file absolutely"),
        ({"database_url": "mysql://sc:secret@db"}, errors.Invalid, "needs a host and a database"),
        ({"transport_url": ""}, errors.Invalid, "needs a transport URL"),
        ({"transport_url": "none:///"}, errors.Invalid, "must begin with rabbit://"),
        ({"transport_url": "rabbit://sc:secret@/x"}, errors.Invalid, "needs hosts"),
        ({"cell0": True}, errors.Invalid, "cell0 has no bus"),
        ({"cell0": True, "transport_url": "", "state": CellState.DISABLED}, errors.Invalid, "cell0 cannot be disabled"),
        ({"name": "east"}, errors.Conflict, "Cell 'east' exists already"),
        (
            {"database_url": "mysql+pymysql://o:x@DB:3306/east"},
            errors.Conflict,
            "Cell 'east' .* uses this database already",
        ),
        ({"transport_url": "rabbit://other@mq:5672/east/"}, errors.Conflict, r"Cell 'east' .* uses this transport already"),
    ],
)
def test_bad_input_is_refused_before_any_saving(
    api: Database, changes: dict[str, object], error: type[Exception], text: str
) -> None:
    east = create_cell(api, EAST)
    prepared: list[CellMapping] = []
    with pytest.raises(error, match=text) as caught:
        create_cell(api, _new(**changes), prepared.append)
    assert "secret" not in str(caught.value)
    assert prepared == []
    assert api.read(cell_mappings.list_all) == [east]


def test_nothing_is_saved_where_preparing_fails(api: Database) -> None:
    def fail(mapping: CellMapping) -> None:
        raise errors.DatabaseUnavailable(f"no database for {mapping.name}")

    with pytest.raises(errors.DatabaseUnavailable, match="no database for west"):
        create_cell(api, _new(), fail)
    assert api.read(cell_mappings.list_all) == []


def test_one_of_two_operators_gets_the_place(api: Database) -> None:
    def quicker(_: CellMapping) -> None:
        create_cell(api, EAST)

    with pytest.raises(errors.Conflict, match=r"Cell 'east' .* uses this database already"):
        create_cell(api, _new(database_url=EAST.database_url), quicker)
    assert [m.name for m in api.read(cell_mappings.list_all)] == ["east"]


def test_cells_are_looked_up_and_listed_cell0_first(api: Database) -> None:
    with pytest.raises(errors.NotFound, match="there is none yet"):
        find_cell(api, "east")
    east = create_cell(api, EAST)
    cell0 = create_cell(api, NewCell(name="zero", database_url="mysql://sc@db/cell0", cell0=True))
    assert find_cell(api, "east") == find_cell(api, east.uuid) == east
    assert list_cells(api) == [cell0, east]
    with pytest.raises(errors.NotFound, match="No cell is called 'nowhere'; there are: zero, east"):
        find_cell(api, "nowhere")
