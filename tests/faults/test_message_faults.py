"""Every message there is on a bus, lost, doubled, and delayed past all that follows it: nothing depends on any of them.

The messages are found in the typed clients of ``rpc``: a new one without a case here fails.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import msgspec
import pytest

import rpc
from compute.simulated import METADATA_KEY
from db.cell import instances
from db.cell.tasks import TaskFor
from images.store import FolderStore
from objects.build import ReportKind
from objects.flavor import Flavor
from objects.operation import OperationArgs, OperationKind
from objects.port import Port
from objects.spec import ServerProperties
from objects.task import NewImage, Power, Task, TaskArgs, TaskKind, TaskState
from rpc.arguments import signatures_of
from tests.faults.schedule_judge import Asked, Story, come_to_rest
from tests.faults.schedules import stage
from tests.support.network import Held, Server
from tests.support.stepped_parts import HOMES
from tests.support.stepped_world import AgentProcess, SteppedWorld

pytestmark = pytest.mark.one_in(4)

FAULTS = ("lost", "doubled", "delayed", "answer lost")


class Scene:
    """A world in which one message meets a fault, the first time that it is sent."""

    def __init__(self, world: SteppedWorld, message: str, fault: str) -> None:
        self.world = world
        self.story = Story()
        self.struck = False
        self.late: list[Held] = []
        self.tasks: dict[str, tuple[TaskState, Power]] = {}
        """Of each instance that had a task: how that must end, and what its guest must be then."""
        self._message = message
        self._fault = fault
        world.carry = self._carry

    def boot(self, outcome: str = "ok") -> str:
        """One server, built or failed on the first host it is given. Its uuid."""
        asked: dict[str, Any] = {}
        if outcome != "ok":
            asked["properties"] = ServerProperties(metadata={METADATA_KEY: f"{outcome}:a1,b1"})
        [uuid] = self.world.boot(1, **asked)
        self.story.asked[uuid] = Asked(batch=len(self.story.asked), outcome=outcome, hosts=("a1", "b1"))
        return uuid

    def boot_together(self, *counts: int) -> None:
        """Batches of these sizes, accepted in one moment."""
        for uuids in self.world.boot_together(*counts):
            number = len(self.story.asked)
            for uuid in uuids:
                self.story.asked[uuid] = Asked(batch=number, outcome="ok", hosts=("a1", "b1"))

    def delete(self, uuid: str) -> None:
        self.story.asked[uuid].deleted = True
        self.world.delete(uuid)

    def booted(self) -> str:
        """A server that is ACTIVE: its messages meet no fault."""
        before, self.struck = self.struck, True
        uuid = self.boot()
        self.rest()
        self.struck = before
        return uuid

    def operate(self, uuid: str, kind: OperationKind, **asked: Any) -> None:
        assert self.world.operate(uuid, kind, **asked) is not None
        self.story.asked[uuid].operated = True

    def stop(self, uuid: str, *, fails: bool = False) -> None:
        """Stop an ACTIVE instance."""
        [host] = self._hosts(uuid)
        self.world.agent(host).driver.fails_tasks = fails
        task = Task(number=4, kind=TaskKind.POWER, power=Power.OFF)
        self.world.ask(HOMES[host], TaskFor(instance_uuid=uuid, task=task))
        self.tasks[uuid] = (TaskState.FAILED, Power.ON) if fails else (TaskState.DONE, Power.OFF)

    def ask(self, uuid: str, task: Task) -> None:
        """Let the host of an ACTIVE instance carry this out, after which the guest has the power of the task."""
        [host] = self._hosts(uuid)
        self.world.ask(HOMES[host], TaskFor(instance_uuid=uuid, task=task))
        self.tasks[uuid] = TaskState.DONE, task.power

    def rest(self, *, verify: bool = False) -> None:
        """Everything goes on until nothing is on its way, and is as it should be."""
        come_to_rest(self.world, self.story, verify=verify)
        for uuid, ends in self.tasks.items():
            [host] = self._hosts(uuid)
            row = self.world.files.databases[HOMES[host]].read(instances.get, uuid)
            assert row is not None
            assert (row.task_state, *(guest.power for guest in self.world.guests(host) if guest.uuid == uuid)) == ends

    def release(self) -> None:
        """What was delayed arrives."""
        for held in self.late:
            held.queue.messages.append(held.letter)
        self.late.clear()

    def _hosts(self, uuid: str) -> list[str]:
        return [host for host in HOMES if uuid in {guest.uuid for guest in self.world.guests(host)}]

    def _carry(self, held: Held, server: Server) -> None:
        network = self.world.network
        if self.struck or name_of(held) != self._message:
            network.deliver(held, server)
            return
        self.struck = True
        if self._fault == "doubled":
            network.double(held)
            network.deliver(held, server)
        elif self._fault == "answer lost":
            task = network.deliver(held, server)
            self.world.go(task)
            network.answers.clear()
        else:
            network.lose(held)
            if self._fault == "delayed":
                self.late.append(held)


def name_of(held: Held) -> str:
    """Topic and method; of reports also what kind they are."""
    _, message = msgspec.json.decode(held.letter.body)
    topic = held.where.partition("/")[2].partition(".")[0]
    reports = message["args"].get("reports")
    kind = f" {reports[0]['fields']['kind']}" if reports and held.method == "report" else ""
    return f"{topic}.{held.method}{kind}"


def boot(scene: Scene) -> None:
    scene.boot()
    scene.boot()


def boot_failing(scene: Scene) -> None:
    for _ in range(4):  # on four hosts, half of which fail
        scene.boot("fail")


def delete_queued(scene: Scene) -> None:
    """Before anybody has begun with it: only the API database knows of it, so no doorbell is rung."""
    scene.delete(scene.boot())


def delete_active(scene: Scene) -> None:
    uuid, _ = scene.boot(), scene.boot()
    scene.rest()
    scene.delete(uuid)


def stop(scene: Scene) -> None:
    uuid, _ = scene.boot(), scene.boot()
    scene.rest()
    scene.stop(uuid)


def stop_failing(scene: Scene) -> None:
    uuid = scene.boot()
    scene.rest()
    scene.stop(uuid, fails=True)


def stop_by_itself(scene: Scene) -> None:
    """The guest's own system shuts down, and its agent finds that at its next audit."""
    uuid, _ = scene.boot(), scene.boot()
    scene.rest()
    scene.tasks[uuid] = TaskState.DONE, Power.OFF
    for agent in scene.world.agents():
        if isinstance(agent, AgentProcess):
            for guest in agent.driver.guests():
                if guest.uuid == uuid:
                    agent.driver._journal.change_guest(msgspec.structs.replace(guest, power=Power.OFF))
            agent.begin("audit")


