"""``superconductor image``: what it adds, shows, deletes, and refuses."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from images.store import FolderStore
from tests.support.commands import Shell
from tests.support.disk_images import MIB, qcow2, vmdk_descriptor

ONE = "11111111-1111-4111-8111-111111111111"
TWO = "22222222-2222-4222-8222-222222222222"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "given.qcow2"
    file.write_bytes(qcow2(virtual_size=9 * MIB))
    return file


@pytest.fixture
def shell(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Shell:
    (tmp_path / "state").mkdir()
    return Shell(tmp_path / "state", capsys)


def test_image_from_its_addition_to_its_deletion(shell: Shell, file: Path) -> None:
    added = shell.json(f"image add {file} --name one --id {ONE.upper()} --min-disk 2 --min-ram 64 --property os=x --property a=b=c")

    assert added.pop("created_at").endswith("Z")
    assert added == {
        "id": ONE,
        "name": "one",
        "format": "qcow2",
        "size": 200_000,
        "virtual_size": 9 * MIB,
        "sha512": hashlib.sha512(file.read_bytes()).hexdigest(),
        "min_disk": 2,
        "min_ram": 64,
        "properties": "a=b=c, os=x",
    }
    assert shell.json(f"image show {ONE}") == shell.json("image show one")
    FolderStore(shell.state / "images").save_snapshot(TWO, b"a snapshot")
    (row,) = shell.json("image list")
    assert (row["ID"], row["Name"], row["Format"], row["Size"], row["Min Disk"]) == (ONE, "one", "qcow2", 200_000, 2)
    shell.done("image delete one")
    assert shell.json("image list") == []
    assert FolderStore(shell.state / "images").read(TWO) == b"a snapshot"


def test_images_of_a_configuration_file(shell: Shell, file: Path, tmp_path: Path) -> None:
    conf = tmp_path / "operator.conf"
    conf.write_text(f"[images]\nfolder = {tmp_path / 'shared'}\n")
    assert shell.run("--config-file", str(conf), "-q", "image", "add", str(file), "--name", "one").status == 0
    (image,) = FolderStore(tmp_path / "shared").list_images()
    assert shell.run("--config-file", str(conf), "image", "delete", image.id).status == 0
    assert FolderStore(tmp_path / "shared").list_images() == []
    conf.write_text("")
    refused = shell.run("--config-file", str(conf), "image", "list")
    assert (refused.status, refused.err) == (
        1,
        "superconductor: No image store is named: give --state DIR, or a --config-file with 'folder' in [images]"
        " (environment: SUPERCONDUCTOR_STATE, SUPERCONDUCTOR_CONFIG)\n",
    )


def test_an_ambiguous_name_needs_an_id(shell: Shell, file: Path) -> None:
    for image_id in (ONE, TWO):
        shell.done(f"-q image add {file} --name one --id {image_id}")
    assert f"give an id, {ONE} or {TWO}" in shell.refused("image show one")
    assert "Several images are named 'one'" in shell.refused("image delete one")
    shell.done(f"image delete {ONE} {TWO}")
    assert "No image has the id or name 'one'" in shell.refused("image delete one")


@pytest.mark.parametrize(
    ("content", "words", "status", "text"),
    [
        (qcow2(backing_file="/etc/passwd"), "--name x", 1, "is not safe: it has a backing file"),
        (vmdk_descriptor("/etc/passwd"), "--name x --disk-format raw", 1, "has the format vmdk"),
        (qcow2(), "--name x --disk-format raw", 1, "has the format qcow2, but raw is declared"),
        (qcow2(), "--name x --disk-format vmdk", 2, "invalid choice"),
        (qcow2(), "--name x --id 7", 2, "'7' is not a UUID"),
        (qcow2(), "--name x --min-disk -1", 2, "--min-disk"),
        (qcow2(), "", 2, "--name"),
    ],
)
def test_additions_that_are_refused(shell: Shell, file: Path, content: bytes, words: str, status: int, text: str) -> None:
    file.write_bytes(content)
    shell.done("-q image add " + str(_raw(file)) + " --name kept")

    assert text in shell.refused(f"image add {file} {words}", status)
    assert [row["Name"] for row in shell.json("image list")] == ["kept"]


def test_a_missing_file_or_state_folder_is_refused(shell: Shell, tmp_path: Path) -> None:
    assert "none cannot be read: No such file" in shell.refused(f"image add {tmp_path / 'none'} --name x")
    assert shell.run("--state", str(tmp_path / "none"), "image", "list").err.endswith(
        "there is no such folder; 'superconductor standalone' makes one\n"
    )


def _raw(beside: Path) -> Path:
    file = beside.with_name("plain.raw")
    file.write_bytes(bytes(1000))
    return file
