"""What the servers of our own have in common: a folder, a port, one main process, and an end that leaves nothing behind."""

from __future__ import annotations

import fcntl
import os
import pwd
import secrets
import signal
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, ClassVar
from urllib.parse import quote

import msgspec

from deploy import packages, ports, processes
from deploy.unavailable import Unavailable
from objects.base import Object

MARK = "SUPERCONDUCTOR_SERVER"
"""Every process of a server carries its folder in its environment under this name; by it what is left of one is known as ours."""
START_TIMEOUT_S = 300.0
"""Seconds until a server that does not answer is given up; it takes 5 where the machine has time for it."""
STOP_TIMEOUT_S = 30.0
KILL_TIMEOUT_S = 10.0
PORT_TIMEOUT_S = 5.0
"""Seconds to wait for the port of last time, as URLs with it may be stored, before another is taken."""


class Notes(Object, frozen=True):
    """What is remembered of a server in its folder. Only its owner may read it."""

    port: int
    password: str
    pid: int = 0
    """Of the main process; 0 when it was stopped."""
    started: str = ""
    """When that process began: a number alone may be somebody else's by now."""


class Server(ABC):
    """A private server. ``folder`` keeps data, log and notes; a start on the same folder goes on with them.

    Its path must be one that other users may pass through where the server cannot run as root.
    """

    NAME: ClassVar[str]
    PACKAGE: ClassVar[str]
    PROGRAM: ClassVar[str]
    """The server itself: where it is found, its tools are too."""
    PLACES: ClassVar[Sequence[str]] = ("/usr/sbin", "/usr/bin", "/usr/local/sbin", "/usr/local/bin")
    """Folders, or patterns of them, in which programs are looked for."""
    STOP: ClassVar[signal.Signals] = signal.SIGTERM
    USER: ClassVar[str | None] = None
    """The user that it runs as where we are root; None: root too. The package makes it."""
    TOOL_TIMEOUT_S: ClassVar[float] = START_TIMEOUT_S

    def __init__(self, folder: Path, port: int | None = None) -> None:
        """``port`` None: the one it had last time while that is free, else a free one."""
        self.folder = Path(folder).resolve()
        notes = self._read_notes()
        self.port = port or (notes.port if notes else ports.free_port())
        self._chosen = port is None
        self._password = notes.password if notes else secrets.token_hex(16)
        self.pid = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._lock: IO[bytes] | None = None

    @property
    @abstractmethod
    def admin_url(self) -> str:
        """The administrative URL, password included."""

    @abstractmethod
    def _prepare_folder(self) -> None:
        """Make what the server needs in its folder, where it is not there yet."""

    @abstractmethod
    def _server_command(self) -> list[str]:
        """What runs the server in the foreground."""

    @abstractmethod
    def _is_serving(self) -> bool:
        """Whether it serves by now."""

    def _finish_start(self) -> None:  # noqa: B027 - most have nothing to do here
        """What is set once the server answers."""

    def _server_environment(self) -> Mapping[str, str]:
        return {}

    def _run_user(self) -> str | None:
        """The user to run as, None for our own. Raises Unavailable."""
        if self.USER is None or os.geteuid() != 0:
            return None
        try:
            return pwd.getpwnam(self.USER).pw_name
        except KeyError:
            raise Unavailable(
                f"{self.NAME} cannot run as root and there is no user {self.USER}: install the package {self.PACKAGE}"
            ) from None

    def install_missing(self) -> None:
        """Install Debian's package where the server is missing. Raises Unavailable where that is not possible."""
        if packages.find_program(self.PROGRAM, self.PLACES) is None:
            packages.install_packages(self.PACKAGE)
            self._find_program(self.PROGRAM)

    def start(self) -> None:
        """Start it and return when it answers. What is left in the folder from a process that was killed is ended first.

        Raises Unavailable, and then nothing runs.
        """
        self._find_program(self.PROGRAM)
        if self._lock is None:
            self._own_folder()
        try:
            self._end_what_is_left()
            self._own_port()
            self._prepare_folder()
            self._launch_process()
            self._await_answer()
            self._finish_start()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End the server and whatever else it started. Harmless where it does not run; the folder stays."""
        if not self.folder.is_dir():
            return
        if self._lock is None:
            self._own_folder()
        try:
            self._end_what_is_left()
            self.pid = 0
            if self._read_notes() is not None:
                self._write_notes()
        finally:
            if self._lock is not None:
                self._lock.close()
                self._lock = None

    def leftover_processes(self) -> Iterator[int]:
        """Every process that belongs to the server of this folder."""
        return processes.list_marked(MARK, str(self.folder))

    def _own_folder(self) -> None:
        """One object at a time runs a folder's server: its lock ends with it, or with the process that has it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        lock = (self.folder / "lock").open("ab")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.close()
            raise Unavailable(
                f"{self.NAME} in {self.folder} is run by another process: stop that, or choose another folder"
            ) from None
        self._lock = lock

    def _own_port(self) -> None:
        if not processes.wait_until(lambda: ports.is_free(self.port), PORT_TIMEOUT_S if self._chosen else 0.0):
            if not self._chosen:
                raise Unavailable(f"{self.NAME} cannot listen: port {self.port} of {ports.HOST} is taken; choose another")
            self.port = ports.free_port()
        self._write_notes()

    def _launch_process(self) -> None:
        environment = {**os.environ, **self._server_environment(), MARK: str(self.folder)}
        with self._log_file().open("ab") as log:
            self._process = subprocess.Popen(
                self._server_command(),
                cwd=self._data_folder(),
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C in our terminal is for us: it is we who stop the server, in order
                **self._run_identity(),
            )
        self.pid = self._process.pid
        self._write_notes(processes.start_time_of(self.pid))

    def _run_identity(self) -> dict[str, Any]:
        user = self._run_user()
        return {} if user is None else {"user": user, "group": user, "extra_groups": ()}

    def _await_answer(self) -> None:
        if not processes.wait_until(lambda: self._has_ended() or self._is_serving(), START_TIMEOUT_S):
            raise Unavailable(f"{self.NAME} did not answer within {START_TIMEOUT_S:g} s: see {self._log_file()}")
        if self._has_ended():
            raise Unavailable(f"{self.NAME} ended at its start: {self._last_words()} (see {self._log_file()})")

    def _has_ended(self) -> bool:
        return self._process is None or self._process.poll() is not None

    def _end_what_is_left(self) -> None:
        notes = self._read_notes()
        if notes is not None and notes.pid and processes.start_time_of(notes.pid) == notes.started:
            self._end_main(notes.pid)
        for pid in [*self.leftover_processes()]:
            processes.end_process(pid, signal.SIGKILL, KILL_TIMEOUT_S)
        if self._process is not None:
            self._process.wait(KILL_TIMEOUT_S)
            self._process = None

    def _end_main(self, pid: int) -> None:
        """In order where it goes; a child of ours stays a zombie until somebody asks how it ended, which counts as gone."""
        if not processes.end_process(pid, self.STOP, STOP_TIMEOUT_S):
            processes.end_process(pid, signal.SIGKILL, KILL_TIMEOUT_S)

    def _read_notes(self) -> Notes | None:
        try:
            return msgspec.json.decode((self.folder / "notes.json").read_bytes(), type=Notes)
        except (OSError, msgspec.DecodeError):
            return None

    def _write_notes(self, started: str = "") -> None:
        """Remember the server as it is now; a reader, or a crash, sees the old notes or the new ones."""
        notes = Notes(port=self.port, password=self._password, pid=self.pid if started else 0, started=started)
        self._write_private("notes.new", msgspec.json.encode(notes)).replace(self.folder / "notes.json")

    def _write_private(self, name: str, content: bytes) -> Path:
        """A file of the folder that only its owner may read."""
        path = self.folder / name
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), "wb") as file:
            file.write(content)
        return path

    def _data_folder(self) -> Path:
        return self.folder / "data"

    def _log_file(self) -> Path:
        return self.folder / "log"

    def _last_words(self) -> str:
        """The last line of the log that speaks of an error, or the last one."""
        lines = [line.strip() for line in self._log_file().read_text(errors="replace").splitlines()[-200:] if line.strip()]
        telling = [line for line in lines if any(word in line.lower() for word in ("error", "fatal", "failed"))]
        return (telling or lines or ["it said nothing"])[-1][:300]

    def _find_program(self, name: str) -> str:
        """The path of one of the server's programs. Raises Unavailable."""
        path = packages.find_program(name, self.PLACES)
        if path is None:
            raise Unavailable(f"{self.NAME} is not installed: there is no {name} in {', '.join(self.PLACES)}")
        return str(path)

    def _run(self, *command: str, said: str = "", environment: Mapping[str, str] | None = None) -> str:
        """Run one of the server's tools, with ``said`` on its input, and return its output. Raises Unavailable."""
        try:
            done = subprocess.run(
                command,
                input=said,
                env={**os.environ, **(environment or {})},
                cwd=self.folder,
                capture_output=True,
                text=True,
                timeout=self.TOOL_TIMEOUT_S,
                check=False,
                **self._run_identity(),
            )
        except subprocess.TimeoutExpired:
            tool = Path(command[0]).name
            raise Unavailable(f"{self.NAME}: {tool} did not end within {self.TOOL_TIMEOUT_S:g} s: see {self._log_file()}") from None
        if done.returncode:
            words = (done.stderr.strip() or done.stdout.strip() or f"status {done.returncode}").splitlines()[-3:]
            raise Unavailable(f"{self.NAME}: {Path(command[0]).name} failed: {'; '.join(words)[:500]}")
        return str(done.stdout)

    def _build_url(self, scheme: str, user: str, password: str, path: str) -> str:
        return f"{scheme}://{quote(user, safe='')}:{quote(password, safe='')}@{ports.HOST}:{self.port}/{quote(path, safe='')}"