def look_around(scene: Scene) -> None:
    """What agents do by the clock, with guests and without."""
    scene.boot()
    scene.rest()
    scene.world.round()
    stats = [agent for agent in scene.world.agents() if isinstance(agent, AgentProcess)]
    scene.boot()
    for agent in stats:
        agent.begin("stats")
        agent.begin("audit")
        agent.begin("beat")
        agent.begin("introduce")


def unaccounted(scene: Scene) -> None:
    """The cell's records do not account for guests, so their agents tell; at the next audit they do."""
    scene.boot()
    scene.rest()
    for agent in scene.world.agents():
        guests = agent.service._audit._guests
        for uuid in guests.read_phases():
            if build := guests.report_again(uuid):
                guests.keep_unaccounted(build, "The cell has no record of it.")
        agent.begin("unknown guests")


def boot_together(scene: Scene) -> None:
    """One ring for several batches, which are built in one go."""
    scene.boot_together(2, 1, 1)


def operate(scene: Scene) -> None:
    scene.operate(scene.booted(), OperationKind.STOP)


def migrate(scene: Scene) -> None:
    scene.operate(scene.booted(), OperationKind.MIGRATE, args=OperationArgs(cross_cell=True))


def revert(scene: Scene) -> None:
    """Of a resize: two holds, and the end of the twin."""
    uuid = scene.booted()
    flavor = Flavor(flavor_id="large", name="large", vcpus=2, memory_mb=2048, root_gb=1)
    scene.operate(uuid, OperationKind.RESIZE, flavor=flavor)
    scene.rest()
    assert scene.world.answer(uuid, confirm=False)


