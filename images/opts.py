"""The options that name the image store and the image service."""

from __future__ import annotations

from oslo_config import cfg

from service.config import Listing

GROUP = "images"
GLANCE_GROUP = "glance"
FOLDER = cfg.StrOpt(
    "folder",
    default="",
    help="Folder with the snapshots of shelved servers, and with the images that operators add (superconductor image add). Every "
    "super conductor and agent must reach the same one, for example on a network file system. APIs must have this option, too. "
    "Empty: servers cannot be shelved.",
)
DROP_FOLDER = cfg.StrOpt(
    "drop_folder",
    default="",
    help="Folder in which each agent writes snapshots and images of servers, into a folder named after its host. Super conductors "
    "move them into [images] folder, which agents then only read. Both folders must be on one file system. Every super conductor "
    "and agent must have the same value. Empty: agents write into [images] folder.",
)
AUTH_TYPE = cfg.StrOpt(
    "auth_type",
    default="",
    help="How agents log in to the image service Glance: password, v3applicationcredential, none or another plug-in of "
    "keystoneauth1, whose options stand beside this one, with those of its sessions and adapters. Agents then also build servers "
    "from images that are not in [images] folder. Only hypervisor drivers that read images use it. Empty: there is no Glance.",
)


def list_opts() -> Listing:
    """For the generator of the sample configuration, and for every process that reads the folder."""
    return [(GROUP, [FOLDER, DROP_FOLDER])]


def list_glance_opts() -> Listing:
    """For the generator of the sample configuration. ``images.glance`` lists those of keystoneauth1, too."""
    return [(GLANCE_GROUP, [AUTH_TYPE])]


def read_folder(conf: cfg.ConfigOpts) -> str:
    """The folder; empty: there is no image store. Registers the option if necessary."""
    conf.register_opts([FOLDER], group=GROUP)
    return str(conf[GROUP].folder)


def has_glance(conf: cfg.ConfigOpts) -> bool:
    """Whether an image service is named. Registers the option if necessary."""
    conf.register_opts([AUTH_TYPE], group=GLANCE_GROUP)
    return bool(conf[GLANCE_GROUP].auth_type)


def drop_folder(conf: cfg.ConfigOpts) -> str:
    """The folder of all drop folders; empty: there are none. Registers the option if necessary."""
    conf.register_opts([DROP_FOLDER], group=GROUP)
    return str(conf[GROUP].drop_folder)
