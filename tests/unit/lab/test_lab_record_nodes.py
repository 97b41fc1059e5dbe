"""A record of a deployment says over how many NUMA nodes servers were divided, and which nodes hosts have."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from db.api.reconcile.history import PastBody
from lab.fleet import read_fleet
from lab.record import FLEET_COLUMNS, TRACE_COLUMNS, Names, Recorder, fleet_of
from lab.table_file import NewTable
from lab.trace import open_trace
from objects import numa
from objects.spec import Image
from tests.support import fleet

WIDE = msgspec.structs.replace(fleet.flavor(4, 4096), extra_specs={numa.FLAVOR_KEY: "2"})
SPECS = {
    "plain": fleet.spec(fleet.flavor(4, 4096)),
    "wide": fleet.spec(WIDE),
    "image": fleet.spec(fleet.flavor(4, 4096), image=Image(id="i", properties={numa.IMAGE_KEY: "4"})),
    "odd": fleet.spec(msgspec.structs.replace(WIDE, vcpus=3)),
}
"""The last one cannot be divided equally, and no host with nodes took it."""


@pytest.mark.parametrize(("with_nodes", "counts"), [(True, [4, 1, 1, 2]), (False, [1, 1, 1, 1])])
def test_servers_have_the_nodes_that_they_asked_for(tmp_path: Path, with_nodes: bool, counts: list[int]) -> None:
    """If no host's nodes count, they were divided by the hypervisors alone."""
    bodies = [
        PastBody(uuid=name, server_uuid=name, turn=0, batch_id=name, cell_uuid="c", project_id="p", start=1.0, end=2.0)
        for name in sorted(SPECS)
    ]
    recorder = Recorder(10.0, None, (), Names(None), "nova", with_nodes=with_nodes)
    with NewTable(tmp_path / "trace.csv", TRACE_COLUMNS) as table:
        table.add_rows(recorder.trace_lines((body, SPECS[body.uuid]) for body in bodies))
        table.finish_file()
        table.keep_file()
    assert [(each.name, each.numa_nodes) for each in open_trace(tmp_path / "trace.csv").list_arrivals()] == list(
        zip(sorted(SPECS), counts, strict=True)
    )


def test_hosts_have_the_nodes_that_the_ledger_knows(tmp_path: Path) -> None:
    capacity = {"vcpus": 8.0, "memory_mb": 64.0, "disk_gb": 100.0}
    nodes = {"NUMA0_VCPU": 3, "NUMA0_MEMORY_MB": 40, "NUMA1_VCPU": 5, "NUMA1_MEMORY_MB": 23, "CUSTOM_GPU": 1}
    hosts = fleet_of([("a", "a", capacity, "c", nodes), ("b", "b", capacity, "c", {"CUSTOM_GPU": 1})], {}, {})
    recorder = Recorder(10.0, None, (), Names(None), "nova", with_nodes=True)
    with NewTable(tmp_path / "fleet.csv", FLEET_COLUMNS) as table:
        table.add_rows(map(recorder.fleet_line, hosts))
        table.finish_file()
        table.keep_file()
    assert [(host.name, host.nodes) for host in read_fleet(tmp_path / "fleet.csv")] == [("a", ((3, 40), (5, 23))), ("b", ())]
