"""Two machines whose agents have the name of one host: the second is refused until the first is silent, or an operator says so."""

from __future__ import annotations

import logging

import msgspec
import pytest

from conductor.cell_conductor import CellConductor
from conductor.gathered_beats import GatheredBeats
from db.cell import services
from db.cell.services import ArrivedBeat, Beat
from db.cell.tables import services as service_rows
from db.sql.counting import StatementCounter
from objects import errors
from objects.compute_node import Service
from objects.context import RequestContext
from objects.machine import RefusedMachine
from objects.process import AGENT_BINARY, About
from service.periodic import wait_until
from tests.support.cell_conductor import PATIENCE
from tests.support.cell_site import ALTERNATES, Site, site_fixture
from tests.support.ground import GROUNDS

FIRST, SECOND = (RequestContext(request_id="req-agent", is_admin=True, machine=letter * 32) for letter in "ab")
OLDER = RequestContext(request_id="req-agent", is_admin=True)
NAMES = {FIRST.machine: "rack1 (aaaa)", SECOND.machine: "rack2 (bbbb)", OLDER.machine: ""}
PIDS = {FIRST.machine: 1, SECOND.machine: 2, OLDER.machine: 3}


site = site_fixture(GROUNDS)


def introduce(site: Site, agent: RequestContext, host: str = "h1") -> None:
    about = About(release="1.0", messages="1.1", pid=PIDS[agent.machine], machine=NAMES[agent.machine])
    site.conductor.introduce(agent, host, AGENT_BINARY, about, 5.0, identified=True)


def beat(site: Site, agent: RequestContext, *, stopping: bool = False) -> None:
    site.conductor.report_state(agent, "h1", AGENT_BINARY, 1, stopping)


def record(site: Site) -> Service:
    return site.database.read(services.get, "h1", AGENT_BINARY)


def two_machines(site: Site) -> str:
    [seen] = site.database.read(services.list_seen, AGENT_BINARY, "h1")
    return seen.two_machines


