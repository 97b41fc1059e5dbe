"""Rows are found by the names of hosts, also after the fleet has changed."""

from __future__ import annotations

import numpy as np
import pytest

from objects.inventory import Slot
from scheduler.framework.members import Members
from scheduler.table import named_rows
from scheduler.table.named_rows import NamedRows
from tests.support import fleet


def found(named: NamedRows, *hosts: str) -> dict[str, list[int]]:
    rows, positions = named.rows_and_positions(hosts)
    return {host: rows[positions == number].tolist() for number, host in enumerate(hosts)}


def test_hosts_have_one_row_or_several_or_none() -> None:
    named = NamedRows({"a": (3,), "b": (1, 4), "c": (0,)})
    for _ in range(2):
        assert found(named, "a", "b", "nowhere", "c") == {"a": [3], "b": [1, 4], "nowhere": [], "c": [0]}
        assert found(named, "c", "a") == {"c": [0], "a": [3]}
    assert found(named) == {}


def test_names_are_forgotten_when_there_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(named_rows, "RECENT_NAMES", 3)
    index = {f"h{n}": (n,) for n in range(9)}
    named = NamedRows(index)
    for first in range(7):
        hosts = [f"h{n}" for n in range(first, first + 3)]
        assert found(named, *hosts) == {host: [*index[host]] for host in hosts}


def test_a_host_that_comes_or_goes_is_seen() -> None:
    nodes = [fleet.node(f"h{n}") for n in range(4)]
    table = fleet.table(nodes)
    assert found(table.named_rows, "h1", "h9") == {"h1": [1], "h9": []}
    table.remove_row(1)
    assert found(table.named_rows, "h1") == {"h1": []}
    table.set_node(fleet.CELLS[0], fleet.node("H9"))
    assert found(table.named_rows, "h9", "h1") == {"h9": [1], "h1": []}


def test_members_of_selected_rows_match_those_of_all() -> None:
    named = NamedRows({"a": (3,), "b": (1, 4), "c": (0,)}, ["C", "b", "other", "A", "B"])
    hosts = ("A", "b", "b", "c", "gone")
    members = Members([Slot(group_uuid="g", instance_uuid=str(n), host=host, held=host == "c") for n, host in enumerate(hosts)])
    for with_held, expected in ((True, [1, 2, 0, 1, 2]), (False, [0, 2, 0, 1, 2])):
        assert members.by_row(named, 5, with_held=with_held).tolist() == expected
        for rows in ([2], [4, 0], [0, 1, 2, 3, 4]):
            some = members.of_rows(named, np.array(rows, np.int64), with_held=with_held)
            assert some.tolist() == [expected[row] for row in rows]
    assert Members().of_rows(named, np.arange(3), with_held=True).tolist() == [0, 0, 0]
