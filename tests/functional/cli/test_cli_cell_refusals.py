"""Commands on cells with bad input: one line that says what to do, the documented exit status, nothing half-saved, no password."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from cells.administration import NewCell, create_cell, list_cells
from db.api.deployment import host_mappings
from db.api.rows.tables import instance_mappings
from db.sql.connection import Connection
from db.sql.engine import Database
from objects import errors
from objects.cell import HostMapping
from tests.support.commands import Shell
from tests.support.databases import database_on
from tests.support.transactions import run_threads

DEAD = "mysql+pymysql://sc:secret@127.0.0.1:1/x"


def made(state: Path, capsys: pytest.CaptureFixture[str]) -> Shell:
    """cell0 and east; west with a host, south with a server, north with a delete that it has not confirmed."""
    shell = Shell(state, capsys)
    shell.done("-q db sync")
    for cell in ("cell0 --cell0 --no-sync", "east", "west --no-sync", "south", "north --no-sync"):
        shell.done(f"-q cell create {cell}")
    uuids = {row["Name"]: row["UUID"] for row in shell.json("cell list")}
    database = Database(f"sqlite:///{state}/api.db")
    database.write(host_mappings.add_mappings, [HostMapping(host="h1", cell_uuid=uuids["west"])], 0.0)
    database.write(_add_server, uuids["south"], deleted=False)
    database.write(_add_server, uuids["north"], deleted=True)
    database.dispose_connections()
    (state / "tabs.yaml").write_text("cells:\n  - name: east\n\tstate: enabled\n")
    (state / "state.yaml").write_text("cells:\n  - name: east\n    state: off\n")
    return shell


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shared by those that change nothing."""
    return tmp_path_factory.mktemp("refusals")


