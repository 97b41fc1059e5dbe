"""Tasks of running guests, with a real cell: its rows, its conductor and sweeps, and agents on simulated hosts."""

from __future__ import annotations

import threading
import time

import pytest

from compute.guests import STOPPED
from conductor.orders import send_tasks
from db.cell import tasks
from objects.build import ReportKind
from objects.instance import State
from objects.lifecycle import INTERRUPTED
from objects.task import Power, TaskArgs, TaskKind, TaskState
from service.periodic import wait_until
from tests.support.cell_site import CONTEXT
from tests.support.closing import closing_fixture
from tests.support.task_cell import HARD, HOST, SOFT, TaskCell
from tests.support.world import PATIENCE

DONE = [ReportKind.BEGIN, ReportKind.DONE]


cell = closing_fixture(TaskCell)


class TestTasks:
    def test_a_guest_is_stopped_and_started(self, cell: TaskCell) -> None:
        cell.agents.start(HOST)
        one, other = cell.boot(), cell.boot()
        for power in (Power.OFF, Power.ON, Power.PAUSED, Power.ON, Power.SUSPENDED, Power.ON, Power.HELD, Power.ON):
            assert cell.ask(one, power)
            cell.wait_over(one)
            assert (cell.row(one).power, cell.power(one)) == (power, power)
        assert cell.power(other) is Power.ON
        assert cell.told(one) == DONE * 8
        assert cell.disk(one).writes == 7, "a pause writes nothing"

    def test_a_guest_is_rebooted(self, cell: TaskCell) -> None:
        one = cell.boot_on_agent()
        for args in (SOFT, HARD):
            cell.ask(one, Power.ON, TaskKind.REBOOT, args=args)
            cell.wait_over(one)
        assert cell.agents.drivers[HOST].tasks == [("reboot", "soft"), ("reboot", "hard")]
        assert cell.disk(one).writes == 3

    def test_a_guest_is_rebuilt_from_another_image(self, cell: TaskCell) -> None:
        one = cell.boot_on_agent()
        cell.ask(one, Power.ON, TaskKind.REBUILD, args=TaskArgs(image_id="new"))
        cell.wait_over(one)
        assert (cell.agents.guest(one, HOST).image_id, cell.disk(one).image_id) == ("new", "new")
        cell.ask(one, Power.ON, TaskKind.REBUILD)
        cell.wait_over(one)
        assert cell.disk(one).image_id == "new", "the image that it has"

    def test_a_failed_task_leaves_the_guest_with_reason(self, cell: TaskCell) -> None:
        cell.agents.start(HOST, simulated={"task_failure_rate": 1.0})
        one = cell.boot()
        cell.ask(one, Power.OFF)
        cell.wait_over(one, TaskState.FAILED)
        row = cell.row(one)
        assert (row.state, row.task_fault) == (State.ACTIVE, "The simulated hypervisor was told to fail the tasks of this guest.")
        assert cell.power(one) is Power.ON
        cell.ask(one, Power.OFF, args=HARD)
        cell.wait_over(one)
        assert cell.power(one) is Power.OFF

    def test_a_hold_does_not_fail_but_becomes_hard(self, cell: TaskCell) -> None:
        one = cell.boot_on_agent()
        cell.agents.drivers[HOST].task_errors = 2
        cell.ask(one, Power.HELD)
        cell.wait_over(one)
        assert cell.agents.drivers[HOST].tasks == [("held", "soft"), ("held", "hard"), ("held", "hard")]
        assert cell.told(one) == [ReportKind.BEGIN] * 3 + [ReportKind.DONE]

    def test_a_failing_hold_yields_to_a_later_task(self, cell: TaskCell) -> None:
        one = cell.boot_on_agent()
        driver = cell.agents.drivers[HOST]
        driver.task_errors = 1
        cell.ask(one, Power.HELD)
        assert wait_until(lambda: driver.task_errors == 0, PATIENCE)
        cell.ask(one, Power.ON)
        assert wait_until(lambda: cell.sweep() or cell.row(one).task_state is TaskState.DONE, PATIENCE, pause=0.1)
        assert cell.power(one) is Power.ON

    def test_work_without_a_thread_begins_later(self, cell: TaskCell, monkeypatch: pytest.MonkeyPatch) -> None:
        """As at the limit of processes: the first thread of each kind cannot be started."""
        start, refused = threading.Thread.start, set[str]()

        def refuse_first(thread: threading.Thread) -> None:
            if thread.name in (f"spawn-{HOST}-1", f"task-{HOST}-1", f"destroy-{HOST}-1") and thread.name not in refused:
                refused.add(thread.name)
                raise RuntimeError("can't start new thread")
            start(thread)

        monkeypatch.setattr(threading.Thread, "start", refuse_first)
        one = cell.boot_on_agent()
        cell.ask(one, Power.OFF)
        cell.wait_over(one)
        assert cell.power(one) is Power.OFF
        assert refused == {f"spawn-{HOST}-1", f"task-{HOST}-1"}


