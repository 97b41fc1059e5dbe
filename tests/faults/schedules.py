"""Random schedules of the real code, found and made smaller by hypothesis: what runs next, which letter arrives, what dies.

    python -m tests.faults.schedules --seconds 600            look for a schedule that goes wrong, from a random seed
    python -m tests.faults.schedules --seed 7                 the same schedules again, and a failure again
    python -m tests.faults.schedules --seed 7 --examples 100  only so many
    python -m tests.faults.schedules --walks --seconds 600    longer ones, of servers that are operated on; each has a seed

A run is made of rounds; each prints its own seed, and one that fails ends with the shortest schedule that hypothesis could make
of it: its rules, and what happened step by step. ``--seed`` with that seed does it again. One schedule: a few requests, up to
``STEPS`` rules between them, then whatever was down comes back and all must come to rest. ``schedule_judge.py`` says what must hold
at each step and at the end.
"""

from __future__ import annotations

import argparse
import logging
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from hypothesis import HealthCheck, Phase, Verbosity, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from compute.simulated import METADATA_KEY
from objects.flavor import Flavor
from objects.group import GroupPolicy
from objects.operation import OperationArgs, OperationKind, OperationState, allows_operation
from objects.spec import ServerProperties
from objects.task import Power, TaskState
from tests.faults.schedule_judge import Asked, Look, Story, come_to_rest, unsafe
from tests.support import fleet
from tests.support.stepped_parts import EVER, HOMES, HOSTS
from tests.support.stepped_world import AgentProcess, Alarm, SteppedWorld

STEPS = 40
"""Rules of one schedule."""
EXAMPLES = 200
"""Schedules of one round."""
VERIFY = 8
"""``verify`` takes as long as all the rest: it has a look at each schedule whose length this divides."""
MOST = 4
"""Servers of one schedule, from which no more are booted: the fewer, the more happens to each."""

ANY = st.integers(0, 1 << 16)
"""Which of those there are: taken modulo their number."""
CHOICES = st.lists(ANY, min_size=3, max_size=30)
POLICIES = st.sampled_from((None, None, GroupPolicy.ANTI_AFFINITY, GroupPolicy.AFFINITY))
SOME_HOSTS = st.sets(st.sampled_from(tuple(HOMES)), max_size=3)
OUTCOMES = st.sampled_from(("ok", "ok", "ok", "fail", "fail", "policy", "error", "abort"))
WEIGHTS = ((40, "go"), (66, "deliver"), (80, "bring"), (87, "sweep"), (94, "double"), (96, "lose"), (98, "give_up"), (101, "crash"))
"""What happens next, and up to which number of the last."""
CALM = 90
"""Up to this number nothing is lost and nobody dies."""
KINDS = (
    *(
        OperationKind.STOP,
        OperationKind.START,
        OperationKind.REBOOT,
        OperationKind.PAUSE,
        OperationKind.UNPAUSE,
        OperationKind.RESET,
        OperationKind.FAIL,
        OperationKind.REBUILD,
    ),
    *(OperationKind.MIGRATE, OperationKind.RESIZE, OperationKind.MIGRATE, OperationKind.RESIZE, OperationKind.EVACUATE),
    *(OperationKind.LIVE_MIGRATE, OperationKind.LIVE_MIGRATE),
)
OFTEN = ("queue", "orders", "operations")
"""Sweeps that meet others at their work."""
RARE = ("beat", "stats", "claims", "reap", "keep up", "deadlines", *(f"look {cell}" for cell in HOSTS))
"""Those that seldom do."""


