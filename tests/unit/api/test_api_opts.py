"""Options and settings of the API."""

from __future__ import annotations

from pathlib import Path

import pytest

from api import opts
from objects import errors
from objects.quota import RESOURCES, QuotaLimits
from service import config


def test_every_setting_is_an_option_with_equal_default() -> None:
    """Tests and the all-in-one make Settings themselves, services read options: both must mean the same."""
    conf = config.load_options([], opts.list_opts(), files=[])
    assert opts.read_settings(conf) == opts.ApiSettings()
    assert {option.dest for option in opts.OPTIONS} | {
        "quota",
        "key_pairs",
        "images",
        "image_gigabytes",
        "server_groups",
        "server_group_members",
        "ports",
        "policy_files",
        "images_folder",
        "consoles",
        "default_availability_zone",
        "service_down_time",
    } == set(opts.ApiSettings.__struct_fields__)
    assert tuple(option.dest for option in opts.QUOTAS) == RESOURCES


def test_former_option_names_are_read(tmp_path: Path) -> None:
    path = tmp_path / "former.conf"
    path.write_text("[api]\nlongest_hold = 60\ntenant_faults = detailed\n")
    settings = opts.read_settings(config.load_options([], opts.list_opts(), files=[str(path)]))
    assert (settings.max_hold_seconds, settings.fault_detail) == (60, "detailed")


def test_options_are_read() -> None:
    """From the groups [api] and [quota]."""
    overrides = {"api.port": 0, "api.noauth_anywhere": True, "quota.cores": 20, "quota.ram": 0}
    conf = config.load_options([], opts.list_opts(), files=[], overrides=overrides)
    settings = opts.read_settings(conf)
    assert (settings.port, settings.noauth_anywhere) == (0, True)
    assert settings.quota == QuotaLimits(instances=-1, cores=20, ram=0)


@pytest.mark.parametrize("value", [-2, 2**31, "many"])
def test_a_limit_is_a_number_or_none(value: object) -> None:
    with pytest.raises(errors.Misconfigured, match="Configuration: "):
        config.load_options([], opts.list_opts(), files=[], overrides={"quota.cores": value})
