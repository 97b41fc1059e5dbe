"""A cell that is lost for good is removed: whatever the API level held of it ends, goes elsewhere or is given back, once."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

import pytest
import sqlalchemy as sa

from cells import removal
from cells.administration import CellChange, change_cell, delete_cell, find_cell
from cells.removal import LOST, RemovalEntry, remove_cell
from compute.simulated import METADATA_KEY
from conductor.apply import Applier
from conductor.delete import Deleter
from conductor.tidy import reap_claims
from db.api.claims.claims import Ledger
from db.api.deployment import aggregates
from db.api.deployment.cell_mappings import HasServers, UnfinishedWork
from db.api.projects import quotas
from db.api.reconcile import cell_removal, events
from db.api.rows import tables as api
from db.api.servers import mappings
from db.cell import compute_nodes
from db.sql.connection import Connection
from db.sql.engine import Database
from objects import errors
from objects.cell import CellMapping, CellState
from objects.instance import Server
from service.periodic import wait_until
from tests.support import fleet
from tests.support.cell_databases import Cells
from tests.support.conductor_process import Conductor, FaultyDatabase
from tests.support.databases import MARIADB, POSTGRESQL, scratch_url
from tests.support.ground import GROUNDS
from tests.support.region import host, region
from tests.support.world import PATIENCE, World, world_fixture

SMALL = fleet.flavor(vcpus=1, memory_mb=256, root_gb=0)
DEAD = "cell1"
EMPTY = Server(uuid="", batch_id="", project_id="", user_id="", name="", state="", created_at=0.0, updated_at=0.0)


cloud = world_fixture({DEAD: ["a1", "a2"], "cell2": ["b1"]}, GROUNDS, embedded=True)


@pytest.fixture
def conductor(cloud: World) -> Conductor:
    return cloud.conductor("one")


def mapping(cloud: World) -> CellMapping:
    return find_cell(cloud.api, DEAD)


def live_in(cloud: World, conductor: Conductor) -> dict[str, str]:
    """A server of each kind in the cell that is about to die, or on its way there, by what it is."""
    made = {}
    for name, step in (("building", "handed over"), ("active", "handed over"), ("deleting", "handed over"), ("claimed", "claimed")):
        [made[name]] = conductor.drive(cloud.accept(force_hosts=("a1",), size=SMALL), upto=step).uuids
    cloud.api.write(_become, made["active"], "active")
    assert cloud.delete(made["deleting"]) is not None
    # this one may go anywhere, and is on a host of the cell by chance of the drill
    free = conductor.lease(cloud.accept(size=SMALL).batch_id)
    free.claim(excluded_cells=(conductor.cell("cell2").uuid,))
    [made["free"]] = free.uuids
    return made


def _become(tx: Connection, uuid: str, state: str) -> None:
    tx.execute(sa.update(api.instance_mappings).where(api.instance_mappings.c.instance_uuid == uuid).values(state=state))


def left(cloud: World, cell_uuid: str) -> dict[str, int]:
    """Rows of the API database that speak of the cell, or of its hosts."""

    def count(tx: Connection) -> dict[str, int]:
        tables = {t.name: t.c.cell_uuid == cell_uuid for t in (api.host_mappings, api.inventories, api.feed_cursors)}
        tables |= {"cell_mappings": api.cell_mappings.c.uuid == cell_uuid, "aggregate_hosts": api.aggregate_hosts.c.host.like("a%")}
        found = {n: tx.execute(sa.select(sa.func.count()).select_from(api.metadata.tables[n]).where(c)) for n, c in tables.items()}
        return {name: number for name, rows in found.items() if (number := rows.scalar_one())}

    return cloud.api.read(count)


def told(account: list[RemovalEntry]) -> dict[tuple[str, str], str]:
    return {(entry.kind, entry.id): entry.outcome for entry in account}


def test_every_server_ends_or_moves_on_removal(cloud: World, conductor: Conductor) -> None:
    made = live_in(cloud, conductor)
    aggregate = cloud.api.write(aggregates.create, "fast")
    cloud.api.write(aggregates.add_host, aggregate.id, "a1")
    dead, ledger = mapping(cloud), Ledger(cloud.api, "operator")
    wanted = {
        ("server", made["building"]): "ended in ERROR",
        ("server", made["active"]): "deleted",
        ("server", made["deleting"]): "its delete is confirmed",
        ("build", made["claimed"]): "sent elsewhere",
        ("build", made["free"]): "sent elsewhere",
        ("host", "a1"): "forgotten, also in fast",
        ("host", "a2"): "forgotten",
        ("quota", "p"): "freed",
    }
    before = cloud.evidence()
    planned = remove_cell(ledger, dead, dead=True, dry_run=True)
    assert told(planned) == wanted
    assert cloud.evidence() == before, "a dry run changes nothing"
    account = remove_cell(ledger, dead, dead=True)
    assert account == planned
    [quota] = [entry for entry in account if entry.kind == "quota"]
    assert quota.amounts == "1 servers, 1 cores, 256 MiB"
    assert left(cloud, dead.uuid) == {}
    assert cloud.evidence().claims == {}
    states = {name: cloud.mapped(uuid).state for name, uuid in made.items()}
    assert states == {"building": "error", "active": "deleted", "deleting": "deleted", "claimed": "building", "free": "building"}
    assert cloud.api.read(quotas.get, "p").used.instances == 3, "what waits and what ended in ERROR counts"
    assert cloud.evidence().drifts == ()


def test_pending_builds_move_or_are_buried(cloud: World, conductor: Conductor) -> None:
    driven = conductor.drive(cloud.accept(size=SMALL), upto="leased")
    driven.claim(excluded_cells=(conductor.cell("cell2").uuid,))
    driven.stage()
    [stuck] = conductor.drive(cloud.accept(force_hosts=("a2",), size=SMALL), upto="claimed").uuids
    cloud.databases[DEAD].away = True
    remove_cell(Ledger(cloud.api, "operator"), mapping(cloud), dead=True)
    assert driven.hand_over() == [], "it was paused over the removal"
    cloud.start_conductor()
    [uuid] = driven.uuids
    assert wait_until(lambda: None not in (cloud.mapped(uuid).cell_uuid, cloud.mapped(stuck).cell_uuid), PATIENCE)
    assert cloud.mapped(uuid).host == "b1"
    assert cloud.mapped(stuck).state == "error", "it was forced to a host of the cell"
    cloud.databases[DEAD].away = False
    assert set(cloud.evidence().claims) == {uuid}


def test_interrupted_anywhere_it_is_completed_by_another_one(cloud: World, conductor: Conductor) -> None:
    made = live_in(cloud, conductor)
    broken = FaultyDatabase(cloud.folder.database_url("api"))
    cloud.closing.databases.append(broken.dispose_connections)
    writes = 0
    while True:
        writes += 1
        broken.refuse_write = writes
        try:
            account = remove_cell(Ledger(broken, "operator"), find_cell(broken, DEAD), dead=True)
        except errors.DatabaseUnavailable:
            assert find_cell(cloud.api, DEAD), "it is there to be named again"
            continue
        break
    assert writes > 4
    outcomes = told(account)
    assert outcomes["server", made["building"]] == "ended in ERROR"
    assert outcomes["server", made["active"]] == "deleted", "the account is whole although that was done before"
    assert cloud.evidence().claims == {}
    assert cloud.evidence().drifts == ()


def test_an_answering_cell_with_servers_is_not_removed(cloud: World, conductor: Conductor) -> None:
    [uuid] = conductor.drive(cloud.accept(force_hosts=("a1",), size=SMALL), upto="handed over").uuids
    cell = conductor.cell(DEAD)
    assert removal.silence_of(cell) is None
    with pytest.raises(errors.Conflict, match="answers, and 1 servers and 0 other claims are there"):
        remove_cell(Ledger(cloud.api, "operator"), mapping(cloud), dead=False)
    assert cloud.mapped(uuid).state == "building"
    conductor.databases[DEAD].away = True
    assert "the test pulled the cable" in (removal.silence_of(cell) or "")
    empty = find_cell(cloud.api, "cell2")
    assert told(remove_cell(Ledger(cloud.api, "operator"), empty, dead=False)) == {("host", "b1"): "forgotten"}


def test_late_arrivals_are_seen_in_the_last_transaction(cloud: World, conductor: Conductor) -> None:
    dead = mapping(cloud)
    late = conductor.drive(cloud.accept(force_hosts=("a1",), size=SMALL), upto="staged")
    with pytest.raises(errors.Conflict, match="has room claimed for 1 servers"):
        cloud.api.write(cell_removal.forget_cell, dead.uuid)
    assert left(cloud, dead.uuid)["inventories"] == 2, "nothing was half done"
    assert late.hand_over() == late.uuids
    account = remove_cell(Ledger(cloud.api, "operator"), dead, dead=True)
    assert told(account)["server", late.uuids[0]] == "ended in ERROR"


def test_a_late_delete_succeeds_without_the_cell(cloud: World, conductor: Conductor) -> None:
    [uuid] = conductor.drive(cloud.accept(force_hosts=("a1",), size=SMALL), upto="handed over").uuids
    remove_cell(Ledger(cloud.api, "operator"), mapping(cloud), dead=True)
    [server] = [server for server in cloud.evidence().servers if server.uuid == uuid]
    assert (server.state, server.fault) == ("error", LOST)
    assert cloud.delete(uuid) is not None
    Deleter(cloud.api, conductor.registry).run_round()
    assert cloud.mapped(uuid).state == "deleted"
    assert cloud.evidence().drifts == ()


def test_a_cell_that_comes_back_afterwards_changes_nothing(cloud: World, conductor: Conductor) -> None:
    [uuid] = conductor.drive(cloud.accept(force_hosts=("a1",), size=SMALL), upto="handed over").uuids
    dead = mapping(cloud)
    cursor = cloud.api.write(events.lock_cursor, dead.uuid)
    remove_cell(Ledger(cloud.api, "operator"), dead, dead=True)
    position = events.FeedPosition(cell_uuid=dead.uuid, cursor=cursor, upto=cursor + 1)
    with pytest.raises(errors.Conflict):
        conductor.ledger.write(events.apply_page, position, [])
    reap_claims(cloud.api, conductor.ledger)
    assert cloud.mapped(uuid).state == "error"


def test_a_plain_delete_waits_for_deletes_and_claims(cloud: World, conductor: Conductor) -> None:
    dead = mapping(cloud)
    driven = conductor.drive(cloud.accept(force_hosts=("a1",), size=SMALL), upto="claimed")
    refused = [("still has 2 hosts", False), ("room claimed for 1 servers", True)]
    for text, with_hosts in refused:
        with pytest.raises(errors.Conflict, match=text):
            delete_cell(cloud.api, DEAD, with_hosts=with_hosts)
    driven.stage()
    [uuid] = driven.hand_over()
    cloud.keeper.ledger.write(cell_removal.fail_builds, dead.uuid, [uuid], "no disk", 1.0)
    with pytest.raises(errors.Conflict, match="still has 1 servers"):
        delete_cell(cloud.api, DEAD, with_hosts=True)
    assert cloud.delete(uuid) is not None
    with pytest.raises(errors.Conflict, match="has not confirmed 1 deletes yet"):
        delete_cell(cloud.api, DEAD, with_hosts=True)
    cloud.keeper.ledger.write(cell_removal.confirm_deletes, dead.uuid, [uuid], 1.0)
    delete_cell(cloud.api, DEAD, with_hosts=True)
    assert left(cloud, dead.uuid) == {}


@pytest.mark.parametrize("state", [CellState.ENABLED, CellState.DISABLED, CellState.DRAINING])
def test_a_plain_delete_says_the_necessary_steps(cloud: World, conductor: Conductor, state: CellState) -> None:
    driven = conductor.drive(cloud.accept(force_hosts=("a1",), size=SMALL), upto="claimed")
    change_cell(cloud.api, DEAD, CellChange(state=state))
    first = "disable it, and" if state is CellState.ENABLED else f"it is {state} and takes no more, so"
    with pytest.raises(UnfinishedWork, match=f"still has room claimed for 1 servers: {first} wait until their builds"):
        delete_cell(cloud.api, DEAD, with_hosts=True)
    driven.stage()
    [uuid] = driven.hand_over()
    with pytest.raises(HasServers, match="still has 1 servers: delete them first"):
        delete_cell(cloud.api, DEAD, with_hosts=True)
    assert cloud.delete(uuid) is not None
    with pytest.raises(UnfinishedWork, match="has not confirmed 1 deletes yet: wait until their guests are gone"):
        delete_cell(cloud.api, DEAD, with_hosts=True)


def test_a_process_unaware_of_the_delete_applies_nothing(cloud: World, conductor: Conductor) -> None:
    """Neither one that has read its feed before, nor one that begins to. The cell's agents go on reporting."""
    dead, cell = mapping(cloud), conductor.cell(DEAD)
    appliers = [Applier(conductor.ledger, cell) for _ in range(2)]
    appliers[0].map_hosts(frozenset({"a1", "a2"}))
    delete_cell(cloud.api, DEAD, with_hosts=True)
    cloud.databases[DEAD].write(compute_nodes.store_node, fleet.node("a1", vcpus=5), 1.0)
    for applier in appliers * 2:
        with pytest.raises(errors.Conflict):
            applier.apply_page()
        with pytest.raises(errors.Conflict):
            applier.map_hosts(frozenset({"a1"}))
    assert left(cloud, dead.uuid) == {}


