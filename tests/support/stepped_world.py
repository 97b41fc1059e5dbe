"""A small region whose every process runs step by step in one thread, as a test decides: nothing happens by itself.

The code is the real one: conductors, scheduler, agents with the simulated driver, on SQLite files and the embedded bus. What is the
test's own is where it waits (``interleaving.py``) and who carries the letters (``network.py``). Time does not pass: leases run out
at once, every sweep finds what has any age, and a host is dead, or a deadline past, when the test says so.
"""

from __future__ import annotations

import logging
import math
import shutil
import time
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from compute.disks import write_to_disk
from compute.driver import Guest
from compute.journal import read_guests
from compute.main import AgentEndpoint, ComputeService
from compute.opts import ComputeSettings, SimulatedSettings
from compute.simulated import cut_power, journal_path
from conductor.build import Builder
from conductor.cell_conductor import CellConductor
from conductor.context import ConductorContext
from conductor.delete import Deleter
from conductor.feed_follower import FeedFollower, FeedSettings
from conductor.operate import Operator
from conductor.orders import send_tasks
from conductor.restored import RestoreWatch
from conductor.signals import NoSignals
from conductor.super_conductor import SuperConductor
from conductor.sweep_cell import CellSweep
from conductor.tidy import reap_claims, remove_images
from db.api.claims import server_groups
from db.api.operations import accepting, operations, steps
from db.api.operations.accepting import NewOperation
from db.api.queue import builds, leases
from db.api.queue.accepting import NewServer
from db.api.rows import incarnation
from db.api.rows.tables import incarnation as incarnation_rows
from db.cell import services, tasks
from db.cell.tasks import TaskFor
from db.sql.engine import ApiDatabase
from images.store import FolderStore
from objects import errors
from objects.context import RequestContext
from objects.group import GroupPolicy, ServerGroup
from objects.host_limits import HostLimits
from objects.host_terms import Ratios
from objects.operation import Operation, OperationKind
from objects.process import AGENT_BINARY
from rpc import cell_conductor, compute, scheduler, super_conductor
from rpc.scheduler import SchedulerClient
from rpc.super_conductor import SuperConductorClient
from scheduler.cell_reader import CellWatch
from scheduler.framework.settings import SchedulerSettings
from scheduler.main import SchedulerService
from service.periodic import Every, Periodic
from tests.support import fleet
from tests.support.accepted import accept_batch
from tests.support.interleaving import Task
from tests.support.network import Held, Network, Server
from tests.support.stepped_parts import (
    EVER,
    HOMES,
    HOSTS,
    PATIENT,
    ROOM,
    Files,
    SteppedHypervisor,
    SteppedLedger,
    SteppedRegistry,
    SteppedWorkers,
)
from tests.support.world import Sender

CONTEXT = RequestContext(request_id="req-test")
SCHEDULER = SchedulerSettings(warm_up=0.0, claim_window=0.0, service_down_time=EVER)
PAGE = 50
LIMITS = HostLimits(ratios=Ratios(cpu=1.0))
TOGETHER = 3
"""Batches that wait and are built in one go: so few that there are several such groups."""
ENDLESS = 1000
"""Times round within which what is under way must have come to its end."""

Work = Mapping[str, Callable[[], object]]


class Process:
    """One process of a role. ``work``: what it does by the clock, by name; each is a task when begun, one of a name at a time."""

    work: Work

    def __init__(self, world: SteppedWorld, owner: str) -> None:
        self.world = world
        self.owner = owner

    def begin(self, name: str) -> Task | None:
        """None: that is under way already."""
        if any(task.owner == self.owner and task.name == name for task in self.world.tasks):
            return None
        return self.world.begin(self.owner, name, self.work[name], True)

    def die(self) -> None:
        self.world.kill(self.owner)


def _raise_mark(api: ApiDatabase, watch: RestoreWatch) -> None:
    """Look as if the time between two marks had passed: cells' conductors start nothing before they have seen one rise."""
    if watch.known is not None:
        earlier = incarnation_rows.c.changed_at - incarnation.MARK_INTERVAL_S
        api.write(lambda tx: tx.execute(sa.update(incarnation_rows).values(changed_at=earlier)))
    watch.watch_marks()


