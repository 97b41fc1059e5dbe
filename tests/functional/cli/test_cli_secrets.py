"""``superconductor secrets``, and the keys of a state folder."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from cells import administration
from cli.standalone import key_file
from db.sql.engine import Database
from objects import errors
from objects.spec import BootSecrets
from service.vault import Vault, new_key
from tests.support.commands import Shell, shell_fixture

SECRETS = BootSecrets(user_data="QUFBQQ==", admin_pass="hunter2")


shell = shell_fixture("-q db sync", "-q cell create east", "-q cell create cell0 --cell0")


def uuid_of(shell: Shell, name: str) -> str:
    database = Database(f"sqlite:///{shell.state}/api.db")
    try:
        return administration.find_cell(database, name).uuid
    finally:
        database.dispose_connections()


def keys(line: str) -> list[str]:
    """As a configuration file's reader splits them."""
    name, _, value = line.strip().partition(" = ")
    assert name == "keys"
    return value.split(",")


def test_new_prints_a_key_and_nothing_else(shell: Shell) -> None:
    one, other = shell.done("secrets new").strip(), shell.done("secrets new").strip()
    assert one != other
    assert Vault([one]).can_seal
    assert not (shell.state / key_file.NAME).exists()


def test_cell_prints_keys_derived_from_master_keys(shell: Shell, tmp_path: Path) -> None:
    uuid = uuid_of(shell, "east")
    new, old = new_key(), new_key()
    conf = tmp_path / "api.conf"
    conf.write_text(f"[api_database]\nconnection = sqlite:///{shell.state}/api.db\n[secrets]\nkeys = {new}, {old}\n")
    for cell in ("east", uuid):
        outcome = shell.run("--config-file", str(conf), "secrets", "cell", cell)
        assert (outcome.status, outcome.err) == (0, "")
        own = Vault(keys(outcome.out))
        assert not own.can_seal
        assert [own.open("b1", Vault([master]).seal_secrets(uuid, "b1", SECRETS)) for master in (new, old)] == [SECRETS] * 2
        assert new not in outcome.out
        assert old not in outcome.out


def test_cell_with_state_uses_the_folders_key_file(shell: Shell) -> None:
    assert "no master key is configured" in shell.refused("secrets derive east")
    (made,) = key_file.read_or_make(shell.state)
    assert keys(shell.done("secrets derive east")) == Vault([made]).keys_of(uuid_of(shell, "east"))
    assert "cell0" in shell.refused("secrets derive cell0")
    assert "west" in shell.refused("secrets derive west", 3)


def test_a_wrong_key_is_told_without_being_shown(shell: Shell, tmp_path: Path) -> None:
    conf = tmp_path / "api.conf"
    conf.write_text(f"[api_database]\nconnection = sqlite:///{shell.state}/api.db\n[secrets]\nkeys = not-a-key-at-all\n")
    outcome = shell.run("--config-file", str(conf), "secrets", "cell", "east")
    assert outcome.status == 1
    assert "[secrets] keys: number 1" in outcome.err
    assert "not-a-key" not in outcome.err


def test_the_key_file_is_created_once_and_private(tmp_path: Path) -> None:
    assert key_file.read(tmp_path) == []
    made = key_file.read_or_make(tmp_path)
    assert stat.S_IMODE(os.stat(tmp_path / key_file.NAME).st_mode) == 0o600
    assert key_file.read_or_make(tmp_path) == made == key_file.read(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == [key_file.NAME]
    newest = new_key()
    (tmp_path / key_file.NAME).write_text(f"# newest first\n{newest}\n\n{made[0]}\n")
    assert key_file.read_or_make(tmp_path) == [newest, *made]


def test_remains_of_a_killed_start_do_no_harm(tmp_path: Path) -> None:
    (tmp_path / f"{key_file.NAME}.new").write_text("half")
    assert Vault(key_file.read_or_make(tmp_path)).can_seal


def test_an_unreadable_key_file_is_reported(tmp_path: Path) -> None:
    (tmp_path / key_file.NAME).mkdir()
    with pytest.raises(errors.Misconfigured, match=key_file.NAME):
        key_file.read_or_make(tmp_path)
