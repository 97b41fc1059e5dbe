"""``superconductor cell apply``: a file of cells, once, again, and with mistakes in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.commands import Shell, shell_fixture

shell = shell_fixture("-q db sync")


def write(shell: Shell, text: str) -> Path:
    file = shell.state / "cells.yaml"
    file.write_text(text.replace("STATE", str(shell.state)))
    return file


TWO = """\
cells:
  - name: cell0
    cell0: true
    database_connection: sqlite:///STATE/cell0.db
  - name: east
    database_connection: sqlite:///STATE/east.db
    transport_url: embedded://east/
    state: draining
"""


def test_applying_a_file_twice_changes_nothing(shell: Shell) -> None:
    shell.done("-q cell create west")
    file = write(shell, TWO)
    wanted = [
        f"+ cell0: database_connection sqlite:///{shell.state}/cell0.db, state enabled",
        f"+ east: database_connection sqlite:///{shell.state}/east.db, transport_url embedded://east/, state draining",
    ]
    assert shell.done(f"cell apply -f {file} --dry-run").splitlines() == wanted
    assert [row["Name"] for row in shell.json("cell list")] == ["west"], "nothing was done"
    assert shell.done(f"cell apply -f {file}").splitlines() == wanted
    cells = {row["Name"]: row["State"] for row in shell.json("cell list")}
    assert cells == {"cell0": "enabled", "east": "draining", "west": "enabled"}
    assert shell.json("db version --cell east")[0]["Result"] == "up to date"
    before = shell.json("-v cell list")
    assert shell.done(f"cell apply -f {file}") == ""
    assert shell.done(f"-v cell apply -f {file}").splitlines() == [
        "  cell0: stays",
        "  east: stays",
        "  west: not in the file, stays",
    ]
    assert shell.json("-v cell list") == before


def test_only_listed_differences_are_changed(shell: Shell) -> None:
    shell.done(f"-q cell apply -f {write(shell, TWO)}")
    file = write(shell, "cells:\n  - {name: east, transport_url: 'embedded://orient/'}\n")
    assert shell.done(f"cell apply -f {file}") == "~ east: transport_url embedded://east/ -> embedded://orient/\n"
    after = shell.json("cell show east")
    assert (after["transport_url"], after["state"]) == ("embedded://orient/", "draining")


def test_passwords_are_not_shown(shell: Shell) -> None:
    url = "mysql+pymysql://sc:{}@db-far/sc"
    text = "cells:\n  - name: far\n    database_connection: {}\n    transport_url: rabbit://sc:secret@mq-far/sc\n"
    shell.done(
        f"-q cell create far --database-connection {url.format('secret')} --transport-url rabbit://sc:secret@mq-far/sc --no-sync"
    )
    out = shell.done(f"cell apply --no-check -f {write(shell, text.format(url.format('secreter')))}")
    assert out == "~ far: database_connection: another password in mysql+pymysql://sc:***@db-far/sc\n"


def test_a_refused_cell_does_not_stop_the_others(shell: Shell) -> None:
    text = (
        TWO
        + "  - name: dead\n    database_connection: mysql+pymysql://sc:secret@127.0.0.1:1/x\n    transport_url: embedded://dead/\n"
    )
    outcome = shell(f"cell apply -f {write(shell, text)}")
    assert outcome.status == 1
    assert outcome.err.count("\n") == 1
    assert "cell 'dead': Database mysql+pymysql://sc:***@127.0.0.1:1/x" in outcome.err
    assert [row["Name"] for row in shell.json("cell list")] == ["cell0", "east"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("cells: [", "cells.yaml:1: "),
        ("a\nb: c: d", "cells.yaml:2: mapping values are not allowed here"),
        ("", "cells.yaml:1: a list 'cells:' is expected"),
        ("cell:\n  - name: x\n", "cells.yaml:1: 'cell' is not known here; there are: cells"),
        ("cells: east", "cells.yaml:1: cells must be a list"),
        ("cells:\n  - east", "cells.yaml:2: a cell is expected"),
        ("cells:\n  - state: enabled", "cells.yaml:2: a cell without a name"),
        (
            "cells:\n  - name: east\n    database: x",
            "cells.yaml:3: 'database' is not known here; there are: name, data",
        ),
        ("cells:\n  - name: east\n    state: off", "cells.yaml:3: state must be one of enabled, disabled, draining, not 'off'"),
        ("cells:\n  - name: east\n    name: west", "cells.yaml:3: 'name' is given twice"),
        ("cells:\n  - name: east\n    cell0: maybe", "cells.yaml:3: cell0 must be true or false"),
        ("cells:\n  - name: east\n    transport_url: [a]", "cells.yaml:3: transport_url must be a text"),
        ('cells:\n  - name: "e\\x1bast"', "cells.yaml:2: name has control characters"),
        (TWO + "  - name: east\n", "cells.yaml:9: cell 'east' is in the list twice"),
        ("cells:\n  - name: east", "Cell 'east' is new and needs a database_connection"),
    ],
)
def test_a_mistake_is_reported_by_line_without_changes(shell: Shell, text: str, told: str) -> None:
    assert told in shell.refused(f"cell apply -f {write(shell, text)}")
    assert shell.json("cell list") == []


def test_a_file_that_is_not_there(shell: Shell) -> None:
    assert "cells.yaml cannot be read: No such file or directory" in shell.refused(f"cell apply -f {shell.state}/cells.yaml")
