"""The host table: rows, who may be chosen, what is free."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from db.cell.services import Signs
from objects.cell import CellState
from objects.inventory import Slot
from scheduler.cell_reader import LastReports
from scheduler.framework.members import Members
from scheduler.table import columns, named_rows
from scheduler.table.columns import GUEST_REMOVAL_WAIT_S, SETTLE_AFTER_S, SETTLE_ALL_INTERVAL_S, Columns
from scheduler.table.dictionary_column import UNUSED_VALUES_LIMIT, DictionaryColumn
from scheduler.table.host_table import HostTable
from scheduler.table.named_rows import NamedRows
from tests.support import fleet
from tests.support.examples import examples

ONE, TWO = fleet.CELLS


def row_of(table: HostTable, host: str) -> int:
    row = table.find_row(host, host)
    assert row is not None
    return row


def test_a_host_needs_cell_ledger_and_mapping_agreement() -> None:
    table = HostTable()
    node = fleet.node("h")
    table.set_nodes(ONE, [node])
    assert not table.eligible[row_of(table, "h")]  # no mapping, no inventory
    table.set_inventory(fleet.inventory(1, node, ONE), now=0.0)
    assert not table.eligible[row_of(table, "h")]  # no mapping
    table.set_topology(fleet.cells(), {"h": ONE}, {})
    assert table.eligible[row_of(table, "h")]


def test_a_host_mapped_to_another_cell_is_excluded() -> None:
    table = fleet.table([fleet.node("h")])
    table.set_topology(fleet.cells(), {"h": TWO}, {})
    assert not table.eligible[row_of(table, "h")]


def test_a_namesake_elsewhere_does_not_displace_a_host() -> None:
    table = fleet.table([fleet.node("h", memory_mb_used=100)])
    table.set_nodes(TWO, [fleet.node("h", memory_mb_used=60000)])
    assert table.eligible[row_of(table, "h")]
    assert table.reported_memory_mb[row_of(table, "h")] == 100


def test_a_host_moved_to_its_mapped_cell_follows() -> None:
    table = fleet.table([fleet.node("h")])
    table.set_topology(fleet.cells(), {"h": TWO}, {})
    table.set_nodes(TWO, [fleet.node("h")])
    assert not table.eligible[row_of(table, "h")], "its agent was just heard of in the cell that it left"
    table.set_service(ONE, "h", float("-inf"), disabled=False, forced_down=False)
    assert table.eligible[row_of(table, "h")]
    assert table.cells[int(table.cell[row_of(table, "h")])].name == "cell2"


@pytest.mark.parametrize("state", [CellState.DISABLED, CellState.DRAINING])
def test_a_cell_that_takes_no_builds_is_closed(state: CellState) -> None:
    table = fleet.table([fleet.node("h1"), fleet.node("h2")], states=(state, CellState.ENABLED))
    assert not table.cell_open[row_of(table, "h1")]
    assert table.cell_open[row_of(table, "h2")]


def test_forced_down_takes_a_host_out_and_back() -> None:
    table = fleet.table([fleet.node("h")])
    table.set_service(ONE, "h", 1.0, disabled=False, forced_down=True)
    assert not table.eligible[row_of(table, "h")]
    table.set_service(ONE, "h", 1.0, disabled=False, forced_down=False)
    assert table.eligible[row_of(table, "h")]


def test_room_counted_beyond_the_claims_is_not_free() -> None:
    table = fleet.table([fleet.node("h", memory_mb=1000)])
    row = row_of(table, "h")
    table.set_inventory(fleet.inventory(1, fleet.node("h", memory_mb=1000), ONE, 2, used_memory_mb=200), now=0.0)
    table.set_nodes(ONE, [fleet.node("h", memory_mb_used=300)])
    assert table.unaccounted_memory_mb[row] == 100
    assert table.free_memory_mb[row] == 700
    table.set_inventory(fleet.inventory(1, fleet.node("h", memory_mb=1000), ONE, 3, used_memory_mb=500), now=0.0)
    assert table.free_memory_mb[row] == 400  # a claim whose guest the agent cannot have counted yet


def test_a_guest_before_its_claim_is_counted_once() -> None:
    node = fleet.node("h", memory_mb=1000, memory_mb_used=400)
    table = fleet.table([node])
    row = row_of(table, "h")
    table.set_inventory(fleet.inventory(1, node, ONE, 2, used_memory_mb=400), now=100.0)  # the move of that very guest
    assert table.free_memory_mb[row] == 200
    table.settle_counts(100.0 + SETTLE_AFTER_S / 2)
    assert table.free_memory_mb[row] == 200
    table.settle_counts(100.0 + SETTLE_AFTER_S + 1)
    assert table.free_memory_mb[row] == 600


def test_only_quiet_hosts_are_compared_all_in_turn() -> None:
    nodes = [fleet.node(name, memory_mb=1000, memory_mb_used=400) for name in ("h", "i")]
    table = fleet.table(nodes)
    first, second = row_of(table, "h"), row_of(table, "i")
    for number, (node, moved_at) in enumerate(zip(nodes, (100.0, 110.0), strict=True), start=1):
        table.set_inventory(fleet.inventory(number, node, ONE, 2, used_memory_mb=400), now=moved_at)
    quiet = 101.0 + SETTLE_AFTER_S
    assert table.settle_counts(quiet).tolist() == [first]
    assert table.settle_counts(quiet + 1.0).tolist() == []
    assert table.settle_counts(quiet + 10.0).tolist() == [second]
    assert [table.free_memory_mb[row] for row in (first, second)] == [600, 600]
    assert table.settle_counts(quiet + SETTLE_ALL_INTERVAL_S).tolist() == [first, second]


def test_a_guest_before_its_claim_takes_room_once() -> None:
    """Another scheduler claimed for it, and its agent was quick. Who is there without a claim counts once the ledger was read."""
    table = fleet.table([fleet.node("h", memory_mb=1000, resources={"CUSTOM_GPU": 4})])
    row = row_of(table, "h")
    reported = fleet.node("h", memory_mb=1000, memory_mb_used=300, resources={"CUSTOM_GPU": 4}, resources_used={"CUSTOM_GPU": 1})
    table.set_nodes(ONE, [reported], ahead=True)
    told = table.take_rows_ahead()
    assert (told.tolist(), table.free_memory_mb[row]) == ([row], 1000)
    claimed = fleet.inventory(1, reported, ONE, 2, used_memory_mb=300, used_resources={"CUSTOM_GPU": 1})
    table.set_inventory(claimed, now=101.0)
    table.account_reports(told, now=102.0)
    assert (table.free_memory_mb[row], table.classes["CUSTOM_GPU"].free_amounts(np.array([row]))[0]) == (700, 3)

    table.set_nodes(ONE, [msgspec.structs.replace(reported, memory_mb_used=400, resources_used={"CUSTOM_GPU": 2})], ahead=True)
    table.settle_counts(200.0 + SETTLE_AFTER_S)
    assert (table.free_memory_mb[row], table.classes["CUSTOM_GPU"].free_amounts(np.array([row]))[0]) == (700, 3)
    table.account_reports(table.take_rows_ahead(), now=200.0)
    assert (table.free_memory_mb[row], table.classes["CUSTOM_GPU"].free_amounts(np.array([row]))[0]) == (600, 2)
    table.set_nodes(ONE, [reported], ahead=True)
    assert (table.free_memory_mb[row], table.classes["CUSTOM_GPU"].free_amounts(np.array([row]))[0]) == (700, 3), (
        "less counts at once"
    )


@pytest.mark.parametrize("at_once", [False, True], ids=["one", "many"])
def test_a_guest_reported_after_release_takes_no_room(at_once: bool) -> None:
    """It was deleted while the report was under way. What is still there when its agent reports again, or later, is somebody's."""
    table = fleet.table([fleet.node("h", memory_mb=1000)])
    row = row_of(table, "h")
    reported = fleet.node("h", memory_mb=1000, memory_mb_used=300)
    for generation, claimed in ((2, 300), (3, 0)):
        said = fleet.inventory(1, reported, ONE, generation, used_memory_mb=claimed)
        if at_once:
            table.set_inventories([said], now=100.0)
        else:
            table.set_inventory(said, now=100.0)
    table.set_nodes(ONE, [reported], ahead=True)
    table.account_reports(table.take_rows_ahead(), now=101.0)
    assert table.free_memory_mb[row] == 1000
    table.account_reports(table.take_rows_ahead(), now=100.0 + GUEST_REMOVAL_WAIT_S + 1)
    assert table.free_memory_mb[row] == 700, "it is still told"


