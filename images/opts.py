"""The option that names the image store."""

from __future__ import annotations

from oslo_config import cfg

from service.config import Listing

GROUP = "images"
FOLDER = cfg.StrOpt(
    "folder",
    default="",
    help="Folder with the snapshots of shelved servers. Every super conductor and agent must reach the same one, for example on a "
    "network file system. APIs must have this option, too. Empty: servers cannot be shelved.",
)


def list_opts() -> Listing:
    """For the generator of the sample configuration."""
    return [(GROUP, [FOLDER])]


def folder(conf: cfg.ConfigOpts) -> str:
    """The folder; empty: there is no image store. Registers the option if necessary."""
    conf.register_opts([FOLDER], group=GROUP)
    return str(conf[GROUP].folder)
