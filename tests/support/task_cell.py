"""One cell whose conductor answers agents on simulated hosts, and which orders tasks of their guests."""

from __future__ import annotations

import itertools
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path

from compute.disks import Disk, read_disk
from conductor.cell_conductor import CellConductor
from conductor.orders import send_tasks
from db.cell import instances, tasks
from db.cell.tasks import TaskFor
from objects import errors
from objects.build import Report, ReportKind, Verdict
from objects.context import RequestContext
from objects.instance import Instance, State
from objects.lifecycle import Change
from objects.task import Power, Task, TaskArgs, TaskKind, TaskState
from rpc.cell_conductor import serve_topic
from service.periodic import wait_until
from service.vault import Vault
from tests.support.agents import Agents
from tests.support.cell_site import CONTEXT, Site
from tests.support.ground import Ground
from tests.support.world import PATIENCE

HOST = "a1"
"""The host of the guests. The hosts of the site only listen."""


SOFT, HARD = TaskArgs(), TaskArgs(hard=True)


class ListeningConductor(CellConductor):
    """Keeps what it is told, and can lose answers after the reports have taken effect."""

    def __init__(self, site: Site, vault: Vault | None = None) -> None:
        super().__init__(site.database, site.sender, vault)
        self.reports: list[Report] = []
        self.loses: ReportKind | None = None
        """The answer to the next report of this kind is lost."""
        self.before_begin: Callable[[], object] | None = None
        """Called once before the next question of an agent about a task takes effect."""

    def use(self, vault: Vault) -> None:
        """As after a restart with these keys."""
        self._vault = vault

    def report(self, context: RequestContext, reports: Sequence[Report]) -> list[Verdict]:
        if self.before_begin is not None and ReportKind.BEGIN in {report.kind for report in reports}:
            self.before_begin()
            self.before_begin = None
        verdicts = super().report(context, reports)
        self.reports += reports
        if self.loses in {report.kind for report in reports}:
            self.loses = None
            raise errors.CellUnavailable("The test lost this answer.")
        return verdicts


class TaskCell:
    """The cell's rows, bus and conductor are real, and so are the agents."""

    def __init__(self, path: Path, vault: Vault | None = None) -> None:
        self.path = path / "hosts"
        self.site = Site(Ground("lite", path, embedded=True))
        self.conductor = ListeningConductor(self.site, vault)
        self.agents = Agents(self.site.bus, self.path)
        self.numbers = itertools.count(4, 4)
        self.send_orders = True
        """Whether orders of tasks are sent; else they are lost."""
        self._server = serve_topic(self.site.bus, "conductor-1", self.conductor)

    def close(self) -> None:
        self.agents.stop()
        self._server.stop()
        self.site.close()
        self.site.ground.release()

    def boot(self) -> str:
        """An ACTIVE instance on ``HOST``."""
        one = str(uuid.uuid4())
        self.site.stage(one, host=HOST)
        self.site.activate(one)
        self.conductor.resend_orders([one])
        assert wait_until(lambda: self.row(one).state is State.ACTIVE, PATIENCE), self.row(one)
        return one

    def boot_on_agent(self) -> str:
        """The agent of ``HOST`` is started, and gets an instance."""
        self.agents.start(HOST)
        return self.boot()

    def ask(
        self,
        one: str,
        power: Power,
        kind: TaskKind = TaskKind.POWER,
        *,
        args: TaskArgs = SOFT,
        number: int | None = None,
        seal: Callable[[str], str] | None = None,
    ) -> bool:
        """As the API level does: the row first, then the order. Return whether the row took the task.

        ``seal``: seals its secrets under the name given.
        """
        task = Task(number=number or next(self.numbers), kind=kind, power=power, args=args, request_id="req-task")
        sealed = seal(tasks.secrets_name(one, task.number)) if seal is not None else None
        asked = [TaskFor(instance_uuid=one, task=task, sealed=sealed)]
        outcomes = self.site.database.write(tasks.ask_tasks, asked, time.time())
        if self.send_orders:
            self.send(one)
        return isinstance(outcomes[one], Change)

    def send(self, one: str) -> None:
        """The order of the task in force, once more."""
        send_tasks(self.site.sender, CONTEXT, self.site.database.read(tasks.orders_of, [one]))

    def sweep(self) -> bool:
        """Send the orders of all tasks again that are not over. Returns False, to be said within a wait."""
        self.site.sweep().resend_tasks()
        return False

    def delete(self, one: str) -> None:
        self.site.database.write(instances.delete, [one], time.time())
        self.site.sweep().resend_deletes()

    def row(self, one: str) -> Instance:
        row = self.site.database.read(instances.get, one)
        assert row is not None
        return row

    def wait_over(self, one: str, state: TaskState = TaskState.DONE) -> None:
        assert wait_until(lambda: self.row(one).task_state is state, PATIENCE), self.row(one)

    def power(self, one: str) -> Power:
        return self.agents.guest(one, HOST).power

    def disk(self, one: str) -> Disk:
        disk = read_disk(str(self.path), HOST, one)
        assert disk is not None
        return disk

    def count_active(self, one: str) -> int:
        """How often agents have reported that this instance is active: also when they drop an order of an earlier task."""
        reports = list(self.conductor.reports)
        return sum(report.kind is ReportKind.ACTIVE and report.instance_uuid == one for report in reports)

    def told(self, one: str) -> list[ReportKind]:
        """What the agents have told of tasks of this instance."""
        kinds = (ReportKind.BEGIN, ReportKind.DONE, ReportKind.TASK_FAILED)
        return [report.kind for report in list(self.conductor.reports) if report.instance_uuid == one and report.kind in kinds]
