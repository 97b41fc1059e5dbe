"""A cell that is disabled gets no claim after that was committed, however far a claim had come by then."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from db.api.claims import claims
from db.api.claims.claiming import Ask, Outdated
from db.api.deployment import cell_mappings
from db.api.rows import epochs
from db.api.rows.epochs import Epoch
from db.sql.engine import Database
from objects.cell import CellState
from objects.decision import Decision
from objects.inventory import GroupSlots, Inventory, Placement, Standing
from objects.selection import Selection
from tests.support import fleet
from tests.support.databases import SERVERS, database_on
from tests.support.fleet import CELLS, Site

ON_SERVERS = [server for server in SERVERS if server != "sqlite"]
"""A file has one writer at a time: nobody disables a cell while a claim is being made."""


class Planner:
    """Puts the only instance on one inventory. ``meanwhile`` happens when the epochs were read, before anything is locked."""

    def __init__(self, newest: int, chosen: Inventory, meanwhile: Callable[[], object]) -> None:
        self.log_position: tuple[Mapping[int, int], int] = ({}, newest)
        self._chosen = chosen
        self._meanwhile = meanwhile
        self._needed: tuple[str, ...] = ()
        self.is_overtaken = False

    def plan_jobs(
        self, changes: Sequence[Inventory], standings: Sequence[Standing], groups: Sequence[GroupSlots]
    ) -> Collection[int]:
        self._needed = tuple(uuid for standing in standings for uuid in standing.needed)
        self._meanwhile()
        return [self._chosen.id]

    def confirm_locked(self, locked: Sequence[Inventory]) -> Collection[int]:
        self.is_overtaken = any(row.generation != self._chosen.generation for row in locked)
        return []

    def finish_plan(self) -> tuple[Sequence[Sequence[Placement]], Sequence[Decision]]:
        row = self._chosen
        answer = Selection(host=row.host, node=row.node, cell_uuid=row.cell_uuid, fence=1)
        return [[Placement(instance_uuid=uuid, inventory_id=row.id, selections=(answer,)) for uuid in self._needed]], []


@pytest.fixture(params=ON_SERVERS)
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    with database_on(request.param, tmp_path, "api") as made:
        yield Site.anew(made, [fleet.node(f"h{n}") for n in range(4)])


def change(database: Database, state: CellState) -> None:
    mapping = next(found for found in database.read(cell_mappings.list_all) if found.uuid == CELLS[0])
    database.write(cell_mappings.update_mapping, msgspec.structs.replace(mapping, state=state))


def elsewhere(site: Site, state: CellState) -> None:
    """In another process: a thread cannot write inside its own write."""
    with ThreadPoolExecutor(1) as other:
        other.submit(change, site.database, state).result()


def claim(site: Site, meanwhile: Callable[[], object]) -> None:
    leased = site.leased(fleet.spec(fleet.flavor(1, 512, 1)), 1)
    ask = Ask(fences=dict(leased.fences), vcpus=1, memory_mb=512, disk_gb=1)
    known = {str(Epoch.CELLS): site.database.read(epochs.read)[Epoch.CELLS]}
    chosen = next(row for row in site.database.read(claims.read_all) if row.cell_uuid == CELLS[0])
    newest = site.database.read(claims.changed_since, {}, 0).newest
    site.ledger.write(claims.claim_hosts, [ask], Planner(newest, chosen, meanwhile), known)


def test_a_claim_with_old_epochs_is_refused(site: Site) -> None:
    for cell in fleet.cells():
        site.database.write(cell_mappings.create, cell)
    with pytest.raises(Outdated):
        claim(site, lambda: elsewhere(site, CellState.DISABLED))
    assert site.claimed() == {}
    claim(site, lambda: None)
    assert len(site.claimed()) == 1, "by one who knows of it"


def test_changes_in_another_cell_refuse_nothing(site: Site) -> None:
    """Another scheduler's first claims come from a younger writer too."""
    for cell in fleet.cells():
        site.database.write(cell_mappings.create, cell)
    claim(site, lambda: site.scheduler())
    assert len(site.claimed()) == 1
