"""The options of the conductors and the settings made of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from oslo_config import cfg

from conductor import opts
from conductor.opts import ConductorSettings
from objects import errors


def conf(*arguments: str) -> cfg.ConfigOpts:
    made = cfg.ConfigOpts()
    made(list(arguments), project="superconductor", default_config_files=[], default_config_dirs=[])
    return made


def test_options_and_settings_have_the_same_defaults() -> None:
    assert opts.read_settings(conf()) == ConductorSettings()


def test_every_option_has_help_and_is_listed() -> None:
    [(group, options)] = opts.list_opts()
    assert group == "conductor"
    others = {"sizes_wait", "images_folder", "images_drop_folder", "service_down_time", "idle_interval", "retry_pause", "token_age"}
    fields = set(ConductorSettings.__struct_fields__) - others
    assert {option.dest for option in options} == {"roles", "processes", *fields}
    assert all(option.help for option in options)


def test_former_option_name_is_read(tmp_path: Path) -> None:
    path = tmp_path / "former.conf"
    path.write_text("[conductor]\nround_pace = 0.5\n")
    assert opts.read_settings(conf(f"--config-file={path}")).build_batch_window == 0.5


def test_values_are_taken_from_the_configuration() -> None:
    made = conf()
    made.register_opts(opts.CONDUCTOR_OPTS, group="conductor")
    made.set_override("lease_seconds", 12.5, group="conductor")
    made.set_override("workers", 3, group="conductor")
    settings = opts.read_settings(made)
    assert (settings.lease_seconds, settings.workers) == (12.5, 3)


def test_a_value_that_cannot_work_is_refused() -> None:
    made = conf()
    made.register_opts(opts.CONDUCTOR_OPTS, group="conductor")
    for name, value in (("workers", 0), ("lease_seconds", 0.0), ("sweep_interval", -1.0)):
        with pytest.raises(ValueError, match="Should be greater than"):
            made.set_override(name, value, group="conductor")


@pytest.mark.parametrize(("age", "fits"), [(0.0, True), (86400.0, True), (86399.0, False)])
def test_deletes_are_remembered_for_a_day_at_least(age: float, fits: bool) -> None:
    made = conf()
    made.register_opts(opts.CONDUCTOR_OPTS, group="conductor")
    made.set_override("purge_age", age, group="conductor")
    if fits:
        assert opts.read_settings(made).purge_age == age
    else:
        with pytest.raises(errors.Misconfigured, match="purge_age must be 0, or at least 86400"):
            opts.read_settings(made)


@pytest.mark.parametrize(
    ("text", "meant"), [("auto", "auto"), ("AUTO", "auto"), ("true", "true"), ("yes", "true"), ("0", "false"), ("False", "false")]
)
def test_hosts_are_mapped_as_a_file_says(text: str, meant: str, tmp_path: Path) -> None:
    file = tmp_path / "conductor.conf"
    file.write_text(f"[conductor]\nmap_hosts = {text}\n")
    assert opts.read_settings(conf(f"--config-file={file}")).map_hosts == meant


def test_an_unknown_choice_of_mapped_hosts_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "conductor.conf"
    file.write_text("[conductor]\nmap_hosts = perhaps\n")
    with pytest.raises(cfg.ConfigFileValueError, match="map_hosts"):
        opts.read_settings(conf(f"--config-file={file}"))
