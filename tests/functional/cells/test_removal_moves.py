"""A cell that is lost while operations have a body in it: what can go on without it does, the rest is where it was or ends."""

from __future__ import annotations

import pytest

from cells.administration import find_cell
from cells.removal import RemovalFate, remove_cell
from db.api.operations import steps, thaw
from objects import errors
from objects.flavor import Flavor
from objects.operation import Operation, OperationKind, OperationState, Outcome
from objects.task import Power, Task, TaskKind
from tests.support.ground import GROUNDS
from tests.support.moved import Moved
from tests.support.world import world_fixture

HOME, OTHER = "cell1", "cell2"
LARGE = Flavor(flavor_id="large", name="large", vcpus=2, memory_mb=1024, root_gb=10)


site = world_fixture({HOME: ["a1", "a2"], OTHER: ["b1"]}, GROUNDS, embedded=True, of=Moved)


def lose(site: Moved, cell: str) -> dict[str, str]:
    """Remove the cell; returns the outcome of each body in it."""
    site.cloud.databases[cell].away = True
    dead = find_cell(site.cloud.api, cell)
    planned = remove_cell(site.conductor.ledger, dead, dead=True, dry_run=True)
    account = remove_cell(site.conductor.ledger, dead, dead=True)
    assert account == planned
    site.cloud.databases[cell].away = False  # for those who look at everything
    return {entry.id: entry.outcome for entry in account if entry.kind == "server"}


def started(site: Moved, operation: Operation) -> None:
    """What is left of the operation: its source is started, and it ends."""
    site.cloud.api.write(steps.given_up, [operation.uuid], site.cloud.api.current_time())
    assert site.state(operation)[0] is OperationState.STARTING
    site.tasked(operation.source_uuid or "", Task(number=operation.number + 3, kind=TaskKind.POWER, power=Power.ON))
    site.finish()


def agrees(site: Moved) -> None:
    assert site.cloud.evidence().drifts == ()
    assert site.auditor.kinds() == []


def goes_on(site: Moved, uuid: str, operation: Operation, outcome: Outcome) -> None:
    """The operation has ended so, and the server runs where it was before."""
    started(site, operation)
    assert site.state(operation)[1] is outcome
    assert (site.server(uuid).body_uuid, site.server(uuid).state, site.server(uuid).power) == (uuid, "active", Power.ON)
    agrees(site)


def test_a_compare_does_not_wait_for_lost_cells(site: Moved) -> None:
    [uuid] = site.active()
    operation = site.building(uuid, to=OTHER)
    site.cloud.api.write(thaw.freeze_operations, [operation.uuid], "its database was restored", 1.0)
    assert lose(site, OTHER) == {operation.twin_uuid: RemovalFate.GIVEN_UP}
    started(site, operation)


def test_an_unbuilt_twin_costs_only_its_operation(site: Moved) -> None:
    [uuid] = site.active()
    operation = site.building(uuid, to=OTHER)
    assert lose(site, OTHER) == {operation.twin_uuid: RemovalFate.GIVEN_UP}
    goes_on(site, uuid, operation, Outcome.GIVEN_UP)


def test_a_shelved_server_leaves_the_lost_cell(site: Moved) -> None:
    """If its snapshot is complete; otherwise it is lost with the cell."""
    uuid, other = site.active(2)
    operation, incomplete = (site.cloud.operate(each, OperationKind.SHELVE, timeout=1e9) for each in (uuid, other))
    site.tasked(uuid, Task(number=operation.number, kind=TaskKind.SNAPSHOT, power=Power.HELD))
    site.finish()
    assert lose(site, HOME) == {uuid: RemovalFate.SHELVED, other: RemovalFate.DELETED}
    assert (site.server(uuid).state, site.server(uuid).cell_uuid) == ("shelved", None)
    assert (site.state(operation)[1], site.state(incomplete)[1]) == (Outcome.DONE, Outcome.DELETED)
    agrees(site)


def test_a_lost_resized_server_gets_its_former_size(site: Moved) -> None:
    [uuid] = site.active()
    operation = site.building(uuid, OperationKind.RESIZE, to=OTHER, flavor=LARGE)
    site.switched(operation)
    assert lose(site, OTHER) == {operation.twin_uuid: RemovalFate.TURNED_BACK}
    goes_on(site, uuid, operation, Outcome.REVERTED)


@pytest.mark.parametrize(
    ("kind", "waiting"), [(OperationKind.MIGRATE, False), (OperationKind.RESIZE, False), (OperationKind.RESIZE, True)]
)
def test_a_twin_that_runs_elsewhere_is_the_server(site: Moved, kind: OperationKind, *, waiting: bool) -> None:
    """Whether the conductor had seen it or not, and whether its user had confirmed it or not."""
    [uuid] = site.active()
    operation = site.building(uuid, kind, to=OTHER, flavor=LARGE if kind is OperationKind.RESIZE else None)
    (site.switched if waiting else site.built)(operation)
    assert lose(site, HOME) == {uuid: RemovalFate.REPLACED}
    assert (site.server(uuid).body_uuid, site.server(uuid).state) == (operation.twin_uuid, "active")
    assert site.state(operation)[1] is Outcome.DONE
    agrees(site)


def test_its_twin_decides_an_outgoing_live_migration(site: Moved) -> None:
    """The removal is refused until the twin has answered."""
    [uuid] = site.active()
    operation = site.listening(uuid, to=OTHER)
    with pytest.raises(errors.Conflict, match=f"1 servers of cell '{HOME}' were being migrated live"):
        lose(site, HOME)
    site.cloud.databases[HOME].away = False  # for those who look at everything
    site.conductor.operator.run_round()
    site.tasked(operation.twin_uuid or "", Task(number=operation.number + 2, kind=TaskKind.POWER, power=Power.ON))
    site.conductor.operator.run_round()
    assert lose(site, HOME) == {uuid: RemovalFate.CONFIRMED}
    assert (site.server(uuid).body_uuid, site.server(uuid).power) == (operation.twin_uuid, Power.ON)
    assert site.state(operation)[1] is Outcome.DONE
    agrees(site)


def test_a_live_migration_into_the_cell_is_abandoned(site: Moved) -> None:
    [uuid] = site.active()
    operation = site.listening(uuid, to=OTHER)
    assert lose(site, OTHER) == {operation.twin_uuid: RemovalFate.GIVEN_UP}
    goes_on(site, uuid, operation, Outcome.GIVEN_UP)


def test_an_uncopied_server_is_lost_with_its_operation(site: Moved) -> None:
    [uuid] = site.active()
    operation = site.building(uuid, to=OTHER)
    assert lose(site, HOME) == {uuid: RemovalFate.DELETED}
    assert site.server(uuid).deleted
    assert site.state(operation)[1] is Outcome.DELETED
    site.conductor.deleter.run_round()
    site.keep()


def test_a_moved_in_server_is_deleted_by_uuid(site: Moved) -> None:
    [uuid] = site.active()
    operation = site.building(uuid, to=OTHER)
    site.switched(operation)
    site.end(uuid)
    assert lose(site, OTHER) == {operation.twin_uuid: RemovalFate.DELETED}
    assert (site.server(uuid).deleted, site.server(uuid).state) == (True, "deleted")
    agrees(site)
