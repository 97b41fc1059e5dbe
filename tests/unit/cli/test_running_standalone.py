"""Commands find the standalone that serves at their endpoint, and no other."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from cli.shared import running
from cli.shared.deployment import Deployment
from objects import errors

ENDPOINT = "http://127.0.0.1:8774/v2.1"


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """No configuration, and a folder for notes."""
    monkeypatch.setenv("HOME", str(tmp_path))
    return {"XDG_RUNTIME_DIR": str(tmp_path)}


def deployment(environment: dict[str, str], **options: object) -> Deployment:
    return Deployment(argparse.Namespace(**{"state": None, "config_file": [], "config_dir": [], **options}), environment)


def test_a_running_standalone_is_detected_at_its_endpoint(environment: dict[str, str]) -> None:
    with running.announced_standalone(ENDPOINT, Path("/region"), environment):
        assert running.find_standalone("http://localhost:8774/v2.1/", environment) is not None
        assert running.find_standalone("http://127.0.0.1:8775/v2.1", environment) is None
        assert running.find_standalone("http://elsewhere:8774/v2.1", environment) is None
        assert running.find_standalone("http://127.0.0.1:port/v2.1", environment) is None
        assert deployment(environment).state_folder == Path("/region")
        assert deployment(environment | {"SUPERCONDUCTOR_ENDPOINT": "http://127.0.0.1:9/v2.1"}).state_folder is None
    assert running.find_standalone(ENDPOINT, environment) is None
    assert running.find_all(environment) == []


def test_an_unlocked_note_belongs_to_a_killed_process(environment: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "superconductor").mkdir()
    (tmp_path / "superconductor" / "standalone-8774").write_text(f"{ENDPOINT}\n/region\n")
    assert running.find_standalone(ENDPOINT, environment) is None
    with running.announced_standalone(ENDPOINT, Path("/other"), environment):
        assert deployment(environment).state_folder == Path("/other")


def test_what_is_named_comes_before_what_runs(environment: dict[str, str]) -> None:
    """The command line before the environment, a folder before files of the same place."""
    named = environment | {"SUPERCONDUCTOR_STATE": "/named"}
    with running.announced_standalone(ENDPOINT, Path("/region"), environment):
        assert deployment(named).state_folder == Path("/named")
        assert deployment(named | {"SUPERCONDUCTOR_CONFIG": "/a.conf"}).state_folder == Path("/named")
        assert deployment(named, state="/given").state_folder == Path("/given")
        assert deployment(named, config_file=["/a.conf"]).state_folder is None
        assert deployment(environment | {"SUPERCONDUCTOR_CONFIG": "/a.conf"}).state_folder is None
        assert deployment(environment | {"OS_API_DATABASE__CONNECTION": "sqlite://"}).state_folder is None


def test_a_configuration_in_the_usual_place_comes_first(environment: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / ".superconductor").mkdir()
    (tmp_path / ".superconductor" / "superconductor.conf").write_text("")
    with running.announced_standalone(ENDPOINT, Path("/region"), environment):
        assert deployment(environment).state_folder is None


def test_a_missing_standalone_is_reported_with_running_ones(environment: dict[str, str]) -> None:
    with (
        running.announced_standalone("http://127.0.0.1:9999/v2.1", Path("/region"), environment),
        pytest.raises(errors.Misconfigured) as told,
    ):
        deployment(environment).api_url  # noqa: B018 - reading it raises
    assert "--state DIR" in str(told.value)
    assert "yours run at http://127.0.0.1:9999/v2.1: name one in SUPERCONDUCTOR_ENDPOINT" in str(told.value)


def test_the_api_follows_the_folder_unless_environment_differs(environment: dict[str, str]) -> None:
    named = environment | {"SUPERCONDUCTOR_STATE": "/region"}
    assert deployment(named).api_endpoint == ENDPOINT
    with running.announced_standalone("http://127.0.0.1:9999/v2.1", Path("/region"), environment):
        assert deployment(named).api_endpoint == "http://127.0.0.1:9999/v2.1"
        assert deployment(environment, state="/region").api_endpoint == "http://127.0.0.1:9999/v2.1"
        assert deployment(environment, state="/other").api_endpoint == ENDPOINT
        assert deployment(environment).api_endpoint == ENDPOINT
        assert deployment(named | {"OS_ENDPOINT": "http://elsewhere/v2.1"}).api_endpoint == "http://elsewhere/v2.1"


def test_a_command_for_one_folder_ignores_other_standalones(environment: dict[str, str]) -> None:
    named = environment | {"SUPERCONDUCTOR_STATE": "/mine"}
    assert deployment(named).own_endpoint() == ENDPOINT
    with running.announced_standalone(ENDPOINT, Path("/other"), environment):
        with pytest.raises(errors.Misconfigured, match=f"serves the folder /mine: the one at {ENDPOINT} has /other"):
            deployment(named).own_endpoint()
        assert deployment(named | {"SUPERCONDUCTOR_ENDPOINT": ENDPOINT}).own_endpoint() == ENDPOINT
        assert deployment(environment).own_endpoint() == ENDPOINT
        with running.announced_standalone("http://127.0.0.1:9/v2.1", Path("/mine"), environment):
            assert deployment(named).own_endpoint() == "http://127.0.0.1:9/v2.1"
