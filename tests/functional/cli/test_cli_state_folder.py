"""A state folder that is moved keeps its servers, and one that has lost a cell's file is not started over it."""

from __future__ import annotations

from pathlib import Path

import pytest

from api.opts import ApiSettings
from cli.standalone.all_in_one import AllInOne, StateFolder
from cli.standalone.bootstrap import Commands, bootstrap_databases
from objects import errors
from service.periodic import wait_until
from tests.support.region import PACE, host, region

HOSTS = [host("h1"), host("h2")]


def test_a_moved_folder_keeps_its_servers_and_guests(tmp_path: Path) -> None:
    with region(tmp_path / "old", HOSTS) as cloud:
        cloud.boot("web", count=4)
        assert wait_until(lambda: [s["status"] for s in cloud.named("^web")] == ["ACTIVE"] * 4, 90.0)
        before = cloud.settle()
    (tmp_path / "old").rename(tmp_path / "new")
    folder = StateFolder(tmp_path / "new")
    bootstrap_databases(folder, ["cell1"], Commands(folder, None))
    cloud.folder, cloud.all = folder, AllInOne(folder, HOSTS, api=ApiSettings(port=0), pace=PACE)
    cloud.all.start()
    try:
        wait_until(lambda: False, 2.0)  # agents report the guests they hold when they start
        after = cloud.evidence()
        assert (after.claims, after.guests) == (before.claims, before.guests)
    finally:
        cloud.all.stop()
    assert not (tmp_path / "old").exists()


def test_a_cell_without_its_file_gets_no_replacement(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with region(tmp_path, HOSTS) as cloud:
        cloud.wait_for(cloud.boot(), "ACTIVE")
    for suffix in ("", "-wal", "-shm"):
        (tmp_path / f"cell1.db{suffix}").unlink(missing_ok=True)
    folder = StateFolder(tmp_path)
    with pytest.raises(errors.Invalid, match="db sync"):
        bootstrap_databases(folder, ["cell1"], Commands(folder, None))
    assert "put the file back" in capsys.readouterr().err
    assert not (tmp_path / "cell1.db").exists()
    folder.release_lock()


def test_an_unusable_folder_is_reported_in_a_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(errors.Misconfigured, match="cannot be used as a state folder"):
        StateFolder(tmp_path / "file")


def test_nobody_else_may_look_into_the_folder(tmp_path: Path) -> None:
    with region(tmp_path / "state", HOSTS) as cloud:
        cloud.wait_for(cloud.boot(), "ACTIVE")
        assert (tmp_path / "state").stat().st_mode & 0o077 == 0


def test_links_in_the_folder_are_not_followed(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("kept")
    for name in ("lock", "superconductor.log", "api.db"):
        folder = tmp_path / f"with-{name}"
        folder.mkdir()
        (folder / name).symlink_to(precious)
        with pytest.raises(errors.Misconfigured, match=f"{name} is a link"):
            StateFolder(folder)
    assert precious.read_text() == "kept"
