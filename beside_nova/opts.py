"""Options of the [nova] group: where the databases of an existing Nova and its Placement are."""

from __future__ import annotations

from oslo_config import cfg

from objects.base import Object
from service.config import Listing

GROUP = "nova"


class NovaSettings(Object, frozen=True, kw_only=True):
    """URLs of databases; empty: not set. ``config_file``: the nova.conf of the schedulers.

    ``cell_connection`` fills in the templates in ``cell_mappings``. ``cell_username`` and ``cell_password`` replace the login of
    every cell's URL.
    """

    api_connection: str = ""
    placement_connection: str = ""
    cell_connection: str = ""
    cell_username: str = ""
    cell_password: str = ""
    config_file: str = ""

    def __repr__(self) -> str:
        return "NovaSettings(...)"  # the URLs may hold passwords


OPTIONS: tuple[cfg.Opt, ...] = (
    cfg.StrOpt(
        "api_connection",
        secret=True,
        sample_default="mysql+pymysql://reader:password@server/nova_api",
        help="URL of the API database of an existing Nova. A login that can only read is enough. "
        "Default: [api_database] connection of config_file.",
    ),
    cfg.StrOpt(
        "placement_connection",
        secret=True,
        sample_default="mysql+pymysql://reader:password@server/placement",
        help="URL of the database of its Placement.",
    ),
    cfg.StrOpt(
        "cell_connection",
        secret=True,
        help="URL that fills in {username}, {hostname} and so on in Nova's cell mappings. "
        "Default: [database] connection of config_file.",
    ),
    cfg.StrOpt("cell_username", help="User for the databases of all cells, in place of that in Nova's cell mappings."),
    cfg.StrOpt("cell_password", secret=True, help="Password of cell_username."),
    cfg.StrOpt(
        "config_file",
        help="The nova.conf of the schedulers: filters, weighers and their options are taken from it. Without it, Nova's defaults.",
    ),
)


def list_opts() -> Listing:
    """For the generator of the sample configuration."""
    return [(GROUP, list(OPTIONS))]


def read_settings(conf: cfg.ConfigOpts) -> NovaSettings:
    """The options as a frozen record."""
    group = conf[GROUP]
    return NovaSettings(**{option.name: group[option.name] or "" for option in OPTIONS})
