"""What the processes of a cell report of themselves: heartbeats, and the nodes' statistics with their feed events."""

from __future__ import annotations

import time

import msgspec
import pytest
import sqlalchemy as sa

from db.cell import compute_nodes, feed, services
from db.cell.services import ArrivedBeat, Beat
from db.cell.tables import compute_nodes as table
from db.sql import dialect
from db.sql.counting import StatementCounter
from db.sql.engine import Database
from objects import errors, stored
from objects.compute_node import ComputeNode, Service
from objects.feed import EventKind, FeedEvent
from objects.process import About
from tests.support.databases import database_fixture

NODE = ComputeNode(host="h1", node="n1", vcpus=8, memory_mb=16384, disk_gb=100, attributes={"gpu": True})
AGENT = "superconductor-compute"


database = database_fixture("cell", scope="function")


def events(database: Database) -> tuple[FeedEvent, ...]:
    return database.read(feed.read, 0, 100).events


# -- heartbeats ------------------------------------------------------------------------------------------------------------


def test_first_heartbeat_makes_the_service_others_count(database: Database) -> None:
    database.write(services.record_heartbeats, [services.Beat(host="h1", binary=AGENT)], 10.0)
    first = database.read(services.get, "h1", AGENT)
    for now in (20.0, 30.0):
        database.write(services.record_heartbeats, [services.Beat(host="h1", binary=AGENT, version=2)], now)

    expected = Service(uuid=first.uuid, host="h1", binary=AGENT, report_count=3, last_seen=30.0, version=2)
    assert database.read(services.list_all) == [expected]
    assert events(database) == ()


def test_gathered_heartbeats_that_change_nothing_are_one_statement(database: Database) -> None:
    beats = [Beat(host=f"h{n}", binary=AGENT) for n in range(20)]
    arrived = [ArrivedBeat(beat=beat, at=time.time() + 3600.0) for beat in beats]
    database.write(services.gathered_heartbeats, arrived)  # they are new
    with StatementCounter(database) as counter:
        database.write(services.gathered_heartbeats, arrived)
    (count,) = counter.totals_by_database().values()
    assert count.executions == 1
    assert {service.report_count for service in database.read(services.list_all)} == {2}


def test_a_gathered_heartbeat_overwrites_no_later_stop(database: Database) -> None:
    early = time.time() - 3600.0
    database.write(services.record_heartbeats, [services.Beat(host="h1", binary=AGENT)])
    database.write(services.record_heartbeats, [Beat(host="h1", binary=AGENT, stopping=True)])
    database.write(services.gathered_heartbeats, [ArrivedBeat(beat=Beat(host="h1", binary=AGENT), at=early)])
    stopped = database.read(services.get, "h1", AGENT)
    assert (stopped.stopping, stopped.report_count) == (True, 2)
    late = ArrivedBeat(beat=Beat(host="h1", binary=AGENT, version=7), at=time.time() + 3600.0)
    database.write(services.gathered_heartbeats, [late])
    back = database.read(services.get, "h1", AGENT)
    assert (back.stopping, back.version, back.report_count) == (False, 7, 3)


def test_heartbeat_is_one_statement_however_many_services_beat(database: Database) -> None:
    beats = [Beat(host=f"h{n}", binary=AGENT) for n in range(20)]
    for now in (1.0, 2.0):
        with StatementCounter(database) as counter:
            database.write(services.record_heartbeats, beats, now)
        (count,) = counter.totals_by_database().values()
        assert (count.executions, count.rows) == (1, 20)

    assert {service.report_count for service in database.read(services.list_all)} == {2}


def test_two_beats_of_one_service_count_once(database: Database) -> None:
    database.write(services.record_heartbeats, [Beat(host="h1", binary=AGENT), Beat(host="h1", binary=AGENT, version=2)], 1.0)
    database.write(services.record_heartbeats, [], 1.0)

    assert [(s.report_count, s.version) for s in database.read(services.list_all)] == [(1, 2)]


