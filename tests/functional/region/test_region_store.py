"""What a taken host replaces in the image store is booted nowhere: hashes of all contents are in the API database."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from db.api.servers import images
from db.sql.engine import ApiDatabase
from images.store import FolderStore
from service.periodic import wait_until
from tests.support.commands import Shell
from tests.support.region import Region, host, region

PATIENCE = 90.0


@pytest.fixture
def cloud(tmp_path: Path) -> Iterator[Region]:
    with region(tmp_path, [host("h1"), host("h2")]) as deployment:
        yield deployment


@pytest.fixture
def store(cloud: Region) -> FolderStore:
    return FolderStore(cloud.folder.path / "images")


def hash_of(cloud: Region, image_id: str) -> str:
    database = ApiDatabase(cloud.folder.database_url("api"))
    try:
        known = database.read(images.get, image_id)
    finally:
        database.dispose_connections()
    return known.hash_value if known is not None else ""


def act(cloud: Region, server: str, action: str, value: Any = None) -> Any:
    headers = {"OpenStack-API-Version": "compute 2.45"}
    answer = cloud.http.post(f"{cloud.all.api_endpoint}/servers/{server}/action", json={action: value}, headers=headers, timeout=30)
    assert answer.status_code == 202, answer.text
    return answer.json() if answer.content else None


def test_every_image_has_its_hash_on_record(
    cloud: Region, store: FolderStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shell = Shell(cloud.folder.path, capsys)
    (tmp_path / "given").write_bytes(b"an image")
    added = shell.json(f"image add {tmp_path / 'given'} --name one")
    assert hash_of(cloud, added["id"]) == hashlib.sha512(b"an image").hexdigest()

    server = cloud.boot()
    cloud.wait_for(server, "ACTIVE")
    made = act(cloud, server, "createImage", {"name": "made"})["image_id"]
    assert wait_until(lambda: hash_of(cloud, made) != "", PATIENCE)
    assert hash_of(cloud, made) == store.get_record(made).hash_value

    shell.done(f"image delete {added['id']}")
    assert hash_of(cloud, added["id"]) == ""


def test_a_start_records_images_of_older_releases(cloud: Region, store: FolderStore) -> None:
    before = store.add_image([b"an image"], name="one", image_id=str(uuid.uuid4()))
    assert hash_of(cloud, before.id) == ""
    cloud.restart()
    assert hash_of(cloud, before.id) == before.hash_value


def test_a_command_records_images_of_older_releases(cloud: Region, store: FolderStore, capsys: pytest.CaptureFixture[str]) -> None:
    """An image whose content does not fit its record is named, and the others are recorded."""
    shell = Shell(cloud.folder.path, capsys)
    right, wrong = (store.add_image([name.encode()], name=name, image_id=str(uuid.uuid4())) for name in ("right", "wrong"))
    (cloud.folder.path / "images" / "added" / wrong.id / "content").write_bytes(b"other")
    outcome = shell("image record -f json")
    assert (outcome.status, outcome.err.count("\n")) == (1, 1)
    assert f"The content of image {wrong.id} does not fit its record" in outcome.err
    assert (hash_of(cloud, right.id), hash_of(cloud, wrong.id)) == (right.hash_value, "")
    store.delete(wrong.id)
    assert shell.json("image record") == []


def test_a_shelved_servers_changed_snapshot_is_refused(cloud: Region, store: FolderStore) -> None:
    server = cloud.boot()
    cloud.wait_for(server, "ACTIVE")
    act(cloud, server, "shelve")
    cloud.wait_for(server, "SHELVED_OFFLOADED")
    [snapshot] = [entry.name for entry in (cloud.folder.path / "images").iterdir() if entry.is_file()]
    kept = store.read(snapshot)
    store.save_snapshot(snapshot, kept.replace(b'"writes":', b'"writes":7'))
    act(cloud, server, "unshelve")
    headers = {"OpenStack-API-Version": "compute 2.51"}
    path = f"{cloud.all.api_endpoint}/servers/{server}/os-instance-actions"

    def ended() -> bool:
        found = cloud.http.get(path, headers=headers, timeout=30).json()["instanceActions"]
        return any(each["action"] == "unshelve" and "was changed in the image store" in (each["message"] or "") for each in found)

    assert wait_until(ended, PATIENCE)
    assert cloud.wait_for(server, "SHELVED_OFFLOADED")
    store.save_snapshot(snapshot, kept)
    act(cloud, server, "unshelve")
    cloud.wait_for(server, "ACTIVE")