def test_free_may_be_negative() -> None:
    table = fleet.table([fleet.node("h", vcpus=4)])
    table.set_inventory(fleet.inventory(1, fleet.node("h", vcpus=4), ONE, 2, used_vcpus=6), now=0.0)
    assert table.free_vcpus[row_of(table, "h")] == -2


def test_an_older_word_of_the_ledger_is_ignored() -> None:
    node = fleet.node("h", vcpus=8)
    table = fleet.table([node])
    table.set_inventory(fleet.inventory(1, node, ONE, 5, used_vcpus=5), now=0.0)
    table.set_inventory(fleet.inventory(1, node, ONE, 4, used_vcpus=1), now=0.0)
    assert table.free_vcpus[row_of(table, "h")] == 3


def test_tentative_takes_are_given_back_exactly() -> None:
    node = fleet.node("h", vcpus=3, cpu_allocation_ratio=1.1)
    table = fleet.table([node])
    row = row_of(table, "h")
    before = (table.free_vcpus[row], table.free_memory_mb[row], table.free_disk_gb[row], table.instances[row])
    with table.take_tentatively():
        for _ in range(3):
            table.take_room(row, 1, 7, 3)
        mark = table.undo_mark
        table.take_room(row, 1, 7, 3)
        table.give_back(mark)
        assert table.instances[row] == 3
        assert table.free_memory_mb[row] == before[1] - 21
    assert before == (table.free_vcpus[row], table.free_memory_mb[row], table.free_disk_gb[row], table.instances[row])


