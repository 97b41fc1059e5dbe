"""Folders of one owner, files that no link leads elsewhere, and files below a folder that somebody else writes to."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from images import files
from objects import errors
from service import private_files
from service.confined import open_below, read_below


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_a_new_folder_is_private_under_any_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        private_files.own_folder(tmp_path / "new")
        private_files.open_own(tmp_path / "new" / "lock", os.O_RDWR, "r+").close()
    finally:
        os.umask(before)
    assert mode(tmp_path / "new") == 0o700
    assert mode(tmp_path / "new" / "lock") == 0o600


def test_a_folder_open_to_others_is_closed(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    private_files.own_folder(tmp_path)
    assert mode(tmp_path) == 0o700


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another user")
def test_a_folder_of_another_user_is_refused(tmp_path: Path) -> None:
    os.chown(tmp_path, 12345, 12345)
    with pytest.raises(errors.Misconfigured, match="belongs to another user"):
        private_files.own_folder(tmp_path)


def test_a_folder_with_a_link_is_refused_unharmed(tmp_path: Path) -> None:
    precious, folder = tmp_path / "precious", tmp_path / "state"
    precious.write_text("kept")
    folder.mkdir()
    (folder / "lock").symlink_to(precious)
    with pytest.raises(errors.Misconfigured, match="lock is a link"):
        private_files.own_folder(folder)
    with pytest.raises(OSError, match="symbolic links"):
        private_files.open_own(folder / "lock", os.O_RDWR, "r+")
    assert precious.read_text() == "kept"


SECRET = b"of this host"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "secret").write_bytes(SECRET)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "file").write_bytes(SECRET)
    (tmp_path / "place" / "inner").mkdir(parents=True)
    return tmp_path / "place"


def test_a_file_below_is_read(place: Path, tmp_path: Path) -> None:
    (place / "inner" / "file").write_bytes(b"content")
    (tmp_path / "operators-link").symlink_to(place)

    assert read_below(tmp_path / "operators-link", "inner", "file", limit=7) == b"content"
    assert b"".join(files.read_chunks(open_below(place, "inner", "file"))) == b"content"
    with pytest.raises(FileNotFoundError):
        open_below(place, "inner", "none")
    with pytest.raises(OSError, match="more than 6 bytes"):
        read_below(place, "inner", "file", limit=6)


@pytest.mark.parametrize(
    "names", [("..", "secret"), ("inner", "..", "file"), ("inner/../../secret",), ("/etc/passwd",), ("",), (".",)]
)
def test_a_name_that_leads_elsewhere_is_refused(place: Path, names: tuple[str, ...]) -> None:
    with pytest.raises(OSError, match="leads elsewhere"):
        open_below(place, *names)


def _link_to_file(place: Path) -> None:
    (place / "inner" / "file").symlink_to("../../secret")


def _link_to_folder(place: Path) -> None:
    (place / "inner").rmdir()
    (place / "inner").symlink_to(place.parent / "elsewhere")


def _link_to_itself(place: Path) -> None:
    (place / "inner" / "file").symlink_to("file")


def _pipe(place: Path) -> None:
    os.mkfifo(place / "inner" / "file")


def _folder(place: Path) -> None:
    (place / "inner" / "file").mkdir()


def _socket(place: Path) -> None:
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(place / "inner" / "file"))


def _device(place: Path) -> None:
    try:
        os.mknod(place / "inner" / "file", 0o20600, os.makedev(1, 5))
    except PermissionError:
        pytest.skip("only root makes devices")


@pytest.mark.parametrize("put", [_link_to_file, _link_to_folder, _link_to_itself, _pipe, _folder, _socket, _device])
def test_only_a_regular_file_is_opened(place: Path, put: object) -> None:
    assert callable(put)
    put(place)
    with pytest.raises(OSError, match=r"symbolic link|not a regular file|No such device"):
        open_below(place, "inner", "file")