def test_disabling_outlasts_heartbeats_and_reaches_the_feed(database: Database) -> None:
    database.write(services.record_heartbeats, [services.Beat(host="h1", binary=AGENT)], 1.0)
    assert database.write(services.set_disabled, "h1", AGENT, True, "maintenance", 2.0)
    assert not database.write(services.set_disabled, "h1", AGENT, True, "maintenance", 3.0)
    database.write(services.record_heartbeats, [services.Beat(host="h1", binary=AGENT)], 4.0)

    service = database.read(services.get, "h1", AGENT)
    assert (service.disabled, service.disabled_reason, service.report_count) == (True, "maintenance", 2)
    (event,) = events(database)
    assert (event.kind, event.key) == (EventKind.SERVICE, "h1")
    assert stored.load_text(event.payload, Service).disabled_reason == "maintenance"

    assert database.write(services.set_disabled, "h1", AGENT, False, "ignored", 5.0)
    assert database.read(services.get, "h1", AGENT).disabled_reason is None


def test_forcing_down_is_told_by_the_feed(database: Database) -> None:
    database.write(services.record_heartbeats, [services.Beat(host="h1", binary=AGENT)], 1.0)
    assert database.write(services.set_forced_down, "h1", AGENT, True, 2.0)

    assert database.read(services.get, "h1", AGENT).forced_down
    assert [stored.load_text(event.payload, Service).forced_down for event in events(database)] == [True]


def test_unknown_service_is_not_found(database: Database) -> None:
    for call, *rest in (
        (services.get,),
        (services.delete,),
        (services.set_disabled, True, None, 1.0),
        (services.set_forced_down, True, 1.0),
    ):
        with pytest.raises(errors.NotFound, match="Service 'superconductor-compute' on host 'h1' not found"):
            database.write(call, "h1", AGENT, *rest)


def test_forgotten_service_is_gone(database: Database) -> None:
    database.write(services.record_heartbeats, [services.Beat(host="h1", binary=AGENT)], 1.0)
    database.write(services.delete, "h1", AGENT)

    assert database.read(services.list_all) == []


# -- compute nodes ---------------------------------------------------------------------------------------------------------


def test_only_a_change_is_written_and_told(database: Database) -> None:
    assert database.write(compute_nodes.store_node, NODE, 1.0)
    assert not database.write(compute_nodes.store_node, NODE, 2.0)
    busier = msgspec.structs.replace(NODE, vcpus_used=4)
    assert database.write(compute_nodes.store_node, busier, 3.0)

    assert database.read(compute_nodes.list_all) == [busier]
    assert [(e.kind, e.key, stored.load_text(e.payload, ComputeNode)) for e in events(database)] == [
        (EventKind.HOST, "h1", NODE),
        (EventKind.HOST, "h1", busier),
    ]


def test_text_of_another_version_is_no_change(database: Database) -> None:
    database.write(compute_nodes.store_node, NODE, 1.0)
    older = stored.dump_value(
        {"attributes": {"gpu": True}, "host": "h1", "node": "n1", "vcpus": 8, "memory_mb": 16384, "disk_gb": 100}
    )
    database.write(lambda tx: tx.execute(sa.update(table).values(stats=older)))

    assert not database.write(compute_nodes.store_node, NODE, 2.0)


def test_unchanged_report_is_one_read_changes_share_writes(database: Database) -> None:
    nodes = [msgspec.structs.replace(NODE, host=f"h{n}") for n in range(20)]
    database.write(compute_nodes.store_all, nodes, 1.0)
    with StatementCounter(database) as counter:
        assert database.write(compute_nodes.store_all, nodes, 2.0) == 0
    assert [count.executions for count in counter.totals_by_database().values()] == [1]

    changed = [msgspec.structs.replace(node, running_vms=1) for node in nodes[:5]] + nodes[5:]
    with StatementCounter(database) as counter:
        assert database.write(compute_nodes.store_all, changed, 3.0) == 5
    (count,) = counter.totals_by_database().values()
    assert count.executions <= 5, counter.count_by_statement()