def test_the_second_is_refused_and_both_are_named(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    introduce(site, FIRST)
    before = record(site)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            with pytest.raises(errors.HostNameTaken) as refusal:
                introduce(site, SECOND)
    text = str(refusal.value)
    assert text.startswith("two machines are called h1: rack1 (aaaa) runs as the host, and rack2 (bbbb) is refused.")
    assert [line.getMessage() for line in caplog.records if line.name.endswith("cell_conductor")] == [text]
    assert two_machines(site) == text
    assert msgspec.structs.replace(record(site), refused=None) == before


def test_the_first_reintroduces_itself_the_second_stays_recorded(site: Site) -> None:
    introduce(site, FIRST)
    with pytest.raises(errors.HostNameTaken):
        introduce(site, SECOND)
    site.conductor.introduce(FIRST, "h1", AGENT_BINARY, About(pid=9, machine="rack1 (aaaa)"), 1.0)
    assert record(site).pid == 9
    assert two_machines(site)


def test_heartbeats_of_the_second_do_not_count(site: Site) -> None:
    introduce(site, FIRST)
    before = record(site)
    beat(site, SECOND)
    beat(site, SECOND, stopping=True)
    assert record(site) == before
    assert wait_until(lambda: site.hosts["h1"].introductions == 2, PATIENCE)
    beat(site, FIRST)
    assert record(site).report_count == before.report_count + 1


def test_a_stop_of_the_second_moves_no_builds(site: Site) -> None:
    introduce(site, FIRST)
    site.stage("one")
    site.activate("one")
    beat(site, SECOND, stopping=True)
    assert site.state("one") == ("scheduled", "h1", 1)
    beat(site, FIRST, stopping=True)
    assert site.state("one") == ("scheduled", ALTERNATES[0].host, 2)


def test_gathered_heartbeats_of_the_second_do_not_count(site: Site) -> None:
    introduce(site, FIRST)
    introduce(site, SECOND, "h2")
    before = record(site)
    gathered = GatheredBeats(site.database, site.sender, 0.01)
    endpoint = CellConductor(site.database, site.sender, heartbeats=gathered)
    try:
        for agent in (FIRST, SECOND):
            endpoint.report_state(agent, "h1", AGENT_BINARY, 1)
            assert wait_until(lambda: record(site).report_count > before.report_count, PATIENCE)
        assert wait_until(lambda: site.hosts["h1"].introductions == 1, PATIENCE)
    finally:
        gathered.stop()
    assert record(site).report_count == before.report_count + 1
    assert site.hosts["h2"].introductions == 0


def test_heartbeats_of_many_machines_are_one_statement(site: Site) -> None:
    machines = {f"m{n}": f"{n:032d}" for n in range(50)}
    beats = [Beat(host=host, binary=AGENT_BINARY, machine=machine) for host, machine in machines.items()]
    for each in beats:
        site.database.write(services.introduce_service, each, About(), 1.0)
    arrived = [ArrivedBeat(beat=each, at=site.database.current_time()) for each in beats]
    with StatementCounter(site.database) as counter:
        assert site.database.write(services.gathered_heartbeats, arrived) == []
    [count] = counter.totals_by_database().values()
    assert count.executions == 1
    assert {service.report_count for service in site.database.read(services.list_all)} == {2}


def test_an_operator_replaces_the_first_by_the_second(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    introduce(site, FIRST)
    with pytest.raises(errors.NotFound, match="No other machine has asked to run as host 'h1'"):
        site.database.write(services.accept_machine, "h1", AGENT_BINARY)
    with pytest.raises(errors.HostNameTaken):
        introduce(site, SECOND)
    assert site.database.write(services.accept_machine, "h1", AGENT_BINARY).name == "rack2 (bbbb)"
    with caplog.at_level(logging.WARNING):
        introduce(site, SECOND)
    assert "machine rack2 (bbbb) runs as host h1 from now on, and rack1 (aaaa) does no more" in caplog.text
    assert wait_until(lambda: site.hosts["h1"].introductions == 1, PATIENCE), "the first one is told to ask"
    assert not two_machines(site)
    with pytest.raises(errors.HostNameTaken, match=r"rack2 \(bbbb\) runs as the host, and rack1 \(aaaa\) is refused"):
        introduce(site, FIRST)


def test_the_second_takes_over_from_a_silent_first(site: Site) -> None:
    site.conductor = CellConductor(site.database, site.sender, down_time=0.0)
    introduce(site, FIRST)
    introduce(site, SECOND)
    assert record(site).machine == SECOND.machine


def test_an_older_releases_agent_is_admitted_as_before(site: Site) -> None:
    introduce(site, FIRST)
    introduce(site, OLDER)
    assert (record(site).pid, record(site).machine) == (3, FIRST.machine)
    before = record(site).report_count
    beat(site, OLDER)
    assert record(site).report_count == before + 1
    assert site.hosts["h1"].introductions == 0


def test_the_first_to_name_its_machine_is_admitted(site: Site) -> None:
    introduce(site, OLDER)
    beat(site, SECOND)
    introduce(site, SECOND)
    assert (record(site).machine, record(site).machine_name) == (SECOND.machine, "rack2 (bbbb)")


def test_a_deleted_host_is_free(site: Site) -> None:
    introduce(site, FIRST)
    site.database.write(services.delete, "h1", AGENT_BINARY)
    introduce(site, SECOND)
    assert record(site).machine == SECOND.machine


@pytest.mark.parametrize("odd", ["a" * 65, "a\0b"])
def test_an_id_that_no_machine_has_is_refused(site: Site, odd: str) -> None:
    context = RequestContext(request_id="req-agent", machine=odd)
    with pytest.raises(errors.Invalid, match="has control characters or is too long"):
        site.conductor.introduce(context, "h1", AGENT_BINARY, About(), 1.0)
    with pytest.raises(errors.Invalid):
        site.conductor.report_state(context, "h1", AGENT_BINARY, 1)


def test_an_unreadable_refusal_counts_as_none(site: Site) -> None:
    introduce(site, FIRST)
    site.database.write(lambda tx: tx.execute(service_rows.update().values(refused="{")))
    assert not two_machines(site)
    with pytest.raises(errors.HostNameTaken):
        introduce(site, SECOND)
    [seen] = site.database.read(services.list_seen, AGENT_BINARY, "h1")
    assert isinstance(seen.refused, RefusedMachine)
