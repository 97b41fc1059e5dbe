"""A rebuild gets its secrets with the grant of its task: through lost and doubled messages, and after a restart of the agent."""

from __future__ import annotations

import hashlib
import uuid
from pathlib import Path

import pytest
import sqlalchemy as sa

from compute.driver import Guest
from compute.journal import Received, read_entries, received_by
from compute.main import ComputeService
from compute.simulated import SimulatedDriver, journal_path
from conductor.orders import send_tasks
from db.cell import tasks
from db.cell.tables import tasks as table
from objects import errors
from objects.build import Report, ReportKind, Verdict
from objects.lifecycle import INTERRUPTED, NO_NEW_DRIVE
from objects.spec import BootSecrets
from objects.task import DriveChanges, Power, TaskArgs, TaskKind, TaskState
from service.periodic import wait_until
from service.vault import Vault, new_key
from tests.support.agents import settings
from tests.support.cell_site import CONTEXT
from tests.support.closing import closing_fixture
from tests.support.task_cell import HOST, TaskCell
from tests.support.world import PATIENCE

MASTER = Vault([new_key()])
CELL_UUID = str(uuid.uuid4())
OWN = Vault(MASTER.keys_of(CELL_UUID))
SECRETS = BootSecrets(user_data="bWFya2VkLWh1bnRlcjI=", admin_pass="marked-password")
RECEIVED = Received(user_data_sha256=hashlib.sha256(b"bWFya2VkLWh1bnRlcjI=").hexdigest(), admin_pass_set=True)
CONFIDENTIAL = TaskArgs(drive=DriveChanges(has_secrets=True))


cell = closing_fixture(lambda folder: TaskCell(folder, OWN))


def seal(name: str) -> str:
    return MASTER.seal_secrets(CELL_UUID, name, SECRETS)


def rebuild(cell: TaskCell, one: str, args: TaskArgs = CONFIDENTIAL) -> None:
    """Ask for a rebuild with the secrets."""
    assert cell.ask(one, Power.ON, TaskKind.REBUILD, args=args, seal=seal)


def rebuild_without_agent(cell: TaskCell) -> str:
    """A rebuild of a guest whose agent has stopped: no order is sent."""
    service = cell.agents.start(HOST)
    one = cell.boot()
    service.stop(0.0)
    cell.send_orders = False
    rebuild(cell, one)
    return one


def received(cell: TaskCell, one: str) -> Received | None:
    return received_by(read_entries(journal_path(str(cell.path), HOST)))[one]


def rebuilds(cell: TaskCell) -> int:
    return [what for what, _ in cell.agents.drivers[HOST].tasks].count("rebuild")


def kept(cell: TaskCell) -> int:
    """The number of sealed texts in the cell's database."""
    found = cell.site.database.read(lambda tx: tx.execute(sa.select(table.c.sealed)).scalars().all())
    return sum(sealed is not None for sealed in found)


def begin(cell: TaskCell, one: str, builder: str, *, host: str = HOST, wants_secrets: bool = True) -> Verdict:
    """What an agent is answered that asks for the task in force."""
    row = cell.row(one)
    report = Report(
        kind=ReportKind.BEGIN,
        instance_uuid=one,
        host=host,
        fence=row.fence,
        attempt=row.attempt,
        builder=builder,
        task=row.task_number,
        wants_secrets=wants_secrets,
    )
    [verdict] = cell.conductor.report(CONTEXT, [report])
    return verdict