def test_the_later_report_on_a_node_counts(database: Database) -> None:
    later = msgspec.structs.replace(NODE, running_vms=2)

    assert database.write(compute_nodes.store_all, [NODE, later], 1.0) == 1
    assert database.read(compute_nodes.list_all) == [later]
    assert database.write(compute_nodes.store_all, [], 1.0) == 0


def test_nodes_come_page_by_page_in_name_order(database: Database) -> None:
    nodes = [msgspec.structs.replace(NODE, host=host, node=node) for host in ("h1", "h2", "h3") for node in ("a", "b")]
    database.write(compute_nodes.store_all, nodes[::-1], 1.0)
    found: list[ComputeNode] = []
    after: tuple[str, str] | None = compute_nodes.BEFORE_FIRST_PAGE
    while after is not None:
        page = database.read(compute_nodes.list_after, after, 3)  # which ends between the two nodes of a host
        found += page.nodes
        after = page.last
    assert found == nodes


def test_an_introduction_is_known_by_content_and_start(database: Database) -> None:
    beat, about = Beat(host="h1", binary=AGENT, version=5), About(release="1.0", messages="1.2", pid=7, version=5)

    def is_known(said: Beat = beat, of: About = about, uptime: float = 60.0, *, identified: bool = True) -> bool:
        return database.read(services.is_introduced, said, of, uptime, identified=identified)

    assert not is_known()
    database.write(services.record_heartbeats, [beat])
    assert not is_known()
    database.write(services.introduce_service, beat, about, 60.0, identified=True)
    assert is_known()
    assert not is_known(uptime=30.0), "it has started again"
    assert not is_known(identified=False)
    assert not is_known(msgspec.structs.replace(beat, version=6))
    assert not is_known(msgspec.structs.replace(beat, host="h2"))
    for other in ({"release": "1.1"}, {"messages": "1.3"}, {"pid": 8}):
        assert not is_known(of=msgspec.structs.replace(about, **other))
    database.write(services.record_heartbeats, [msgspec.structs.replace(beat, stopping=True)])
    assert not is_known(), "it has announced its stop since"


def test_signs_of_life_are_of_one_service_kind(database: Database) -> None:
    database.write(
        services.record_heartbeats, [Beat(host="h1", binary=AGENT, stopping=True), Beat(host="h1", binary="other")], 10.0
    )
    database.write(services.set_disabled, "h1", AGENT, True, "repair", 11.0)
    signs = database.read(services.read_signs, AGENT)
    head = database.read(feed.read_head)
    assert signs == services.Signs(["h1"], [1], signs.ages, [True], [False], [True], head)
    assert signs.ages == [pytest.approx(time.time() - 10.0, abs=3600)]
    assert head > 0


def test_signs_come_whole_in_however_many_arrays(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dialect, "JSON_ARRAY_SIZE", 3)
    query = services._select_signs(services._IS_OF_KIND)
    monkeypatch.setattr(services, "_SIGNS", query)
    database.write(services.record_heartbeats, [Beat(host=f"h{n}", binary=AGENT) for n in range(7)], 10.0)
    database.write(services.set_forced_down, "h4", AGENT, True, 11.0)
    assert len(database.read(lambda tx: tx.execute(query, {"of": AGENT}).all())) == 3
    signs = database.read(services.read_signs, AGENT)
    assert dict(zip(signs.hosts, signs.forced_down, strict=True)) == {f"h{n}": n == 4 for n in range(7)}
    assert (len(signs.ages), set(signs.report_counts), any(signs.disabled), any(signs.stopping)) == (7, {1}, False, False)


def test_the_feeds_head_comes_even_without_signs(database: Database) -> None:
    nobody = services.Signs([], [], [], [], [], [], database.read(feed.read_head))
    assert database.read(services.read_signs, AGENT) == nobody
    database.write(services.record_heartbeats, [Beat(host="h1", binary=AGENT)], 10.0)
    assert database.read(services.read_signs, AGENT, 1.0) == nobody
