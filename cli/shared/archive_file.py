"""The file that the rows of one database are archived to: lines of JSON, written to the disk before the rows are deleted."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from objects import errors

_BLOCK_BYTES = 65536


class ArchiveFile:
    """A file that is appended to, and that only its owner may read: it names tenants and their servers.

    One process at a time has it. A line that was cut off, as the process before died in the middle of it, is taken away when the
    file is opened: its row was not deleted. Raises Misconfigured where it cannot be written, Conflict where another process has it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            # Unbuffered: what could not be written must not be tried once more when the file is closed.
            self._file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+b", buffering=0)
        except OSError as error:
            raise self._write_error(error) from None
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._file.close()
            raise errors.Conflict(
                f"{path} is being written by another process: wait for it, or archive to another folder"
            ) from None
        self._end = self._file.truncate(self._after_last_line())

    def __enter__(self) -> ArchiveFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._file.close()

    def append_lines(self, lines: Sequence[str]) -> None:
        """Return when the lines are on the disk. Raises Misconfigured if they are not all there; then none is."""
        try:
            self._file.seek(self._end)
            rest = memoryview("".join(f"{line}\n" for line in lines).encode())
            while rest:
                rest = rest[self._file.write(rest) :]
            os.fsync(self._file.fileno())
        except OSError as error:
            self._file.truncate(self._end)
            raise self._write_error(error) from None
        self._end = self._file.tell()

    def _after_last_line(self) -> int:
        end = self._file.seek(0, os.SEEK_END)
        while end:
            start = max(0, end - _BLOCK_BYTES)
            offset = os.pread(self._file.fileno(), end - start, start).rfind(b"\n")
            if offset >= 0:
                return start + offset + 1
            end = start
        return 0

    def _write_error(self, error: OSError) -> errors.Misconfigured:
        return errors.Misconfigured(f"{self.path} cannot be written: {error.strerror}; free space, or archive to another folder")
