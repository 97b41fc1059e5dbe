"""Traces and fleets in Parquet say what they would say as CSV, and are refused alike, with the row."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from lab.fleet import read_fleet
from lab.table_file import BATCH_ROWS, NewTable
from lab.trace import open_trace
from objects import errors
from tests.support.traces import made_fleet, made_trace, replayed


def written(path: Path, columns: dict[str, Any], **options: Any) -> Path:
    parquet.write_table(pa.table(columns), path, **options)
    return path


def plain(**changed: Any) -> dict[str, Any]:
    """Three servers."""
    columns = {"id": ["a", "b", "c"], "start": [0, 1.5, 2], "end": [5, None, 9.5], "vcpus": [1, 2, 4], "memory_mb": [512] * 3}
    return columns | changed


def converted(path: Path) -> Path:
    """A table of text as Parquet, with the types that it seems to have."""
    from pyarrow import csv

    parquet.write_table(csv.read_csv(path), path.with_suffix(".parquet"))
    return path.with_suffix(".parquet")


def test_a_replay_of_parquet_is_that_of_the_same_csv(tmp_path: Path) -> None:
    trace, fleet = made_trace(tmp_path / "trace.csv", 300), made_fleet(tmp_path / "fleet.csv", 6)
    told, same = replayed(trace, fleet), replayed(converted(trace), converted(fleet))
    assert told.rejected > 0
    assert (same.rejected, same.samples, same.reasons) == (told.rejected, told.samples, told.reasons)


def test_values_are_those_of_csv(tmp_path: Path) -> None:
    path = written(
        tmp_path / "trace.parquet",
        plain(vcpus=[1.0, 2.0, 4.0], zone=pa.array(["x", None, "x"]).dictionary_encode(), project=["p", "", None]),
    )
    found = list(open_trace(path).arrivals())
    assert [(each.line, each.name, each.start, each.vcpus, each.zone, each.project) for each in found] == [
        (1, "a", 0.0, 1, "x", "p"),
        (2, "b", 1.5, 2, None, ""),
        (3, "c", 2.0, 4, "x", ""),
    ]


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"start": [0, 3, 2]}, "row 3: begins before"),
        ({"vcpus": ["1", "two", "4"]}, "row 2: vcpus: 'two' is not a whole number"),
        ({"vcpus": [1, 0.5, 4]}, "row 2: vcpus: '0.5' is not a whole number"),
        ({"memory_mb": [1, None, 4]}, "row 2: memory_mb: '' is not a whole number"),
        ({"start": [0, float("nan"), 2]}, "row 2: start: 'nan' is not a time"),
        ({"end": [5, 0.5, 9]}, "row 2: end: 0.5 is before start"),
        ({"group": ["g", None, "g"], "policy": [None] * 3}, "row 1: a server has both a group and a policy"),
        ({"start": pa.array([0, 1, 2], pa.timestamp("s"))}, "the column 'start' is of type timestamp"),
        ({"vcpus": [True, False, True]}, "the column 'vcpus' is of type bool"),
        ({"zone": [["x"], [], ["y"]]}, "the column 'zone' is of type list"),
        ({"flavour": ["x"] * 3}, "the column 'flavour' is unknown. Columns: id, start"),
    ],
)
def test_what_cannot_be_read_is_refused_with_the_row(tmp_path: Path, changed: dict[str, Any], text: str) -> None:
    path = written(tmp_path / "trace.parquet", plain(**changed))
    with pytest.raises(errors.Invalid, match=f"^{path}(, |: ){text}"):
        list(open_trace(path).arrivals())


def test_fleets_are_refused_with_the_row(tmp_path: Path) -> None:
    path = written(tmp_path / "fleet.parquet", {"host": ["a", "b", "A"], "vcpus": [1] * 3, "memory_mb": [1] * 3})
    with pytest.raises(errors.Invalid, match="row 3: host A is in row 1, too"):
        read_fleet(path)
    racks = written(tmp_path / "racks.parquet", {"host_id": ["a", None], "rack_id": ["r", "r"]})
    with pytest.raises(errors.Invalid, match="row 2: a host or its rack is missing"):
        read_fleet(written(path, {"host": ["a"], "vcpus": [1], "memory_mb": [1]}), racks=racks)


@pytest.mark.parametrize("text", ["", "id,start,end,vcpus,memory_mb\n"])
def test_what_is_not_parquet_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "trace.parquet"
    path.write_text(text)
    with pytest.raises(errors.Invalid, match=f"^{path}: is not Parquet, or is damaged: "):
        open_trace(path)
    with pytest.raises(errors.Invalid, match=r"none\.parquet: cannot be read: No such file or directory"):
        open_trace(tmp_path / "none.parquet")


def test_a_damaged_page_is_refused_when_it_is_read(tmp_path: Path) -> None:
    rows = 50_000
    columns = {"id": ["a"] * rows, "start": list(range(rows)), "end": [None] * rows, "vcpus": [1] * rows, "memory_mb": [1] * rows}
    path = written(tmp_path / "trace.parquet", columns, row_group_size=rows // 5, use_dictionary=False)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2] + b"\xff" * 2000 + whole[len(whole) // 2 + 2000 :])
    found = open_trace(path).arrivals()
    assert next(found).name == "a"
    with pytest.raises(errors.Invalid, match="is not Parquet, or is damaged"):
        list(found)


def test_a_trace_is_read_and_written_in_batches(tmp_path: Path) -> None:
    rows = BATCH_ROWS * 2 + 5
    path = tmp_path / "trace.parquet"
    columns = {"id": str, "start": float, "end": float, "vcpus": int, "memory_mb": int}
    with NewTable(path, columns) as table:
        assert table.add((f"s{number}", float(number), None, 1, 512) for number in range(rows)) == rows
        table.finish()
        assert not path.exists()
        table.keep()
    assert [each.name for each in tmp_path.iterdir()] == ["trace.parquet"]
    file = parquet.ParquetFile(path)
    assert [file.metadata.row_group(number).num_rows for number in range(file.num_row_groups)] == [BATCH_ROWS, BATCH_ROWS, 5]
    assert [each.line for each in open_trace(path).arrivals()] == list(range(1, rows + 1))
    assert [each.line for each in open_trace(path).arrivals(rows - 2)] == [rows - 1, rows]


def test_a_missing_library_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path / "trace.parquet", plain())
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(errors.Misconfigured, match=r"pip install 'superconductor\[lab\]'"):
        open_trace(path)
    with pytest.raises(errors.Misconfigured, match="pyarrow"), NewTable(path, {"id": str}):
        pass
    assert [each.name for each in tmp_path.iterdir()] == ["trace.parquet"]
