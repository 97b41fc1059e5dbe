"""What is known of a move whose operation a restored database has lost: only the rows of its two bodies."""

from __future__ import annotations

from typing import Any

import pytest

from db.api.operations.accepting import operation_of_twin
from db.api.operations.operations import Body
from objects.destination import Destination
from objects.instance import Server
from objects.move import Move, MoveKind
from objects.operation import OperationKind
from objects.task import Power
from tests.support import fleet


def body(uuid: str, power: Power, turn: int = 0) -> Body:
    known: dict[str, Any] = {
        "batch_id": "r",
        "project_id": "p",
        "user_id": "u",
        "name": "web",
        "created_at": 0.0,
        "updated_at": 0.0,
    }
    server = Server(uuid="s", own_uuid=uuid, state="active", host="h1", power=power, turn=turn, **known)
    return Body(server=server, hidden=turn > 0, charge=(1, 512))


@pytest.mark.parametrize(
    ("source", "twin", "kind", "power"),
    [
        (Power.ON, Power.INCOMING, OperationKind.LIVE_MIGRATE, Power.ON),
        (Power.PAUSED, Power.INCOMING, OperationKind.LIVE_MIGRATE, Power.PAUSED),
        (Power.HELD, Power.INCOMING, OperationKind.LIVE_MIGRATE, Power.ON),
        (Power.HELD, Power.OFF, OperationKind.MIGRATE, Power.OFF),
        (Power.HELD, Power.ON, OperationKind.MIGRATE, Power.ON),
    ],
)
def test_a_lost_move_restores_power_from_its_bodies(source: Power, twin: Power, kind: OperationKind, power: Power) -> None:
    found = operation_of_twin(body("s", source), body("b", twin, turn=1), None, 1.0)
    assert (found.kind, found.power_before) == (kind, power)


@pytest.mark.parametrize(("asked", "kind"), [(MoveKind.RESIZE, OperationKind.RESIZE), (MoveKind.MIGRATE, OperationKind.MIGRATE)])
def test_the_request_distinguishes_a_resize_from_a_migration(asked: MoveKind, kind: OperationKind) -> None:
    move = Move(kind=asked, instance_uuid="s", source_host="h1", source_cell_uuid="c")
    spec = fleet.spec(fleet.flavor(vcpus=2, memory_mb=2048)).for_move(move, "moving", destination=Destination(host="h2"))
    found = operation_of_twin(body("s", Power.HELD), body("b", Power.ON, turn=1), spec, 1.0)
    assert (found.kind, found.vcpus, found.memory_mb) == (kind, 2, 2048)
