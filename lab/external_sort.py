"""Sort more rows than memory holds: sorted runs in temporary files, merged as they are read."""

from __future__ import annotations

import contextlib
import heapq
import itertools
import json
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any

RUN_ROWS = 50_000
"""Rows in memory at a time: of a run that is sorted, and of the last one."""

Row = list[Any]
"""Values that JSON knows."""


def sorted_rows(rows: Iterable[Row], key: Callable[[Row], Any], folder: Path) -> Iterator[Row]:
    """The rows in the order of their keys. ``folder``: of the temporary files, which have no names."""
    left = iter(rows)
    with contextlib.ExitStack() as stack:
        runs: list[Iterable[Row]] = []
        while run := sorted(itertools.islice(left, RUN_ROWS), key=key):
            if len(run) < RUN_ROWS:
                runs.append(run)
                break
            file = stack.enter_context(tempfile.TemporaryFile("w+", dir=folder, encoding="utf-8"))
            for row in run:
                file.write(json.dumps(row) + "\n")
            file.seek(0)
            runs.append(_rows(file))
        yield from heapq.merge(*runs, key=key)


def _rows(file: IO[str]) -> Iterator[Row]:
    return map(json.loads, file)
