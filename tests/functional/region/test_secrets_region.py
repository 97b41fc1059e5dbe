"""A whole region with every word of its logs: what was given in confidence reaches the guests, and no file holds it readable."""

from __future__ import annotations

import base64
import hashlib
import logging
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from api.opts import ApiSettings
from cli.standalone import key_file
from cli.standalone.all_in_one import AllInOne, SimulatedHost, StateFolder
from compute.journal import Received, read_entries, received_by
from compute.simulated import METADATA_KEY, journal_path
from db.api.rows.tables import request_secrets
from db.cell.tables import build_secrets
from db.sql.connection import Connection
from db.sql.engine import Database
from service import config, logs
from service.periodic import wait_until
from tests.support.region import PACE, Region, region

USER_DATA = base64.b64encode(b"#cloud-config: marked-hunter2 " * 40).decode()
PASSWORD = "marked-Tr0ub4dor"
MARKS = [
    b"marked-hunter2",
    b"marked-Tr0ub4dor",
    *(base64.b64encode(b"#cloud-config: marked-hunter2 " * 2)[4:60],),
    *(base64.b64encode(b" " * shift + PASSWORD.encode())[4:20] for shift in range(3)),
    *(base64.b64encode(b" " * shift + USER_DATA.encode()[:40])[4:40] for shift in range(3)),
]
"""Both secrets as they are, what is inside the user data, and both once more in base64, at any position."""

HOSTS = [SimulatedHost(name=f"{cell}-h{n}", cell=cell, spawn_delay=(0.8, 0.8)) for cell in ("cell1", "cell2") for n in range(2)]


@pytest.fixture
def logged(tmp_path: Path) -> Iterator[Path]:
    """Every record of every logger that debugging turns on, in the state folder."""
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    path = tmp_path / "superconductor.log"
    logs.setup(config.load_options([], files=[], overrides={"log_file": str(path), "debug": True}))
    yield path
    root.handlers[:] = handlers
    root.setLevel(level)


def found(folder: Path) -> dict[str, list[bytes]]:
    """The marks in each file below the folder that holds any."""
    hits = {}
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        content = path.read_bytes()
        if marks := [mark for mark in MARKS if mark in content]:
            hits[path.name] = marks
    return hits


def sealed(cloud: Region) -> dict[str, int]:
    """How many sealed rows each database has, of those that have some."""
    counts = {}
    for name in ("api", "cell0", "cell1", "cell2"):
        table = request_secrets if name == "api" else build_secrets
        database = Database(cloud.folder.database_url(name))
        if count := database.read(_rows, table):
            counts[name] = count
        database.dispose_connections()
    return counts


def _rows(tx: Connection, table: sa.Table) -> int:
    return len(tx.execute(sa.select(table.c.batch_id)).all())


def received(folder: Path) -> dict[str, Received | None]:
    entries = [entry for host in HOSTS for entry in read_entries(journal_path(str(folder / "hosts"), host.name))]
    return {entry.spawned.uuid: entry.received for entry in entries if entry.spawned is not None}


def test_the_search_detects_every_existing_mark(tmp_path: Path) -> None:
    """Guards the test below."""
    for number, content in enumerate(
        [
            USER_DATA.encode(),
            base64.b64decode(USER_DATA),
            PASSWORD.encode(),
            *(base64.b64encode(b"x" * shift + PASSWORD.encode()) for shift in range(3)),
            *(base64.b64encode(b"x" * shift + USER_DATA.encode()) for shift in range(3)),
        ]
    ):
        (tmp_path / str(number)).write_bytes(b"before" + content + b"after")
    assert len(found(tmp_path)) == 9