@pytest.mark.parametrize(
    ("server", "login", "gone"),
    [(MARIADB, "nobody:secret", False), (MARIADB, None, True), (POSTGRESQL, "nobody:secret", False), (POSTGRESQL, None, True)],
)
def test_a_server_refusing_logins_is_alive(tmp_path: Path, server: str, login: str | None, gone: bool) -> None:
    with scratch_url(server) as url:
        parts = urlsplit(url)
        netloc = parts.netloc if login is None else f"{login}@{parts.netloc.rpartition('@')[2]}"
        lost = parts._replace(netloc=netloc, path=f"{parts.path}_gone" if gone else parts.path).geturl()
        cells = Cells(tmp_path)
        east = cells.add_unreachable("east", lost)
        with cells.registry() as registry:
            if gone:
                assert "cell 'east'" in (removal.silence_of(registry.get(east.uuid)) or "")
                return
            with pytest.raises(errors.Conflict, match="its server is alive") as caught:
                removal.silence_of(registry.get(east.uuid))
            assert "secret" not in str(caught.value)


def test_users_see_and_delete_their_lost_builds(tmp_path: Path) -> None:
    with region(tmp_path, [host("a1", "cell1"), host("b1", "cell2")]) as deployment:
        uuid = deployment.boot("slow", metadata={METADATA_KEY: "hang"})
        database = Database(deployment.folder.database_url("api"))
        assert wait_until(lambda: (database.read(mappings.get, uuid) or EMPTY).cell_uuid is not None, PATIENCE)
        home = find_cell(database, (database.read(mappings.get, uuid) or EMPTY).cell_uuid or "")
        remove_cell(Ledger(database, "operator"), home, dead=True)
        server = deployment.wait_for(uuid, "ERROR")
        assert server["fault"]["message"] == LOST
        assert deployment.delete(uuid) == 204
        assert deployment.show(uuid) is None
        assert wait_until(lambda: (database.read(mappings.get, uuid) or EMPTY).state == "deleted", PATIENCE)
        assert deployment.boot("next")
        database.dispose_connections()
