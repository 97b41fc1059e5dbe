"""``instance map`` and ``instance verify``: what they do, and what their exit status says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import sqlalchemy as sa

from cells.administration import list_cells
from db.api.rows import tables
from db.api.servers import mappings
from db.cell import instances, staging
from db.sql.engine import Database
from objects import lifecycle
from objects.instance import Instance, State
from objects.lifecycle import Outcome
from tests.support.cell_databases import Cells, closed_port
from tests.support.cell_site import SPEC
from tests.support.commands import Shell
from tests.support.databases import sqlite_url


def uuid(number: int) -> str:
    return f"00000000-0000-4000-8000-{number:012d}"


class Site:
    """Cells whose instances the API database has lost."""

    def __init__(self, folder: Path) -> None:
        self.cells = Cells(folder)
        self.cells.add("cell0", cell0=True)
        self.cells.add("east")
        self.cells.add("west")
        self.uuids = {mapping.name: mapping.uuid for mapping in list_cells(self.cells.api)}

    def database(self, cell: str) -> Database:
        return Database(sqlite_url(self.cells.folder, cell))

    def stage(self, cell: str, *numbers: int) -> None:
        rows = [Instance(uuid=uuid(n), state=State.STAGED, fence=1, host="e1", node="e1", deadline=1e12) for n in numbers]
        news = [staging.NewInstance(instance=row, name=row.uuid, launch_index=0, created_at=1.0) for row in rows]
        self.database(cell).write(staging.stage_instances, SPEC, news, 1.0)

    def activate(self, cell: str, *numbers: int) -> None:
        """They are there, and run."""
        self.stage(cell, *numbers)
        steps: tuple[Callable[[Instance], Outcome], ...] = (
            lambda row: lifecycle.accept_order(row, "e1", 1, 1, "b"),
            lambda row: lifecycle.confirm_active(row, "e1", 1, 1, "b", 2.0),
        )
        for step in steps:
            self.database(cell).write(instances.transition_rows, [uuid(n) for n in numbers], step, 2.0)

    def delete(self, cell: str, number: int) -> None:
        self.database(cell).write(instances.delete, [uuid(number)], 3.0)

    def mapped(self) -> dict[str, str | None]:
        rows = self.cells.api.read(lambda tx: tx.execute(sa.select(tables.instance_mappings)).all())
        return {row.instance_uuid: row.cell_uuid for row in rows}

    def set(self, number: int, **values: object) -> None:
        table = tables.instance_mappings
        self.cells.api.write(lambda tx: tx.execute(sa.update(table).where(table.c.instance_uuid == uuid(number)).values(values)))

    def queue(self, number: int) -> None:
        row = {"instance_uuid": uuid(number), "batch_id": "b", "state": "queued", "lease_until": 0.0, "fence": 1, "deadline": 1e12}
        row |= {"priority": 0, "created_at": 1.0}
        self.cells.api.write(lambda tx: tx.execute(sa.insert(tables.build_requests), row))


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


@pytest.fixture
def shell(site: Site, capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(site.cells.folder, capsys)


def test_only_instances_in_force_are_mapped_in_portions(site: Site, shell: Shell) -> None:
    site.activate("east", 1, 2, 3)
    site.stage("east", 4)
    site.stage("east", 5)
    site.delete("east", 5)
    site.activate("east", 6)
    site.delete("east", 6)  # its guest is on its way out
    first = shell("instance map east --max-count 2 -f value")
    assert (first.status, first.out, first.err) == (1, "2\nyes\n", "")
    second = shell("instance map east --max-count 2 -f value")
    assert (second.status, second.out) == (0, "1\nno\n")
    assert shell.json("instance map east") == {"Mapped": 0, "More": "no"}
    assert site.mapped() == dict.fromkeys((uuid(1), uuid(2), uuid(3)), site.uuids["east"])
    server = site.cells.api.read(mappings.get, uuid(1))
    assert server is not None
    assert (server.state, server.host, server.name) == ("active", "e1", uuid(1))
    assert site.cells.api.read(mappings.specs_by_batch, [server.batch_id])[server.batch_id].flavor == SPEC.flavor


def test_what_is_decided_stays_as_it_is(site: Site, shell: Shell) -> None:
    """Also a copy of a server that was deleted before it had a cell. A request of what runs is removed: nobody builds it again."""
    site.activate("east", 1, 2, 3, 4)
    shell.done("-q instance map east")
    site.set(1, cell_uuid=site.uuids["west"])
    site.set(2, cell_uuid=None)
    site.queue(2)
    site.set(3, cell_uuid=None, deleted=True)
    site.set(4, cell_uuid=None)
    assert shell.json("instance map east")["Mapped"] == 2
    east, west = site.uuids["east"], site.uuids["west"]
    assert site.mapped() == {uuid(1): west, uuid(2): east, uuid(3): None, uuid(4): east}
    assert site.cells.api.read(mappings.measure_queue).depth == 0


def test_an_instance_in_two_cells_stays_unrepaired(site: Site, shell: Shell) -> None:
    """A copy that was never handed over is none, a deleted one is."""
    site.activate("east", 1, 2, 3)
    site.activate("west", 1)
    site.stage("west", 2)
    site.delete("west", 3)
    outcome = shell("instance map east -f value -c Mapped")
    assert (outcome.status, outcome.out) == (3, "1\n")
    assert outcome.err.splitlines() == [
        f"superconductor: Instance {uuid(number)} is in cell 'east' and in cell 'west': "
        "delete the copy that is wrong, then run this again"
        for number in (1, 3)
    ]
    assert set(site.mapped()) == {uuid(2)}


def test_nothing_is_mapped_while_cells_are_unreachable(site: Site, shell: Shell) -> None:
    site.activate("east", 1)
    site.cells.add_unreachable("dead", f"mysql+pymysql://sc:secret@127.0.0.1:{closed_port()}/cell")
    for cell in ("east", "dead", "nowhere"):
        outcome = shell(f"-q instance map {cell}")
        assert (outcome.status, outcome.out, outcome.err.count("\n")) == (3, "", 1)
        assert "secret" not in outcome.err
    assert site.mapped() == {}
    assert shell("instance map east --max-count 0").status == 2


def test_the_verify_status_says_where_an_instance_is(site: Site, shell: Shell) -> None:
    site.activate("east", *range(1, 7))
    assert shell(f"-q instance verify {uuid(1)}").status == 1
    shell.done("-q instance map east")

    def verdict(number: int) -> tuple[int, str]:
        outcome = shell(f"instance verify {uuid(number)} -f value -c Verdict")
        assert outcome.err == ""
        return outcome.status, outcome.out.strip()

    claim = {"instance_uuid": uuid(1), "inventory_id": 1, "fence": 1, "vcpus": 1, "memory_mb": 1, "disk_gb": 1, "selection": "[]"}
    inventory = {"id": 1, "host": "e1", "node": "e1", "cell_uuid": site.uuids["east"], "cap_vcpus": 1, "cap_memory_mb": 1}
    site.cells.api.write(lambda tx: tx.execute(sa.insert(tables.allocations), claim | {"writer": 1, "wseq": 1}))
    site.cells.api.write(lambda tx: tx.execute(sa.insert(tables.inventories), inventory | {"cap_disk_gb": 1}))
    assert verdict(1) == (0, "is in cell 'east'")
    site.set(2, cell_uuid=None)
    site.queue(2)
    assert verdict(2) == (2, "is mapped to no cell: being built")
    site.set(3, deleted=True)
    assert verdict(3) == (3, "is deleted, and still mapped to cell 'east'")
    site.set(4, cell_uuid=site.uuids["west"])
    assert verdict(4) == (4, "is mapped to cell 'west', which has no row of it")
    assert verdict(5) == (6, "is in its cell, and nothing is claimed for it")
    dead = site.cells.add_unreachable("dead", f"mysql+pymysql://sc:secret@127.0.0.1:{closed_port()}/cell")
    site.set(6, cell_uuid=dead.uuid)
    status, text = verdict(6)
    assert status == 5
    assert text.startswith("cannot be checked: cell 'dead'")
    assert "secret" not in text
