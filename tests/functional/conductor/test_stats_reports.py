"""Stats on their way from an agent to the cell's feed: doubled, reordered, late or nonsense, the newest that make sense count."""

from __future__ import annotations

import math
import random
import threading
import time
from pathlib import Path

import msgspec
import pytest
import sqlalchemy as sa

from conductor.apply import Applier
from db.cell import compute_nodes, feed
from db.cell.tables import compute_nodes as rows
from objects import errors, stored
from objects.compute_node import ComputeNode
from objects.feed import EventKind
from scheduler.cell_reader import CellWatch
from scheduler.framework.settings import SchedulerSettings
from scheduler.table.host_table import HostTable
from tests.support import fleet
from tests.support.applying import CELL, OTHER, catch_up, inventories
from tests.support.cell_site import CONTEXT, Site
from tests.support.transactions import run_threads
from tests.support.world import world


def reports(count: int) -> list[ComputeNode]:
    """Of one node, in the order in which its agent counted."""
    return [fleet.node("h1", vcpus_used=number % 7, reported_at=1000.0 + number) for number in range(count)]


def known(site: Site) -> ComputeNode:
    [node] = site.database.read(compute_nodes.list_all)
    return node


def told(site: Site) -> list[ComputeNode]:
    """What the feed says, in its order."""
    page = site.database.read(feed.read, 0, 1000)
    return [stored.load_text(event.payload, ComputeNode) for event in page.events if event.kind is EventKind.HOST]


class TestNames:
    def test_a_node_belongs_to_its_first_reporting_host(self, site: Site) -> None:
        own = fleet.node("h1")
        site.conductor.update_resource_stats(CONTEXT, own)
        with pytest.raises(errors.Invalid, match="node h1 was reported by host h1 first"):
            site.conductor.update_resource_stats(CONTEXT, msgspec.structs.replace(own, host="h2"))
        assert told(site) == [own]
        site.conductor.update_resource_stats(CONTEXT, msgspec.structs.replace(own, vcpus_used=1, reported_at=own.reported_at + 1))
        assert known(site).vcpus_used == 1


class TestOrder:
    def test_an_older_report_is_refused_without_trace(self, site: Site) -> None:
        first, second = reports(2)
        site.conductor.update_resource_stats(CONTEXT, second)
        with pytest.raises(errors.Conflict, match="stats of host h1, node h1 are ignored"):
            site.conductor.update_resource_stats(CONTEXT, first)
        assert known(site) == second
        assert told(site) == [second]

    def test_an_identical_report_is_accepted_but_published_once(self, site: Site) -> None:
        first, second = reports(2)
        again = msgspec.structs.replace(first, reported_at=second.reported_at)
        for each in (first, first, again, again):
            site.conductor.update_resource_stats(CONTEXT, each)
        assert told(site) == [first]
        late = msgspec.structs.replace(second, reported_at=first.reported_at + 0.5)
        with pytest.raises(errors.Conflict):  # overtaken by the one that changed nothing
            site.conductor.update_resource_stats(CONTEXT, late)

    @pytest.mark.parametrize("seed", range(5))
    def test_doubled_and_reordered_reports_end_with_the_newest(self, site: Site, seed: int) -> None:
        sent = reports(12) * 2
        random.Random(seed).shuffle(sent)
        for each in sent:
            try:
                site.conductor.update_resource_stats(CONTEXT, each)
            except errors.Conflict:
                assert each.reported_at < known(site).reported_at
        assert known(site) == reports(12)[-1]
        times = [each.reported_at for each in told(site)]
        assert times == sorted(times)

    def test_concurrent_reports_end_with_the_newest(self, site: Site) -> None:
        site.conductor.update_resource_stats(CONTEXT, fleet.node("h1", reported_at=1.0))
        sent = reports(24)

        def send(number: int) -> None:
            for each in sent[number::4]:
                try:
                    site.conductor.update_resource_stats(CONTEXT, each)
                except errors.Conflict:
                    continue

        assert run_threads(4, send) == []
        assert known(site) == sent[-1]
        times = [each.reported_at for each in told(site)]
        assert times == sorted(times)


class TestNonsense:
    @pytest.mark.parametrize(
        "change", [{"vcpus": -1}, {"cpu_allocation_ratio": math.nan}, {"failed_builds": math.inf}, {"disk_gb_used": 2**80}]
    )
    def test_it_is_refused_by_name_and_not_stored(self, site: Site, change: dict[str, float]) -> None:
        [field] = change
        with pytest.raises(errors.Invalid, match=f"stats of h1, h1: {field} is"):
            site.conductor.update_resource_stats(CONTEXT, fleet.node("h1", **change))
        assert site.database.read(compute_nodes.list_all) == []
        assert told(site) == []

    def test_a_stuck_cell_holds_up_no_other_host(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        """Whoever wrote it: schedulers and conductors say so and go on, in its rows and in its feed."""
        nonsense = stored.dump_value(fleet.node("a1")).replace('"vcpus":16', '"vcpus":-16')
        with world(tmp_path, {CELL: ["a1", "a2"], OTHER: ["b1"]}, "lite") as cloud:
            conductor = cloud.conductor("one")
            cell, table = conductor.cell(CELL), HostTable()
            watch = CellWatch(cell, table, SchedulerSettings(), threading.Semaphore())
            applier = Applier(conductor.ledger, cell)
            applier.map_hosts(frozenset({"a1", "a2"}))
            watch.read_changes()
            many = stored.dump_value(fleet.node("a1")).replace('"running_vms":0', f'"running_vms":{2**31}')
            deep = stored.dump_value(fleet.node("a1")).replace(
                '"attributes":{}', '"attributes":{"x":' + "[" * 9999 + "]" * 9999 + "}"
            )
            for text in (nonsense, "not even JSON", '{"host": "a1"}', many, deep):
                event = feed.NewEvent(kind=EventKind.HOST, key="a1", version=0, payload=text)
                cloud.databases[CELL].write(feed.append_events, [event], time.time())
            cloud.databases[CELL].write(compute_nodes.store_node, fleet.node("a2", vcpus_used=5, vcpus=99), time.time())
            watch.read_changes()
            catch_up(applier)
            row = table.find_row("a2", "a2")
            assert row is not None
            assert table.reported_vcpus[row] == 5
            assert inventories(cloud)["a2"].cap_vcpus == 99.0
            assert inventories(cloud)["a1"].cap_vcpus == 64.0
            told = caplog.text.count("unreadable stats are ignored")
            assert told >= 10, "five by each of the two; who has to read a page again says so again"
            cloud.databases[CELL].write(lambda tx: tx.execute(sa.update(rows).where(rows.c.host == "a1").values(stats=nonsense)))
            assert [node.host for node in cell.read(compute_nodes.list_all)] == ["a2"]
            cloud.databases[CELL].write(compute_nodes.store_node, fleet.node("a1", vcpus_used=1), time.time())
            assert [node.host for node in cell.read(compute_nodes.list_all)] == ["a1", "a2"], "until it reports anew"
