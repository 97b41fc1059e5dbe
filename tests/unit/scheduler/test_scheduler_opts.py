"""The options of the scheduler."""

from __future__ import annotations

from pathlib import Path

import pytest

from objects import errors
from scheduler import opts
from scheduler.framework.settings import SchedulerSettings
from service import config
from service.opts import SHARED


def load(tmp_path: Path, text: str) -> SchedulerSettings:
    file = tmp_path / "superconductor.conf"
    file.write_text(text)
    return opts.read_settings(config.load_options([], opts.list_opts(), files=[file]))


def test_the_defaults_are_those_of_the_settings(tmp_path: Path) -> None:
    assert load(tmp_path, "") == SchedulerSettings()


def test_every_setting_has_its_option() -> None:
    made = {option.dest for option in (*opts.OPTIONS, *SHARED)}
    assert set(SchedulerSettings.__struct_fields__) - made == {"service_poll_interval", "claims_poll_interval", "claim_window"}
    assert made <= set(SchedulerSettings.__struct_fields__)


def test_an_odd_zone_is_refused(tmp_path: Path) -> None:
    with pytest.raises(errors.Misconfigured, match="is not the name of a zone"):
        load(tmp_path, "[DEFAULT]\ndefault_availability_zone = a:b\n")


def test_what_is_configured_is_taken(tmp_path: Path) -> None:
    text = "[scheduler]\nenabled_filters = RamFilter, CoreFilter\nram_weight_multiplier = -1\ndriver = chance\nwarm_up = 0\n"
    made = load(tmp_path, text)
    assert made.enabled_filters == ("RamFilter", "CoreFilter")
    assert (made.ram_weight_multiplier, made.driver, made.warm_up) == (-1.0, "chance", 0.0)


@pytest.mark.parametrize("value", ["nan", "inf", "-1e308"])
def test_an_unusable_multiplier_is_refused(tmp_path: Path, value: str) -> None:
    with pytest.raises(errors.Misconfigured, match=r"\[scheduler\] build_failure_weight_multiplier: .* is not a number from"):
        load(tmp_path, f"[scheduler]\nbuild_failure_weight_multiplier = {value}\n")
