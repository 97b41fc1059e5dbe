"""The sample configuration and the table of the API say what the code says; the worked samples name only options that exist."""

from __future__ import annotations

import configparser
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from oslo_config import cfg, generator

from service import config
from service.release import DISTRIBUTION
from tests.support.api import Front
from tests.support.api_table import DOCUMENT, rewritten

SAMPLES = Path(__file__).parents[2] / "etc" / "superconductor"
WORKED = sorted(path.name for path in SAMPLES.glob("*.conf") if path.name != "config-generator.conf")


def listings() -> dict[str, config.Listing]:
    """The options of every room, by namespace."""
    return {
        entry_point.name: entry_point.load()()
        for entry_point in metadata.distribution(DISTRIBUTION).entry_points
        if entry_point.group == "oslo.config.opts"
    }


def test_the_sample_is_the_generated_one(tmp_path: Path) -> None:
    generated = tmp_path / "sample"
    conf = cfg.ConfigOpts()
    generator.register_cli_opts(conf)
    conf(["--config-file", str(SAMPLES / "config-generator.conf"), "--output-file", str(generated)])
    generator.generate(conf)

    assert (SAMPLES / "superconductor.conf.sample").read_text() == generated.read_text(), "regenerate it: make sample"


def test_the_sample_policy_is_the_generated_one(tmp_path: Path) -> None:
    generated = tmp_path / "policy"
    command = str(Path(sys.executable).parent / "oslopolicy-sample-generator")
    subprocess.run([command, "--namespace", "superconductor", "--output-file", str(generated)], check=True)

    assert (SAMPLES / "policy.yaml.sample").read_text() == generated.read_text(), "regenerate it: make sample"


def test_every_room_with_options_is_in_the_sample() -> None:
    text = (SAMPLES / "config-generator.conf").read_text()

    assert [name for name in listings() if f"namespace = {name}\n" not in text] == []


@pytest.mark.parametrize("name", WORKED)
def test_a_sample_configuration_loads_with_existing_options_only(name: str) -> None:
    known = {
        (group or "DEFAULT", option.dest) for listing in listings().values() for group, options in listing for option in options
    }
    parser = configparser.ConfigParser(default_section="no section is the default of others", interpolation=None)
    parser.read(SAMPLES / name)
    named = {(section, option) for section in parser.sections() for option in parser[section]}

    assert named
    assert named - known == set()
    assert config.load_options([], *listings().values(), files=[SAMPLES / name])


def test_every_worked_configuration_is_explained() -> None:
    text = (SAMPLES.parents[1] / "docs" / "configuration.md").read_text()

    assert [name for name in WORKED if f"`{name}`" not in text] == []


def test_no_worked_configuration_holds_a_key() -> None:
    """A key that was published must not come into use: who copies the file makes one."""
    for name in WORKED:
        assert "\nkeys" not in (SAMPLES / name).read_text()


def test_the_tables_are_the_generated_ones(tmp_path: Path) -> None:
    front = Front(tmp_path)
    try:
        assert DOCUMENT.read_text() == rewritten(DOCUMENT.read_text(), front), "regenerate them: make sample"
    finally:
        front.close()