def test_takes_are_given_back_when_planning_fails() -> None:
    table = fleet.table([fleet.node("h")])

    def fail() -> None:
        with table.take_tentatively():
            table.take_room(0, 1, 1, 1)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert table.instances[0] == 0


def test_it_grows_and_keeps_what_it_has() -> None:
    table = fleet.table([fleet.node(f"h{n}", vcpus=n + 1) for n in range(300)])
    assert table.size == len(table) == 300
    assert np.array_equal(table.free_vcpus[:300], np.arange(1, 301))
    assert table.eligible[:300].all()


def test_a_row_of_a_removed_host_is_reused() -> None:
    table = HostTable()
    table.set_nodes(ONE, [fleet.node("gone", memory_mb_used=5)])
    table.set_nodes(ONE, [fleet.node("stays")])
    row = row_of(table, "gone")
    table.keep_nodes(ONE, {("stays", "stays")})
    assert table.find_row("gone", "gone") is None
    table.set_nodes(ONE, [fleet.node("new")])
    assert row_of(table, "new") == row
    assert table.reported_memory_mb[row] == 0
    assert table.rows_of["new"] == (row,)
    assert "gone" not in table.rows_of


def test_an_unreported_node_leaves_but_its_claims_stay() -> None:
    node = fleet.node("h", vcpus=8)
    table = fleet.table([node])
    table.set_inventory(fleet.inventory(1, node, ONE, 2, used_vcpus=5), now=0.0)
    table.keep_nodes(ONE, set())
    assert len(table) == 0
    assert not table.eligible[row_of(table, "h")]
    table.set_nodes(ONE, [node])
    assert table.eligible[row_of(table, "h")]
    assert table.free_vcpus[row_of(table, "h")] == 3


def test_zones_follow_the_aggregates() -> None:
    table = fleet.table([fleet.node("h1"), fleet.node("h2")], zones={"h1": "east"})
    assert table.zones[int(table.zone[row_of(table, "h1")])] == "east"
    assert table.zones[int(table.zone[row_of(table, "h2")])] == "nova"
    table.set_topology(fleet.cells(), {"h1": ONE, "h2": TWO}, {"h2": "west"})
    assert table.zones[int(table.zone[row_of(table, "h1")])] == "nova"
    assert table.zones[int(table.zone[row_of(table, "h2")])] == "west"
    assert table.zone_number("nowhere") == -1


WORDS = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3), st.integers(0, 9)), max_size=8, unique_by=lambda word: word[0])
"""Host, generation, what is used."""


