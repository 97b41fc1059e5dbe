"""What is known of a move whose operation a restored database has lost: only the rows of its two bodies."""

from __future__ import annotations

from typing import Any

import pytest

from db.api.operations.accepting import moving
from db.api.operations.operations import Body
from objects.instance import Server
from objects.operation import OperationKind
from objects.task import Power


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
def test_a_lost_move_brings_its_server_to_the_power_that_its_bodies_show(
    source: Power, twin: Power, kind: OperationKind, power: Power
) -> None:
    found = moving(body("s", source), body("b", twin, turn=1), 1.0)
    assert (found.kind, found.power_before) == (kind, power)
