"""What the peers of a process know by their service records, and which of them it cannot work with."""

from __future__ import annotations

import pytest

from cells import releases
from cells.releases import LIVE_S, cell_peers, level_peers
from db import processes
from db.api.rows import finalized
from db.cell import services
from db.cell.services import Beat
from db.processes import Level
from db.sql.engine import Database
from objects import errors
from objects.messages_version import SPAN, V1_0, MessagesVersion
from objects.process import AGENT_BINARY, CONDUCTOR_BINARY, SCHEDULER_BINARY, About, Process
from rpc import compute, scheduler, super_conductor
from tests.support.databases import database_fixture

NEW = str(SPAN)


api = database_fixture(scope="function")


cell = database_fixture("cell", scope="function")


def show(database: Database, level: Level, binary: str, messages: str, host: str = "h1", age: float = 0.0) -> None:
    about = About(release="x", messages=messages, pid=1)
    of = f"{binary}{host}{messages}"
    process = Process(uuid=of[:36], binary=binary, host=host, about=about, started_at=0.0, last_seen=0.0, age=age)
    database.write(processes.record_process, level, process)


def introduce(database: Database, host: str, messages: str) -> None:
    database.write(services.introduce_service, Beat(host=host, binary=AGENT_BINARY), About(messages=messages), 1.0)


def test_messages_suit_the_oldest_living_conductor_and_scheduler(api: Database) -> None:
    show(api, "api", CONDUCTOR_BINARY, NEW)
    show(api, "api", CONDUCTOR_BINARY, "1.0", host="h2")
    show(api, "api", SCHEDULER_BINARY, NEW)
    peers = level_peers(api.read, {})

    assert peers(super_conductor.TOPIC, None) == V1_0
    assert peers(super_conductor.TOPIC, "h9") == V1_0
    assert peers(scheduler.TOPIC, None) == SPAN.newest


def test_an_agent_gets_its_recorded_message_form(cell: Database) -> None:
    introduce(cell, "old", "1.0")
    introduce(cell, "new", NEW)
    cell.write(services.record_heartbeats, [services.Beat(host="older", binary=AGENT_BINARY, version=4)])
    peers = cell_peers(cell.read, {})

    assert [peers(compute.TOPIC, host) for host in ("old", "new", "older", "unheard-of")] == [V1_0, SPAN.newest, V1_0, SPAN.newest]


def test_what_is_pinned_is_written(cell: Database) -> None:
    introduce(cell, "new", NEW)
    assert cell_peers(cell.read, {"compute": V1_0})(compute.TOPIC, "new") == V1_0
    assert cell_peers(cell.read, {"scheduler": V1_0})(compute.TOPIC, "new") == SPAN.newest


def test_known_records_serve_while_they_are_reread(cell: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    down = False

    def read(fn: object) -> releases.Known:
        if down:
            raise errors.DatabaseUnavailable("it is down")
        return cell.read(fn)  # type: ignore[arg-type]  # of the type that it is given

    monkeypatch.setattr(releases, "REFRESH_S", 0.0)
    peers = cell_peers(read, {})
    introduce(cell, "h1", "1.0")
    assert peers(compute.TOPIC, "h1") == V1_0
    introduce(cell, "h1", NEW)
    assert peers(compute.TOPIC, "h1") == SPAN.newest
    down = True
    assert peers(compute.TOPIC, "h1") == SPAN.newest
    with pytest.raises(errors.DatabaseUnavailable):
        cell_peers(read, {})(compute.TOPIC, "h1")


def test_a_process_refuses_to_start_beside_older_ones(api: Database) -> None:
    show(api, "api", SCHEDULER_BINARY, "0.8-0.9", host="old-1")
    show(api, "api", CONDUCTOR_BINARY, "1.0", host="fine")
    with pytest.raises(errors.Misconfigured, match=r"scheduler on old-1 \(0\.8-0\.9\); they are too old: upgrade them"):
        api.read(releases.check_api_level)


def test_a_process_says_that_it_is_too_old(api: Database) -> None:
    show(api, "api", SCHEDULER_BINARY, "7.0-7.3", host="new-1")
    with pytest.raises(errors.Misconfigured, match=r"on new-1 \(7\.0-7\.3\); this process is too old: upgrade it"):
        api.read(releases.check_api_level)


def test_a_finalized_later_release_prevents_a_start(api: Database) -> None:
    api.read(releases.check_api_level)
    api.write(finalized.write, MessagesVersion(1, 99), "9.0")
    with pytest.raises(errors.Misconfigured, match=r"the upgrade to 1\.99 was finalized: upgrade it"):
        api.read(releases.check_api_level)


def test_who_is_long_dead_holds_nobody_up(cell: Database) -> None:
    show(cell, "cell", CONDUCTOR_BINARY, "0.9")
    cell.write(services.record_heartbeats, [services.Beat(host="h1", binary=AGENT_BINARY)], 1.0)
    with pytest.raises(errors.Misconfigured, match="superconductor-conductor on h1"):
        cell.read(releases.check_cell)
    cell.write(processes.forget_dead, "cell", -LIVE_S)
    cell.read(releases.check_cell)


def test_a_cells_conductor_names_agents_too(cell: Database) -> None:
    introduce(cell, "h7", "0.9")
    with pytest.raises(errors.Misconfigured, match=r"superconductor-compute on h7 \(0\.9\)"):
        cell.read(releases.check_cell)
    cell.write(services.set_forced_down, "h7", AGENT_BINARY, True, 1.0)
    cell.read(releases.check_cell)


def test_an_agent_without_known_messages_is_not_introduced() -> None:
    with pytest.raises(errors.Misconfigured, match=r"on h1 \(0\.9\); they are too old"):
        releases.check_agent("h1", "0.9")
    releases.check_agent("h1", "1.0")


def test_a_new_deployment_has_nothing_to_finalize(api: Database) -> None:
    assert api.read(finalized.read) == SPAN.newest
    api.write(finalized.write, MessagesVersion(1, 5), "2")
    api.write(finalized.write, MessagesVersion(1, 5), "2")
    assert api.read(finalized.read) == MessagesVersion(1, 5)
