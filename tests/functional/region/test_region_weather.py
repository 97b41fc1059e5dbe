"""Bad weather is normal: lost doorbells, unmapped hosts, cells that cannot be reached, and a restart in the middle."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from cli.standalone.all_in_one import StateFolder
from compute.simulated import METADATA_KEY
from db.api.deployment import host_mappings
from db.sql.engine import Database
from objects import errors
from service.periodic import wait_until
from tests.support.ground import USUAL
from tests.support.region import host, region

HOSTS = [host(f"{cell}-h{n}", cell) for cell in ("cell1", "cell2") for n in range(2)]


def test_boots_wait_for_hosts_not_yet_mapped(tmp_path: Path) -> None:
    """Which they are by themselves, a moment after they were first heard of."""
    with region(tmp_path, HOSTS, discover=False) as cloud:
        cloud.wait_for(cloud.boot(), "ACTIVE")
        cloud.settle()


@pytest.mark.parametrize("ground", USUAL)
def test_a_host_losing_its_mapping_gets_nothing_more(tmp_path: Path, ground: str) -> None:
    """The scheduler's table is a moment old: the transaction that claims finds out."""
    with region(tmp_path, HOSTS, on=ground) as cloud:
        cloud.all.scheduler.freshness.stop()  # it goes on with what it knew
        database = Database(cloud.folder.database_url("api"))
        database.write(host_mappings.delete, "cell1-h0")
        database.dispose_connections()
        cloud.boot("web", count=8)
        assert wait_until(lambda: {s["status"] for s in cloud.named("^web-")} == {"ACTIVE"}, 90.0)
        evidence = cloud.settle()
        assert len(evidence.claims) == 8
        assert "cell1-h0" not in set(evidence.claims.values())


def test_a_second_process_cannot_take_the_folder(tmp_path: Path) -> None:
    folder = StateFolder(tmp_path)
    with pytest.raises(errors.Conflict, match="in use by process"):
        StateFolder(tmp_path)
    folder.release_lock()
    StateFolder(tmp_path).release_lock()


@pytest.mark.parametrize("ground", USUAL)
def test_a_restart_goes_on_with_what_was_building(tmp_path: Path, ground: str) -> None:
    with region(tmp_path, HOSTS, on=ground) as cloud:
        uuids = [cloud.boot(f"web-{n}") for n in range(6)]
        uuids.append(cloud.boot("slow", metadata={METADATA_KEY: "hang"}))
        cloud.restart()
        for uuid in uuids[:-1]:
            cloud.wait_for(uuid, "ACTIVE")
        cloud.wait_for(uuids[-1], "ERROR")
        cloud.settle()


def test_a_cells_dead_bus_delays_no_other(tmp_path: Path) -> None:
    """A third cell with a broker that nobody runs: it has no agents, so nothing is placed there, and nothing waits for it."""
    with region(tmp_path, HOSTS) as cloud:
        cloud.commands.run(
            *("cell", "create", "dark", "--database-connection", cloud.folder.database_url("dark")),
            *("--transport-url", "rabbit://guest:guest@127.0.0.1:1/", "--no-check"),
        )
        uuids = [cloud.boot(f"web-{n}") for n in range(8)]
        for uuid in uuids:
            cloud.wait_for(uuid, "ACTIVE")


def test_a_cells_lost_database_sends_builds_elsewhere(tmp_path: Path) -> None:
    with region(tmp_path, HOSTS) as cloud:
        broken = cloud.registry.of_host("cell2-h0")
        path = tmp_path / "cell2.db"
        cloud.wait_for(cloud.boot("first"), "ACTIVE")
        broken.database.dispose_connections()
        for suffix in ("", "-wal", "-shm"):
            (tmp_path / f"cell2.db{suffix}").unlink(missing_ok=True)
        path.mkdir()  # a folder where the file was: it can neither be opened nor made
        broken.database.dispose_connections()
        uuids = [cloud.boot(f"web-{n}") for n in range(6)]
        for uuid in uuids:
            assert cloud.wait_for(uuid, "ACTIVE")["OS-EXT-SRV-ATTR:host"].startswith("cell1")


def test_a_stalled_cell_database_is_abandoned_builds_succeed(tmp_path: Path) -> None:
    """Another process holds the write lock of cell2's file, so every write there waits and none is refused."""
    with region(tmp_path, HOSTS) as cloud:
        cloud.wait_for(cloud.boot("first"), "ACTIVE")
        holder = sqlite3.connect(tmp_path / "cell2.db", isolation_level=None)
        holder.execute("BEGIN IMMEDIATE")
        try:
            uuids = [cloud.boot(f"web-{n}") for n in range(12)]
            assert wait_until(
                lambda: sum(s["OS-EXT-STS:vm_state"] == "active" for s in cloud.named("^web-")) >= 6, 60, pause=0.2
            ), "the cell that is well builds what it can while the other one stalls"
        finally:
            holder.execute("ROLLBACK")
            holder.close()
        for uuid in uuids:
            cloud.wait_for(uuid, "ACTIVE", timeout=60)
        cloud.settle()
