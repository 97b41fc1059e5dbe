"""Where values come from, which of them wins, and what is said about one that does not fit."""

from __future__ import annotations

from pathlib import Path

import pytest
from oslo_config import cfg

from objects import errors
from service import config

LISTING: config.Listing = [
    (None, [cfg.StrOpt("transport_url", secret=True)]),
    ("engine", [cfg.IntOpt("pistons", default=4, min=1), cfg.FloatOpt("litres", default=1.6)]),
]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "one.conf"
    path.write_text("[DEFAULT]\ntransport_url = embedded://file/\n[engine]\npistons = 6\n")
    return path


def test_defaults_without_any_file() -> None:
    conf = config.load_options([], LISTING, files=[])

    assert (conf.transport_url, conf.engine.pistons) == (None, 4)


def test_a_later_file_wins_over_an_earlier_one(file: Path, tmp_path: Path) -> None:
    later = tmp_path / "two.conf"
    later.write_text("[engine]\npistons = 8\n")

    conf = config.load_options([], LISTING, files=[file, later])

    assert (conf.transport_url, conf.engine.pistons) == ("embedded://file/", 8)


def test_environment_beats_files_and_overrides_beat_environment(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OS_ENGINE__PISTONS", "10")
    monkeypatch.setenv("OS_DEFAULT__TRANSPORT_URL", "embedded://environment/")

    conf = config.load_options([], LISTING, files=[file], overrides={"engine.pistons": 12})

    assert (conf.transport_url, conf.engine.pistons) == ("embedded://environment/", 12)


def test_a_file_on_the_command_line_replaces_defaults(file: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.conf"
    other.write_text("[engine]\nlitres = 2.0\n")

    conf = config.load_options(["--config-file", str(other), "--debug"], LISTING, files=[file])

    assert (conf.engine.litres, conf.engine.pistons, conf.debug) == (2.0, 4, True)


def test_a_folder_of_files_is_read_in_order(tmp_path: Path) -> None:
    (tmp_path / "10-a.conf").write_text("[engine]\npistons = 6\n")
    (tmp_path / "20-b.conf").write_text("[engine]\npistons = 8\n")

    assert config.load_options(["--config-dir", str(tmp_path)], LISTING, files=[]).engine.pistons == 8


def test_two_configurations_in_one_process_stay_separate(file: Path) -> None:
    one = config.load_options([], LISTING, files=[file])
    two = config.load_options([], LISTING, files=[], overrides={"engine.pistons": 2})

    assert (one.engine.pistons, two.engine.pistons) == (6, 2)


@pytest.mark.parametrize(
    ("content", "said"),
    [("[engine]\npistons = none\n", "pistons"), ("[engine]\npistons = 0\n", "pistons"), ("pistons\n", "one.conf")],
)
def test_a_wrong_value_is_refused_in_one_line(file: Path, content: str, said: str) -> None:
    file.write_text(content)

    with pytest.raises(errors.Misconfigured, match=said) as caught:
        config.load_options([], LISTING, files=[file])

    assert "\n" not in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(errors.Misconfigured, match=r"absent\.conf"):
        config.load_options([], LISTING, files=[tmp_path / "absent.conf"])


@pytest.mark.parametrize("override", [{"engine.pistons": "many"}, {"engine.wheels": 4}, {"boat.pistons": 4}])
def test_an_override_that_does_not_fit_is_refused(override: dict[str, object]) -> None:
    with pytest.raises(errors.Misconfigured):
        config.load_options([], LISTING, files=[], overrides=override)
