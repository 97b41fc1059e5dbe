"""Images as rows: lists in parts and in any order, changes, and what older releases have left to the records in the store."""

from __future__ import annotations

import random
import uuid
from functools import partial
from pathlib import Path

import msgspec
import pytest
import sqlalchemy as sa

from conductor.image_rows import complete_rows, missing_images
from db.api.rows.tables import images as table
from db.api.rows.tables import server_images as project_table
from db.api.servers import images, server_images
from db.api.servers.images import ImageQuery, SortKey
from db.api.servers.server_images import UploadedImage
from db.sql.engine import ApiDatabase, Database
from images.store import FolderStore
from objects import errors
from objects.quota import ImageLimits
from objects.stored_image import IMAGE_TAGS_LIMIT, ImageDetails, StoredImage
from tests.support.databases import database_fixture
from tests.support.transactions import run_threads

NEWEST_FIRST: tuple[SortKey, ...] = (("created_at", True), ("id", True))


opened = database_fixture()


@pytest.fixture
def database(opened: Database) -> Database:
    opened.write(lambda tx: (tx.execute(sa.delete(table)), tx.execute(sa.delete(project_table))))
    return opened


@pytest.fixture
def store(tmp_path: Path) -> FolderStore:
    (tmp_path / "images").mkdir()
    return FolderStore(tmp_path / "images")


def image(project_id: str = "", name: str = "one", **fields: object) -> StoredImage:
    made = StoredImage(image_id=str(uuid.uuid4()), project_id=project_id, name=name, size=512, created_at=1.0)
    return msgspec.structs.replace(made, **fields)


def in_parts(database: ApiDatabase, query: ImageQuery) -> list[str]:
    found: list[str] = []
    while True:
        part = database.read(images.list_part, query)
        assert len(part.images) <= query.limit
        found += [each.image_id for each in part.images]
        if part.after is None:
            return found
        query = msgspec.structs.replace(query, after=part.after)


@pytest.mark.parametrize(
    "order",
    [
        NEWEST_FIRST,
        (("name", False), ("size", True), ("id", False)),
        (("updated_at", True), ("name", True), ("id", True)),
        (("status", False), ("disk_format", True), ("id", False)),
        (("id", True),),
    ],
)
def test_a_list_in_parts_is_complete_and_ordered(database: Database, order: tuple[SortKey, ...]) -> None:
    chosen = random.Random(7)
    made = [
        image(
            chosen.choice(("", "p1", "p2")),
            chosen.choice("abc"),
            size=chosen.choice((1, 2)),
            disk_format=chosen.choice(("raw", "qcow2")),
            created_at=chosen.choice((1.25, 2.1)),
            updated_at=chosen.choice((None, 1.7)),
        )
        for _ in range(60)
    ]
    database.write(images.add_images, made)
    expected = [each for each in made if each.project_id != "p2"]
    for key in reversed(order):
        expected.sort(key=partial(images.place_of, order=(key,)), reverse=key[1])
    for limit in (1, 7, 100):
        assert in_parts(database, ImageQuery(project_id="p1", order=order, limit=limit)) == [each.image_id for each in expected]
    assert len(in_parts(database, ImageQuery(project_id=None, order=order, limit=7))) == 60


def test_a_list_has_operator_and_single_project_images(database: Database) -> None:
    public, mine, theirs = image(), image("p1"), image("p2", "two")
    database.write(images.add_images, [public, mine, theirs])

    def found(project_id: str | None = "p1", **narrowed: tuple[str, ...]) -> set[str]:
        return set(in_parts(database, ImageQuery(project_id=project_id, order=NEWEST_FIRST, limit=2, **narrowed)))

    assert found() == {public.image_id, mine.image_id}
    assert found(None) == found() | {theirs.image_id}
    assert found(names=("two",)) == found(ids=(theirs.image_id,)) == found(owners=("p2",)) == found(names=()) == set()
    assert found(None, names=("two", "three")) == {theirs.image_id}
    assert found(owners=("",)) == {public.image_id}


def test_an_unreadable_row_hides_no_other(database: Database) -> None:
    made = [image(created_at=float(number)) for number in range(3)]
    database.write(images.add_images, made)
    spoiled = sa.update(table).where(table.c.image_id == made[1].image_id).values(details="[")
    database.write(lambda tx: tx.execute(spoiled))
    found = in_parts(database, ImageQuery(project_id="p1", order=NEWEST_FIRST, limit=1))
    assert found == [made[2].image_id, made[0].image_id]
    assert database.read(images.get, made[1].image_id) is None


