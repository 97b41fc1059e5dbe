"""The commands beside Nova, as an operator types them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.commands import Outcome, Shell
from tests.support.nova_cloud import NovaCloud


class NovaShell:
    """Runs ``superconductor nova ...`` on the databases of a cloud."""

    def __init__(self, shell: Shell, cloud: NovaCloud) -> None:
        self._shell, self._cloud = shell, cloud
        self._file = shell.state / "nova.ini"

    def __call__(self, *words: str) -> Outcome:
        settings = self._cloud.settings
        lines = [f"api_connection = {settings.api_connection}", f"placement_connection = {settings.placement_connection}"]
        self._file.write_text("\n".join(["[nova]", *lines]))
        return self._shell.run("--config-file", str(self._file), "nova", *words)

    def answer(self, *words: str) -> Any:
        """The JSON of a command that must succeed."""
        outcome = self(*words, "--json")
        assert (outcome.status, outcome.err) == (0, ""), outcome
        return json.loads(outcome.out)


@pytest.fixture
def cloud(tmp_path: Path) -> NovaCloud:
    made = NovaCloud(tmp_path)
    made.add_cell("cell1")
    return made


@pytest.fixture
def nova(tmp_path: Path, cloud: NovaCloud, capsys: pytest.CaptureFixture[str]) -> NovaShell:
    return NovaShell(Shell(tmp_path, capsys), cloud)


def test_status_shows_cells_and_hosts_left_out(nova: NovaShell, cloud: NovaCloud) -> None:
    cloud.claim("server", cloud.add_host("h1", vcpus=8, ratio=4.0), vcpus=8)
    cloud.add_host("h2", mapped=False)

    shown = nova("status").out
    [cell] = nova.answer("status")["cells"]

    assert (cell["hosts"], cell["judged"], cell["up"], cell["servers"]) == (2, 1, 1, 1)
    assert (cell["vcpus"], cell["vcpus_used"]) == (32.0, 8.0)
    assert "25.0 %" in shown
    assert "it is not mapped to cell cell1, where it reports" in shown
    assert max(map(len, shown.splitlines())) <= 80


def test_status_of_a_cell_that_cannot_be_read(nova: NovaShell, cloud: NovaCloud) -> None:
    cloud.add_cell("cell2", database_connection="mysql://u:secret@127.0.0.1:1/x")

    outcome = nova("status")

    assert outcome.status == 1
    assert "cell cell2 is left out" in outcome.err
    assert "secret" not in outcome.out + outcome.err


def test_databases_that_are_not_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty.conf").write_text("")

    outcome = Shell(tmp_path, capsys).run("--config-file", str(tmp_path / "empty.conf"), "nova", "status")

    assert outcome.status == 1
    assert "No api_connection is set in [nova]" in outcome.err


def test_an_unknown_filter_of_the_site_is_refused(nova: NovaShell, cloud: NovaCloud, monkeypatch: pytest.MonkeyPatch) -> None:
    conf = Path(cloud.url_of("x").removeprefix("sqlite:///")).with_name("nova.conf")
    conf.write_text("[filter_scheduler]\nenabled_filters = ComputeFilter,OurOwnFilter\n")
    monkeypatch.setenv("OS_NOVA__CONFIG_FILE", str(conf))

    outcome = nova("status")

    assert outcome.status == 1
    assert "OurOwnFilter, which is not known here" in outcome.err