class SuperProcess(Process, NoSignals):
    """A super conductor, as ``conductor.main.SuperConductorService`` puts it together."""

    def __init__(self, world: SteppedWorld, owner: str) -> None:
        super().__init__(world, owner)
        api, registry = world.files.databases["api"], world.registry
        ledger = SteppedLedger(api, owner)
        client = SchedulerClient(world.network.bus("api"))
        restored = RestoreWatch(api, ledger, registry, world.images) if world.restores else None
        context = ConductorContext(ledger, registry, restored=restored, images=world.images, signals=self)
        self._builder = Builder(context, client, owner=owner, lease_seconds=0.0, retry_pause=0.0)
        deleter = Deleter(api, registry)
        self._operator = Operator(context, deleter, self._builder)
        self._operator._thaw_now = Every(0.0)  # time does not pass
        keepers = {
            cell.name: FeedFollower(context, cell, FeedSettings(settle_age=-1.0, other_cell_timeout=world.other_cell_timeout))
            for cell in (*registry.list_cells(), registry.cell0)
        }
        self.work = {
            "queue": self._queue,
            "deletes": deleter.run_round,
            "operations": self._operator.run_round,
            **{f"keep {name}": partial(_to_the_end, keeper.keep_up) for name, keeper in keepers.items()},
            "reap": partial(reap_claims, api, ledger),
            "images": partial(remove_images, api, world.images),
        }
        if restored is not None:
            self.work = {"restored": partial(_raise_mark, api, restored), **self.work}
        endpoint = SuperConductor(self, deleter)
        world.network.serve(
            "api", super_conductor.TOPIC, None, owner, endpoint, super_conductor.SuperConductorEndpoint, pauses=True
        )

    def build_batches(self, batch_ids: Sequence[str]) -> None:
        self._builder.schedule_and_build(batch_ids)

    def advance_operations(self, operations: Collection[str]) -> None:
        self._operator.advance_operations(operations)

    def advance_servers(self, servers: Sequence[str]) -> None:
        """Cells have told of these servers: their operations go on in another thread."""
        self.world.begin(self.owner, "told", partial(self._operator.advance_servers, servers), True)

    def _queue(self) -> None:
        """As ``QueueSweep`` does: what waits is built, several batches together in each thread."""
        batches = self.world.files.databases["api"].read(leases.list_waiting, time.time(), PAGE)
        for start in range(0, len(batches), TOGETHER):
            group = batches[start : start + TOGETHER]
            self.world.begin(self.owner, "build", partial(self._builder.schedule_and_build, group), True)


class CellProcess(Process):
    """A cell's conductor. Its answers are one step each, as it gives them under a lock; its sweeps are not."""

    def __init__(self, world: SteppedWorld, owner: str, cell: str) -> None:
        super().__init__(world, owner)
        database, sender = world.files.databases[cell], Sender(cell, world.network.bus(cell))
        endpoint = CellConductor(database, sender, limits=LIMITS)
        sweep = CellSweep(database, sender, endpoint, resend_age=-1.0, down_time=EVER, feed_age=EVER)
        self.work = {
            "orders": sweep.resend_orders,
            "tasks": sweep.resend_tasks,
            "deletes": sweep.resend_deletes,
            "dead hosts": sweep.dead_hosts,
            "deadlines": sweep.end_overdue,
        }
        interface = cell_conductor.CellConductorEndpoint
        world.network.serve(cell, cell_conductor.TOPIC, None, owner, endpoint, interface, pauses=False)


