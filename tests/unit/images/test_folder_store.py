"""The image store in a folder: images are there as a whole or not at all."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from images.store import FolderStore, open_store
from objects import errors

LARGE = b"x" * 300_000


@pytest.fixture
def store(tmp_path: Path) -> FolderStore:
    return FolderStore(tmp_path / "images")


def test_a_saved_image_is_readable_until_removed(store: FolderStore) -> None:
    store.save_snapshot("one", LARGE)
    store.save_snapshot("one", b"again")

    assert store.read("one") == b"again"
    store.remove_snapshot("one")
    store.remove_snapshot("one")
    assert not store.has_snapshot("one")
    with pytest.raises(errors.NotFound, match="Image one is not in the image store"):
        store.read("one")


def test_a_name_does_not_escape_the_folder(store: FolderStore, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("s")
    store.save_snapshot("../secret", b"image")

    assert (tmp_path / "secret").read_text() == "s"
    assert store.read("../secret") == b"image"


@pytest.mark.parametrize("call", ["write", "fsync", "replace"])
def test_a_save_that_dies_leaves_the_earlier_image(
    store: FolderStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """Killed at each system call: a child process ends there, without cleaning up."""
    store.save_snapshot("one", b"before")
    child = os.fork()
    if not child:
        if call == "write":
            monkeypatch.setattr(os, "fdopen", lambda *_: os._exit(0))
        elif call == "fsync":
            monkeypatch.setattr(os, "fsync", lambda *_: os._exit(0))
        else:
            monkeypatch.setattr(Path, "replace", lambda *_: os._exit(0))
        store.save_snapshot("one", LARGE)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

    assert store.read("one") == b"before"
    assert len(list((tmp_path / "images").iterdir())) == 2
    store.remove_snapshot("one")
    assert list((tmp_path / "images").iterdir()) == []


def test_a_missing_folder_is_no_empty_store(store: FolderStore) -> None:
    for call in (store.has_snapshot, store.read, store.remove_snapshot):
        with pytest.raises(errors.ServiceUnavailable, match="cannot be used: there is no such folder"):
            call("one")


def test_without_a_folder_there_is_no_store() -> None:
    assert open_store("") is None


def test_a_snapshot_is_read_with_its_hash(store: FolderStore, tmp_path: Path) -> None:
    stored = store.save_snapshot("one", LARGE)
    assert (stored.size, stored.hash_value) == (len(LARGE), hashlib.sha512(LARGE).hexdigest())
    (tmp_path / "given").write_bytes(b"given")
    assert store.save_file("two", tmp_path / "given").hash_value == hashlib.sha512(b"given").hexdigest()

    assert store.read("one", stored.hash_value) == LARGE
    store.copy_to("one", tmp_path / "copy", threading.Event(), stored.hash_value)
    store.save_snapshot("one", LARGE[:-1] + b"y")
    with pytest.raises(errors.Invalid, match="Image one was changed in the image store"):
        store.read("one", stored.hash_value)
    with pytest.raises(errors.Invalid, match="was changed in the image store"):
        store.copy_to("one", tmp_path / "copy", threading.Event(), stored.hash_value)


def _link_to_file(place: Path, secret: Path) -> None:
    place.symlink_to(secret)


def _pipe(place: Path, secret: Path) -> None:
    os.mkfifo(place)


def _folder(place: Path, secret: Path) -> None:
    place.mkdir()


@pytest.mark.parametrize("put", [_link_to_file, _pipe, _folder])
def test_a_snapshot_is_a_file_of_the_store(store: FolderStore, tmp_path: Path, put: Callable[[Path, Path], None]) -> None:
    """A taken agent may put there whatever it can write."""
    store.save_snapshot("other", b"of another tenant")
    (tmp_path / "secret").write_bytes(b"a file of this host")
    put(tmp_path / "images" / "one", tmp_path / "secret")
    with pytest.raises(errors.ServiceUnavailable, match="cannot be used"):
        store.read("one")
    with pytest.raises(errors.ServiceUnavailable, match="cannot be used"):
        store.copy_to("one", tmp_path / "copy", threading.Event())
    assert b"of this host" not in (tmp_path / "copy").read_bytes()
