"""A process that spawns one guest, and may kill itself after a step of the spawn: ``libvirt_child.py PLACE URI UUID [STEP]``."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from compute.libvirt.driver import LibvirtDriver
from compute.libvirt.guest_options import GuestSettings
from compute.libvirt.opts import LibvirtSettings
from images.store import FolderStore
from tests.support.libvirt_driver import HOST, guest, spec

STEPS = {
    "folder": ("_files", "make_folder"),
    "disk": ("", "_make_disks"),
    "config drive": ("", "_make_config_drive"),
    "define": ("", "_define_guest"),
    "create": ("_power", "create"),
    "mark": ("_domains", "keep_guest"),
    "finish": ("_files", "finish_guest"),
}
"""The steps of a spawn, and the function of the driver, or of one of its parts, that carries each out."""


def settings_in(place: Path, uri: str) -> LibvirtSettings:
    """The settings of this process."""
    return LibvirtSettings(
        connection_uri=uri,
        guests=GuestSettings(virt_type="qemu"),
        instances_path=str(place / "instances"),
        config_drive_path=str(place / "drives"),
        cache_path=str(place / "cache"),
    )


def then_die(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, after which the process is killed."""

    def dying(*arguments: Any, **named: Any) -> None:
        function(*arguments, **named)
        os.kill(os.getpid(), signal.SIGKILL)

    return dying


def main() -> None:
    place, uri, uuid, *step = sys.argv[1:]
    store = FolderStore(Path(place) / "images")
    driver = LibvirtDriver(HOST, settings_in(Path(place), uri), store, store)
    driver.guests()
    if step:
        part, name = STEPS[step[0]]
        owner = getattr(driver, part) if part else driver
        setattr(owner, name, then_die(getattr(owner, name)))
    sys.stdout.write("spawning\n")
    sys.stdout.flush()
    driver.spawn(msgspec.structs.replace(guest(), uuid=uuid), spec(config_drive=True), None, threading.Event())
    threading.Event().wait()


if __name__ == "__main__":
    main()
