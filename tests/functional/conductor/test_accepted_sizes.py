"""The sizes and ratios that hosts count with in their cell, whatever their agents report."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import sqlalchemy as sa

from db.cell import compute_nodes, feed, host_removal, host_terms
from db.cell.tables import host_terms as rows
from objects import errors, stored
from objects.compute_node import ComputeNode
from objects.feed import EventKind
from objects.host_limits import HostLimits
from objects.host_terms import Ratios
from objects.process import AGENT_BINARY
from tests.support import fleet
from tests.support.cell_site import CONTEXT, Site
from tests.support.ground import GROUNDS, Ground

RATIOS = Ratios(cpu=2.0, ram=1.5, disk=1.0)
LARGE = {"vcpus": 4000, "memory_mb": 60 * 2**20, "disk_gb": 9 * 2**20}
"""Within the limits of every host."""


@pytest.fixture(params=GROUNDS)
def site(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Site]:
    place = Ground(request.param, tmp_path)
    made = Site(place)
    configure(made, RATIOS)
    yield made
    place.end(made.close, place.release)


def configure(site: Site, ratios: Ratios) -> None:
    site.conductor = type(site.conductor)(site.database, site.sender, limits=HostLimits(ratios=ratios))


def report(site: Site, host: str, **changes: Any) -> ComputeNode:
    """Report a node; return it as it counts."""
    node = fleet.node(host, **changes)
    site.conductor.update_resource_stats(CONTEXT, node)
    [known] = [each for each in site.database.read(compute_nodes.of_hosts, [host]) if each.node == node.node]
    return known


def sizes(node: ComputeNode) -> tuple[int, int, int]:
    return node.vcpus, node.memory_mb, node.disk_gb


def waiting(site: Site) -> list[str]:
    return [f"{size.host}: {size.describe_sizes}" for size in site.database.read(host_terms.list_waiting)]


def newest_event(site: Site) -> ComputeNode:
    page = site.database.read(feed.read, 0, 1000)
    return [stored.load_text(event.payload, ComputeNode) for event in page.events if event.kind is EventKind.HOST][-1]


class TestSizes:
    def test_growth_waits_for_an_operator_unlike_a_shrink(self, site: Site, caplog: pytest.LogCaptureFixture) -> None:
        small = report(site, "grown")
        with caplog.at_level(logging.WARNING):
            for number in range(3):
                assert sizes(report(site, "grown", **LARGE | {"vcpus": 4000 + number})) == sizes(small)
        [line] = [record.getMessage() for record in caplog.records if "host accept" in record.getMessage()]
        assert line.startswith("host grown, node grown reports vcpus 4000 (counts 16), memory_mb 62914560 (counts 65536), disk_gb")
        assert [text[:34] for text in waiting(site)] == ["grown: vcpus 4002 (counts 16), mem"]
        assert newest_event(site).vcpus == 16
        assert report(site, "grown", vcpus=8).vcpus == 8
        assert waiting(site) == []
        report(site, "grown", **LARGE)
        accepted = site.database.write(compute_nodes.accept_sizes, "grown", 5.0)
        assert accepted["grown"].vcpus == newest_event(site).vcpus == 4000
        assert waiting(site) == []
        assert sizes(report(site, "grown", **LARGE)) == tuple(LARGE.values())

    def test_it_does_not_creep(self, site: Site) -> None:
        """Half more than the first size counts, and from there on nothing more."""
        for vcpus, counted_vcpus in ((16, 16), (20, 20), (24, 24), (30, 16), (36, 16), (16, 16), (24, 24)):
            assert report(site, "h1", vcpus=vcpus).vcpus == counted_vcpus
        site.database.write(compute_nodes.accept_sizes, "h1", 5.0)
        assert report(site, "h1", vcpus=36).vcpus == 36

    def test_a_report_of_the_accepted_size_ends_waiting(self, site: Site) -> None:
        """It equals what is stored; nothing waits that is not reported any more."""
        report(site, "h1")
        report(site, "h1", **LARGE)
        report(site, "h1")
        assert waiting(site) == []
        assert site.database.write(compute_nodes.accept_sizes, "h1", 5.0)["h1"].vcpus == 16

    def test_hosts_of_the_conductor_skip_the_waiting(self, site: Site) -> None:
        report(site, "h1")
        site.conductor = type(site.conductor)(site.database, site.sender, limits=HostLimits(ratios=RATIOS, sizes_wait=False))
        assert sizes(report(site, "h1", **LARGE)) == tuple(LARGE.values())
        assert report(site, "h1", vcpus=8).vcpus == 8
        assert sizes(report(site, "h2", **LARGE)) == tuple(LARGE.values())
        assert waiting(site) == []

    def test_an_older_report_changes_no_terms(self, site: Site) -> None:
        report(site, "h1", reported_at=1002.0)
        with pytest.raises(errors.Conflict):
            report(site, "h1", reported_at=1001.0, **LARGE)
        assert waiting(site) == []

    def test_a_new_host_counts_four_medians_at_most(self, site: Site) -> None:
        assert report(site, "first", vcpus=100, resources={"CUSTOM_GPU": 8}).vcpus == 100
        for name, vcpus in (("second", 80), ("third", 20)):
            assert report(site, name, vcpus=vcpus).vcpus == vcpus
        large = report(site, "large", vcpus=321, memory_mb=2**20, resources={"CUSTOM_GPU": 33})
        assert (large.vcpus, large.memory_mb, large.resources) == (320, 4 * 65536, {"CUSTOM_GPU": 32})
        assert waiting(site) == ["large: vcpus 321 (counts 320), memory_mb 1048576 (counts 262144), CUSTOM_GPU 33 (counts 32)"]
        assert report(site, "large", vcpus=321).vcpus == 320
        site.database.write(compute_nodes.accept_sizes, "large", 5.0)
        assert newest_event(site).vcpus == 321

    def test_the_nodes_of_a_new_host_count_together(self, site: Site) -> None:
        report(site, "first")
        for node, counted_vcpus in (("n1", 40), ("n2", 24), ("n3", 0)):
            assert report(site, "h1", node=node, vcpus=40).vcpus == counted_vcpus

    def test_accepting_what_nobody_reported_is_refused(self, site: Site) -> None:
        for write in (compute_nodes.accept_sizes, lambda tx, host, now: compute_nodes.set_ratios(tx, host, {"cpu": 1.0}, now)):
            with pytest.raises(errors.NotFound, match="Host 'h9' has reported no size"):
                site.database.write(write, "h9", 5.0)

    def test_a_removed_host_leaves_no_terms(self, site: Site) -> None:
        report(site, "h1")
        site.database.write(host_removal.from_cell, "h1", AGENT_BINARY, 1.0)
        assert site.database.read(lambda tx: tx.execute(sa.select(sa.func.count()).select_from(rows)).scalar()) == 0


class TestRatios:
    def test_they_are_those_of_the_configuration(self, site: Site) -> None:
        assert Ratios.of_node(report(site, "h1", cpu_allocation_ratio=256.0, ram_allocation_ratio=256.0)) == RATIOS
        configure(site, Ratios(cpu=8.0))
        assert Ratios.of_node(report(site, "h1", cpu_allocation_ratio=256.0)) == Ratios(cpu=8.0)

    def test_an_operator_gives_a_host_its_own(self, site: Site) -> None:
        for node in ("n1", "n2"):
            report(site, "h1", node=node)
        site.database.write(compute_nodes.set_ratios, "h1", {"cpu": 16.0, "disk": 1.5}, 5.0)
        own = Ratios(cpu=16.0, ram=1.5, disk=1.5)
        assert Ratios.of_node(newest_event(site)) == own
        for node in ("n1", "n2", "n3"):  # a node that comes later, too
            assert Ratios.of_node(report(site, "h1", node=node, vcpus_used=1)) == own
        assert Ratios.of_node(report(site, "h2")) == RATIOS
        site.database.write(compute_nodes.set_ratios, "h1", {"cpu": None}, 6.0)
        assert Ratios.of_node(report(site, "h1", node="n1", vcpus_used=1)) == msgspec.structs.replace(own, cpu=RATIOS.cpu)

    def test_hosts_of_an_earlier_release_keep_theirs(self, site: Site) -> None:
        """Their size on record is the accepted one."""
        site.database.write(compute_nodes.store_node, fleet.node("h1", cpu_allocation_ratio=16.0), 1.0)
        assert Ratios.of_node(report(site, "h1", cpu_allocation_ratio=4.0, vcpus_used=1)) == Ratios(cpu=16.0)
        configure(site, Ratios(cpu=8.0))
        assert report(site, "h1", cpu_allocation_ratio=4.0, vcpus=100).cpu_allocation_ratio == 16.0
        assert waiting(site) == ["h1: vcpus 100 (counts 16)"]

    def test_unreadable_terms_are_those_on_record(self, site: Site) -> None:
        report(site, "h1")
        site.database.write(compute_nodes.set_ratios, "h1", {"cpu": 16.0}, 5.0)
        site.database.write(lambda tx: tx.execute(sa.update(rows).values(accepted="{", waiting="{", ratios="[")))
        assert waiting(site) == []
        assert report(site, "h1", vcpus=100).vcpus == 16
        assert waiting(site) == ["h1: vcpus 100 (counts 16)"]


def test_a_report_of_usage_reads_no_terms(site: Site) -> None:
    report(site, "h1", vcpus_used=1)
    seen: list[str] = []

    def note(connection: object, cursor: object, statement: str, *rest: object) -> None:
        seen.append(statement)

    sa.event.listen(sa.Engine, "before_cursor_execute", note)
    try:
        site.conductor.update_resource_stats(CONTEXT, fleet.node("h1", vcpus_used=2))
    finally:
        sa.event.remove(sa.Engine, "before_cursor_execute", note)
    assert sum("compute_nodes" in text for text in seen) == 2, "a read and a write"
    assert not [text for text in seen if "host_terms" in text and "compute_nodes" not in text]
