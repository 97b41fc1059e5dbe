"""Servers on hosts that are down: what is refused with the reason, what goes on, and how an evacuation ends what is open."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import sqlalchemy as sa

from db.api.claims.claims import Ledger
from db.api.deployment import host_mappings
from db.api.operations import operations, steps
from db.api.projects import flavors
from db.api.rows.tables import operations as table
from db.api.servers import mappings
from db.cell import services
from db.cell.tables import instances
from db.sql.connection import CellTransaction
from objects.cell import HostMapping
from objects.operation import Operation, OperationState
from objects.process import AGENT_BINARY
from objects.task import Power, TaskState
from tests.functional.api.test_api_operations import ADMIN, LARGE, LIVE, NEW, act, booted, shown, the_operation, write
from tests.support.api import CELL1_UUID, IMAGE, Front, refusal
from tests.support.fronts import front_fixture
from tests.support.ground import USUAL

front = front_fixture(grounds=USUAL, images=True)


@pytest.fixture
def server(front: Front) -> str:
    """A server that is ACTIVE on host h1, whose agent reports."""
    front.database.write(flavors.create, LARGE)
    front.heartbeat("h1")
    front.heartbeat("h2")
    front.database.write(host_mappings.add_mappings, [HostMapping(host=host, cell_uuid=CELL1_UUID) for host in ("h1", "h2")], 1.0)
    return booted(front)


def call_down(front: Front, host: str, down: bool = True) -> None:
    front.cell.write(services.set_forced_down, host, AGENT_BINARY, down, time.time())


NEEDS_AGENT = [
    ("os-stop", None),
    ("reboot", {"type": "SOFT"}),
    ("reboot", {"type": "HARD"}),
    ("pause", None),
    ("suspend", None),
    ("rebuild", {"imageRef": IMAGE}),
    ("resize", {"flavorRef": "9"}),
    ("migrate", None),
    ("os-migrateLive", LIVE),
    ("shelve", None),
    ("createImage", {"name": "snap"}),
    ("createBackup", {"name": "b", "backup_type": "daily", "rotation": 1}),
    ("rescue", None),
    ("trigger_crash_dump", None),
]


@pytest.mark.parametrize("silent", [False, True])
def test_what_needs_the_agent_is_refused(front: Front, server: str, silent: bool) -> None:
    if silent:
        front.heartbeat("h1", 1.0)
    else:
        call_down(front, "h1")
    for action, value in NEEDS_AGENT:
        assert "host h1 is down" in refusal(act(front, server, action, value, ADMIN), 409), action
    assert front.database.read(operations.of_server, server) == []
    assert "its host is down" in refusal(act(front, server, "os-stop"), 409)


def test_a_host_that_is_back_takes_operations(front: Front, server: str) -> None:
    call_down(front, "h1")
    assert act(front, server, "os-stop").status_code == 409
    call_down(front, "h1", down=False)
    assert act(front, server, "os-stop").status_code == 202


@pytest.mark.parametrize(
    ("action", "value"),
    [("evacuate", {}), ("os-resetState", {"state": "error"}), ("lock", None), ("forceDelete", None)],
)
def test_what_needs_no_agent_goes_on(front: Front, server: str, action: str, value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    call_down(front, "h1")
    assert act(front, server, action, value, ADMIN).status_code in (200, 202)


def test_a_refusal_names_the_open_operation(front: Front, server: str) -> None:
    assert act(front, server, "resize", {"flavorRef": "9"}).status_code == 202
    words = refusal(act(front, server, "os-start"), 409)
    assert "task_state resize_prep" in words
    assert the_operation(front, server).uuid in words
    assert "vm_state active" not in words


# -- evacuations -------------------------------------------------------------------------------------------------------------------


@contextmanager
def the_conductor_works(front: Front, server: str) -> Iterator[None]:
    """Meanwhile the sweep takes the steps of the open operation, whose cells answer what they are asked."""
    ended = threading.Event()
    first = the_operation(front, server).uuid

    def conduct() -> None:
        while not ended.wait(0.02):
            opened = front.database.read(operations.open_for, [server]).get(server)
            if opened is None or opened.uuid != first:
                return
            step(front, opened)

    conductor = threading.Thread(target=conduct)
    conductor.start()
    yield
    ended.set()
    conductor.join()


def step(front: Front, opened: Operation) -> None:
    source, twin = opened.source_uuid or "", opened.twin_uuid or ""
    if opened.state is OperationState.UNDOING:
        write(front, twin, state="deleted")
        front.database.write(steps.given_up, [opened.uuid], time.time())
    if opened.state is OperationState.STARTING:
        write(front, source, power=opened.power_before, task_number=opened.number + 3, task_state=TaskState.DONE)
        front.database.write(steps.finish_tasks, [opened.uuid], time.time())
    if opened.state is OperationState.REVERTING:
        write(front, twin, power=Power.HELD, task_number=opened.number + 2, task_state=TaskState.ORDERED)


def in_state(front: Front, opened: Operation, state: OperationState) -> None:
    statement = sa.update(table).where(table.c.uuid == opened.uuid).values(state=state, held=state is not OperationState.PLACING)
    front.database.write(lambda tx: tx.execute(statement))


@pytest.mark.parametrize("action", [("migrate", None), ("resize", {"flavorRef": "9"}), ("os-migrateLive", LIVE)])
@pytest.mark.parametrize("state", [OperationState.PLACING, OperationState.HOLDING, OperationState.BUILDING])
def test_an_evacuation_ends_a_move_from_the_host(
    front: Front, server: str, action: tuple[str, Any], state: OperationState, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("api.servers.interruption.BUILDING_PATIENCE_S", 0.1)
    assert act(front, server, *action, ADMIN).status_code == 202
    opened = the_operation(front, server)
    in_state(front, opened, state)
    call_down(front, "h1")
    with the_conductor_works(front, server):
        answer = act(front, server, "evacuate", {}, ADMIN)
    assert answer.status_code == 200, answer.text
    assert the_operation(front, server).kind == "evacuate"
    [ended] = front.database.read(operations.get, [opened.uuid])
    assert (ended.outcome, ended.fault) == ("given-up", "The server's host was called dead.")


def test_an_evacuation_that_must_wait_names_the_reason(front: Front, server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("api.servers.interruption.INTERRUPTION_WAIT_S", 0.3)
    assert act(front, server, "migrate", None, ADMIN).status_code == 202
    call_down(front, "h1")
    opened = the_operation(front, server)
    assert "while its migrate is in state undoing" in refusal(act(front, server, "evacuate", {}, ADMIN), 409)
    assert the_operation(front, server).uuid == opened.uuid


def _copy_row(tx: CellTransaction, server: str, twin: str) -> None:
    """The cell's row of a twin is as that of its source, on host h2."""
    row = tx.execute(sa.select(instances).where(instances.c.uuid == server)).one()._asdict()
    tx.execute(sa.insert(instances).values(row | {"uuid": twin, "server_uuid": server, "turn": 1, "host": "h2"}))