def test_the_guest_gets_secrets_the_cell_forgets(cell: TaskCell, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    cell.agents.start(HOST)
    one, other = cell.boot(), cell.boot()
    cell.agents.drivers[HOST].gate.clear()
    rebuild(cell, one)
    assert wait_until(lambda: rebuilds(cell) == 1, PATIENCE)
    assert kept(cell) == 1
    cell.agents.drivers[HOST].gate.set()
    cell.wait_over(one)
    cell.ask(other, Power.ON, TaskKind.REBUILD)
    cell.wait_over(other)
    assert (received(cell, one), received(cell, other), kept(cell)) == (RECEIVED, Received(), 0)
    assert "marked" not in caplog.text
    assert "bWFya2Vk" not in caplog.text
    for path in filter(Path.is_file, cell.path.parent.rglob("*")):
        assert b"marked" not in path.read_bytes()


def test_a_lost_answer_is_given_again_with_them(cell: TaskCell) -> None:
    one = cell.boot_on_agent()
    cell.conductor.loses = ReportKind.BEGIN
    rebuild(cell, one)
    cell.wait_over(one)
    assert cell.told(one) == [ReportKind.BEGIN, ReportKind.BEGIN, ReportKind.DONE]
    assert (received(cell, one), rebuilds(cell)) == (RECEIVED, 1)


def test_doubled_and_late_orders_rebuild_once(cell: TaskCell) -> None:
    one = cell.boot_on_agent()
    cell.agents.drivers[HOST].gate.clear()
    rebuild(cell, one)
    assert wait_until(lambda: rebuilds(cell) == 1, PATIENCE)
    for _ in range(3):
        cell.send(one)
    late = cell.site.database.read(tasks.orders_of, [one])
    cell.agents.drivers[HOST].gate.set()
    cell.wait_over(one)
    told = len(cell.told(one))

    def asks_again() -> bool:
        send_tasks(cell.site.sender, CONTEXT, late)  # the first one may meet the task that its agent still thinks under way
        return len(cell.told(one)) > told

    assert wait_until(asks_again, PATIENCE, pause=0.2)
    assert (received(cell, one), rebuilds(cell)) == (RECEIVED, 1)


def test_an_agent_restarted_early_gets_the_secrets(cell: TaskCell) -> None:
    service = cell.agents.start(HOST)
    one = cell.boot()
    cell.send_orders = False
    rebuild(cell, one)
    service.stop(0.0)
    cell.agents.start(HOST)
    assert wait_until(lambda: cell.sweep() or cell.row(one).task_state is TaskState.DONE, PATIENCE, pause=0.1), cell.row(one)
    assert received(cell, one) == RECEIVED


def test_a_rebuild_begun_by_a_dead_agent_fails(cell: TaskCell) -> None:
    one = rebuild_without_agent(cell)
    verdict = begin(cell, one, f"{HOST}:dead")
    assert (verdict.accepted, verdict.secrets) == (True, SECRETS)
    cell.agents.start(HOST)
    assert wait_until(lambda: cell.sweep() or cell.row(one).task_state is TaskState.FAILED, PATIENCE, pause=0.1), cell.row(one)
    assert cell.row(one).task_fault == INTERRUPTED
    assert (received(cell, one), kept(cell)) == (None, 0)


def test_nobody_else_gets_them(cell: TaskCell) -> None:
    """Not another host, nor a later start of the agent once it has begun, nor anyone after that."""
    one = rebuild_without_agent(cell)
    stranger = begin(cell, one, "h9:a", host="h9")
    assert (stranger.accepted, stranger.secrets) == (False, None)
    assert begin(cell, one, f"{HOST}:a").secrets == SECRETS
    for builder in ("b", "a"):
        later = begin(cell, one, f"{HOST}:{builder}")
        assert (later.accepted, later.secrets) == (False, None)


def test_an_older_agent_fails_the_rebuild(cell: TaskCell) -> None:
    one = rebuild_without_agent(cell)
    verdict = begin(cell, one, f"{HOST}:old", wants_secrets=False)
    assert (verdict.accepted, verdict.secrets, verdict.reason) == (False, None, NO_NEW_DRIVE)
    row = cell.row(one)
    assert (row.task_state, row.task_fault, kept(cell)) == (TaskState.FAILED, NO_NEW_DRIVE, 0)
    assert not begin(cell, one, f"{HOST}:new").accepted, "the task is over"


def test_an_agent_waits_for_the_cells_key(cell: TaskCell) -> None:
    one = cell.boot_on_agent()
    cell.conductor.use(Vault([new_key()]))
    rebuild(cell, one)
    assert not wait_until(lambda: rebuilds(cell) > 0, 0.5)
    cell.conductor.use(OWN)
    cell.wait_over(one)
    assert (received(cell, one), rebuilds(cell)) == (RECEIVED, 1)


def test_secrets_in_another_tasks_row_are_useless(cell: TaskCell) -> None:
    service = cell.agents.start(HOST)
    one, other = cell.boot(), cell.boot()
    service.stop(0.0)
    cell.send_orders = False
    rebuild(cell, one)
    cell.ask(other, Power.ON, TaskKind.REBUILD, args=CONFIDENTIAL, seal=lambda _: seal(tasks.secrets_name(one, 4)))
    with pytest.raises(errors.Misconfigured):
        begin(cell, other, f"{HOST}:thief")


def test_a_rebuild_without_its_secrets_says_that(cell: TaskCell) -> None:
    one = cell.boot_on_agent()
    cell.ask(one, Power.ON, TaskKind.REBUILD, args=CONFIDENTIAL)
    cell.wait_over(one, TaskState.FAILED)
    assert "no longer stored" in (cell.row(one).task_fault or "")
    assert (received(cell, one), rebuilds(cell)) == (None, 0)


def test_a_later_task_erases_the_earlier_tasks_secrets(cell: TaskCell) -> None:
    service = cell.agents.start(HOST)
    one = cell.boot()
    service.stop(0.0)
    rebuild(cell, one)
    assert kept(cell) == 1
    cell.ask(one, Power.ON)
    assert kept(cell) == 0


def test_a_delete_erases_them(cell: TaskCell) -> None:
    service = cell.agents.start(HOST)
    one = cell.boot()
    service.stop(0.0)
    rebuild(cell, one)
    cell.delete(one)
    cell.sweep()
    assert kept(cell) == 0


class Talkative(SimulatedDriver):
    """Quotes what it was given, as a hypervisor's tools may."""

    def rebuild(self, guest: Guest, changes: DriveChanges, secrets: BootSecrets | None) -> None:
        assert secrets is not None
        raise errors.TaskFailed(f"virt-customize --password {secrets.admin_pass} --data marked-hunter2 {secrets.user_data}: no")


def test_a_driver_that_quotes_them_is_not_repeated(cell: TaskCell, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    made = settings(cell.path, HOST)
    service = ComputeService(made, cell.site.bus, driver=Talkative(made))
    service.start()
    try:
        one = cell.boot()
        rebuild(cell, one)
        cell.wait_over(one, TaskState.FAILED)
    finally:
        service.stop(0.0)
    fault = cell.row(one).task_fault or ""
    assert "virt-customize --password *** --data *** ***: no" in fault
    assert "marked" not in fault + caplog.text
    assert "bWFya2Vk" not in fault + caplog.text
