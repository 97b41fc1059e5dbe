"""Two releases at once: an environment with the old one, and members that change from one to the other under load."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from chaos.faults import Faults
from deploy.local.commands import Commands
from deploy.local.folder import Folder
from deploy.local.processes import clean_environment, program_path
from deploy.local.region import Region
from deploy.local.shape import Shape
from objects import errors
from objects.base import Object
from objects.mask import mask_url
from objects.messages_version import SPAN

ROOT = Path(__file__).resolve().parent.parent
FIRST_ROLL_S = 5.0
"""Seconds of load with the old release and the new schema."""
LAST_SHARE = 0.9
"""Share of the load's time in which members change."""
FINALIZE_TIMEOUT_S = 120.0
RETRY_PAUSE_S = 5.0
PHASES = ("new", "old", "new")
"""What every member becomes, one after the other; it begins as the old release."""


_OLD_COMMANDS = """
import contextlib, io, json, sys
from cli import app
for line in sys.stdin:
    output, said = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(said):
        status = app.main(["--quiet", *json.loads(line)])
    print(json.dumps([status, output.getvalue(), said.getvalue()]), flush=True)
"""


def install_release(old: str, folder: Path) -> Path:
    """Make an environment with the wheel of an older release and the libraries of this one; return the folder of its commands.

    ``old``: the path of a wheel, or what git knows a commit by. ``folder``: a new one for all that this makes.

    Raises errors.Invalid for what is neither, errors.Misconfigured where it cannot be built.
    """
    folder.mkdir()
    wheel = Path(old) if old.endswith(".whl") else _build_wheel(old, folder)
    if not wheel.is_file():
        raise errors.Invalid(f"--mixed: there is no wheel {old}")
    venv = folder / "venv"
    _run("the environment", sys.executable, "-m", "venv", "--without-pip", str(venv))
    python = venv / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(python))
    _run("the wheel", *pip, "install", "--quiet", "--no-deps", "--no-index", str(wheel))
    # Libraries come from this environment. Its own editable package does not, because files of other folders' .pth are not read.
    libraries = sysconfig.get_path("purelib", vars={"base": str(venv), "platbase": str(venv)})
    (Path(libraries) / "libraries.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return venv / "bin"


def _build_wheel(commit: str, folder: Path) -> Path:
    """The wheel of a commit of this repository."""
    archive, source = folder / "source.tar", folder / "source"
    _run(f"commit {commit}", "git", "-C", str(ROOT), "archive", "--output", str(archive), commit)
    with tarfile.open(archive) as files:
        files.extractall(source, filter="data")
    build = ("wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(source))
    _run(f"the wheel of {commit}", sys.executable, "-m", "pip", "--disable-pip-version-check", *build)
    shutil.rmtree(source)
    return next(folder.glob("*.whl"))


def newest_messages(programs: Path) -> str:
    """The newest messages version of the release whose commands are in this folder."""
    question = "from objects.messages_version import SPAN; print(SPAN.newest)"
    command = [program_path("python", programs), "-c", question]
    return subprocess.run(command, check=True, capture_output=True, text=True, env=clean_environment()).stdout.strip()  # noqa: S603 - ours


def _run(subject: str, *command: str) -> None:
    done = subprocess.run(command, check=False, capture_output=True, text=True)  # noqa: S603 - commands of ours
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines() or [f"status {done.returncode}"]
        raise errors.Misconfigured(f"--mixed: {subject} cannot be had: {said[-1]}")


class OldCommands(Commands):
    """The old release's ``superconductor``, all commands in one process: a new one for each would take a second to start."""

    def __init__(self, folder: Folder, say: Callable[[str], None], programs: Path) -> None:
        super().__init__(folder, say)
        self._process = subprocess.Popen(  # noqa: S603 - the old release's own Python
            [program_path("python", programs), "-c", _OLD_COMMANDS],
            env=clean_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def close(self) -> None:
        self._process.communicate()

    def _run(self, *words: str) -> str:
        if self._process.stdin is None or self._process.stdout is None:
            raise RuntimeError("its pipes were asked for")
        self._process.stdin.write(json.dumps(words) + "\n")
        self._process.stdin.flush()
        if not (answer := self._process.stdout.readline()):
            raise errors.Invalid("the old release's commands have ended")
        status, output, said = json.loads(answer)
        if status:
            last = (said.strip() or output.strip() or f"status {status}").splitlines()[-1]
            raise errors.Invalid(mask_url(last.removeprefix("superconductor: ")))
        return str(output).strip()


def bring_schema(region: Region, say: Callable[[str], None]) -> None:
    """Bring all databases to this schema beside the old processes, and use the commands of this release from now on."""
    say("schema first: superconductor db sync, of this release")
    if isinstance(region.commands, OldCommands):
        region.commands.close()
    region.commands = Commands(region.folder, region.say)
    region.commands.run("db", "sync")


class Roll(Object, frozen=True, kw_only=True):
    """One change of a member. ``at``: seconds since the load began. ``kills``: by SIGKILL; otherwise in order."""

    at: float
    member: str
    release: str
    kills: bool


def plan_rolls(seed: int, duration: float, shape: Shape) -> tuple[Roll, ...]:
    """Every member changes once in each of ``PHASES``, in a random order of all members."""
    chance = random.Random(f"rolls {seed}")
    changes: list[tuple[str, str]] = []
    for release in PHASES:
        names = [member.name for member in shape.list_members()]
        chance.shuffle(names)
        changes += [(name, release) for name in names]
    pause = max(0.0, duration * LAST_SHARE - FIRST_ROLL_S) / len(changes)
    return tuple(
        Roll(at=round(FIRST_ROLL_S + number * pause, 3), member=name, release=release, kills=chance.random() < 0.5)
        for number, (name, release) in enumerate(changes)
    )


class Rolls:
    """Carries the rolls out, each as soon as no fault holds its member."""

    def __init__(self, region: Region, faults: Faults, old: Path, say: Callable[[str], None]) -> None:
        self._region = region
        self._faults = faults
        self._old = old
        self._say = say
        self._over = threading.Event()
        self._counting = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._latest: dict[str, Roll] = {}
        self.complaints: list[str] = []
        """What must never come of commands about upgrades."""
        members = region.notes.shape.list_members()
        lanes = {(member.role, member.files[0]): threading.Lock() for member in members}
        self._lanes = {member.name: lanes[member.role, member.files[0]] for member in members}
        """Members of one role in one place change one after the other, as in a rolling upgrade."""
        self.done: Counter[str] = Counter()
        """Changes by what they led to."""

    def start(self, planned: Sequence[Roll]) -> None:
        """Return at once; the rolls come at their times from now on. The upgrade cannot be finalized yet, if messages changed."""
        if newest_messages(self._old) != str(SPAN.newest):
            self._check_that_finalize_is_refused()
        self._spawn_thread(self._follow_plan, planned, time.monotonic())

    def _check_that_finalize_is_refused(self) -> None:
        try:
            self._region.commands.run("upgrade", "finalize")
            self.complaints.append("'upgrade finalize' was not refused, although everything was of the old release")
        except errors.Invalid as refusal:
            self._say(f"'upgrade finalize' is refused: {refusal}")

    def finish_rolls(self) -> None:
        """Every member that is not of the new release yet becomes that."""
        self._over.set()
        while alive := [thread for thread in self._threads if thread.is_alive()]:
            for thread in alive:
                thread.join()
        remaining = sorted(self._region.table.programs)
        for name in remaining:
            self._roll_member(Roll(at=float("inf"), member=name, release="new", kills=False))

    def finalize_upgrade(self) -> None:
        """End the way back; a process that was killed counts as alive for a minute."""
        end = time.monotonic() + FINALIZE_TIMEOUT_S
        while True:
            try:
                self._region.commands.run("upgrade", "finalize")
            except errors.Invalid as refusal:
                if time.monotonic() < end:
                    time.sleep(RETRY_PAUSE_S)
                    continue
                self.complaints.append(f"'upgrade finalize' is refused at the end: {refusal}")
            return

    def _spawn_thread(self, act: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=act, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _follow_plan(self, planned: Sequence[Roll], began: float) -> None:
        for roll in planned:
            if self._over.wait(max(0.0, began + roll.at - time.monotonic())):
                return
            self._latest[roll.member] = roll
            self._spawn_thread(self._roll_member, roll)

    def _roll_member(self, roll: Roll) -> None:
        with self._lanes[roll.member], self._faults.hold_member(roll.member):
            if self._latest.get(roll.member, roll).at > roll.at:
                return  # a fault held the member until its next change
            self._assign_release(roll)
            self._faults.replace_member(roll.member, kills=roll.kills)
        with self._counting:
            self.done[f"{'killed' if roll.kills else 'ended'}, then {roll.release}"] += 1

    def _assign_release(self, roll: Roll) -> None:
        if roll.release == "old":
            self._region.table.programs[roll.member] = self._old
        else:
            self._region.table.programs.pop(roll.member, None)
