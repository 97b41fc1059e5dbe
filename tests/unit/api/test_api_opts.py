"""Options and settings of the API."""

from __future__ import annotations

from api import opts
from service import config


def test_every_setting_is_an_option_with_the_same_default() -> None:
    """Tests and the all-in-one make Settings themselves, services read options: both must mean the same."""
    conf = config.load([], opts.list_opts(), files=[])
    assert opts.settings(conf) == opts.Settings()
    assert {option.dest for option in opts.OPTIONS} == set(opts.Settings.__struct_fields__)


def test_options_are_read() -> None:
    """From the group [api]."""
    conf = config.load([], opts.list_opts(), files=[], overrides={"api.port": 0, "api.noauth_anywhere": True})
    settings = opts.settings(conf)
    assert (settings.port, settings.noauth_anywhere) == (0, True)