@pytest.fixture
def unchanged(folder: Path, capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(folder, capsys) if (folder / "api.db").exists() else made(folder, capsys)


@pytest.fixture
def shell(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Shell:
    return made(tmp_path, capsys)


def _add_server(tx: Connection, cell_uuid: str, *, deleted: bool) -> None:
    server = {"instance_uuid": cell_uuid, "batch_id": "b", "cell_uuid": cell_uuid, "deleted": deleted, "state": "active"}
    row = server | {"project_id": "p", "user_id": "u", "name": "n", "created_at": 1.0, "updated_at": 1.0}
    tx.execute(sa.insert(instance_mappings), row)


REFUSED = [
    # a cell that is not there
    *(
        (f"cell {words} nowhere", 3, "No cell is called 'nowhere'; there are: ")
        for words in ("show", "enable", "disable", "drain", "check")
    ),
    ("cell update nowhere --name x", 3, "No cell is called 'nowhere'"),
    ("cell delete nowhere --with-hosts", 3, "No cell is called 'nowhere'"),
    ("cell delete nowhere --offline", 3, "No cell is called 'nowhere'"),
    # names
    ("cell create 'two words'", 1, "must be letters"),
    ("cell create 11111111-1111-4111-8111-111111111111", 1, "looks like a UUID"),
    ("cell update east --name 11111111-1111-4111-8111-111111111111", 1, "looks like a UUID"),
    ("cell create east", 4, "Cell 'east' exists already"),
    ("cell update east --name west", 4, "Cell 'west' exists already"),
    ("cell create zero --cell0", 4, "it is cell0 already"),
    # URLs that cannot be read, be reached, or belong to others
    ("cell create x --database-connection mysql:db", 1, "Database URL"),
    ("cell create x --database-connection oracle://u:secret@h/x", 1, "names no known kind of database"),
    ("cell create x --database-connection sqlite:///x.db", 1, "must name a file absolutely"),
    ("cell update east --database-connection sqlite:////nowhere/east.db", 1, "/nowhere/east.db does not exist"),
    ("cell update east --transport-url nonsense", 1, "must begin with rabbit:// or embedded://"),
    ("cell update cell0 --transport-url rabbit://sc:secret@mq/sc", 1, "cell0 has no bus"),
    ("cell create x --database-connection sqlite:///STATE/east.db", 4, "uses this database already"),
    ("cell create x --database-connection mysql://sc:secret@h:port/x", 1, "cannot be read"),
    ("cell create x --transport-url amqp://sc:secret@h/x", 1, "must begin with rabbit:// or embedded://"),
    ("cell update east --transport-url rabbit://sc:secret@h1:1,sc:secret@/x", 1, "needs hosts"),
    ("cell update east --database-connection 'mysql://{user}:secret@h/x'", 1, "unknown field {user}"),
    (f"cell create x --database-connection {DEAD}", 1, "sc:***@127.0.0.1:1/x"),
    ("cell create x --transport-url rabbit://sc:secret@127.0.0.1:1/x", 1, "cannot be reached"),
    (f"cell update east --database-connection {DEAD}", 1, "sc:***@127.0.0.1:1/x"),
    ("cell update east --transport-url rabbit://sc:secret@127.0.0.1:1,sc:secret@127.0.0.1:2/x", 1, "cannot be reached"),
    ("cell update east --transport-url embedded://west/", 4, "uses this transport already"),
    ("cell update east --transport-url embedded://west/ --no-check", 4, "uses this transport already"),
    # what does not go together
    ("cell create x --cell0 --disabled", 1, "cell0 cannot be disabled"),
    ("cell create x --cell0 --transport-url embedded://x/", 1, "cell0 has no bus"),
    ("cell update east", 1, "Nothing to change: give --name"),
    ("cell delete east --dry-run", 1, "--dry-run goes with --offline"),
    ("cell disable cell0", 1, "cell0 cannot be disabled"),
    ("cell delete cell0 --offline", 1, "cell0 cannot be deleted"),
    ("cell list --health --down-after 0", 2, "is not a whole number from 1"),
    ("cell delete", 2, "the following arguments are required: CELL"),
    # what is in the cell
    ("cell delete west", 5, "still has 1 hosts: delete them, or give --with-hosts"),
    ("cell delete south --with-hosts", 6, "still has 1 servers: delete them first"),
    ("cell delete north --with-hosts", 7, "has not confirmed 1 deletes yet: wait until their guests are gone"),
    ("cell delete south --offline", 6, "answers, and 1 servers and 0 other claims are there"),
    # files
    ("cell apply -f STATE/none.yaml", 1, "none.yaml cannot be read"),
    ("cell apply -f STATE/tabs.yaml", 1, "tabs.yaml:3: "),
    ("cell apply -f STATE/state.yaml", 1, "state.yaml:3: state must be one of enabled, disabled, draining"),
    ("cell apply", 2, "the following arguments are required: -f/--file"),
]


@pytest.mark.parametrize(("line", "status", "text"), REFUSED)
def test_bad_input(unchanged: Shell, line: str, status: int, text: str) -> None:
    before = unchanged.json("-v cell list")
    told = unchanged.refused(line.replace("STATE", str(unchanged.state)), status)
    assert text in told
    assert "secret" not in told
    assert unchanged.json("-v cell list") == before


def test_the_first_refusal_sets_the_exit_status(shell: Shell) -> None:
    outcome = shell("cell delete south nowhere east west --with-hosts")
    assert (outcome.status, outcome.err.count("\n")) == (6, 2)
    assert [row["Name"] for row in shell.json("cell list")] == ["cell0", "north", "south"]


def test_an_omitted_url_stays_despite_the_configuration(shell: Shell) -> None:
    before = shell.json("cell show east")
    file = shell.state / "other.conf"
    file.write_text(f"[DEFAULT]\ntransport_url = embedded://other/\n[api_database]\nconnection = sqlite:///{shell.state}/api.db\n")
    (shell.state / "east.db").unlink()  # nor is it asked for what is not changed
    for words in ("update east --name orient", "disable orient", "enable orient", "update orient --name east"):
        assert shell.run("--config-file", str(file), "cell", *words.split()).status == 0
    assert shell.json("cell show east") == before


def test_an_unchanged_cell_is_no_conflict(shell: Shell) -> None:
    for words in ("enable east", "enable east", "update east --name east", "update east --transport-url embedded://east/"):
        shell.done(f"-q cell {words}")


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("rabbit://a:secret@h1:5672,b:secret@h2/v?ssl=1", "rabbit://a:***@h1:5672,b:***@h2/v?ssl=1"),
        ("rabbit://a:se%2Fcret@h1/v?ssl_key_password=secret&ssl=1", "rabbit://a:***@h1/v?ssl_key_password=***&ssl=1"),
        ("rabbit://{username}:secret@h1/v", "rabbit://{username}:***@h1/v"),
    ],
)
def test_passwords_are_masked_in_every_form_of_url(shell: Shell, url: str, shown: str) -> None:
    file = shell.state / "local.conf"
    file.write_text("[DEFAULT]\ntransport_url = rabbit://sc:secret@mq/x\n")
    (shell.state / "cells.yaml").write_text(f"cells:\n  - name: east\n    transport_url: '{url}'\n")
    words = ("--config-file", str(file), "--config-file", str(_with_api(shell)))
    applied = shell.run(*words, "cell", "apply", "--no-check", "-f", str(shell.state / "cells.yaml"))
    told = [applied, shell("cell show east"), shell("-v cell list"), shell("cell check east"), shell("cell delete south --offline")]
    text = "".join(outcome.out + outcome.err for outcome in told)
    assert shown in applied.out
    assert shell.json("cell show east")["transport_url"] == shown
    assert "secret" not in text
    assert "cret" not in text


def _with_api(shell: Shell) -> Path:
    file = shell.state / "api.conf"
    file.write_text(f"[api_database]\nconnection = sqlite:///{shell.state}/api.db\n")
    return file


def test_repeating_an_interrupted_command_completes_it(shell: Shell) -> None:
    file = shell.state / "cells.yaml"
    one = "  - {{name: {0}, database_connection: 'sqlite:///{1}/{0}.db', transport_url: 'embedded://{0}/'}}\n"
    file.write_text("cells:\n" + one.format("first", shell.state) + one.format("second", f"{shell.state}/folder"))
    (shell.state / "folder").write_text("no folder")
    assert shell(f"cell apply -f {file}").status == 1
    assert [row["Name"] for row in shell.json("cell list") if row["Name"] in ("first", "second")] == ["first"]
    (shell.state / "folder").unlink()
    assert shell.done(f"cell apply -f {file}").startswith("+ second: "), "what was done is not done again"


@pytest.fixture(params=["sqlite", "mariadb"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    with database_on(request.param, tmp_path, "api") as made:
        yield made


def test_only_one_of_two_operators_succeeds(database: Database) -> None:
    taken = [NewCell(name=f"c{n}", database_url=f"mysql://sc@db/{n // 2}", transport_url=f"rabbit://sc@mq/{n}") for n in range(12)]

    def create(number: int) -> None:
        create_cell(database, taken[number])

    failed = run_threads(len(taken), create)
    assert [type(error) for error in failed] == [errors.Conflict] * 6
    places = sorted(cell.database_url for cell in list_cells(database))
    assert places == [f"mysql://sc@db/{n}" for n in range(6)]