class SchedulerProcess(Process):
    """A scheduler. It looks around when told to; its answers are one step each."""

    def __init__(self, world: SteppedWorld, owner: str) -> None:
        super().__init__(world, owner)
        api, registry, bus = world.files.databases["api"], world.registry, world.network.bus("api")
        service = SchedulerService(SCHEDULER, registry, api, bus)
        fresh = service.freshness
        watches = {cell.uuid: CellWatch(cell, service._table, SCHEDULER, fresh._loads) for cell in registry.list_cells()}
        fresh._watches = {key: (watch, Periodic("never", EVER, watch.read_changes)) for key, watch in watches.items()}
        with world.files.well():
            fresh.topology_epochs(look=True)
        looks = {f"look {watch.cell.name}": partial(_to_the_end, watch.read_changes) for watch in watches.values()}
        self.work = {**looks, "claims": fresh._follow_claims}
        for look in self.work.values():
            with suppress(errors.CellUnavailable):  # its hosts join when it answers
                look()
        world.network.serve("api", scheduler.TOPIC, None, owner, service.manager, scheduler.SchedulerEndpoint, pauses=False)

    def begin(self, name: str) -> Task | None:
        """A look is one step: it is of no account how old it is when it is used."""
        self.world.begin(self.owner, name, self.work[name], False)
        return None


class AgentProcess(Process):
    """An agent, as ``ComputeService`` puts it together and starts it, on the guests that its host has."""

    def __init__(self, world: SteppedWorld, host: str) -> None:
        super().__init__(world, host)
        simulated = SimulatedSettings(
            state_path=str(world.path / "hosts"),
            shared_folder=True,
            vcpus=ROOM,
            copy_delay=EVER,
            task_failure_rate=world.task_failure_rate,
        )
        settings = ComputeSettings(
            host=host,
            simulated=simulated,
            spawn_timeout=0.0,
            outage_retry_max=0.0,
            images_folder=str(world.path / "images"),
        )
        self.driver = SteppedHypervisor(settings, world.reboots)
        bus = world.network.bus(HOMES[host])
        self.service = service = ComputeService(settings, bus, driver=self.driver)
        self._reporter = service._reporter
        agent = service._agent
        agent._retry_at = lambda tries: 0.0  # type: ignore[method-assign]  # time does not pass
        agent._spawners = SteppedWorkers(lambda function: world.begin(host, "spawner", function, True))
        agent._workers = SteppedWorkers(lambda function: world.begin(host, "worker", function, True))
        agent._destroyers = SteppedWorkers(lambda function: world.begin(host, "destroyer", function, True))
        self.work = {
            "report": self._report,
            "audit": service._audit.run,
            "keep up": agent.keep_up,
            "beat": service._report_state,
            "introduce": service._introduce_agent,
            **{each.name.lower(): each.function for each in service._rounds._rounds if each.name in ("Stats", "Unknown guests")},
        }
        agent.report_found(self.driver.guests())
        for first in ("audit", "beat", "introduce"):
            self.begin(first)
        endpoint = AgentEndpoint(agent, service._rounds)
        world.network.serve(HOMES[host], compute.TOPIC, host, host, endpoint, compute.ComputeEndpoint, pauses=False)

    @property
    def owes(self) -> bool:
        """Whether there is something to report now.

        A cell that was restored refuses reports until its mark rises. So what was refused once waits for the next round there.
        """
        return any(pending.tries == 0 or not self.world.restores for pending in self._reporter._pending.values())

    def _report(self) -> None:
        """One message's worth of reports, whatever pause they are to make."""
        if group := self._reporter._group_reports(math.inf):
            self._reporter.send(group)

    def stop(self) -> None:
        """It is told to end: it says so, gives back what was not begun, and goes on for a while."""
        self.service._admission.stopping = True
        self.begin("beat")
        self.service._agent.hand_over()

    def die(self) -> None:
        super().die()
        self.driver.close()


