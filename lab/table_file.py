"""Tables in CSV files, which are read and written in batches, never whole. A value is read as text; no value is the empty text."""

from __future__ import annotations

import contextlib
import csv
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from objects import errors

BATCH_ROWS = 10_000
"""Rows written at a time."""

OTHER_SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "bars"}
"""Which other programs write into files that they call CSV."""

Value = str | int | float | None


def place_of(path: Path, number: int) -> str:
    """Where in the file a row is, as errors begin."""
    return f"{path}, line {number}"


def header_of(path: Path) -> tuple[str, ...]:
    """The names of the columns. Raises Invalid for a file that is no table."""
    for _, values in _read_lines(path):
        return tuple(value.strip() for value in values)
    raise errors.Invalid(f"{path}: is empty; the first line names the columns")


def check_columns(path: Path, columns: tuple[str, ...], needed: Sequence[str], optional: Sequence[str]) -> dict[str, int]:
    """The place of each column. Raises Invalid if one is missing, unknown or there twice."""
    missing = [name for name in needed if name not in columns]
    unknown = [name for name in columns if name not in (*needed, *optional)]
    twice = [name for name in dict.fromkeys(columns) if columns.count(name) > 1]
    for names, complaint in ((missing, "is missing"), (unknown, "is unknown"), (twice, "is there twice")):
        if names:
            known = ", ".join(needed) + (f"; optional: {', '.join(optional)}" if optional else "")
            raise errors.Invalid(
                f"{path}, line 1: the column {names[0]!r} {complaint}{_other_separator(columns)}. Columns: {known}"
            )
    return {name: place for place, name in enumerate(columns)}


def _other_separator(columns: tuple[str, ...]) -> str:
    """A hint for a first line whose names are not separated by commas."""
    separator = next((name for mark, name in OTHER_SEPARATORS.items() if len(columns) == 1 and mark in columns[0]), None)
    return f"; commas separate columns, and this line has {separator}" if separator else ""


def rows_of(path: Path, columns: Sequence[str]) -> Iterator[tuple[int, Sequence[str]]]:
    """Each row with its number, as ``place_of`` takes it. Raises Invalid for a row that cannot be read."""
    lines = _read_lines(path)
    next(lines, None)
    for line, values in lines:
        if len(values) != len(columns):
            raise errors.Invalid(f"{path}, line {line}: has {len(values)} values for {len(columns)} columns")
        yield line, values


def _read_lines(path: Path) -> Iterator[tuple[int, list[str]]]:
    """The lines that are not blank. Raises Invalid for a file that cannot be read as CSV."""
    line = 0
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, strict=True)
            for values in reader:
                line = reader.line_num
                if values:
                    yield line, values
    except OSError as error:
        raise errors.Invalid(f"{path}: cannot be read: {error.strerror}") from None
    except (csv.Error, UnicodeDecodeError) as error:
        reason = "is not UTF-8 text" if isinstance(error, UnicodeDecodeError) else str(error)
        raise errors.Invalid(f"{path}, line {line + 1}: is not CSV: {reason}") from None


# -- writing -----------------------------------------------------------------------------------------------------------------


class NewTable:
    """A table that appears under its name when it is whole. Only its owner can read it.

    ``columns``: names, with the type of the values. Use it in a ``with`` block: without ``keep_file``, nothing is left of it.
    Raises Invalid for a file that cannot be written.
    """

    def __init__(self, path: Path, columns: Mapping[str, type]) -> None:
        self._path = path
        self._columns = columns
        self._temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
        self._stack = contextlib.ExitStack()
        self._write: Callable[[Sequence[Sequence[Value]]], object] = lambda rows: None

    def __enter__(self) -> NewTable:
        try:
            with self._raise_invalid():
                os.close(os.open(self._temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600))
                self._write = self._open_csv()
        except BaseException:
            self._discard_file()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        self._discard_file()

    def add_rows(self, rows: Iterable[Sequence[Value]]) -> int:
        """Write these rows too; return how many they are."""
        count, rows_left = 0, iter(rows)
        while batch := list(itertools.islice(rows_left, BATCH_ROWS)):
            with self._raise_invalid():
                self._write(batch)
            count += len(batch)
        return count

    def finish_file(self) -> None:
        """Write what is left to the disk."""
        with self._raise_invalid():
            self._stack.close()
            with self._temporary.open("rb") as file:
                os.fsync(file.fileno())

    def keep_file(self) -> None:
        """Give the finished file its name."""
        with self._raise_invalid():
            self._temporary.replace(self._path)

    def _discard_file(self) -> None:
        with contextlib.suppress(OSError):
            self._stack.close()
        with contextlib.suppress(OSError):
            self._temporary.unlink()

    @contextlib.contextmanager
    def _raise_invalid(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise errors.Invalid(f"{self._path}: cannot be written: {error.strerror or error}") from None

    def _open_csv(self) -> Callable[[Sequence[Sequence[Value]]], object]:
        file = self._stack.enter_context(self._temporary.open("w", encoding="utf-8", newline=""))
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(self._columns)
        return writer.writerows