class TestMessages:
    def test_a_lost_order_is_sent_again(self, cell: TaskCell) -> None:
        one = cell.boot_on_agent()
        cell.send_orders = False
        cell.ask(one, Power.OFF)
        assert not wait_until(lambda: bool(cell.told(one)), 0.1)
        cell.sweep()
        cell.wait_over(one)
        assert cell.power(one) is Power.OFF

    @pytest.mark.parametrize("kind", DONE)
    def test_a_lost_answer_does_not_repeat_the_task(self, cell: TaskCell, kind: ReportKind) -> None:
        one = cell.boot_on_agent()
        cell.conductor.loses = kind
        cell.ask(one, Power.ON, TaskKind.REBOOT)
        assert wait_until(lambda: cell.told(one).count(kind) == 2, PATIENCE)
        cell.wait_over(one)
        assert cell.agents.drivers[HOST].tasks == [("reboot", "soft")]
        cell.ask(one, Power.OFF)
        cell.wait_over(one)

    def test_doubled_orders_are_carried_out_once(self, cell: TaskCell) -> None:
        one = cell.boot_on_agent()
        cell.agents.drivers[HOST].gate.clear()
        cell.ask(one, Power.ON, TaskKind.REBOOT)
        assert wait_until(lambda: len(cell.agents.drivers[HOST].tasks) == 1, PATIENCE)
        for _ in range(3):
            cell.send(one)
        cell.agents.drivers[HOST].gate.set()
        cell.wait_over(one)
        assert cell.agents.drivers[HOST].tasks == [("reboot", "soft")]

    def test_an_order_of_an_earlier_task_is_ignored(self, cell: TaskCell) -> None:
        one = cell.boot_on_agent()
        cell.ask(one, Power.OFF)
        late = cell.site.database.read(tasks.orders_of, [one])
        cell.wait_over(one)
        cell.ask(one, Power.ON)
        cell.wait_over(one)
        reports = cell.count_active(one)
        send_tasks(cell.site.sender, CONTEXT, late)
        assert wait_until(lambda: cell.count_active(one) > reports, PATIENCE)
        cell.ask(one, Power.PAUSED)
        cell.wait_over(one)
        assert [what for what, _ in cell.agents.drivers[HOST].tasks] == ["off", "on", "paused"]

    @pytest.mark.parametrize("restarts", [False, True])
    def test_a_doubled_order_after_its_task_is_ignored(self, cell: TaskCell, restarts: bool) -> None:
        service = cell.agents.start(HOST)
        one = cell.boot()
        cell.agents.drivers[HOST].gate.clear()
        cell.ask(one, Power.ON, TaskKind.REBOOT)
        late = cell.site.database.read(tasks.orders_of, [one])
        cell.agents.drivers[HOST].gate.set()
        cell.wait_over(one)
        if restarts:
            service.stop()
            cell.agents.start(HOST)
        told = len(cell.told(one))
        send_tasks(cell.site.sender, CONTEXT, late)
        assert wait_until(lambda: len(cell.told(one)) > told, PATIENCE)
        cell.ask(one, Power.OFF)
        cell.wait_over(one)
        assert cell.disk(one).writes == 3, "written at the boot, the reboot and the stop"

    def test_a_late_task_is_refused_by_its_number(self, cell: TaskCell) -> None:
        one = cell.boot_on_agent()
        assert cell.ask(one, Power.ON, TaskKind.REBOOT, number=8)
        assert not cell.ask(one, Power.OFF, number=7)
        cell.wait_over(one)
        assert cell.power(one) is Power.ON

    def test_a_task_is_replaced_while_it_runs(self, cell: TaskCell) -> None:
        one = cell.boot_on_agent()
        cell.agents.drivers[HOST].gate.clear()
        cell.ask(one, Power.OFF)
        assert wait_until(lambda: len(cell.agents.drivers[HOST].tasks) == 1, PATIENCE)
        cell.ask(one, Power.ON)
        cell.agents.drivers[HOST].gate.set()
        assert wait_until(lambda: cell.sweep() or cell.row(one).task_state is TaskState.DONE, PATIENCE, pause=0.1)
        assert cell.power(one) is Power.ON


