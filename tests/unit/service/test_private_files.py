"""Folders of one owner, and files that no link leads elsewhere."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from objects import errors
from service import private_files


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