class Alarm(logging.Handler):
    """Keeps what was logged with a traceback: a fault of the program, wherever it was caught."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.heard: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            self.heard.append(f"{record.getMessage()}: {logging.Formatter().formatException(record.exc_info)}")


class SteppedWorld:
    """Two cells of two hosts, as many processes as wanted, and all that is under way between them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.files = Files(path)
        self.network = Network(self.begin)
        self.tasks: list[Task] = []
        self.processes: dict[str, Process] = {}
        self.registry = SteppedRegistry(
            self.files.databases["api"],
            PATIENT,
            open_database=lambda mapping: self.files.databases[mapping.name],
            open_bus=lambda mapping: None if mapping.is_cell0 else self.network.bus(mapping.name),
        )
        self.failures: Counter[str] = Counter()
        self.carry: Callable[[Held, Server], object] = self.network.deliver
        """Who brings letters where they go, while all goes as it should."""
        self.reboots: Counter[str] = Counter()
        """How often the guest of each body was rebooted."""
        self.images = FolderStore(path / "images")
        self.restores = False
        """Whether super conductors that start now notice that a database was restored."""
        self.task_failure_rate = 0.0
        """Share of the guests that do not react to tasks that are not hard."""
        self.other_cell_timeout = 0.0
        """Seconds that a build gets in another cell, from super conductors that start now; 0: none."""
        self._numbers: Counter[str] = Counter()
        self.dead: set[str] = set()
        """Hosts that are called dead."""
        for name in HOSTS:  # what the hosts offer
            SuperProcess(self, "first").work[f"keep {name}"]()
        self.network.forget()
        self.files.keep()

    def reset(self) -> None:
        """Everything as in the beginning: two super conductors, a scheduler, a conductor of each cell, an agent on each host."""
        for owner in list(self.processes):
            self.die(owner)
        self.network.forget()
        self.files.put_back()
        self.carry = self.network.deliver
        shutil.rmtree(self.path / "hosts", ignore_errors=True)
        self._numbers.clear()
        self.dead.clear()
        self.reboots.clear()
        self.other_cell_timeout = 0.0
        self._bell = SuperConductorClient(self.network.bus("api"))
        self._ledger = SteppedLedger(self.files.databases["api"], "api")
        for role in ("super", "super", "scheduler"):
            self.start(role)
        for name in (*HOSTS, *HOMES):
            self.start(name)
        self.tasks.clear()  # there is nothing yet that agents could find at their start

    # -- processes ---------------------------------------------------------------------------------------------------------------

    def start(self, what: str) -> Process:
        """One more ``super`` or ``scheduler``, the conductor of a cell, or the agent of a host."""
        self._numbers[what] += 1
        owner = what if what in HOMES else f"{what}-{self._numbers[what]}"
        if what == "super":
            made: Process = SuperProcess(self, owner)
        elif what == "scheduler":
            made = SchedulerProcess(self, owner)
        elif what in HOSTS:
            made = CellProcess(self, owner, what)
        else:
            made = AgentProcess(self, owner)
        self.processes[owner] = made
        return made

    def agents(self) -> list[AgentProcess]:
        return [process for process in self.processes.values() if isinstance(process, AgentProcess)]

    def agent(self, host: str) -> AgentProcess:
        [found] = [agent for agent in self.agents() if agent.owner == host]
        return found

    def die(self, owner: str) -> None:
        """Killed: what it was at is never gone on with."""
        self.processes.pop(owner).die()

    def kill(self, owner: str) -> None:
        for task in [task for task in self.tasks if task.owner == owner]:
            task.kill()
        self.tasks = [task for task in self.tasks if task.owner != owner]
        self.network.leave(owner)

    def begin(self, owner: str, name: str, function: Callable[[], object], pauses: bool) -> Task:
        task = Task(owner, name, function, pauses=pauses)
        self.tasks.append(task)
        return task

    def go(self, task: Task) -> None:
        """To its next stop."""
        task.go()
        if task.done and task in self.tasks:
            self.tasks.remove(task)
            if task.error is not None:
                self.failures[f"{type(task.error).__name__}: {task.error}"] += 1

    # -- users and operators -----------------------------------------------------------------------------------------------------

    def boot(self, count: int, **asked: Any) -> list[str]:
        """Accepted, and the doorbell rung. The uuids."""
        batch, new = self._accept(count, **asked)
        self._bell.schedule_and_build_instances(CONTEXT, batch)
        return new

    def boot_together(self, *counts: int) -> list[list[str]]:
        """A batch of each size, all accepted in one moment, with one ring for them all. The uuids of each."""
        accepted = [self._accept(count) for count in counts]
        self._bell.schedule_and_build_batches(CONTEXT, [batch for batch, _ in accepted])
        return [new for _, new in accepted]

    def _accept(self, count: int, **asked: Any) -> tuple[str, list[str]]:
        self._numbers["batch"] += 1
        batch = str(uuid.uuid5(uuid.NAMESPACE_DNS, f"batch {self._numbers['batch']}"))
        spec, now = fleet.spec(batch_id=batch, num_instances=count, **asked), time.time()
        new = [str(uuid.uuid5(uuid.NAMESPACE_DNS, f"{batch} {n}")) for n in range(count)]
        servers = [NewServer(uuid=key, name=f"server-{n}", launch_index=n) for n, key in enumerate(new)]
        with self.files.well():
            self.files.databases["api"].write(accept_batch, spec, servers, now=now, deadline=now + EVER)
        return spec.batch_id, new

    def group(self, policy: GroupPolicy) -> ServerGroup:
        self._numbers["group"] += 1
        name = f"group {self._numbers['group']}"
        made = ServerGroup(uuid=str(uuid.uuid5(uuid.NAMESPACE_DNS, name)), name=name, project_id="p", user_id="u", policy=policy)
        with self.files.well():
            self.files.databases["api"].write(server_groups.create, made)
        return made

    def delete(self, instance: str) -> bool:
        with self.files.well():
            done = self._ledger.write(builds.delete, instance, project_id=None, now=time.time())
        if done is not None and done.bodies:
            self._bell.delete_instances(CONTEXT, list(done.bodies))
        return done is not None

    def operate(self, server: str, kind: OperationKind, **asked: Any) -> Operation | None:
        """Ask for an operation, and ring. None: it is refused."""
        self._numbers["operation"] += 1
        name, now = f"operation {self._numbers['operation']}", time.time()
        values: dict[str, Any] = {"uuid": _name_uuid(name), "scope": None, "user_id": "u", "request_id": name.replace(" ", "-")}
        if kind.is_move:
            values |= {"twin_uuid": _name_uuid(f"twin of {name}"), "batch_id": _name_uuid(f"batch of {name}")}
        wanted = NewOperation(server_uuid=server, kind=kind, deadline=now + EVER, **values, **asked)
        with self.files.well():
            try:
                operation = self.files.databases["api"].write(accepting.accept_operation, wanted, now)
            except errors.SuperconductorError:
                return None
        if kind.is_move:
            self._bell.schedule_and_build_instances(CONTEXT, values["batch_id"])
        else:
            self._bell.operate(CONTEXT, [operation.uuid])
        return operation

    def answer(self, server: str, *, confirm: bool) -> bool:
        """Confirm its resize, or revert it. False: there is none that waits for that."""
        with self.files.well():
            found = self.files.databases["api"].read(operations.open_for, [server]).get(server)
            if found is None:
                return False
            if confirm:
                stepped = self._ledger.write(steps.confirm_moves, [found.uuid], time.time())
            else:
                stepped = self.files.databases["api"].write(steps.revert_moves, [found.uuid], time.time())
        if stepped.operations:
            self._bell.operate(CONTEXT, [found.uuid])
        if stepped.deleted:
            self._bell.delete_instances(CONTEXT, list(stepped.deleted))
        return bool(stepped.operations)

    def ask(self, cell: str, asked: TaskFor) -> None:
        """A task is written into the cell, and ordered."""
        database = self.files.databases[cell]
        with self.files.well():
            database.write(tasks.ask_tasks, [asked], time.time())
            found = database.read(tasks.orders_of, [asked.instance_uuid])
        send_tasks(Sender(cell, self.network.bus(cell)), CONTEXT, found)

    def strike(self, instance: str) -> None:
        """Its deadline passes, or that of its open operation."""
        api = self.files.raw["api"]
        api.execute("UPDATE operations SET deadline = 1 WHERE open_for = ?", (instance,))
        bodies = [row[0] for row in api.execute("SELECT instance_uuid FROM instance_mappings WHERE server_uuid = ?", (instance,))]
        for body in (instance, *bodies):
            api.execute("UPDATE build_requests SET deadline = 1 WHERE instance_uuid = ?", (body,))
            for cell in HOSTS:
                self.files.raw[cell].execute("UPDATE builds SET deadline = 1 WHERE instance_uuid = ?", (body,))

    def end_leases(self) -> None:
        """Those who wait with a request for longer than a lease lose it."""
        self.files.raw["api"].execute("UPDATE build_requests SET lease_until = 1 WHERE lease_until > 1")

    def write_disks(self, host: str) -> None:
        """Every guest that runs on the host writes."""
        for guest in self.guests(host):
            if guest.power.uses_disk:
                write_to_disk(str(self.path / "hosts"), host, guest.uuid)

    def cut_power(self, host: str) -> None:
        """The host and its agent go down together: when they come again, no guest runs."""
        if host in self.processes:
            self.die(host)
        cut_power(str(self.path / "hosts"), host)

    def call_dead(self, host: str, dead: bool) -> None:
        """Whatever its agent says."""
        (self.dead.add if dead else self.dead.discard)(host)
        with self.files.well():
            self.files.databases[HOMES[host]].write(services.set_forced_down, host, AGENT_BINARY, dead, time.time())

    def guests(self, host: str) -> Sequence[Guest]:
        process = self.processes.get(host)
        if isinstance(process, AgentProcess):
            return process.driver.guests()
        return read_guests(journal_path(str(self.path / "hosts"), host))

    # -- coming to rest ----------------------------------------------------------------------------------------------------------

    def heal(self) -> None:
        """Whatever was down is up again; what was killed has a successor, and its leases run out."""
        self.end_leases()
        for database in self.files.databases.values():
            database.away = database.lose_answer = False
        for host in HOMES:
            agent = self.processes.get(host)
            if isinstance(agent, AgentProcess) and agent.service._admission.stopping:
                self.die(host)
            if host not in self.processes:
                self.start(host)
        for host in list(self.dead):
            self.call_dead(host, False)
        for role in ("super", "scheduler", *HOSTS):
            if not any(owner.startswith(f"{role}-") for owner in self.processes):
                self.start(role)

    def drain(self) -> None:
        """Every task goes on to its end, every letter and answer arrives, until nothing is under way."""
        for _ in range(ENDLESS):
            for agent in self.agents():
                if agent.owes:
                    agent.begin("report")
            while self.network.answers:
                self.network.bring(0)
            carried = self._carry_all()
            runnable = [task for task in self.tasks if not task.waits]
            for task in runnable:
                while not task.done and not task.waits:
                    self.go(task)
            if carried or runnable or self.network.answers:
                continue
            if not self.network.waiting():
                return
            for call in list(self.network.waiting()):  # nothing is on its way that could answer it
                call.end(None, timed_out=True)
        raise AssertionError(f"there is no end to it: {self.tasks}, {self.network.letters()}")

    def _carry_all(self) -> bool:
        """The oldest letter of each queue; whether there was any."""
        seen: set[str] = set()
        for held, server in self.network.deliverable():
            if held.where not in seen:
                seen.add(held.where)
                self.carry(held, server)
        return bool(seen)

    def sweep(self, kind: str, name: str) -> None:
        """One sweep of one process of this kind, with all that comes of it."""
        process = next(process for owner, process in self.processes.items() if owner.startswith(f"{kind}-"))
        process.begin(name)
        self.drain()

    def round(self) -> None:
        """Every sweep and every look, once, of one process of each kind. Signs of life say nothing that is not known."""
        seen: set[str] = set()
        for owner, process in list(self.processes.items()):
            kind = owner.partition("-")[0]
            if kind not in seen:
                seen.add(kind)
                for name in process.work:
                    if name != "beat":
                        process.begin(name)
                self.drain()

    def close(self) -> None:
        for owner in list(self.processes):
            self.die(owner)
        self.registry.close()
        self.network.close()
        self.files.close()


def _name_uuid(name: str) -> str:
    return str(uuid.uuid5(uuid.NAMESPACE_DNS, name))


def _to_the_end(work: Callable[[], bool]) -> None:
    while work():
        """There is more."""