class TestEnds:
    def test_a_delete_waits_for_the_task(self, cell: TaskCell) -> None:
        one = cell.boot_on_agent()
        driver = cell.agents.block_driver(HOST)
        cell.ask(one, Power.OFF)
        assert wait_until(lambda: len(driver.tasks) == 1, PATIENCE)
        cell.delete(one)
        assert not wait_until(lambda: bool(driver.destroyed), 0.2)
        driver.gate.set()
        assert wait_until(lambda: cell.row(one).state is State.DELETED, PATIENCE)
        assert cell.agents.guests(HOST) == []
        assert list((cell.path / f"{HOST}.disks").iterdir()) == []
        assert ReportKind.DONE not in cell.told(one)

    def test_a_guest_during_a_task_raises_no_report(self, cell: TaskCell) -> None:
        """Several audits pass while its system takes its time."""
        cell.agents.start(HOST, audit_interval=0.1)
        one = cell.boot()
        driver = cell.agents.block_driver(HOST)
        cell.ask(one, Power.OFF)
        assert wait_until(lambda: len(driver.tasks) == 1, PATIENCE)
        before = len(cell.conductor.reports)
        time.sleep(0.5)
        assert len(cell.conductor.reports) == before
        driver.gate.set()
        cell.wait_over(one)

    @pytest.mark.parametrize("power", [Power.OFF, Power.HELD])
    def test_an_agent_restarted_midway_regains_the_power(self, cell: TaskCell, power: Power) -> None:
        service = cell.agents.start(HOST)
        one = cell.boot()
        driver = cell.agents.block_driver(HOST)
        cell.ask(one, power)
        assert wait_until(lambda: len(driver.tasks) == 1, PATIENCE)
        service.stop(0.0)
        cell.agents.start(HOST)
        assert wait_until(lambda: cell.sweep() or cell.row(one).task_state is TaskState.DONE, PATIENCE, pause=0.1)
        assert cell.power(one) is power

    def test_the_next_start_repeats_no_reboot(self, cell: TaskCell) -> None:
        service = cell.agents.start(HOST)
        one = cell.boot()
        driver = cell.agents.block_driver(HOST)
        cell.ask(one, Power.ON, TaskKind.REBOOT)
        assert wait_until(lambda: len(driver.tasks) == 1, PATIENCE)
        service.stop(0.0)
        cell.agents.start(HOST)
        assert wait_until(lambda: cell.sweep() or cell.row(one).task_state is TaskState.FAILED, PATIENCE, pause=0.1)
        assert cell.row(one).task_fault == INTERRUPTED
        assert cell.agents.drivers[HOST].tasks == []
        cell.ask(one, Power.ON, TaskKind.REBOOT)
        cell.wait_over(one)

    def test_a_running_task_ends_when_the_agent_stops(self, cell: TaskCell) -> None:
        service = cell.agents.start(HOST)
        one = cell.boot()
        driver = cell.agents.block_driver(HOST)
        cell.ask(one, Power.OFF)
        assert wait_until(lambda: len(driver.tasks) == 1, PATIENCE)
        threading.Timer(0.2, driver.gate.set).start()
        service.stop()
        assert cell.row(one).task_state is TaskState.DONE