def verifying(front: Front, server: str) -> Operation:
    """Its resize has brought it to h2."""
    assert act(front, server, "resize", {"flavorRef": "9"}).status_code == 202
    opened = the_operation(front, server)
    twin = opened.twin_uuid or ""
    home = front.database.read(mappings.get, server)
    assert home is not None
    in_state(front, opened, OperationState.BUILDING)
    write(front, twin, state="active", host="h2", cell_uuid=home.cell_uuid)
    front.cell.database.write(_copy_row, server, twin)
    write(front, server, power=Power.HELD, task_number=opened.number, task_state=TaskState.DONE)
    Ledger(front.database, "test").write(steps.switch_servers, [opened.uuid], time.time())
    assert the_operation(front, server).state is OperationState.VERIFY
    return opened


def test_a_resized_server_returns_from_a_dead_host(front: Front, server: str) -> None:
    opened = verifying(front, server)
    call_down(front, "h2")
    assert "its disk is on host h1" in refusal(act(front, server, "evacuate", {"host": "h3"}, ADMIN), 409)
    with the_conductor_works(front, server):
        assert act(front, server, "evacuate", {}, ADMIN).status_code == 200
    assert front.database.read(operations.open_for, [server]) == {}
    assert (shown(front, server, ADMIN)["OS-EXT-SRV-ATTR:host"], shown(front, server)["status"]) == ("h1", "ACTIVE")
    [ended] = front.database.read(operations.get, [opened.uuid])
    assert ended.outcome == "reverted"


def test_a_resized_server_leaves_two_dead_hosts(front: Front, server: str) -> None:
    opened = verifying(front, server)
    call_down(front, "h1")
    call_down(front, "h2")
    with the_conductor_works(front, server):
        answer = act(front, server, "evacuate", {}, ADMIN)
    assert answer.status_code == 200, answer.text
    assert the_operation(front, server).kind == "evacuate"
    [ended] = front.database.read(operations.get, [opened.uuid])
    assert ended.outcome == "done"


def test_a_resize_cannot_revert_to_a_dead_host(front: Front, server: str) -> None:
    verifying(front, server)
    call_down(front, "h1")
    assert "its host is down" in refusal(act(front, server, "revertResize"), 409)
    assert act(front, server, "confirmResize").status_code == 204


# -- failed servers ----------------------------------------------------------------------------------------------------------------


def test_a_failed_server_accepts_the_actions_nova_allows(front: Front, server: str) -> None:
    write(front, server, last_number=4, task_number=4, task_state="failed")
    assert front.get("/v2.1/servers/detail", NEW).json["servers"][0]["status"] == "ERROR"
    for action, value in NEEDS_AGENT:
        if action in ("os-stop", "rebuild", "rescue", "trigger_crash_dump") or value == {"type": "HARD"}:
            continue
        assert "while it is in vm_state error" in refusal(act(front, server, action, value, ADMIN), 409), action
    assert front.database.read(operations.of_server, server) == []
    assert act(front, server, "reboot", {"type": "HARD"}, NEW).status_code == 202
