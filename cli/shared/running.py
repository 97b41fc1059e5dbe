"""Which ``standalone`` of this user serves at an endpoint. Each one leaves a note of its state folder while it runs.

A note is a file named after the port, in ``$XDG_RUNTIME_DIR/superconductor`` or else ``/tmp/superconductor-UID``. Its writer holds
a lock on it, so the note of a process that was killed counts as gone.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import urlsplit

from objects import errors
from objects.base import Object
from service import private_files

LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1")
"""Names of this machine in an endpoint."""


class RunningStandalone(Object, frozen=True, kw_only=True):
    """One that runs now. ``state``: its folder."""

    endpoint: str
    state: Path


@contextlib.contextmanager
def announced_standalone(endpoint: str, state: Path, environment: Mapping[str, str] = os.environ) -> Iterator[None]:
    """While inside, commands of this user find the standalone. One that cannot leave a note is not found, and works as well."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError, errors.Misconfigured):
            folder = _notes_folder(environment)
            private_files.own_folder(folder)
            path = folder / _note_name(endpoint)
            note = stack.enter_context(private_files.open_own(path, os.O_RDWR, "r+"))
            fcntl.flock(note, fcntl.LOCK_EX)
            stack.callback(path.unlink, missing_ok=True)
            note.truncate(0)
            note.write(f"{endpoint}\n{state}\n")
            note.flush()
        yield


def find_standalone(endpoint: str, environment: Mapping[str, str] = os.environ) -> RunningStandalone | None:
    """The one that serves at this endpoint; None if there is none, or if it is another user's."""
    with contextlib.suppress(ValueError):
        standalone = _read(_notes_folder(environment) / _note_name(endpoint))
        if standalone is not None and urlsplit(endpoint).hostname in (*LOCAL_HOSTS, urlsplit(standalone.endpoint).hostname):
            return standalone
    return None


def find_in(state: Path, environment: Mapping[str, str] = os.environ) -> RunningStandalone | None:
    """The one whose state folder this is; None if there is none, or if it is another user's."""
    return next((standalone for standalone in find_all(environment) if standalone.state == state), None)


def find_all(environment: Mapping[str, str] = os.environ) -> list[RunningStandalone]:
    """All that run, by port."""
    try:
        paths = sorted(_notes_folder(environment).iterdir())
    except OSError:
        return []
    return [standalone for path in paths if (standalone := _read(path)) is not None]


def _notes_folder(environment: Mapping[str, str]) -> Path:
    runtime = Path(environment.get("XDG_RUNTIME_DIR") or "")
    if runtime.is_absolute() and runtime.is_dir():
        return runtime / "superconductor"
    return Path(tempfile.gettempdir()) / f"superconductor-{os.geteuid()}"


def _note_name(endpoint: str) -> str:
    """Raises ValueError where the endpoint's port is none."""
    return f"standalone-{urlsplit(endpoint).port or 80}"


def _read(path: Path) -> RunningStandalone | None:
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), encoding="utf-8") as note:
            if os.fstat(note.fileno()).st_uid != os.geteuid():
                return None
            try:
                fcntl.flock(note, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                endpoint, state = note.read().splitlines()
                return RunningStandalone(endpoint=endpoint, state=Path(state))
    except (OSError, ValueError):
        pass
    return None
