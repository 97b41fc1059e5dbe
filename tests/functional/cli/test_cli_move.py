"""``superconductor move``: operations are listed, shown, given up, confirmed and reverted."""

from __future__ import annotations

import getpass

import pytest

from db.api.servers import mappings
from objects.flavor import Flavor
from objects.operation import Operation, OperationArgs, OperationKind, OperationState, Outcome
from service.periodic import wait_until
from tests.support import fleet
from tests.support.cell_conductor import PATIENCE
from tests.support.commands import Shell
from tests.support.world import World, world_fixture

SMALL = fleet.flavor(vcpus=1, memory_mb=512, root_gb=1)
LARGE = Flavor(flavor_id="large", name="large", vcpus=4, memory_mb=2048, root_gb=2)
NOBODY = "00000000-aaaa-4aaa-8aaa-000000000000"


cloud = world_fixture(prepare=World.start)


@pytest.fixture
def shell(cloud: World, capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(cloud.folder.path, capsys)


def boot(cloud: World, host: str = "a1") -> str:
    spec = cloud.accept(force_hosts=(host,), size=SMALL)
    assert wait_until(lambda: [each.state for each in cloud.api.read(mappings.of_batch, spec.batch_id)] == ["active"], PATIENCE)
    return cloud.uuids(spec)[0]


def under_way(cloud: World) -> Operation:
    """A migration from a1 whose twin does not get done until the gate of a2 opens."""
    cloud.agents["cell1"].drivers["a2"].gate.clear()
    operation = cloud.operate(boot(cloud), OperationKind.MIGRATE)
    assert wait_until(lambda: bool(cloud.agents["cell1"].drivers["a2"].spawning), PATIENCE)
    return operation


def resized(cloud: World) -> Operation:
    operation = cloud.operate(boot(cloud), OperationKind.RESIZE, flavor=LARGE)
    assert cloud.ended(operation).state is OperationState.VERIFY
    return operation


def test_open_operations_are_listed_by_subject(cloud: World, shell: Shell) -> None:
    assert shell.json("operation list") == []
    operation = under_way(cloud)
    [row] = shell.json("operation list")
    assert row.pop("Age") >= 0
    assert row == {
        "Operation": operation.uuid,
        "Server": operation.server_uuid,
        "Kind": "migrate",
        "State": "building",
        "From": "a1",
        "To": "a2",
        "Fault": None,
    }
    for words in ("--host a1", "--host a2", "--cell cell1", f"--server {operation.server_uuid}", "--status building", "--all"):
        assert len(shell.json(f"operation list {words}")) == 1, words
    for words in ("--host b1", "--cell cell2", f"--server {NOBODY}", "--status verify", "--status ended"):
        assert shell.json(f"operation list {words}") == [], words
    cloud.agents["cell1"].drivers["a2"].gate.set()
    assert cloud.ended(operation).outcome is Outcome.DONE
    assert shell.json("operation list") == []
    assert [row["State"] for row in shell.json("operation list --all --limit 1")] == ["done"]
    assert [row["State"] for row in shell.json("operation list --status ended")] == ["done"]


def test_a_cross_cell_move_is_listed_for_both(cloud: World, shell: Shell) -> None:
    operation = cloud.operate(boot(cloud), OperationKind.MIGRATE, args=OperationArgs(host="b1", cross_cell=True))
    cloud.ended(operation)
    for words in ("--cell cell1", "--cell cell2", "--host b1"):
        assert len(shell.json(f"operation list --all {words}")) == 1, words
    shown = shell.json(f"operation show {operation.uuid}")
    assert (shown["State"], shown["To"], shown["Requested Host"], shown["Cross Cell"]) == ("done", "b1", "b1", "yes")
    assert (shown["User"], shown["Source Body"], shown["New Body"]) == ("u", operation.source_uuid, operation.twin_uuid)
    assert shown["Ended"] is not None


def test_a_move_ends_in_the_operators_name(cloud: World, shell: Shell) -> None:
    operation = under_way(cloud)
    shell.done(f"move abort {operation.uuid}")
    found = cloud.ended(operation)
    assert (found.outcome, found.fault) == (Outcome.GIVEN_UP, f"Given up by the operator {getpass.getuser()}.")
    cloud.settle()
    assert cloud.evidence().rows
    assert "in state ended cannot be given up: it has ended: given-up" in shell.refused(f"move abort {operation.uuid}")


def test_a_resize_is_confirmed_or_reverted(cloud: World, shell: Shell) -> None:
    kept, undone = resized(cloud), resized(cloud)
    assert "cannot be given up: the server has arrived: confirm or revert it" in shell.refused(f"move abort {kept.uuid}")
    shell.done(f"move confirm {kept.uuid}")
    shell.done(f"move revert {undone.uuid}")
    assert wait_until(lambda: shell.json("operation list") == [], PATIENCE)
    assert [cloud.ended(each).outcome for each in (kept, undone)] == [Outcome.DONE, Outcome.REVERTED]
    assert "does not wait for its user: it is in state done" in shell.refused(f"move confirm {kept.uuid}")
    cloud.settle()


@pytest.mark.parametrize(
    ("line", "status", "words"),
    [
        (f"operation show {NOBODY}", 1, "There is no operation"),
        ("move abort nonsense", 1, "There is no operation 'nonsense': 'operation list --all' shows them"),
        (f"move confirm {NOBODY}", 1, "There is no operation"),
        ("operation list --cell nowhere", 3, "No cell is called 'nowhere'"),
        ("operation list --status done", 2, "invalid choice: 'done'"),
        ("operation list --limit 0", 2, "'0' is not a whole number from 1 to"),
        ("move abort", 2, "the following arguments are required: OPERATION"),
        ("host evacuate nobody", 1, "Host 'nobody' is not mapped to a cell"),
        ("host evacuate a1 --dead --to a1", 1, "--to: 'a1' is the host to be emptied"),
        ("host evacuate a1 --jobs 0", 2, "'0' is not a whole number from 1 to"),
        ("host drain a1 --to nobody", 1, "Host 'nobody' is not mapped to a cell"),
        ("host drain a1 --to b1", 1, "Host 'b1' is in cell 'cell2', not in 'cell1': give --cross-cell to move servers there"),
        ("host drain", 2, "the following arguments are required: HOST"),
        ("cell drain nowhere --wait", 3, "No cell is called 'nowhere'"),
        ("cell drain cell0 --wait", 1, "cell0 cannot be draining"),
        ("cell drain cell1 --wait --jobs x", 2, "'x' is not a whole number"),
    ],
)
def test_one_line_says_what_is_wrong(cloud: World, shell: Shell, line: str, status: int, words: str) -> None:
    said = shell(line)
    assert said.status == status, said
    assert words in said.err
    assert said.err.count("\n") == 1