def test_secrets_reach_their_guests_and_are_readable_nowhere(tmp_path: Path, logged: Path) -> None:
    with region(tmp_path, HOSTS) as cloud:
        cloud.flavor("huge", vcpus=1, ram=1 << 20)
        given: dict[str, Any] = {"user_data": USER_DATA, "adminPass": PASSWORD}
        answer = cloud.post("many", count=4, **given)
        assert answer.json()["server"]["adminPass"] == PASSWORD
        failing = cloud.boot("failing", metadata={METADATA_KEY: "abort"}, **given)
        nowhere = cloud.boot("nowhere", flavor="huge", **given)
        deleted = cloud.boot("deleted", **given)
        assert wait_until(lambda: set(sealed(cloud)) & {"cell1", "cell2"} != set(), 90.0)
        assert found(tmp_path) == {}, "while it is built"
        assert cloud.delete(deleted) == 204
        own = cloud.post("own").json()["server"]
        assert len(own["adminPass"]) >= 12
        cloud.wait_for(failing, "ERROR")
        cloud.wait_for(nowhere, "ERROR")
        cloud.wait_for(own["id"], "ACTIVE")
        assert wait_until(lambda: [s["status"] for s in cloud.named("^many-")] == ["ACTIVE"] * 4, 90.0)
        many = {server["id"] for server in cloud.named("^many-")}
        assert wait_until(lambda: sealed(cloud) == {}, 60.0), sealed(cloud)
        digest = hashlib.sha256(USER_DATA.encode()).hexdigest()
        got = received(tmp_path)
        assert {got[uuid] for uuid in many} == {Received(user_data_sha256=digest, admin_pass_set=True)}
        assert got[own["id"]] == Received(admin_pass_set=True)
        texts = [cloud.http.get(f"{cloud.all.api_endpoint}/servers/{uuid}/explanation").text for uuid in (*many, failing, nowhere)]
        texts += [str(cloud.show(uuid)) for uuid in (*many, failing, nowhere)]
        assert not [text for text in texts if "marked" in text or USER_DATA[:40] in text]
        keys = key_file.read(tmp_path)
        assert found(tmp_path) == {}
        assert own["adminPass"].encode() not in logged.read_bytes()
    assert found(tmp_path) == {}, "after the last words"
    log = logged.read_text()
    assert " DEBUG " in log, "it was listened to closely"
    assert failing in log
    holders = [p.name for p in tmp_path.rglob("*") if p.is_file() and keys[0].encode() in p.read_bytes()]
    assert holders == [key_file.NAME]


def test_a_rebuilds_secrets_reach_only_their_guest(tmp_path: Path, logged: Path) -> None:
    with region(tmp_path, HOSTS) as cloud:
        uuid = cloud.boot("web")
        image_id = cloud.wait_for(uuid, "ACTIVE")["image"]["id"]
        asked = {"rebuild": {"imageRef": image_id, "user_data": USER_DATA, "adminPass": PASSWORD}}
        version = {"OpenStack-API-Version": "compute 2.57"}
        answer = cloud.http.post(f"{cloud.all.api_endpoint}/servers/{uuid}/action", json=asked, headers=version)
        assert (answer.status_code, answer.json()["server"]["adminPass"]) == (202, PASSWORD), answer.text
        assert found(tmp_path) == {}, "while it is rebuilt"
        cloud.wait_for(uuid, "ACTIVE")
        entries = [entry for host in HOSTS for entry in read_entries(journal_path(str(tmp_path / "hosts"), host.name))]
        digest = hashlib.sha256(USER_DATA.encode()).hexdigest()
        assert received_by(entries)[uuid] == Received(user_data_sha256=digest, admin_pass_set=True)
        assert found(tmp_path) == {}
    assert found(tmp_path) == {}, "after the last words"
    assert " DEBUG " in logged.read_text(), "it was listened to closely"


def test_queued_servers_build_with_secrets_after_a_restart(tmp_path: Path) -> None:
    with region(tmp_path, HOSTS) as cloud:
        assert stat.S_IMODE(os.stat(tmp_path / key_file.NAME).st_mode) == 0o600
        keys = key_file.read(tmp_path)
        uuids = [cloud.boot(f"web-{n}", user_data=USER_DATA) for n in range(3)]
        cloud.all.stop()
        assert found(tmp_path) == {}
        cloud.folder = StateFolder(tmp_path)
        cloud.all = AllInOne(cloud.folder, HOSTS, api=ApiSettings(port=0), pace=PACE)
        assert key_file.read(tmp_path) == keys
        cloud.all.start()
        cloud.all.serve_api()
        for uuid in uuids:
            cloud.wait_for(uuid, "ACTIVE")
        assert wait_until(lambda: sealed(cloud) == {}, 60.0), sealed(cloud)
        digest = hashlib.sha256(USER_DATA.encode()).hexdigest()
        got = received(tmp_path)
        assert {got[uuid] for uuid in uuids} == {Received(user_data_sha256=digest, admin_pass_set=True)}