CASES: dict[str, Callable[[Scene], None]] = {
    "super-conductor.schedule_and_build_instances": boot,
    "super-conductor.schedule_and_build_batches": boot_together,
    "super-conductor.delete_instances": delete_active,
    "scheduler.select_destinations": boot,
    "scheduler.select_for_each": boot_together,
    "compute.build_instances": boot,
    "compute.delete_instances": delete_active,
    "compute.do_tasks": stop,
    "cell-conductor.report accept": boot,
    "cell-conductor.report active": boot,
    "cell-conductor.report gone": delete_active,
    "cell-conductor.report begin": stop,
    "cell-conductor.report done": stop,
    "cell-conductor.report task-failed": stop_failing,
    "cell-conductor.report power": stop_by_itself,
    "cell-conductor.build_instances": boot_failing,
    "cell-conductor.holdings": look_around,
    "cell-conductor.update_resource_stats": look_around,
    "cell-conductor.report_state": look_around,
    "cell-conductor.introduce": look_around,
    "cell-conductor.unknown_guests": unaccounted,
    "super-conductor.operate": operate,
}
OF_MOVES = (
    "super-conductor.schedule_and_build_instances",
    "scheduler.select_destinations",
    "compute.build_instances",
    "compute.delete_instances",
    "compute.do_tasks",
    "cell-conductor.report accept",
    "cell-conductor.report active",
    "cell-conductor.report gone",
    "cell-conductor.report begin",
    "cell-conductor.report done",
)
"""All that is sent for a move."""
QUESTIONS = (
    "super-conductor.console_output",
    "super-conductor.open_console",
    "super-conductor.diagnostics",
    "compute.console_output",
    "compute.open_console",
    "compute.diagnostics",
    "scheduler.capacity",
    "scheduler.dry_run",
    "scheduler.refusal_of_image",
    "scheduler.rebalance",
)
"""They change no row, and who asks is told if there is no answer: ``test_api_console.py``, ``test_api_dry_run.py`` and so on."""
OF_SHARED_PROCESSES = ("cell-conductor.report_states",)
"""Heartbeats of agents that share a process. The next one says the same: ``test_heartbeats_together.py``."""
OF_TWO_MACHINES = ("compute.introduce_again",)
"""It follows each heartbeat of a machine that was not admitted: ``test_two_machines_of_a_host.py``."""
CASTS = ("super-conductor.", "compute.", "cell-conductor.report_state")
"""They have no answer to be lost."""


def messages() -> Iterator[str]:
    """All that any client of ``rpc`` can send."""
    for found in pkgutil.iter_modules(rpc.__path__):
        module = importlib.import_module(f"rpc.{found.name}")
        for name, kind in inspect.getmembers(module, inspect.isclass):
            if name.endswith("Endpoint") and kind.__module__ == module.__name__ and hasattr(module, "TOPIC"):
                for method in signatures_of(kind):
                    kinds = [f" {kind}" for kind in ReportKind if kind != ReportKind.FAILED] if method == "report" else [""]
                    yield from (f"{module.TOPIC}.{method}{kind}" for kind in kinds)


@pytest.fixture(scope="module")
def world() -> Iterator[SteppedWorld]:
    with stage() as machine:
        yield machine.world


