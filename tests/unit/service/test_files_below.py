"""Files below a folder that somebody else writes to: nothing there leads anywhere else."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from images import files
from service.confined import open_below, read_below

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
