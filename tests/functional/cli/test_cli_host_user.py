"""``host user``: the files that give a host a broker user of its own, and nothing that shows a password."""

from __future__ import annotations

import configparser
import json
from pathlib import Path

import pytest

from rpc import agents
from rpc.transport import user_of
from tests.support.commands import Shell


@pytest.fixture
def shell(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Shell:
    made = Shell(tmp_path, capsys)
    made.done("db sync --api")
    bus = "rabbit://sc:secret@mq-a:5671,sc:secret@mq-b:5671/east?ssl=true"
    made.done(f"cell create east --database-connection sqlite:///{tmp_path}/east.db --transport-url '{bus}' --no-check --no-sync")
    made.done(f"cell create inside --database-connection sqlite:///{tmp_path}/i.db --transport-url embedded://i/ --no-sync")
    return made


def values(file: Path) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None)
    parser.read(file)
    return parser


def test_the_user_and_the_agents_file_go_together(shell: Shell, tmp_path: Path) -> None:
    said = shell.done(f"host user e1 --cell east --folder {tmp_path}")
    users, conf = tmp_path / "e1.users.json", tmp_path / "e1.conf"
    assert {file.stat().st_mode & 0o777 for file in (users, conf)} == {0o600}
    told = json.loads(users.read_text())
    [user] = told["users"]
    assert told == agents.permission_definitions("east", "e1", user["password"], "compute.east.")
    url = values(conf)["DEFAULT"]["transport_url"]
    assert (
        url == f"rabbit://compute.east.e1:{user['password']}@mq-a:5671,compute.east.e1:{user['password']}@mq-b:5671/east?ssl=true"
    )
    assert user_of(url) == user["name"] == "compute.east.e1"
    assert values(conf)["compute"]["host"] == "e1"
    assert agents.confinement_of(user["name"], "e1") is not None
    assert "secret" not in conf.read_text() + users.read_text() + said
    assert user["password"] not in said
    assert "rabbitmqctl import_definitions <" in said
    assert shell.run("config", "check", "--config-file", str(conf), "--role", "compute", "--strict").status == 0


def test_another_agents_file_may_be_the_pattern(shell: Shell, tmp_path: Path) -> None:
    like = tmp_path / "like.conf"
    like.write_text("# ours\n[DEFAULT]\ntransport_url = rabbit://x:y@z/\n[compute]\nhost = other\nreserved_memory_mb = 7\n")
    shell.done(f"host user e1 --cell east --folder {tmp_path} --like {like} --prefix nova-")
    made = values(tmp_path / "e1.conf")
    assert user_of(made["DEFAULT"]["transport_url"]) == "nova-e1"
    assert (made["compute"]["host"], made["compute"]["reserved_memory_mb"]) == ("e1", "7")
    like.write_text("[compute]\nhost = other\n")
    assert "must have one line 'transport_url = ...'" in shell.refused(
        f"host user e2 --cell east --folder {tmp_path} --like {like}"
    )
    assert "cannot be read" in shell.refused(f"host user e2 --cell east --folder {tmp_path} --like {tmp_path}/none")


def test_nothing_is_overwritten_unless_that_is_wanted(shell: Shell, tmp_path: Path) -> None:
    shell.done(f"host user e1 --cell east --folder {tmp_path}")
    before = (tmp_path / "e1.users.json").read_text()
    assert "exists already" in shell.refused(f"host user e0 e1 --cell east --folder {tmp_path}")
    assert not (tmp_path / "e0.conf").exists()
    assert (tmp_path / "e1.users.json").read_text() == before
    shell.done(f"host user e1 --cell east --folder {tmp_path} --force")
    assert (tmp_path / "e1.users.json").read_text() != before


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("'a b' --cell east", "a name has 1 to 255"),
        ("e1 --cell nowhere", "nowhere"),
        ("e1 --cell inside", "on no broker"),
        ("e1 --cell east --folder /nonexistent/x", "cannot be written"),
        (f"{'x' * 250} --cell east", "more than 200 characters"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(shell: Shell, tmp_path: Path, words: str, text: str) -> None:
    assert text in shell.refused(f"host user {words}", 3 if "nowhere" in words else 1)