def play_fault(world: SteppedWorld, message: str, fault: str, story: Callable[[Scene], None]) -> None:
    """The story is told while the fault strikes the message once; a cast has no answer that could be lost."""
    if fault == "answer lost" and message.startswith(CASTS):
        return
    world.reset()
    scene = Scene(world, message, fault)
    story(scene)
    scene.rest()
    assert scene.struck, "the message was never sent"
    scene.release()
    scene.rest(verify=True)


def test_every_message_has_a_case() -> None:
    assert set(messages()) == {*CASES, *QUESTIONS, *OF_SHARED_PROCESSES, *OF_TWO_MACHINES}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("message", CASES)
def test_nothing_depends_on_it(world: SteppedWorld, message: str, fault: str) -> None:
    play_fault(world, message, fault, CASES[message])


IMAGE = str(uuid4())
PORT = Port(network_id="n", network="blue", mac="fa:16:3e:00:00:01", physical_network="p")
TASKS = {
    "image": Task(
        number=4, kind=TaskKind.IMAGE, power=Power.ON, args=TaskArgs(image_id=IMAGE, image=NewImage(name="one", owner="p"))
    ),
    "rescue": Task(number=4, kind=TaskKind.RESCUE, power=Power.RESCUED),
    "interfaces": Task(number=4, kind=TaskKind.INTERFACES, power=Power.ON, args=TaskArgs(ports=(PORT,))),
    "crash dump": Task(number=4, kind=TaskKind.CRASH_DUMP, power=Power.ON),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("message", ["compute.do_tasks", "cell-conductor.report begin", "cell-conductor.report done"])
@pytest.mark.parametrize("task", TASKS)
def test_no_task_depends_on_it(world: SteppedWorld, task: str, message: str, fault: str) -> None:
    if fault == "answer lost" and message.startswith(CASTS):
        return
    world.reset()
    scene = Scene(world, message, fault)
    uuid = scene.booted()
    scene.ask(uuid, TASKS[task])
    scene.rest()
    assert scene.struck, "the message was never sent"
    scene.release()
    scene.rest(verify=True)
    [host] = [host for host in HOMES if uuid in {guest.uuid for guest in world.guests(host)}]
    assert world.agent(host).driver.console_output(uuid, 1 << 16).count(b"NMI received") == (task == "crash dump")
    store = FolderStore(world.path / "images")
    assert world.guests(host)[0].macs == ((PORT.mac,) if task == "interfaces" else ())
    assert task != "image" or store.get_record(IMAGE).owner == "p"
    if task == "image":
        store.delete(IMAGE)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("message", OF_MOVES)
@pytest.mark.parametrize("move", [migrate, revert])
def test_no_move_depends_on_it(world: SteppedWorld, move: Callable[[Scene], None], message: str, fault: str) -> None:
    play_fault(world, message, fault, move)


def revert_untouched(scene: Scene) -> None:
    """A revert whose messages the fault does not strike."""
    scene.struck = True
    revert(scene)
    scene.struck = False


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("message", ["compute.do_tasks", "cell-conductor.report begin", "cell-conductor.report done"])
def test_no_revert_depends_on_it(world: SteppedWorld, message: str, fault: str) -> None:
    """The hold of the twin, and the start of the source."""
    play_fault(world, message, fault, revert_untouched)


def test_a_delete_before_any_message_leaves_nothing(world: SteppedWorld) -> None:
    world.reset()
    scene = Scene(world, "", "")
    delete_queued(scene)
    scene.rest()


def test_sweeps_find_all_work_when_doorbells_are_lost(world: SteppedWorld) -> None:
    world.reset()
    scene = Scene(world, "", "")
    lost: list[str] = []

    def carry(held: Held, server: Server) -> None:
        if name_of(held).startswith("super-conductor."):
            lost.append(held.method)
            world.network.lose(held)
        else:
            world.network.deliver(held, server)

    world.carry = carry
    boot_failing(scene)
    uuid = scene.boot()
    scene.rest()
    scene.delete(uuid)
    scene.rest()
    assert set(lost) == {"schedule_and_build_instances", "delete_instances"}
