"""The processes of a region: known by a mark in their environment, whoever started them and whatever became of that one."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from deploy import processes
from deploy.local.folder import Folder
from deploy.local.shape import Member
from objects import errors

REGION = "SUPERCONDUCTOR_REGION"
MEMBER = "SUPERCONDUCTOR_MEMBER"
"""Variables that every process of a region has in its environment: the region's folder, and its own name there."""

READY = b" is ready"
"""How the line ends that a process logs when it serves."""

CHECKOUT = Path(__file__).resolve().parents[2]

KILL_TIMEOUT_S = 10.0
"""Seconds in which the kernel ends what got SIGKILL."""


def program_path(name: str, folder: Path | None = None) -> str:
    """The path of a command of the distribution, in ``folder`` or beside this Python.

    Raises errors.Misconfigured where it is not installed.
    """
    path = (folder or Path(sys.executable).parent) / name
    if not path.exists():
        raise errors.Misconfigured(f"There is no command {name} in {path.parent}: run 'make venv' and use its Python.")
    return str(path)


def clean_environment() -> dict[str, str]:
    """Ours without what would be taken for configuration, or for another environment: a region reads its files only."""
    foreign = ("OS_", "SUPERCONDUCTOR_", "PYTHONPATH", "VIRTUAL_ENV")
    return {name: value for name, value in os.environ.items() if not name.startswith(foreign)}


class Table:
    """The processes of one region as they are at this moment: for each member its own, the master first."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self.programs: dict[str, Path] = {}
        """The folder of the command of each member that runs from another environment than this one, by the member's name."""

    def pids_by_member(self) -> dict[str, list[int]]:
        """Process numbers by member."""
        by_member: dict[str, list[int]] = defaultdict(list)
        for pid in processes.list_marked(REGION, str(self._folder.path)):
            if (name := _environment_value(pid, MEMBER)) is not None:
                by_member[name].append(pid)
        return {name: sorted(pids, key=lambda pid: (not is_master(pid), pid)) for name, pids in by_member.items()}

    def members_with_master(self) -> set[str]:
        """The members whose master runs."""
        return {name for name, pids in self.pids_by_member().items() if is_master(pids[0])}

    def start(self, member: Member) -> Started:
        """Start a member in a session of its own, its output in its log, its number in its pid file."""
        log = self._folder.log_of(member)
        size = log.stat().st_size if log.exists() else 0
        command = self._member_command(member)
        # SPT_NOENV: the master gives itself a title, for which it must not use the room of its environment.
        # PYTHONFAULTHANDLER: should one crash, its log says where.
        marks = {REGION: str(self._folder.path), MEMBER: member.name, "SPT_NOENV": "1", "PYTHONFAULTHANDLER": "1"}
        if member.forks:
            marks["PYTHONPATH"] = str(CHECKOUT)
        with log.open("ab") as output:
            process = subprocess.Popen(
                command,
                cwd=self._folder.path,
                env={**clean_environment(), **marks},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # Ctrl-C in our terminal is not for them
            )
        (self._folder.run / f"{member.name}.pid").write_text(f"{process.pid}\n")
        return Started(member, process, log, size)

    def _member_command(self, member: Member) -> list[str]:
        if member.forks:
            (file,) = member.files
            return [sys.executable, "-m", "deploy.local.forks", member.name, str(self._folder.etc / file)]
        files = [word for name in member.files for word in ("--config-file", str(self._folder.etc / name))]
        return [program_path(member.program_name, self.programs.get(member.name)), *files]

    def stop(self, members: Iterable[Member], patience: float) -> list[str]:
        """SIGTERM to all masters at once, SIGKILL to what is left after ``patience`` seconds. The names of those killed."""
        names = {member.name for member in members}

        def remaining_pids() -> dict[str, list[int]]:
            return {name: pids for name, pids in self.pids_by_member().items() if name in names}

        for pids in remaining_pids().values():
            # A worker without a master would get the signal from nobody else.
            for pid in [pid for pid in pids if is_master(pid)] or pids:
                _send_signal(pid, signal.SIGTERM)
        processes.wait_until(lambda: not remaining_pids(), patience)
        late = remaining_pids()
        while pids := [pid for member_pids in remaining_pids().values() for pid in member_pids]:
            for pid in pids:
                if not processes.end_process(pid, signal.SIGKILL, KILL_TIMEOUT_S):
                    raise errors.Conflict(f"Process {pid} of the region does not end, even by SIGKILL: see what holds it up.")
        for name in names:
            (self._folder.run / f"{name}.pid").unlink(missing_ok=True)
        return sorted(late)


class Started:
    """A member that was started by this process."""

    def __init__(self, member: Member, process: subprocess.Popen[bytes], log: Path, offset: int) -> None:
        self.member = member
        self._process = process
        self._log = log
        self._offset = offset

    @property
    def is_ready(self) -> bool:
        """Whether it has said that it serves; each process that it forks."""
        return sum(line.rstrip().endswith(READY) for line in self._logged_lines()) >= max(1, self.member.forks)

    @property
    def exit_status(self) -> int | None:
        """Its exit status, None while it runs."""
        return self._process.poll()

    def last_words(self, count: int = 8) -> str:
        """The last lines of its log since it was started."""
        return (
            "\n".join(f"    {line.decode(errors='replace').rstrip()}" for line in self._logged_lines()[-count:])
            or "    (it said nothing)"
        )

    def _logged_lines(self) -> Sequence[bytes]:
        try:
            with self._log.open("rb") as file:
                file.seek(self._offset)
                return file.read().splitlines()
        except FileNotFoundError:
            return ()


def resident_bytes(pids: Iterable[int]) -> int:
    """Bytes of memory that these processes have for themselves, with their share of what they have in common with others."""
    return sum(_memory_of(pid).get("Pss", 0) for pid in pids)


def _memory_of(pid: int) -> Mapping[str, int]:
    with contextlib.suppress(OSError):
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
        return {name: int(rest.split()[0]) * 1024 for name, _, rest in (line.partition(":") for line in lines)}
    return {}


def is_master(pid: int) -> bool:
    with contextlib.suppress(ProcessLookupError):
        return os.getsid(pid) == pid
    return False


def _send_signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _environment_value(pid: int, name: str) -> str | None:
    with contextlib.suppress(OSError):
        for entry in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
            key, _, value = entry.decode(errors="replace").partition("=")
            if key == name:
                return value
    return None
