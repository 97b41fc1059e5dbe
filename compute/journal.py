"""The guests of one simulated host, in a file outside every database that survives the agent's death.

It has one JSON line per change. The kernel gets the line before the change counts, so ``kill -9`` loses nothing that was reported.
(A power cut may, but it would also end real guests.) The file is compacted at start. A uuid may be added twice on purpose: a
duplicate guest must be visible, not hidden.
"""

from __future__ import annotations

import itertools
import logging
import os
import shutil
import threading
from collections.abc import Mapping
from pathlib import Path

import msgspec

from compute.driver import Guest
from objects import errors, typed
from objects.base import Object

LOG = logging.getLogger(__name__)

_UNREADABLE = (msgspec.MsgspecError, UnicodeError, RecursionError)


class Received(Object, frozen=True, kw_only=True):
    """The secrets that a guest received: the SHA-256 of its user data as base64 text, whether a password was set, and the number of
    files. ``key_name``: the key pair of its last rebuild that named one; empty: none.
    """

    user_data_sha256: str | None = None
    admin_pass_set: bool = False
    files: int = 0
    key_name: str | None = None


class JournalEntry(Object, frozen=True, kw_only=True, omit_defaults=True):
    """One change: a guest that was spawned, with the secrets it ``received_of``; a guest that a task ``changed``, as it is now,
    with what it ``received_of`` if it was rebuilt; or the uuid whose guests were destroyed.
    """

    spawned: Guest | None = None
    changed: Guest | None = None
    received: Received | None = None
    destroyed: str | None = None


def read_entries(path: Path) -> list[JournalEntry]:
    """Every complete line, oldest first; empty if there is no file. Can be read while an agent runs.

    An incomplete last line is ignored: its write was not finished. A broken line elsewhere raises ``errors.Misconfigured``.
    """
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return []
    entries = []
    for number, line in enumerate(lines[:-1], start=1):
        try:
            entries.append(typed.decode_json(line, JournalEntry))
        except _UNREADABLE as error:
            message = (
                f"{path} is damaged at line {number} ({error}); remove that line, or the file if no guest of the host is needed."
            )
            raise errors.Misconfigured(message) from error
    return entries


def open_entries(path: Path) -> list[JournalEntry]:
    """The entries of the host's own journal. A damaged file is first copied to ``NAME.damaged-N``, then its readable lines are
    used.

    The agent must start: the host's other guests and the cell's orders must not wait for one line.
    """
    try:
        return read_entries(path)
    except errors.Misconfigured as error:
        aside = next(
            name for number in itertools.count(1) if not (name := path.with_name(f"{path.name}.damaged-{number}")).exists()
        )
        shutil.copy(path, aside)
        LOG.error("%s It is kept as %s, and the agent goes on with the lines that can be read.", error, aside)
    return _readable_entries(path)


def has_guests(path: Path) -> bool:
    """Whether the readable part of the journal has guests."""
    return bool(replay_entries(_readable_entries(path))) if path.exists() else False


def _readable_entries(path: Path) -> list[JournalEntry]:
    return [entry for line in path.read_bytes().split(b"\n")[:-1] if (entry := _entry_or_none(line)) is not None]


def _entry_or_none(line: bytes) -> JournalEntry | None:
    try:
        return typed.decode_json(line, JournalEntry)
    except _UNREADABLE:
        return None


def replay_entries(entries: list[JournalEntry]) -> list[Guest]:
    """The guests that are left after these changes, oldest first."""
    guests: list[Guest] = []
    for entry in entries:
        if entry.spawned is not None:
            guests.append(entry.spawned)
        if entry.changed is not None:
            guests = _replace_guest(guests, entry.changed)
        if entry.destroyed is not None:
            guests = [guest for guest in guests if guest.uuid != entry.destroyed]
    return guests


def received_by(entries: list[JournalEntry]) -> dict[str, Received | None]:
    """What each guest received at its spawn, or at its last rebuild."""
    received_by_uuid: dict[str, Received | None] = {}
    for entry in entries:
        if entry.spawned is not None:
            received_by_uuid[entry.spawned.uuid] = entry.received
        elif entry.changed is not None and entry.received is not None:
            received_by_uuid[entry.changed.uuid] = entry.received
    return received_by_uuid


def _replace_guest(guests: list[Guest], now: Guest) -> list[Guest]:
    return [now if (guest.uuid, guest.attempt) == (now.uuid, now.attempt) else guest for guest in guests]


def read_guests(path: Path) -> list[Guest]:
    """The guests in this journal."""
    return replay_entries(read_entries(path))


class Journal:
    """The file, open for appending. The caller ensures that only one process writes it (``simulated.py`` holds the lock)."""

    def __init__(self, path: Path) -> None:
        self._lock = threading.Lock()
        entries = open_entries(path)
        self._guests = replay_entries(entries)
        self._received = received_by(entries)
        self._compact_file(path, self._received)
        self._file: int | None = os.open(path, os.O_WRONLY | os.O_APPEND)

    def list_guests(self) -> list[Guest]:
        with self._lock:
            return list(self._guests)

    def add_guest(self, guest: Guest, received: Received | None = None) -> None:
        with self._lock:
            self._append_entry(JournalEntry(spawned=guest, received=received))
            self._guests.append(guest)
            self._received[guest.uuid] = received

    def received_of(self, uuid: str) -> Received:
        """What the guest has received."""
        with self._lock:
            return self._received.get(uuid) or Received()

    def change_guest(self, guest: Guest, received: Received | None = None) -> None:
        """Replace the guest of this uuid and attempt. ``received``: by its rebuild; None: what it had."""
        with self._lock:
            self._append_entry(JournalEntry(changed=guest, received=received))
            self._guests = _replace_guest(self._guests, guest)
            self._received[guest.uuid] = received or self._received.get(guest.uuid)

    def remove_guest(self, uuid: str) -> None:
        """Does nothing if there is no such guest."""
        with self._lock:
            remaining = [guest for guest in self._guests if guest.uuid != uuid]
            if len(remaining) < len(self._guests):
                self._append_entry(JournalEntry(destroyed=uuid))
                self._guests = remaining
                self._received.pop(uuid, None)

    def close(self) -> None:
        with self._lock:
            if self._file is not None:
                os.close(self._file)
                self._file = None

    def _compact_file(self, path: Path, received: Mapping[str, Received | None]) -> None:
        """Atomically replace the file by one with only the remaining guests: a crash leaves either the old or the new file."""
        fresh = path.with_name(path.name + ".new")
        with fresh.open("wb") as file:
            entries = (JournalEntry(spawned=guest, received=received.get(guest.uuid)) for guest in self._guests)
            file.writelines(msgspec.json.encode(entry) + b"\n" for entry in entries)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)

    def _append_entry(self, entry: JournalEntry) -> None:
        """Write the whole line at once. A partial line (disk full) is removed, or the next one would be appended to it."""
        if self._file is None:
            raise errors.BuildFailed("The host's journal is closed.")
        line = msgspec.json.encode(entry) + b"\n"
        written = os.write(self._file, line)
        if written < len(line):
            os.ftruncate(self._file, os.fstat(self._file).st_size - written)
            raise errors.BuildFailed("The host's journal could not be written: is the disk full?")