class TestPowerCut:
    @pytest.mark.parametrize("power", [Power.ON, Power.OFF, Power.SUSPENDED, Power.PAUSED, Power.HELD])
    def test_each_guest_gets_back_the_power_on_record(self, cell: TaskCell, power: Power) -> None:
        service = cell.agents.start(HOST)
        one, other = cell.boot(), cell.boot()
        if power is not Power.ON:
            cell.ask(one, power)
            cell.wait_over(one)
        row = cell.row(one)
        service.stop()
        cell.agents.cut_power(HOST)
        before = len(cell.told(one))
        cell.agents.start(HOST)
        assert wait_until(lambda: (cell.power(one), cell.power(other)) == (power, Power.ON), PATIENCE)
        assert ReportKind.DONE not in cell.told(one)[before:]
        assert cell.row(one) == row

    def test_a_task_that_came_meanwhile_comes_first(self, cell: TaskCell) -> None:
        """Held while its host was away: the start must not turn it on."""
        service = cell.agents.start(HOST)
        one = cell.boot()
        service.stop()
        cell.agents.cut_power(HOST)
        cell.ask(one, Power.HELD)
        cell.agents.start(HOST)
        assert wait_until(lambda: cell.sweep() or cell.row(one).task_state is TaskState.DONE, PATIENCE, pause=0.1)
        assert cell.power(one) is Power.HELD
        assert [what for what, _ in cell.agents.drivers[HOST].tasks] == ["held"]

    def test_without_a_yes_it_stays(self, cell: TaskCell) -> None:
        """The record changes between the agent's look at it and its question."""
        service = cell.agents.start(HOST)
        one = cell.boot()
        service.stop()
        cell.agents.cut_power(HOST)
        cell.send_orders = False
        cell.conductor.before_begin = lambda: cell.ask(one, Power.OFF)
        cell.agents.start(HOST)
        assert wait_until(lambda: bool(cell.told(one)), PATIENCE)
        assert not wait_until(lambda: cell.power(one) is Power.ON, 0.5)
        assert cell.agents.drivers[HOST].tasks == []

    @pytest.mark.parametrize("power", [Power.OFF, Power.HELD, Power.SUSPENDED])
    def test_a_running_guest_that_must_not_is_stopped(self, cell: TaskCell, power: Power) -> None:
        one = cell.boot_on_agent()
        cell.ask(one, power)
        cell.wait_over(one)
        cell.agents.drivers[HOST].set_power(one, Power.ON, hard=True)
        assert wait_until(lambda: cell.power(one) is power, PATIENCE)

    def test_a_guest_stopped_by_its_system_is_startable(self, cell: TaskCell) -> None:
        cell.agents.start(HOST, audit_interval=3600.0)
        driver = cell.agents.drivers[HOST]
        one = cell.boot()
        driver.stops(one, "The guest's system was shut down.")
        assert wait_until(lambda: cell.row(one).power is Power.OFF, PATIENCE), "an event wakes the audit"
        row = cell.row(one)
        assert (row.task_number, row.task_state, row.task_fault) == (0, TaskState.DONE, "The guest's system was shut down.")
        driver.changed()
        assert not wait_until(lambda: cell.row(one) != row, 1.5)
        assert [report.kind for report in cell.conductor.reports].count(ReportKind.POWER) == 1
        cell.ask(one, Power.ON)
        cell.wait_over(one)
        assert (cell.power(one), cell.row(one).power, cell.row(one).task_fault) == (Power.ON, Power.ON, None)

    def test_a_guest_during_a_task_is_not_reported(self, cell: TaskCell) -> None:
        cell.agents.start(HOST, audit_interval=3600.0)
        driver = cell.agents.drivers[HOST]
        one = cell.boot()
        driver.gate.clear()
        cell.ask(one, Power.ON, TaskKind.REBOOT)
        assert wait_until(lambda: bool(driver.tasks), PATIENCE)
        looks = driver.looks
        driver.stops(one, "It reboots.")
        assert wait_until(lambda: driver.looks > looks, PATIENCE)
        driver.gate.set()
        cell.wait_over(one)
        assert (cell.power(one), cell.row(one).power, cell.row(one).task_fault) == (Power.ON, Power.ON, None)

    def test_guests_without_resume_stay_off_after_power_cuts(self, cell: TaskCell) -> None:
        service = cell.agents.start(HOST)
        one = cell.boot()
        service.stop()
        cell.agents.cut_power(HOST)
        cell.agents.start(HOST, resume_guests_on_start=False)
        assert wait_until(lambda: cell.row(one).power is Power.OFF, PATIENCE)
        assert (cell.power(one), cell.row(one).task_fault) == (Power.OFF, STOPPED)
