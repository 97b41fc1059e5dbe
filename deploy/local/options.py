"""Change options in the configuration files of a region that was made."""

from __future__ import annotations

import configparser
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from compute.libvirt.private_daemon import PrivateDaemon

LIBVIRT, INSTANCES, CONFIG_DRIVES = "libvirt", "instances", "config_drives"
"""Folders of a host with real guests: of its own libvirtd, and of its agent."""


@contextmanager
def edit_file(file: Path) -> Iterator[configparser.ConfigParser]:
    """A configuration file, written back at the end."""
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    parser.read(file)
    yield parser
    with file.open("w") as out:
        parser.write(out)


def set_options(file: Path, group: str, values: Mapping[str, str]) -> None:
    """Set options of one group, which is added if it is missing."""
    with edit_file(file) as parser:
        if not parser.has_section(group):
            parser.add_section(group)
        parser[group].update(values)


def use_libvirt(file: Path, folder: Path, daemon: PrivateDaemon) -> None:
    """Make the agent that reads this file one of emulated guests of this daemon. Its own files are in ``folder``.

    The hosts are folders side by side, so that they can copy disks from each other.
    """
    set_options(file, "compute", {"driver": "libvirt", "spawn_timeout": "60"})
    paths = {option: str(folder / name) for option, name in (("instances_path", INSTANCES), ("cache_path", "images"))}
    paths |= {"config_drive_path": str(folder / CONFIG_DRIVES), "peer_instances_path": str(folder.parent / "{host}" / INSTANCES)}
    set_options(file, "libvirt", {"connection_uri": daemon.connection_uri, "virt_type": "qemu", **paths})