@given(st.lists(WORDS, max_size=4), st.booleans())
def test_ledger_rows_together_equal_ledger_rows_in_turn(pages: list[list[tuple[int, int, int]]], late: bool) -> None:
    nodes = [fleet.node(f"h{n}", vcpus=8, vcpus_used=n) for n in range(5)]
    homes = {node.host: fleet.CELLS[n % 2] for n, node in enumerate(nodes)}
    tables = [HostTable(), HostTable()]
    for table in tables:
        table.set_topology(fleet.cells(), homes, {})
        if not late:
            fleet.tell_cells(table, nodes, homes, heard_at=0.0)
    for now, page in enumerate(pages):
        rows = [fleet.inventory(n + 1, nodes[n], homes[f"h{n}"], generation, used_vcpus=used) for n, generation, used in page]
        tables[0].set_inventories(rows, now)
        for row in rows:
            tables[1].set_inventory(row, now)
    if late:
        tables[0].set_nodes(ONE, nodes[::2])
        tables[0].set_nodes(TWO, nodes[1::2])
        for n, node in enumerate(nodes):
            tables[1].set_nodes(homes[f"h{n}"], [node])
    assert seen(tables[0]) == seen(tables[1])


def seen(table: HostTable) -> dict[str, dict[str, Any]]:
    """Every column of every host, but for the times at which they were mapped."""
    columns = [name for name in dir(table) if isinstance(getattr(table, name), np.ndarray) and name != "mapped_at"]
    return {host: {name: getattr(table, name)[row].item() for name in columns} for row, host in enumerate(table.hosts)}


def test_a_closing_cell_takes_only_its_hosts_along() -> None:
    table = fleet.table([fleet.node("h1"), fleet.node("h2")])
    before = seen(table)
    table.set_cells(fleet.cells(CellState.DISABLED, CellState.ENABLED))
    assert seen(table)["h1"] == before["h1"] | {"cell_open": False, "enabled": False}
    assert seen(table)["h2"] == before["h2"]


def test_who_is_up_follows_heartbeats_silence_and_operators() -> None:
    """The answer is kept between two questions: whatever bears on it must be seen."""
    table = fleet.table([])
    names = [f"h{n}" for n in range(4)]
    nodes = [fleet.node(name) for name in names]
    table.set_topology(fleet.cells(), {name: fleet.CELLS[n % 2] for n, name in enumerate(names)}, {})

    def heard(n: int, at: float, *, disabled: bool = False) -> None:
        table.set_service(fleet.CELLS[n % 2], names[n], at, disabled=disabled, forced_down=False)

    def up(since: float) -> list[str]:
        return [table.hosts[row] for row in np.flatnonzero(table.hosts_up(since))]

    assert up(0.0) == []
    for n, node in enumerate(nodes[:3]):
        table.set_nodes(fleet.CELLS[n % 2], [node])
        heard(n, 10.0 + n)
    for since, first in ((5.0, 0), (10.0, 0), (10.5, 1), (11.5, 2), (13.0, 3), (5.0, 0)):
        assert up(since) == names[first:3]
    heard(0, 20.0)
    assert up(11.5) == ["h0", "h2"]
    heard(2, 20.0, disabled=True)
    assert up(11.5) == ["h0"]
    table.set_nodes(fleet.CELLS[1], [nodes[3]])
    assert up(11.5) == ["h0"]
    heard(3, 20.0)
    assert up(11.5) == ["h0", "h3"]
    table.set_cells(fleet.cells(CellState.DISABLED, CellState.ENABLED))
    assert up(11.5) == ["h3"]
    table.remove_row(row_of(table, "h3"))
    assert up(11.5) == []


def test_it_knows_on_which_hosts_builds_have_failed() -> None:
    table = fleet.table([fleet.node("h1"), fleet.node("h2", failed_builds=2.0)])
    assert table.failing == {row_of(table, "h2")}
    table.set_nodes(fleet.CELLS[0], [fleet.node("h1", failed_builds=0.5)])
    assert table.failing == {row_of(table, "h1"), row_of(table, "h2")}
    table.set_nodes(fleet.CELLS[1], [fleet.node("h2")])
    table.remove_row(row_of(table, "h1"))
    assert table.failing == set()


KEPT = 50


