"""Tables in files: CSV, and Parquet for a name that ends in ``.parquet``. A table is read and written in batches, never whole.

A value is read as text, in Parquet as CSV would have it, so that both are checked alike. No value is the empty text.
"""

from __future__ import annotations

import contextlib
import csv
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from objects import errors

PARQUET = ".parquet"
BATCH_ROWS = 10_000
"""Rows of a Parquet file in memory at a time."""
BUFFER_BYTES = 1 << 20
"""Of each column of a Parquet file, read at a time."""
MISSING = "Parquet needs the Python package pyarrow: pip install 'superconductor[lab]'"

OTHER_SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "bars"}
"""Which other programs write into files that they call CSV."""

Value = str | int | float | None


def is_parquet(path: Path) -> bool:
    return path.suffix == PARQUET


def word_of(path: Path) -> str:
    """What a row is called: a file of text has lines, which count from that of the columns, and Parquet has rows, from 1."""
    return "row" if is_parquet(path) else "line"


def place_of(path: Path, number: int) -> str:
    """Where in the file a row is, as errors begin."""
    return f"{path}, {word_of(path)} {number}"


def header_of(path: Path) -> tuple[str, ...]:
    """The names of the columns. Raises Invalid for a file that is no table, Misconfigured if a library is missing."""
    if is_parquet(path):
        return _parquet_header(path)
    for _, values in _lines(path):
        return tuple(value.strip() for value in values)
    raise errors.Invalid(f"{path}: is empty; the first line names the columns")


def check_columns(path: Path, given: tuple[str, ...], needed: Sequence[str], optional: Sequence[str]) -> dict[str, int]:
    """The place of each column. Raises Invalid if one is missing, unknown or there twice."""
    missing = [name for name in needed if name not in given]
    unknown = [name for name in given if name not in (*needed, *optional)]
    twice = [name for name in dict.fromkeys(given) if given.count(name) > 1]
    for names, what in ((missing, "is missing"), (unknown, "is unknown"), (twice, "is there twice")):
        if names:
            known = ", ".join(needed) + (f"; optional: {', '.join(optional)}" if optional else "")
            where = path if is_parquet(path) else f"{path}, line 1"
            raise errors.Invalid(f"{where}: the column {names[0]!r} {what}{_other_separator(given)}. Columns: {known}")
    return {name: place for place, name in enumerate(given)}


def _other_separator(given: tuple[str, ...]) -> str:
    """A hint for a first line whose names are not separated by commas."""
    found = next((name for mark, name in OTHER_SEPARATORS.items() if len(given) == 1 and mark in given[0]), None)
    return f"; commas separate columns, and this line has {found}" if found else ""


def rows_of(path: Path, columns: Sequence[str]) -> Iterator[tuple[int, Sequence[str]]]:
    """Each row with its number, as ``place_of`` takes it. Raises Invalid for a row that cannot be read."""
    if is_parquet(path):
        yield from _parquet_rows(path)
        return
    lines = _lines(path)
    next(lines, None)
    for line, values in lines:
        if len(values) != len(columns):
            raise errors.Invalid(f"{path}, line {line}: has {len(values)} values for {len(columns)} columns")
        yield line, values


def _lines(path: Path) -> Iterator[tuple[int, list[str]]]:
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
        what = "is not UTF-8 text" if isinstance(error, UnicodeDecodeError) else str(error)
        raise errors.Invalid(f"{path}, line {line + 1}: is not CSV: {what}") from None


# -- Parquet -----------------------------------------------------------------------------------------------------------------


def _pyarrow() -> tuple[ModuleType, ModuleType]:
    """Raises Misconfigured if it is missing."""
    try:
        import pyarrow
        import pyarrow.parquet  # here: slow to import, and part of an extra
    except ImportError:
        raise errors.Misconfigured(MISSING) from None
    return pyarrow, pyarrow.parquet


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """The file. Raises Invalid for one that cannot be read, also later."""
    arrow, parquet = _pyarrow()
    try:
        with path.open("rb") as raw, parquet.ParquetFile(raw, buffer_size=BUFFER_BYTES, pre_buffer=False) as file:
            yield file
    except (OSError, arrow.ArrowException) as error:
        if reason := getattr(error, "strerror", None):
            raise errors.Invalid(f"{path}: cannot be read: {reason}") from None
        reason = str(error).split("\n", maxsplit=1)[0]
        raise errors.Invalid(f"{path}: is not Parquet, or is damaged: {reason}") from None


