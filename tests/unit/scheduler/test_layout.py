"""After changes of mappings, zones and aggregates the table equals a new one, and only the rows that changed are touched."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from objects.aggregate import Aggregate
from scheduler.table import aggregation
from scheduler.table.aggregation import Aggregates
from scheduler.table.host_table import HostTable
from tests.support import fleet
from tests.support.examples import examples

NAMES = tuple(f"h{n}" for n in range(6))
HOMES = st.dictionaries(st.sampled_from(NAMES), st.sampled_from(fleet.CELLS))
SETS = st.dictionaries(
    st.integers(1, 4),
    st.tuples(
        st.sets(st.sampled_from(NAMES)),
        st.dictionaries(st.sampled_from(["ssd", "cpu_allocation_ratio", "availability_zone"]), st.sampled_from(["1", "2", "x"])),
    ),
    max_size=4,
)
STATES = st.lists(st.tuples(HOMES, SETS), min_size=2, max_size=5)


def aggregates_of(sets: dict[int, tuple[set[str], dict[str, str]]]) -> list[Aggregate]:
    return [
        Aggregate(id=number, name=f"a{number}", hosts=tuple(sorted(hosts)), metadata=keys) for number, (hosts, keys) in sets.items()
    ]


def change(table: HostTable, homes: dict[str, str], known: Sequence[Aggregate]) -> None:
    zones = {host: one.availability_zone for one in known if one.availability_zone for host in one.hosts}
    table.set_topology(fleet.cells(), homes, zones, known)


def seen(table: HostTable) -> dict[str, Any]:
    return {
        host: (
            table.home.item(row),
            table.zones[table.zone.item(row)],
            table.current_aggregates.metadata_of(table.aggregation.item(row)),
            table.current_aggregates.least_by_combination("cpu_allocation_ratio", 7.0)[table.aggregation[row]],
            table.current_aggregates.any_in_combination(table.current_aggregates.aggregates_having(["ssd"]))[
                table.aggregation[row]
            ],
            table.eligible.item(row),
            table.enabled.item(row),
        )
        for row, host in enumerate(table.hosts)
    }


@given(STATES)
@examples(200)
def test_a_changed_layout_equals_a_new_one(states: list[tuple[dict[str, str], dict[int, Any]]]) -> None:
    table = fleet.table([fleet.node(name) for name in NAMES])
    for homes, sets in states:
        change(table, homes, aggregates_of(sets))
        new = fleet.table([fleet.node(name) for name in NAMES])
        change(new, homes, aggregates_of(sets))
        assert seen(table) == seen(new)
        assert (table.current_aggregates.keys, table.current_aggregates.lowering) == (
            new.current_aggregates.keys,
            new.current_aggregates.lowering,
        )


def test_only_rows_of_changed_hosts_are_touched() -> None:
    homes = dict.fromkeys(NAMES, fleet.CELLS[0])
    racks = [Aggregate(id=n, name=name, hosts=(name,), metadata={"rack": name}) for n, name in enumerate(NAMES)]
    table = fleet.table([fleet.node(name) for name in NAMES])
    change(table, homes, racks)
    before = table.change_count
    racks[0] = Aggregate(id=0, name="h0", hosts=("h0", "h3"), metadata={"rack": "other"})
    change(table, homes, racks)
    assert table.change_count - before == 1  # h3: h0 is in the same aggregates as before
    row = table.find_row("h3", "h3")
    assert row is not None
    assert table.current_aggregates.metadata_of(int(table.aggregation[row])) == {"rack": ("h3", "other")}
    before = table.change_count
    change(table, homes | {"h5": fleet.CELLS[1]}, racks)
    assert table.change_count - before == 1
    before = table.change_count
    change(table, homes | {"h5": fleet.CELLS[1]}, racks)
    assert table.change_count == before


def test_unused_combinations_are_eventually_dropped() -> None:
    some = Aggregates([Aggregate(id=1, name="a", hosts=("h",))])
    for n in range(2, 3 * aggregation.SPARE_COMBINATIONS):
        some = Aggregates([Aggregate(id=n, name="a", hosts=("h",))], some)
    assert some.combinations_of(["h"]).item() <= aggregation.SPARE_COMBINATIONS + 2
    assert some.combinations_of(["other"]).item() == 0


def test_answers_are_forgotten_when_the_aggregates_change() -> None:
    table = fleet.table([fleet.node("h0")])
    change(table, {"h0": fleet.CELLS[0]}, [Aggregate(id=1, name="a", hosts=("h0",), metadata={"ssd": "true"})])
    has = table.current_aggregates.cached_mask(
        "ssd", lambda: table.current_aggregates.any_in_combination(table.current_aggregates.aggregates_having(["ssd"]))
    )
    assert has[table.aggregation[0]]
    change(table, {"h0": fleet.CELLS[0]}, [Aggregate(id=1, name="a", hosts=("h0",), metadata={})])
    has = table.current_aggregates.cached_mask(
        "ssd", lambda: table.current_aggregates.any_in_combination(table.current_aggregates.aggregates_having(["ssd"]))
    )
    assert not has[table.aggregation[0]]


def test_a_mapped_host_is_awaited_until_fully_known() -> None:
    table = fleet.table([fleet.node("h0")])
    since = time.monotonic()
    change(table, {"h0": fleet.CELLS[0], "new": fleet.CELLS[0]}, [])
    assert table.awaits_hosts(since)
    assert not table.awaits_hosts(time.monotonic())
    with table.lock:
        table.set_nodes(fleet.CELLS[0], [fleet.node("new")])
        table.set_service(fleet.CELLS[0], "new", time.monotonic(), disabled=False, forced_down=False)
    assert table.awaits_hosts(since)  # for the ledger
    change(table, {"h0": fleet.CELLS[0]}, [])
    assert not table.awaits_hosts(since)