@pytest.mark.parametrize("seed", range(5))
def test_rows_since_are_those_that_were_touched(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "CHANGES_KEPT", KEPT)
    chance, table, touched = random.Random(seed), Columns(), list[int]()
    for _ in range(40):
        table.append_row()
    for _ in range(200):
        rows = [chance.randrange(40) for _ in range(chance.choice((0, 1, 7, 30, 70)))]
        if len(rows) == 1:
            table.note_changed(rows[0])
        else:
            table.note_changed(np.array(rows, np.int64))
        touched += rows
        assert table.change_count == len(touched)
        back = chance.randrange(KEPT + 20)
        since = max(len(touched) - back, 0)
        expected = set(touched[since:])
        found = table.rows_since(since, most=20)
        if len(touched) - since > KEPT:
            assert found is None
            assert table.changed_since(since) == range(40)
        else:
            assert table.changed_since(since) == expected
            assert found is None if len(expected) > 20 else found is not None and found.tolist() == sorted(expected)


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
    table.set_nodes(fleet.CELLS[0], [fleet.node("H9")])
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


VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(0, 2), st.sampled_from(["1", "a"]), st.lists(st.integers(0, 1), max_size=2)
)


@given(st.lists(st.tuples(st.integers(0, 200), VALUES), max_size=40))
@examples(100)
def test_a_column_returns_the_last_value_of_rows(puts: list[tuple[int, Any]]) -> None:
    facet, expected = DictionaryColumn(), dict.fromkeys(range(201))
    for row, value in puts:
        facet.put_values(np.array([row]), [value])
        expected[row] = value
    told = [facet.values[code] for code in facet.codes_of_rows(201)]
    assert [(type(value), value) for value in told] == [(type(value), value) for value in expected.values()]


def test_changing_values_do_not_pile_up() -> None:
    facet = DictionaryColumn()
    for n in range(10_000):
        facet.put_values(np.array([n % 5]), [n])
    assert len(facet.values) <= 64 + UNUSED_VALUES_LIMIT + 1
    assert [facet.values[code] for code in facet.codes_of_rows(5)] == [9995, 9996, 9997, 9998, 9999]


def looked(
    reports: LastReports, mono: float, *hosts: str, counts: Sequence[int] = (), age: float = 0.0, disabled: bool = False
) -> tuple[list[float], list[bool]]:
    """When each was last heard of, and whether that is news."""
    no = [False] * len(hosts)
    signs = Signs(list(hosts), list(counts) or [1] * len(hosts), [age] * len(hosts), [disabled] * len(hosts), no, no, head=1)
    heard_at, news = reports.enter_signs(signs, mono)
    return heard_at.tolist(), news.tolist()


def test_first_looks_take_ages_and_later_ones_counts() -> None:
    reports = LastReports()
    assert looked(reports, 100.0, "h1", age=40.0) == ([60.0], [True])
    assert looked(reports, 110.0, "h1", age=50.0) == ([60.0], [False])
    assert looked(reports, 120.0, "h1", counts=[2], age=1.0) == ([120.0], [True])


def test_a_changed_flag_is_news_but_no_report() -> None:
    reports = LastReports()
    looked(reports, 100.0, "h1")
    assert looked(reports, 110.0, "h1", disabled=True) == ([100.0], [True])
    assert looked(reports, 120.0, "h1", disabled=True) == ([100.0], [False])


def test_some_of_many_have_news() -> None:
    reports = LastReports()
    assert looked(reports, 1.0, "h1", "h2", "h3") == ([1.0] * 3, [True] * 3)
    assert looked(reports, 2.0, "h4", "h3", "h1", counts=[1, 2, 1]) == ([2.0, 2.0, 1.0], [True, True, False])


def test_a_newcomer_takes_the_place_of_gone_hosts() -> None:
    reports = LastReports()
    for number, host in enumerate(("h1", "h2", "h3")):
        looked(reports, float(number), host)
    assert reports.forget_others({"h1", "h3"}) == ["h2"]
    assert looked(reports, 50.0, "h4", counts=[9]) == ([50.0], [True])
    assert looked(reports, 60.0, "h4", counts=[9]) == ([50.0], [False])
    assert looked(reports, 60.0, "h1", "h3", "h4", counts=[1, 1, 9]) == ([0.0, 2.0, 50.0], [False] * 3)
    assert looked(reports, 70.0, "h2") == ([70.0], [True])
