"""Replay a trace under several policies side by side, each in a process of its own, and keep what was done in a folder."""

from __future__ import annotations

import contextlib
import hashlib
import multiprocessing
import os
import signal
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path

import msgspec

from lab.demand import demand_of
from lab.figures import VERSION, Demand, PolicyOutcome, ReplayReport
from lab.fleet import FleetHost, read_fleet
from lab.replay import Checkpoint, TraceReplay, heat_width
from lab.trace import Trace, open_trace
from objects import errors, stored
from objects.base import Object
from scheduler.framework.settings import SchedulerSettings

STATE_FOLDER = ".state"
"""In the folder of the results: what is needed to go on with a replay that was interrupted."""

Progress = Callable[[int, int], None]
"""Gets the servers that all replays together have had, and will have."""


class Question(Object, frozen=True, kw_only=True):
    """What is to be replayed. ``folder``: for results and checkpoints; None: nothing is kept. ``racks``: a file of them."""

    trace: str
    fleet: str
    racks: str | None = None
    ignored: tuple[str, ...] = ()
    seed: int = 0
    folder: str | None = None

    def open(self) -> tuple[Trace, list[FleetHost]]:
        """The trace and the fleet. Raises Invalid if they cannot be read."""
        racks = None if self.racks is None else Path(self.racks)
        return open_trace(Path(self.trace), self.ignored), read_fleet(Path(self.fleet), self.ignored, racks)


class Policy(Object, frozen=True, kw_only=True):
    """Settings of the scheduler, under a name."""

    name: str
    settings: SchedulerSettings


class ReplayTask(Object, frozen=True, kw_only=True):
    """One replay, for the process that does it. ``state``: the file of its checkpoints."""

    question: Question
    policy: Policy
    demand: Demand
    fingerprint: str
    state: str | None


class Progressed(Object, frozen=True, kw_only=True, tag=True):
    """``servers``: of the trace, so far."""

    servers: int


class Ended(Object, frozen=True, kw_only=True, tag=True):
    outcome: PolicyOutcome


class Failed(Object, frozen=True, kw_only=True, tag=True):
    """``text``: one sentence that says why."""

    text: str


Told = Progressed | Ended | Failed


class KeptReplay(Object, frozen=True, kw_only=True):
    """The file of one replay. ``fingerprint``: of everything that its decisions depend on."""

    fingerprint: str
    checkpoint: Checkpoint
    outcome: PolicyOutcome | None = None


def compare_policies(question: Question, policies: Sequence[Policy], processes: int, progress: Progress) -> ReplayReport:
    """Replay the trace under all policies; ``processes`` at a time.

    With a folder, a second call goes on where the first was interrupted. Raises Invalid for a trace or fleet that cannot be read,
    and Conflict if the folder holds another replay.
    """
    trace, fleet, demand = survey_trace(question)
    outcomes = replay_questions([(question, policy) for policy in policies], demand, processes, progress)
    return ReplayReport(
        version=VERSION,
        trace=Path(question.trace).name,
        format=trace.kind,
        ignored=tuple(sorted(set(question.ignored))),
        fleet=Path(question.fleet).name,
        fleet_hosts=len(fleet),
        fleet_cells=len({host.cell for host in fleet}),
        fleet_vcpus=sum(host.vcpus for host in fleet),
        fleet_memory_mb=sum(host.memory_mb for host in fleet),
        hosts_per_line=heat_width(len(fleet)),
        seed=question.seed,
        demand=demand,
        policies=tuple(
            msgspec.structs.replace(outcome, policy=policy.name, settings=changed_settings(policy.settings))
            for policy, outcome in zip(policies, outcomes, strict=True)
        ),
    )


def survey_trace(question: Question) -> tuple[Trace, list[FleetHost], Demand]:
    """The trace, the fleet, and what the trace asks of it. Raises Invalid if they cannot be read, TooCostly for a huge trace."""
    try:
        trace, fleet = question.open()
        return trace, fleet, demand_of(trace, fleet)
    except MemoryError:
        raise errors.TooCostly(
            f"{question.trace}: more servers run at once than this machine has memory for; replay a sample of its projects"
        ) from None


def replay_questions(
    questions: Sequence[tuple[Question, Policy]], demand: Demand, processes: int, progress: Progress
) -> list[PolicyOutcome]:
    """Replay each question under its policy, ``processes`` at a time. ``demand``: of the trace, which is the same for all."""
    tasks = [_make_task(question, policy, demand) for question, policy in questions]
    return _Processes(tasks, processes, progress, demand.servers).run()


def changed_settings(settings: SchedulerSettings) -> dict[str, object]:
    """The settings that are not the defaults."""
    default = SchedulerSettings()
    return {name: value for name in settings.__struct_fields__ if (value := getattr(settings, name)) != getattr(default, name)}