def test_a_change_replaces_what_it_names(database: Database) -> None:
    made = image("p1", details=ImageDetails(min_disk=1, min_ram=2, properties={"a": "b"}, tags=("x",)))
    database.write(images.add_images, [made])
    changed = database.write(images.change_image, made.image_id, 5.0, name="new", min_ram=0, properties={})
    assert changed == database.read(images.get, made.image_id)
    assert (changed.name, changed.updated_at, changed.details) == ("new", 5.0, ImageDetails(min_disk=1, tags=("x",)))
    gone = str(uuid.uuid4())
    with pytest.raises(errors.NotFound):
        database.write(images.change_image, gone, 5.0, name="new")
    for change in (images.add_tag, images.remove_tag):
        with pytest.raises(errors.NotFound):
            database.write(change, gone, "x", 5.0)


def test_tags_set_concurrently_are_all_there(database: Database) -> None:
    made = image("p1")
    database.write(images.add_images, [made])

    def tag(number: int) -> None:
        database.write(images.add_tag, made.image_id, f"t{number}", 2.0)

    assert run_threads(8, tag) == []
    found = database.read(images.get, made.image_id)
    assert found is not None
    assert found.details == ImageDetails(tags=tuple(f"t{number}" for number in range(8)))
    database.write(images.change_image, made.image_id, 3.0, tags=tuple(f"{number}" for number in range(IMAGE_TAGS_LIMIT)))
    with pytest.raises(errors.OverQuota):
        database.write(images.add_tag, made.image_id, "more", 4.0)


def add_as_before(database: Database, image_id: str, project_id: str, name: str) -> None:
    """As a release without the details does."""
    row = {"image_id": image_id, "project_id": project_id, "name": name, "status": "active", "disk_format": "raw", "size": 512}
    row |= {"virtual_size": 512, "hash_value": "ab" * 64, "created_at": 1.0}
    database.write(lambda tx: tx.execute(sa.insert(table), [row]))


def test_older_releases_rows_are_completed_from_the_store(database: Database, store: FolderStore) -> None:
    """Whose an image is stays as the row says, whatever the record says."""
    record = store.add_image([b"x" * 512], name="renamed", image_id=str(uuid.uuid4()), min_disk=3, properties={"a": "b"}, owner="")
    add_as_before(database, record.id, "p1", "first")
    lost = str(uuid.uuid4())
    add_as_before(database, lost, "p1", "lost")
    complete_rows(database, store)
    found, gone = database.read(images.get, record.id), database.read(images.get, lost)
    assert found is not None
    assert gone is not None
    assert (found.project_id, found.name, found.details) == ("p1", "renamed", record.image_details)
    assert (gone.name, gone.details) == ("lost", ImageDetails())
    assert database.read(images.without_details) == []


def test_a_projects_image_without_a_row_gets_one(database: Database, store: FolderStore) -> None:
    record = store.add_image([b"x" * 512], name="one", image_id=str(uuid.uuid4()), owner="p2")
    database.write(server_images.add_upload, record.id, UploadedImage(name="one", owner="p1"), ImageLimits(), 1.0)
    complete_rows(database, store)
    assert database.read(images.get, record.id) is None, "it is not complete"
    database.write(lambda tx: tx.execute(sa.update(project_table).values(complete=True)))
    complete_rows(database, store)
    found = database.read(images.get, record.id)
    assert found is not None
    assert (found.project_id, found.hash_value, found.size) == ("p1", "", 512)


def test_operator_images_without_a_hash_are_missing(database: Database, store: FolderStore) -> None:
    public = store.add_image([b"x" * 512], name="public", image_id=str(uuid.uuid4()))
    store.add_image([b"x" * 512], name="forged", image_id=str(uuid.uuid4()), owner="p1")
    found = msgspec.structs.replace(public.to_stored(""), hash_value="")
    database.write(images.add_images, [found])
    [(missing, project_id)] = missing_images(database, store)
    assert (missing.id, project_id) == (public.id, "")
    database.write(images.record_hash, missing.to_stored(project_id))
    assert missing_images(database, store) == []
    database.write(images.record_hash, msgspec.structs.replace(found, hash_value="cd" * 64))
    kept = database.read(images.get, public.id)
    assert kept is not None
    assert kept.hash_value == public.hash_value