@dataclass
class Tally:
    """What was done so far."""

    schedules: int = 0
    distinct: set[int] = field(default_factory=set)
    servers: set[int] = field(default_factory=set)
    steps: int = 0
    rules: Counter[str] = field(default_factory=Counter)
    ends: Counter[str] = field(default_factory=Counter)
    operations: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    stops: Counter[str] = field(default_factory=Counter)
    rounds: Counter[int] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        return (
            f"{self.schedules} schedules, {len(self.distinct)} distinct; {self.steps} steps of tasks and letters; "
            f"ends {dict(self.ends)}; operations {dict(self.operations)}, which came to {dict(self.outcomes)}; "
            f"rounds to rest {dict(sorted(self.rounds.items()))}; {dict(sorted(self.rules.items()))}"
        )


class Schedules(RuleBasedStateMachine):
    """One schedule. The world is made once and reset for each."""

    world: ClassVar[SteppedWorld]
    alarm: ClassVar[Alarm]
    tally: ClassVar[Tally]

    def __init__(self) -> None:
        super().__init__()
        self.world.reset()
        self.alarm.heard.clear()
        self.story = Story()
        self.trace: list[str] = []
        self._writes = -1
        self._batches = 0
        self._judged = False
        self.operates = False

    # -- users -------------------------------------------------------------------------------------------------------------------

    @initialize(count=st.integers(1, 3), outcome=OUTCOMES, hosts=SOME_HOSTS, policy=POLICIES, operates=st.booleans())
    def first(self, count: int, outcome: str, hosts: set[str], policy: GroupPolicy | None, operates: bool) -> None:
        """In half of the schedules servers are operated on: the first of them are ACTIVE when they begin.

        With an odd number of ``hosts`` a build that no host of its cell could take goes to another cell.
        """
        self.operates = operates
        if len(hosts) % 2:
            self.world.other_cell_timeout = EVER
            for owner in [owner for owner in self.world.processes if owner.startswith("super-")]:
                self.world.die(owner)
                self.world.start("super")
        self._boot(count, outcome, tuple(sorted(hosts)), policy)
        if not operates:
            return
        self.world.drain()
        for name in HOSTS:
            self.world.sweep("super", f"keep {name}")
        self._note("begin", "after the boots")

    @precondition(lambda self: len(self.story.asked) < MOST)
    @rule(count=st.integers(1, 3), outcome=OUTCOMES, hosts=SOME_HOSTS)
    def boot(self, count: int, outcome: str, hosts: set[str]) -> None:
        self._boot(count, outcome, tuple(sorted(hosts)))

    @precondition(lambda self: len(self.story.asked) < MOST)
    @rule(count=st.integers(1, 3), policy=st.sampled_from((None, GroupPolicy.ANTI_AFFINITY, GroupPolicy.AFFINITY)))
    def boot_group_or_too_large(self, count: int, policy: GroupPolicy | None) -> None:
        self._boot(count, "ok", (), policy, fits=policy is not None)

    @precondition(lambda self: len(self.story.asked) < MOST)
    @rule(counts=st.lists(st.integers(1, 2), min_size=2, max_size=3))
    def boot_together(self, counts: list[int]) -> None:
        """Batches of one moment, with one ring for them all."""
        self._note("boot together", f"{counts}")
        for uuids in self.world.boot_together(*counts):
            self._batches += 1
            for uuid in uuids:
                self.story.asked[uuid] = Asked(batch=self._batches)

    def _boot(
        self, count: int, outcome: str, hosts: tuple[str, ...], policy: GroupPolicy | None = None, *, fits: bool = True
    ) -> None:
        self._note("boot", f"{count} {outcome} {hosts} {policy} {fits}")
        self._batches += 1
        asked: dict[str, Any] = {"size": fleet.flavor(vcpus=1 if fits else 1000)}
        if outcome != "ok":
            script = f"{outcome}:{','.join(hosts)}" if hosts else outcome
            asked["properties"] = ServerProperties(metadata={METADATA_KEY: script})
        if policy is not None:
            asked["group"] = self.world.group(policy)
        for uuid in self.world.boot(count, **asked):
            self.story.asked[uuid] = Asked(batch=self._batches, outcome=outcome, hosts=hosts, fits=fits, policy=policy)

    @rule(which=ANY, late=st.booleans())
    def delete_or_deadline(self, which: int, late: bool) -> None:
        """A server is deleted, or its deadline passes."""
        uuid = self._any_server(which)
        if self.operates and which % 4:  # an operation that is struck at once, or whose server is deleted, comes to nothing
            return
        self._note("deadline" if late else "delete", uuid)
        if late:
            self.story.asked[uuid].struck = True
            self.world.strike(uuid)
        else:
            self.story.asked[uuid].deleted = True
            self.world.delete(uuid)

    @precondition(lambda self: self.operates)
    @rule(which=ANY, host=st.sampled_from((None, None, *HOMES)), small=st.booleans())
    def operate(self, which: int, host: str | None, small: bool) -> None:
        """A user or an operator wants something of a server that can take it."""
        look = Look(self.world)
        able = [(uuid, kind) for uuid in self.story.asked for kind in self._able(look, uuid)]
        if not able:
            return
        uuid, kind = able[which % len(able)]
        asked: dict[str, Any] = {}
        if kind.is_move:
            asked["args"] = OperationArgs(host=host, cross_cell=which % 3 != 0)
        elif kind is OperationKind.REBOOT:
            asked["args"] = OperationArgs(hard=small)
        elif kind is OperationKind.REBUILD:
            asked["args"] = OperationArgs(image_id=f"image-{which}")
        if kind is OperationKind.RESIZE:
            vcpus, memory = 1 if small else 2, 512 * (1 + which % 4)
            asked["flavor"] = Flavor(flavor_id=f"f{which}", name="f", vcpus=vcpus, memory_mb=memory, root_gb=1)
        if kind is OperationKind.EVACUATE and (row := look.row_of(look.shown(uuid))) is not None:
            self._call_dead(row.host or "")
        self._ask(uuid, kind, **asked)

    def _ask(self, uuid: str, kind: OperationKind, **asked: Any) -> None:
        done = self.world.operate(uuid, kind, **asked)
        self._note("operate" if done else "refused", f"{uuid} {kind} {asked}")
        if done:
            self.story.asked[uuid].operated = True
            self.tally.operations[kind] += 1

    @precondition(lambda self: self.operates)
    @rule(which=ANY, host=st.sampled_from((None, None, *HOMES)), small=st.booleans())
    def operate_more(self, which: int, host: str | None, small: bool) -> None:
        self.operate(which, host, small)

    def _able(self, look: Look, uuid: str) -> list[OperationKind]:
        """The kinds of operations that the server takes now."""
        shown, every = look.shown(uuid), look.operations[uuid]
        if shown.deleted or shown.state != "active":
            return []
        if any(each.outcome is None for each in every):
            return [OperationKind.EVACUATE] if every[-1].state == OperationState.TASK else []
        failed = shown.task_state == TaskState.FAILED
        return [kind for kind in KINDS if allows_operation(kind, Power(shown.power), failed=failed)]

    @precondition(lambda self: self.operates)
    @rule(which=ANY, confirm=st.booleans())
    def answer(self, which: int, confirm: bool) -> None:
        """The user of a resized server decides."""
        waiting = [uuid for uuid, every in Look(self.world).operations.items() if every[-1].state == OperationState.VERIFY]
        if waiting:
            uuid = sorted(waiting)[which % len(waiting)]
            self._note("confirm" if confirm else "revert", uuid)
            self.world.answer(uuid, confirm=confirm)

    @precondition(lambda self: self.operates)
    @rule(what=st.sampled_from(("leases", "write", "cut power")), host=st.sampled_from(tuple(HOMES)))
    def meanwhile(self, what: str, host: str) -> None:
        """Leases run out, guests write to their disks, or a host loses its power."""
        self._note(what, host)
        if what == "leases":
            self.world.end_leases()
        elif what == "write":
            self.world.write_disks(host)
        else:
            self.story.restarted.add(host)
            self.world.cut_power(host)
            self.world.start(host)

    @precondition(lambda self: self.operates)
    @rule(host=st.sampled_from(tuple(HOMES)))
    def lose_host(self, host: str) -> None:
        """A host loses its power, its operator knows it and calls it dead, and all its servers are evacuated."""
        self._note("lose host", host)
        self.story.restarted.add(host)
        self.world.cut_power(host)
        self._call_dead(host)
        look = Look(self.world)
        for uuid in self.story.asked:
            row = look.row_of(look.shown(uuid))
            if row is not None and row.host == host and OperationKind.EVACUATE in self._able(look, uuid):
                self._ask(uuid, OperationKind.EVACUATE)

    def boot_one_more(self, policy: GroupPolicy | None = None) -> None:
        if len(self.story.asked) < MOST:
            self._boot(1 if policy is None else 2, "ok", (), policy)

    def catch_up(self) -> None:
        """What was down comes back, what is under way comes to its end, and the API level hears of it."""
        self._note("catch up", "")
        with self._told():
            self.world.heal()
            self.world.drain()
            for name in HOSTS:
                self.world.sweep("super", f"keep {name}")

    def _any_server(self, which: int) -> str:
        uuids = list(self.story.asked)
        return uuids[which % len(uuids)]

    # -- what runs, and what happens to messages ---------------------------------------------------------------------------------

    @precondition(lambda self: self.operates)
    @rule(seed=ANY, count=st.integers(10, 200))
    def long_run(self, seed: int, count: int) -> None:
        """As many steps as operations take, often without a fault."""
        chosen, weights = random.Random(seed), WEIGHTS[-1][0] if seed % 3 == 0 else CALM
        for _ in range(count):
            self._step(chosen.randrange(weights), chosen.randrange(1 << 16))

    @rule(choices=CHOICES)
    def steps(self, choices: list[int]) -> None:
        """One thing after the other, each chosen among all that can happen next."""
        for choice in choices:
            self._step(choice % WEIGHTS[-1][0], choice // WEIGHTS[-1][0])

    @rule(choices=CHOICES)
    def more_steps(self, choices: list[int]) -> None:
        """The same: every rule is as likely as any other, and these are to be more."""
        self.steps(choices)

    @rule(choices=CHOICES)
    def still_more_steps(self, choices: list[int]) -> None:
        self.steps(choices)

    def _step(self, weight: int, which: int) -> None:
        """``which`` of those things that there are of the kind of this weight; if there is none, of the next kind."""
        for agent in self.world.agents():
            if agent.owes:
                agent.begin("report")
        kinds = [kind for bound, kind in WEIGHTS if weight < bound] + [kind for _, kind in WEIGHTS[:3]]
        for kind in kinds:
            if getattr(self, f"_{kind}")(which):
                return

    def _go(self, which: int) -> bool:
        """A task goes on to one of its next stops."""
        if not (tasks := [task for task in self.world.tasks if not task.waits]):
            return False
        task = tasks[which % len(tasks)]
        for _ in range(1 + which // len(tasks) % 3):
            self._note("go", repr(task))
            self.world.go(task)
            self._check()
            if task.done or task.waits:
                break
        return True

    def _deliver(self, which: int) -> bool:
        """A letter comes to one of those who could take it, whatever was sent before it."""
        if not (ready := self.world.network.deliverable()):
            return False
        held, server = ready[which % len(ready)]
        self._note("deliver", f"{held!r} {server.owner}")
        self.world.go(self.world.network.deliver(held, server))
        self._check()
        return True

    def _bring(self, which: int) -> bool:
        """An answer comes to who asked."""
        if not (answers := self.world.network.answers):
            return False
        self._note("bring", repr(self.world.network.bring(which % len(answers))))
        return True

    def _sweep(self, which: int) -> bool:
        """Some process begins with something that it does by the clock."""
        every = [(process, name) for process in self.world.processes.values() for name in process.work if name not in RARE]
        every += [(process, name) for process, name in every if name in OFTEN] * 3
        if which % 8 == 0 or not every:
            every = [(process, name) for process in self.world.processes.values() for name in process.work]
        if not every:  # every process is down
            return False
        process, name = every[which % len(every)]
        self._note("sweep", f"{process.owner} {name}")
        process.begin(name)
        return True

    def _lose(self, which: int) -> bool:
        if not (letters := self.world.network.letters()):
            return False
        held = letters[which % len(letters)]
        self._note("lose", repr(held))
        self.world.network.lose(held)
        return True

    def _double(self, which: int) -> bool:
        if not (letters := self.world.network.letters()):
            return False
        held = letters[which % len(letters)]
        self._note("double", repr(held))
        self.world.network.double(held)
        return True

    def _give_up(self, which: int) -> bool:
        """A caller has waited for long enough. What it asked may be done all the same, now or later."""
        if not (calls := self.world.network.waiting()):
            return False
        call = calls[which % len(calls)]
        self._note("give up", repr(call))
        call.end(None, timed_out=True)
        return True

    def _crash(self, which: int) -> bool:
        """Who is at something dies where it stands, and comes again."""
        if not (owners := sorted({task.owner for task in self.world.tasks})):
            return False
        owner = owners[which % len(owners)]
        self._note("crash", owner)
        self.world.die(owner)
        self.world.start(owner.partition("-")[0])
        if owner in HOMES:
            self.story.restarted.add(owner)
        return True

    # -- what dies ---------------------------------------------------------------------------------------------------------------

    @rule(which=ANY, successor=st.booleans())
    def kill(self, which: int, successor: bool) -> None:
        """A conductor or a scheduler, at the step where it is. Others of them there are, or come later."""
        owners = sorted(owner for owner in self.world.processes if owner not in HOMES)
        if not owners:
            return
        owner = owners[which % len(owners)]
        self._note("kill", owner)
        self.world.die(owner)
        if successor:
            self.world.start(owner.partition("-")[0])

    @rule(what=st.sampled_from(("super", "scheduler", *HOSTS)))
    def start(self, what: str) -> None:
        """One more of these: any number may share the work."""
        if sum(owner.startswith(what) for owner in self.world.processes) < 3:
            self._note("start", what)
            self.world.start(what)

    @rule(host=st.sampled_from(tuple(HOMES)), what=st.sampled_from(("restart", "call dead", "call alive", "come", "kill", "stop")))
    def host(self, host: str, what: str) -> None:
        """Its agent is killed, comes (again), or is told to end; its cell takes it for dead, whatever its agent does."""
        agent = self.world.processes.get(host)
        self._note(what, host)
        if what == "call dead":
            self._call_dead(host)
            return
        if what == "call alive":
            self.world.call_dead(host, False)
            return
        self.story.restarted.add(host)
        if what == "stop" and isinstance(agent, AgentProcess):
            agent.stop()
        if what in ("restart", "kill") and agent is not None:
            self.world.die(host)
        if what in ("restart", "come") and host not in self.world.processes:
            self.world.start(host)

    def _call_dead(self, host: str) -> None:
        self.story.called_dead.add(host)
        self.world.call_dead(host, True)

    @rule(name=st.sampled_from(("api", "cell0", *HOSTS)), what=st.sampled_from(("lose commit", "back", "away")))
    def database(self, name: str, what: str) -> None:
        """It does not answer for a while; or it does what it is asked next, and its answer is lost."""
        self._note(what, name)
        database = self.world.files.databases[name]
        if what == "lose commit":
            database.lose_answer = True
        elif name != "api":
            database.away = what == "away"
            self.story.away.add(name)

    # -- how it ends -------------------------------------------------------------------------------------------------------------

    def teardown(self) -> None:
        """Hypothesis calls this at the end of every schedule, of those too that were wrong already."""
        if self._judged:
            return
        self._judged = True
        with self._told():
            rounds = come_to_rest(self.world, self.story, verify=len(self.trace) % VERIFY == 0)
            assert not self.alarm.heard, self.alarm.heard
        self._count(rounds)

    def _count(self, rounds: int) -> None:
        tally = self.tally
        tally.schedules += 1
        tally.distinct.add(hash(tuple(self.trace)))
        tally.rounds[rounds] += 1
        tally.failures += self.world.failures
        self.world.failures.clear()
        for every in Look(self.world).operations.values():
            tally.outcomes.update(f"{each.kind} {each.outcome or each.state}" for each in every)
        for asked in self.story.asked.values():
            tally.ends["deleted" if asked.deleted else "kept"] += 1

    # -- inside ------------------------------------------------------------------------------------------------------------------

    def _note(self, name: str, what: str) -> None:
        self.trace.append(f"{name} {what}")
        self.tally.rules[name] += 1
        self.tally.steps += 1

    def _check(self) -> None:
        if self._writes != self.world.files.writes:
            self._writes = self.world.files.writes
            with self._told():
                broken = unsafe(self.world, self.story)
                assert not broken, broken

    @contextmanager
    def _told(self) -> Iterator[None]:
        """What fails inside is shown with all that happened before it."""
        try:
            yield
        except AssertionError as error:
            error.add_note("\n".join(["What happened:", *self.trace]))
            raise


@contextmanager
def stage() -> Iterator[type[Schedules]]:
    """The machine with a world of its own, in memory where the system has such a place; only faults are logged meanwhile."""
    memory = Path("/dev/shm")
    path = Path(tempfile.mkdtemp(prefix="schedules-", dir=memory if memory.is_dir() and os.access(memory, os.W_OK) else None))
    alarm, root = Alarm(), logging.getLogger()
    root.addHandler(alarm)
    disabled = logging.root.manager.disable
    logging.disable(logging.WARNING)
    world = SteppedWorld(path)
    world.task_failure_rate = 0.1
    try:
        yield type("Schedules", (Schedules,), {"world": world, "alarm": alarm, "tally": Tally()})
    finally:
        world.close()
        logging.disable(disabled)
        root.removeHandler(alarm)
        shutil.rmtree(path, ignore_errors=True)


def explore(machine: type[Schedules], number: int, examples: int = EXAMPLES, *, shrink: bool = True) -> None:
    """One round of schedules from this seed. Raises what the shortest wrong one raises; hypothesis prints it."""
    wanted = settings(
        max_examples=examples,
        stateful_step_count=STEPS,
        deadline=None,
        database=None,
        phases=(Phase.generate, Phase.shrink) if shrink else (Phase.generate,),
        suppress_health_check=list(HealthCheck),
        print_blob=False,
        verbosity=Verbosity.normal,
    )
    seeded: Any = seed(number)(type(machine.__name__, (machine,), {}))
    run_state_machine_as_test(seeded, settings=wanted)


class Walk:
    """One schedule without hypothesis: longer, of servers that are operated on, and never made smaller."""

    def __init__(self, machine: type[Schedules], number: int) -> None:
        self._random = random.Random(number)
        self._schedule = machine()
        self._faults = self._random.choice((0.0, 0.1, 0.3, 1.0))
        """How much goes wrong."""

    def go(self) -> None:
        choose, schedule = self._random, self._schedule
        hosts = set(choose.sample(list(HOMES), choose.randrange(4)))
        outcome = choose.choice(("ok",) * 8 + ("fail", "fail", "policy", "error", "abort"))
        policy = choose.choice((None, None, GroupPolicy.ANTI_AFFINITY, GroupPolicy.AFFINITY))
        count = choose.choice((1, 1, 2) if policy is None else (2, 3))
        schedule.first(count=count, outcome=outcome, hosts=hosts, policy=policy, operates=True)
        for _ in range(choose.randrange(5, 60)):
            self._step(choose.random())
        schedule.teardown()

    def _step(self, chance: float) -> None:
        choose, schedule = self._random, self._schedule
        host = choose.choice((None, None, *HOMES))
        if chance < 0.25:
            schedule.operate(which=self._any, host=host, small=choose.random() < 0.5)
        elif chance < 0.35:
            schedule.answer(which=self._any, confirm=choose.random() < 0.4)
        elif chance < 0.35 + 0.3 * self._faults:
            choose.choice(self._troubles())()
        elif chance < 0.9:
            calm = choose.random() >= self._faults
            schedule.long_run(seed=3 * self._any + calm, count=choose.choice((5, 20, 60, 150)))
        else:
            schedule.catch_up()

    def _troubles(self) -> list[Callable[[], object]]:
        choose, schedule, host = self._random, self._schedule, self._random.choice(list(HOMES))
        role = choose.choice(("super", "scheduler", *HOSTS))
        end = choose.choice(("restart", "call dead", "call alive", "come", "kill", "stop"))
        fault = choose.choice(("lose commit", "back", "back", "away"))
        return [
            partial(schedule.delete_or_deadline, which=self._any, late=choose.random() < 0.6),
            partial(schedule.kill, which=self._any, successor=choose.random() < 0.7),
            partial(schedule.start, what=role),
            partial(schedule.host, host=host, what=end),
            partial(schedule.database, name=choose.choice(("api", "cell0", *HOSTS)), what=fault),
            partial(schedule.meanwhile, what=choose.choice(("leases", "write", "write", "cut power")), host=host),
            partial(schedule.boot_one_more),
            partial(schedule.boot_one_more, policy=choose.choice((GroupPolicy.ANTI_AFFINITY, GroupPolicy.AFFINITY))),
            partial(schedule.lose_host, host=host),
            partial(schedule.lose_host, host=host),
        ]

    @property
    def _any(self) -> int:
        return self._random.randrange(1 << 16)


def walk(seconds: float, number: int, *, say: bool = True) -> Tally:
    """Walks of seeds ``number``, ``number`` + 1... until the time is over, one at least. Returns what was done."""
    began = time.monotonic()
    with stage() as machine:
        while not machine.tally.schedules or time.monotonic() - began < seconds:
            try:
                Walk(machine, number).go()
            except BaseException:
                print(f"walk {number}: went wrong; again: python -m tests.faults.schedules --walks --seed {number}")
                raise
            number += 1
        if say:
            print(f"up to walk {number - 1} all hold")
        return machine.tally


def look(seconds: float, number: int, examples: int = EXAMPLES, *, shrink: bool = True, say: bool = True) -> Tally:
    """Rounds of seeds ``number``, ``number`` + 1... until the time is over. Returns what was done."""
    began = time.monotonic()
    with stage() as machine:
        while True:
            begun = machine.tally.schedules
            try:
                explore(machine, number, examples, shrink=shrink)
            except BaseException:
                print(f"seed {number}: went wrong; again: python -m tests.faults.schedules --seed {number} --examples {examples}")
                raise
            took = time.monotonic() - began
            if say:
                rate = machine.tally.schedules / took
                print(f"seed {number}: {machine.tally.schedules - begun} schedules hold, {rate:.0f} a second so far", flush=True)
            number += 1
            if took >= seconds:
                return machine.tally


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30), help="of the first round; those after it count up")
    parser.add_argument("--seconds", type=float, default=0.0, help="how long to go on with further rounds; 0: one round")
    parser.add_argument("--as-found", action="store_true", help="show a schedule that goes wrong as it was found, not made smaller")
    parser.add_argument("--examples", type=int, default=EXAMPLES, help="schedules in a round")
    parser.add_argument("--walks", action="store_true", help="longer schedules of operations instead, one for each seed")
    wanted = parser.parse_args()
    if wanted.walks:
        print(walk(wanted.seconds, wanted.seed))
        return 0
    print(look(wanted.seconds, wanted.seed, wanted.examples, shrink=not wanted.as_found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