def _parquet_header(path: Path) -> tuple[str, ...]:
    """Raises Invalid for a column of another type than numbers and texts."""
    types = _pyarrow()[0].types
    plain = (types.is_integer, types.is_floating, types.is_decimal, types.is_string, types.is_large_string, types.is_null)
    with _opened(path) as file:
        for field in file.schema_arrow:
            kind = field.type.value_type if types.is_dictionary(field.type) else field.type
            if not any(matches(kind) for matches in plain):
                raise errors.Invalid(f"{path}: the column {field.name!r} is of type {field.type}; columns are numbers or texts")
        return tuple(file.schema_arrow.names)


def _parquet_rows(path: Path) -> Iterator[tuple[int, Sequence[str]]]:
    number = 0
    with _opened(path) as file:
        for batch in file.iter_batches(batch_size=BATCH_ROWS):
            for values in zip(*(map(_text, column.to_pylist()) for column in batch.columns), strict=True):
                number += 1
                yield number, values


def _text(value: object) -> str:
    return "" if value is None else str(value)


# -- writing -----------------------------------------------------------------------------------------------------------------


class NewTable:
    """A table that appears under its name when it is whole. Only its owner can read it.

    ``columns``: names, with the type of the values. Use it in a ``with`` block: without ``keep``, nothing is left of it. Raises
    Invalid for a file that cannot be written, Misconfigured if a library is missing.
    """

    def __init__(self, path: Path, columns: Mapping[str, type]) -> None:
        self._path = path
        self._columns = columns
        self._temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
        self._stack = contextlib.ExitStack()
        self._write: Callable[[Sequence[Sequence[Value]]], object] = lambda rows: None

    def __enter__(self) -> NewTable:
        try:
            with self._writable():
                os.close(os.open(self._temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600))
                self._write = self._parquet() if is_parquet(self._path) else self._csv()
        except BaseException:
            self._discard()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        self._discard()

    def add(self, rows: Iterable[Sequence[Value]]) -> int:
        """Write these rows too; return how many they are."""
        count, left = 0, iter(rows)
        while batch := list(itertools.islice(left, BATCH_ROWS)):
            with self._writable():
                self._write(batch)
            count += len(batch)
        return count

    def finish(self) -> None:
        """Write what is left to the disk."""
        with self._writable():
            self._stack.close()
            with self._temporary.open("rb") as file:
                os.fsync(file.fileno())

    def keep(self) -> None:
        """Give the finished file its name."""
        with self._writable():
            self._temporary.replace(self._path)

    def _discard(self) -> None:
        with contextlib.suppress(OSError):
            self._stack.close()
        with contextlib.suppress(OSError):
            self._temporary.unlink()

    @contextlib.contextmanager
    def _writable(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise errors.Invalid(f"{self._path}: cannot be written: {error.strerror or error}") from None

    def _csv(self) -> Callable[[Sequence[Sequence[Value]]], object]:
        file = self._stack.enter_context(self._temporary.open("w", encoding="utf-8", newline=""))
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(self._columns)
        return writer.writerows

    def _parquet(self) -> Callable[[Sequence[Sequence[Value]]], object]:
        arrow, parquet = _pyarrow()
        types = {int: arrow.int64(), float: arrow.float64(), str: arrow.string()}
        schema = arrow.schema([(name, types[kind]) for name, kind in self._columns.items()])
        writer = self._stack.enter_context(parquet.ParquetWriter(self._temporary, schema))

        def write(rows: Sequence[Sequence[Value]]) -> None:
            columns = zip(*rows, strict=True)
            arrays = [arrow.array(values, field.type) for values, field in zip(columns, schema, strict=True)]
            writer.write_batch(arrow.record_batch(arrays, schema=schema))

        return write