def write_whole(path: Path, text: str) -> None:
    """Write the file whole or not at all. Raises Invalid if that is not possible."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise errors.Invalid(f"{path}: cannot be written: {error.strerror}") from None


def _make_task(question: Question, policy: Policy, demand: Demand) -> ReplayTask:
    """Raises Conflict if the folder holds a replay of something else under this name."""
    files = [_hash_of(Path(name)) for name in (question.trace, question.fleet, question.racks) if name is not None]
    plain = msgspec.structs.replace(question, trace="", fleet="", racks=None, folder=None)
    fingerprint = hashlib.sha256(stored.dump_value((files, plain, policy.settings, VERSION)).encode()).hexdigest()
    state = None
    if question.folder is not None:
        folder = Path(question.folder) / STATE_FOLDER
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise errors.Invalid(f"{folder}: cannot be made: {error.strerror}") from None
        file = folder / f"{policy.name}.json"
        kept_replay = _read_kept(file)
        if kept_replay is not None and kept_replay.fingerprint != fingerprint:
            raise errors.Conflict(
                f"{question.folder}: holds a replay of another trace, fleet, seed or configuration under the name {policy.name}; "
                "name another folder, or remove this one"
            )
        state = str(file)
    return ReplayTask(question=question, policy=policy, demand=demand, fingerprint=fingerprint, state=state)


def _hash_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _read_kept(file: Path) -> KeptReplay | None:
    """None if nothing is kept. Raises Invalid for a file that is damaged."""
    try:
        return stored.load_text(file.read_bytes(), KeptReplay)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise errors.Invalid(f"{file}: cannot be read: {error.strerror}") from None
    except stored.UNREADABLE:
        raise errors.Invalid(f"{file}: is no checkpoint of this release; remove it to replay from the beginning") from None


# -- the processes -----------------------------------------------------------------------------------------------------------


class _Processes:
    """Runs the tasks, some at a time, and gathers what they tell."""

    def __init__(self, tasks: Sequence[ReplayTask], processes: int, progress: Progress, servers: int) -> None:
        self._waiting = list(enumerate(tasks))[::-1]
        self._processes = processes
        self._progress = progress
        self._total = servers * len(tasks)
        self._done = [0] * len(tasks)
        self._outcomes: dict[int, PolicyOutcome] = {}
        self._running: dict[Connection, tuple[int, BaseProcess]] = {}

    def run(self) -> list[PolicyOutcome]:
        """Raises what a task failed with. No process is left behind."""
        context = multiprocessing.get_context("spawn")
        try:
            while self._waiting or self._running:
                while self._waiting and len(self._running) < self._processes:
                    number, task = self._waiting.pop()
                    mine, theirs = context.Pipe(duplex=False)
                    process: BaseProcess = context.Process(target=work_on_task, args=(stored.dump_value(task), theirs), daemon=True)
                    process.start()
                    theirs.close()
                    self._running[mine] = number, process
                for ready in wait(list(self._running)):
                    self._receive_message(ready)  # type: ignore[arg-type]  # it was given connections alone
        finally:
            for _, process in self._running.values():
                process.terminate()
                process.join()
        return [self._outcomes[number] for number in sorted(self._outcomes)]

    def _receive_message(self, connection: Connection) -> None:
        number, process = self._running[connection]
        try:
            message: Told = stored.load_text(connection.recv_bytes(), Told)  # type: ignore[arg-type]  # a union is no type
        except EOFError:
            process.join()
            raise errors.SuperconductorError(_ended_early(process.exitcode)) from None
        if isinstance(message, Failed):
            raise errors.Invalid(message.text)
        if isinstance(message, Progressed):
            self._done[number] = message.servers
            self._progress(sum(self._done), self._total)
            return
        self._outcomes[number] = message.outcome
        del self._running[connection]
        connection.close()
        process.join()


def _ended_early(status: int | None) -> str:
    """What to say of a replay's process that told no result."""
    if status == -signal.SIGKILL:
        return (
            "A replay was killed (status -9), probably by the kernel for want of memory. Use fewer --processes, or replay a sample "
            "of the trace's projects; with --output, the same command goes on"
        )
    return f"A replay ended with status {status} before its end; with --output, the same command goes on"


def work_on_task(text: str, connection: Connection) -> None:
    """The life of a process: do one task and tell. If nobody listens any more, it ends."""

    def send_message(message: Told) -> None:
        connection.send_bytes(stored.dump_value(message).encode())

    with contextlib.suppress(BrokenPipeError, KeyboardInterrupt):
        try:
            send_message(
                Ended(
                    outcome=_outcome_of(
                        stored.load_text(text, ReplayTask), lambda servers: send_message(Progressed(servers=servers))
                    )
                )
            )
        except errors.SuperconductorError as error:
            send_message(Failed(text=str(error)))
        except MemoryError:
            send_message(
                Failed(text="More servers run at once than this machine has memory for; replay a sample of the trace's projects")
            )


def _outcome_of(task: ReplayTask, progress: Callable[[int], None]) -> PolicyOutcome:
    question, file = task.question, None if task.state is None else Path(task.state)
    kept_replay = None if file is None else _read_kept(file)
    if kept_replay is not None and kept_replay.outcome is not None:
        progress(kept_replay.outcome.servers)
        return kept_replay.outcome

    def save_replay(checkpoint: Checkpoint, outcome: PolicyOutcome | None = None) -> None:
        if file is not None:
            write_whole(file, stored.dump_value(KeptReplay(fingerprint=task.fingerprint, checkpoint=checkpoint, outcome=outcome)))

    trace, fleet = question.open()
    begun = Checkpoint() if kept_replay is None else kept_replay.checkpoint
    outcome = TraceReplay(trace, fleet, task.demand, task.policy.settings, question.seed, begun).run(save_replay, progress)
    save_replay(Checkpoint(), outcome)
    return outcome
