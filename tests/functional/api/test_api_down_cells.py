"""A cell that does not answer: its servers stay in lists and shows, which say since when they are not known."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import falcon
import falcon.testing
import msgspec
import pytest

from api.http.microversions import Microversion
from api.lookup import server_view
from api.lookup.hosts import HostWatch
from api.lookup.silence import Silences
from api.opts import ApiSettings
from api.servers.handlers import Servers
from cells.registry import CellRegistry, RegistrySettings
from conductor.apply import Applier
from conductor.silence import SilenceWatch
from db.api.deployment import cell_mappings, silences
from db.api.deployment.silences import Silence
from db.api.projects import quotas
from db.api.servers import mappings
from db.cell import feed
from db.sql.counting import StatementCounter
from objects import errors
from objects.cell import UNKNOWN_CELLS_HEADER, CellMapping, CellState
from tests.support.api import CELL1_UUID, NEWEST, OTHER_TENANT, TENANT, Front
from tests.support.callers import call

SINCE = 1_700_000_000.0
FAR_UUID = "22222222-2222-4222-8222-222222222222"


class Conductor:
    """Another process, which follows the cells of ``front``."""

    def __init__(self, front: Front) -> None:
        self.front = front
        self.registry = CellRegistry(front.database, RegistrySettings())
        self.watch = SilenceWatch(front.database, self.registry)
        self.applier = Applier(front.ledger, self.registry.get(CELL1_UUID))

    def follow(self) -> None:
        """Read the feed to its end, or find that it cannot be read; then look."""
        try:
            while self.applier.apply_page():
                pass
        except errors.CellUnavailable:
            pass
        self.watch.run_round()

    @property
    def noted(self) -> dict[str, float]:
        return {each.cell_uuid: each.since for each in self.front.database.read(silences.read)}


@pytest.fixture
def conductor(front: Front) -> Iterator[Conductor]:
    made = Conductor(front)
    yield made
    made.registry.close()


class Cut:
    """The database of cell1 goes away, and comes back as it was."""

    def __init__(self, front: Front, path: Path) -> None:
        self._front = front
        self._path = path

    def off(self, *registries: CellRegistry) -> None:
        for registry in (self._front.registry, *registries):
            registry.get(CELL1_UUID).database.dispose_connections()  # the last connection folds the log into the file
        os.rename(self._path / "cell1.db", self._path / "away.db")

    def on(self) -> None:
        os.rename(self._path / "away.db", self._path / "cell1.db")


@pytest.fixture
def cut(front: Front, tmp_path: Path) -> Cut:
    return Cut(front, tmp_path)


def running(front: Front, name: str = "web", headers: dict[str, str] | None = None) -> str:
    uuid = front.boot(name, headers)
    front.hand_over("h1", zone="north")
    front.activate(uuid)
    front.follow_feed()
    return uuid


def test_lists_show_findings_of_conductors_about_silent_cells(front: Front, conductor: Conductor, cut: Cut) -> None:
    """By every process of the API, without asking the cell; what happened meanwhile is in the summaries before."""
    uuid = running(front, headers=TENANT)
    waiting = front.boot("waiting", headers=TENANT)
    conductor.follow()
    assert UNKNOWN_CELLS_HEADER not in front.get("/v2.1/servers", TENANT).headers
    front.hand_over()
    cut.off(conductor.registry)
    before = time.time()
    conductor.follow()
    listed = front.get("/v2.1/servers/detail", TENANT)
    assert {s["id"]: s["status"] for s in listed.json["servers"]} == {uuid: "ACTIVE", waiting: "BUILD"}
    assert listed.json["servers"][1]["OS-EXT-AZ:availability_zone"] == "north"
    assert before - 2 < conductor.noted[CELL1_UUID] <= time.time()
    assert listed.headers[UNKNOWN_CELLS_HEADER] == f"*;since={server_view.format_iso(conductor.noted[CELL1_UUID])}"
    assert front.get("/v2.1/servers", all_tenants="1").headers[UNKNOWN_CELLS_HEADER].startswith("cell1;since=20")
    assert UNKNOWN_CELLS_HEADER not in front.get("/v2.1/servers", OTHER_TENANT).headers, "they have none there"
    since = conductor.noted
    conductor.follow()
    assert conductor.noted == since, "it began when it did"
    cut.on()
    front.activate(waiting)
    conductor.watch.run_round()
    assert conductor.noted == since, "it answers again, and has not been followed yet"
    conductor.follow()
    assert conductor.noted == {}
    listed = front.get("/v2.1/servers/detail", TENANT)
    assert {s["id"]: s["status"] for s in listed.json["servers"]} == {uuid: "ACTIVE", waiting: "ACTIVE"}


def test_a_starting_conductor_preserves_notes_on_silent_cells(front: Front, conductor: Conductor, cut: Cut) -> None:
    """It has not asked the cell yet, so it asks before it takes anything back."""
    front.database.write(silences.begin_silences, [Silence(cell_uuid=CELL1_UUID, since=SINCE, reason="r")])
    cut.off(conductor.registry)
    conductor.watch.run_round()
    conductor.follow()
    assert conductor.noted == {CELL1_UUID: SINCE}


def test_a_conductor_waits_for_the_returning_cells_feed(front: Front, conductor: Conductor) -> None:
    """Whoever noted it may be gone by then."""
    uuid = front.boot()
    front.hand_over()
    front.activate(uuid)
    front.database.write(silences.begin_silences, [Silence(cell_uuid=CELL1_UUID, since=SINCE, reason="r")])
    conductor.watch.run_round()
    assert conductor.noted == {CELL1_UUID: SINCE}
    conductor.follow()
    assert conductor.noted == {}


def test_missing_and_unusable_cells_are_noted(front: Front, conductor: Conductor) -> None:
    """A URL may be malformed since before it was checked."""
    mapping = CellMapping(uuid=FAR_UUID, name="far", database_url="nonsense", transport_url="none:///")
    front.database.write(cell_mappings.create, mapping)
    conductor.registry.refresh_cells()
    conductor.watch.run_round()
    assert conductor.noted.keys() == {FAR_UUID}
    front.database.write(cell_mappings.delete, FAR_UUID)
    conductor.registry.refresh_cells()
    conductor.watch.run_round()
    assert conductor.noted == {}


def test_looking_costs_one_statement_while_all_is_well(front: Front, conductor: Conductor) -> None:
    """And writes nothing."""
    conductor.follow()
    with StatementCounter() as counter:
        conductor.watch.run_round()
    asked = [database for database, text in counter.count_by_statement() if "epochs" not in text]  # these go by the clock
    assert asked == ["api"]


def test_a_show_says_since_when_cells_are_silent(front: Front, conductor: Conductor, cut: Cut) -> None:
    """As conductors have noted it, or as this process has met it."""
    uuid = running(front)
    cut.off()
    own = front.get(f"/v2.1/servers/{uuid}")
    assert (own.status_code, own.json["server"]["status"]) == (200, "ACTIVE")
    assert own.headers[UNKNOWN_CELLS_HEADER].startswith("cell1;since=")
    assert UNKNOWN_CELLS_HEADER in front.get("/v2.1/servers").headers, "what it met there it tells in lists too"
    front.database.write(silences.begin_silences, [Silence(cell_uuid=CELL1_UUID, since=SINCE, reason="r")])
    assert front.get(f"/v2.1/servers/{uuid}").headers[UNKNOWN_CELLS_HEADER] == "cell1;since=2023-11-14T22:13:20Z"
    front.boot("elsewhere")
    assert UNKNOWN_CELLS_HEADER not in front.get(f"/v2.1/servers/{front.uuids()[-1]}").headers


def test_lists_may_be_told_to_fail_instead(tmp_path: Path) -> None:
    """With the peer's words, and the cell's name for administrators only."""
    front = Front(tmp_path, ApiSettings(list_records_by_skipping_down_cells=False))
    running(front, headers=TENANT)
    assert front.get("/v2.1/servers", TENANT).status_code == 200
    front.database.write(silences.begin_silences, [Silence(cell_uuid=CELL1_UUID, since=SINCE, reason="r")])
    tenant, admin = front.get("/v2.1/servers", TENANT), front.get("/v2.1/servers/detail", all_tenants="1")
    words = "is not responding but configuration indicates that we should fail."
    assert (tenant.status_code, tenant.json["computeFault"]["message"]) == (500, f"A cell {words}")
    assert (admin.status_code, admin.json["computeFault"]["message"]) == (500, f"Cell cell1 {words}")
    assert front.get("/v2.1/servers", OTHER_TENANT).status_code == 200
    front.close()


def test_silent_cells_servers_are_unknown_from_2_69(front: Front) -> None:
    """With the keys that the Compute API has for them, and no others; the order and the pages are those of any list."""
    uuid = running(front)
    waiting = front.boot("waiting")
    front.database.write(silences.begin_silences, [Silence(cell_uuid=CELL1_UUID, since=SINCE, reason="r")])

    def listed(handler: str, version: tuple[int, int]) -> list[dict[str, object]]:
        request, response = falcon.testing.create_req(path="/v2.1/servers"), falcon.Response()
        request.context.call = call(version, project="admin")
        servers = Servers(front.settings, front.database, None, None, Silences(front.registry))  # type: ignore[arg-type]  # not used here
        getattr(servers, handler)(request, response)
        return list(msgspec.json.decode(response.data or b"")["servers"])

    first, second = listed("on_get", Microversion.DOWN_CELLS.value)
    assert (first["id"], first["name"]) == (waiting, "waiting")
    assert (second["id"], second["status"], set(second)) == (uuid, "UNKNOWN", {"id", "status", "links"})
    assert listed("on_get", (2, 15))[1]["name"] == "web"
    asked = call(Microversion.DOWN_CELLS.value, project="admin")
    server = front.database.read(mappings.get, uuid)
    assert server is not None
    common = {"id", "status", "links", "tenant_id", "created"}
    assert set(server_view.down_document(server, asked)) == common
    spec = front.database.read(mappings.specs_by_batch, [server.batch_id])[server.batch_id]
    alone = server_view.down_document(server, asked, spec)
    assert set(alone) == common | {"user_id", "image", "flavor", "OS-EXT-AZ:availability_zone", "OS-EXT-STS:power_state"}
    assert (alone["status"], alone["OS-EXT-AZ:availability_zone"], alone["OS-EXT-STS:power_state"]) == ("UNKNOWN", "north", 0)


def test_quota_stays_right_while_a_cell_is_silent(front: Front, conductor: Conductor, cut: Cut) -> None:
    """A server deleted then counts no more, is gone from lists, and stays so when its cell says that it has become ACTIVE."""
    deleted, kept = front.boot("deleted", TENANT), front.boot("kept", TENANT)
    front.hand_over()
    conductor.follow()

    def used() -> int:
        return front.database.read(quotas.get, "p1").used.instances

    assert used() == 2
    front.activate(deleted)
    front.activate(kept)
    cut.off(conductor.registry)
    conductor.follow()
    assert front.delete(deleted, TENANT).status_code == 204
    assert used() == 1
    assert front.get(f"/v2.1/servers/{deleted}", TENANT).status_code == 404
    assert [s["id"] for s in front.get("/v2.1/servers", TENANT).json["servers"]] == [kept]
    assert front.boot("another", TENANT) in {s["id"] for s in front.get("/v2.1/servers", TENANT).json["servers"]}
    assert used() == 2
    cut.on()
    conductor.follow()
    assert used() == 2
    assert front.get(f"/v2.1/servers/{deleted}", TENANT).status_code == 404
    statuses = {s["name"]: s["status"] for s in front.get("/v2.1/servers/detail", TENANT | NEWEST).json["servers"]}
    assert statuses == {"kept": "ACTIVE", "another": "BUILD"}


def test_a_cell_away_beyond_its_feed_is_reread(front: Front, conductor: Conductor, cut: Cut) -> None:
    """And is known again after that."""
    uuids = [front.boot(), front.boot()]
    front.hand_over()
    conductor.follow()
    front.activate(uuids[0])
    cut.off(conductor.registry)
    conductor.follow()
    assert front.delete(uuids[0]).status_code == 204
    cut.on()
    front.activate(uuids[1])
    assert front.cell.write(feed.trim_events, time.time() + 60) > 0
    conductor.follow()
    assert conductor.noted == {}
    assert [(s["id"], s["status"]) for s in front.get("/v2.1/servers/detail").json["servers"]] == [(uuids[1], "ACTIVE")]


def test_the_wait_for_host_states_is_bounded(front: Front) -> None:
    """A server that takes connections and never answers costs its own cell's part of the answer, and no more."""
    front.heartbeat("h1")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"mysql+pymysql://root@127.0.0.1:{listener.getsockname()[1]}/cell?connect_timeout=60"
        mapping = CellMapping(uuid=FAR_UUID, name="far", database_url=url, transport_url="embedded://far/")
        front.database.write(cell_mappings.create, mapping)
        front.registry.refresh_cells()
        views = {view.cell_uuid: view for view in HostWatch(front.registry, 60.0, patience=3.0).list_views()}
    assert views[FAR_UUID].silent == "cell 'far': its database gave no answer within 3 s"
    assert views[CELL1_UUID].agents.keys() == {"h1"}


def test_a_disabled_cell_is_not_silent(front: Front, conductor: Conductor) -> None:
    """Its servers go on, and are known."""
    mapping = front.database.read(cell_mappings.get, CELL1_UUID)
    front.database.write(cell_mappings.update_mapping, msgspec.structs.replace(mapping, state=CellState.DISABLED))
    conductor.registry.refresh_cells()
    conductor.follow()
    assert conductor.noted == {}
