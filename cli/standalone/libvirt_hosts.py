"""Hosts of the all-in-one whose guests are real: each has a libvirtd of its own in the state folder, or one has the machine's."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from cli.standalone.all_in_one import DriverHost, StateFolder
from compute import drivers
from compute.driver import ComputeDriver
from compute.libvirt.kvm import why_no_kvm
from compute.libvirt.private_daemon import PrivateDaemon
from compute.opts import ComputeSettings
from images import opts as images_opts
from service import config, private_files

DRIVER = "libvirt"
"""The driver of these hosts, and the group of its options."""
MEMORY_FILE_SYSTEM = Path("/dev/shm")  # noqa: S108 - only a folder of ours in it is used


class LibvirtHosts:
    """The hosts, and their daemons. ``arguments``: files with the options of [libvirt]; what they do not say is chosen here."""

    def __init__(self, folder: StateFolder, arguments: Sequence[str]) -> None:
        self._folder = folder
        self._arguments = arguments
        self._daemons: dict[str, PrivateDaemon] = {}
        self._memory = MEMORY_FILE_SYSTEM / f"superconductor-{os.geteuid()}"
        self._config_drives: list[Path] = []

    def start_host(self, name: str, cell: str) -> DriverHost:
        """A host with a libvirtd of its own, which is started now. Raises Misconfigured if it cannot be."""
        host_folder = self._folder.path / "hosts" / name
        daemon = PrivateDaemon(host_folder / "libvirt", cache=self._folder.path / "hosts" / "capabilities")
        self._daemons[name] = daemon
        private_files.own_folder(self._memory)
        config_drives = self._memory / hashlib.blake2b(bytes(host_folder), digest_size=8).hexdigest()
        self._config_drives.append(config_drives)
        paths = {
            "connection_uri": daemon.start(),
            "instances_path": str(host_folder / "instances"),
            "cache_path": str(host_folder / "images"),
            "config_drive_path": str(config_drives),
            "peer_instances_path": str(self._folder.path / "hosts" / "{host}" / "instances"),
        }
        return self._driver_host(name, cell, paths)

    def of_machine(self, name: str, cell: str, uri: str) -> DriverHost:
        """A host with the libvirt at this URI. Its paths are those of [libvirt]."""
        return self._driver_host(name, cell, {"connection_uri": uri})

    def running_guests(self) -> list[str]:
        """The domain names of the running guests of all daemons."""
        return [name for daemon in self._daemons.values() for name in daemon.guest_pids()]

    def stop(self, *, guests: bool) -> None:
        """Stop the daemons. ``guests``: their guests too."""
        for daemon in self._daemons.values():
            daemon.stop(guests=guests)
        for folder in self._config_drives if guests else ():
            with contextlib.suppress(OSError):
                folder.rmdir()  # unless it has drives of guests that the next start turns on

    def _driver_host(self, name: str, cell: str, chosen: dict[str, str]) -> DriverHost:
        return DriverHost(name=name, cell=cell, open_driver=partial(self._open_driver, chosen))

    def _open_driver(self, chosen: dict[str, str], settings: ComputeSettings) -> ComputeDriver:
        conf = config.load_options(self._arguments, images_opts.list_opts(), files=[])
        conf.set_override("folder", settings.images_folder, group=images_opts.GROUP)
        factory = drivers.prepare_driver(conf, DRIVER)
        for option, value in chosen.items():
            conf.set_override(option, value, group=DRIVER)
        conf.set_default("networks", {"user": "user"}, group=DRIVER)
        conf.set_default("virt_type", "qemu" if why_no_kvm() else "kvm", group=DRIVER)
        return factory(settings.host, conf, settings)
