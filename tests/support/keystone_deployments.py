"""Deployments that take the tokens of a real Keystone: an all-in-one, and a region of processes with RabbitMQ and MariaDB."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from cli.standalone.starter import NETWORK, SUBNET
from deploy import ports
from deploy.local import make
from deploy.local.folder import Folder
from deploy.local.options import set_options
from deploy.local.region import Region
from deploy.local.shape import Shape
from deploy.local.start import Start
from deploy.local.stop import stop
from tests.support.client_programs import ROOT

CELLS = 2
HOSTS = 6
"""Simulated hosts of each cell."""


class Deployment(Protocol):
    """``root``: address of the API, without a path."""

    root: str

    def start(self, options: Mapping[str, Mapping[str, str]]) -> None:
        """Serve with these options, by group and name, and return when a boot would work."""

    def add_image(self, *words: str) -> None:
        """``superconductor image add`` with these words."""

    def close(self) -> None:
        """Leave nothing running."""


class AllInOne:
    """One process."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._file = folder / "superconductor.conf"
        self._state = folder / "state"
        self._port = ports.free_port()
        self.root = f"http://{ports.HOST}:{self._port}"
        self._process: subprocess.Popen[str] | None = None

    def start(self, options: Mapping[str, Mapping[str, str]]) -> None:
        for group, values in options.items():
            set_options(self._file, group, values)
        set_options(self._file, "api", {"port": str(self._port)})
        words = ("--config-file", str(self._file), "standalone", "--state", str(self._state))
        sizes = ("--cells", str(CELLS), "--hosts", str(HOSTS))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "cli", *words, *sizes], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        assert self._process.stdout is not None
        said = ""
        for line in self._process.stdout:
            said += line
            if re.search("serving at ", line):
                return
        raise AssertionError(said)

    def add_image(self, *words: str) -> None:
        environment = os.environ | {"SUPERCONDUCTOR_STATE": str(self._state)}
        command = [sys.executable, "-m", "cli", "image", "add", *words]
        subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, check=True)

    def close(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.communicate(timeout=60)


class ProcessRegion:
    """Each role in a process of its own; the second of its APIs is not asked."""

    def __init__(self, folder: Path) -> None:
        self._folder = Folder(folder)
        shape = Shape(cells=CELLS, proxies=1, agents=HOSTS)
        self._region = Region(self._folder, make.notes_of(self._folder, shape), lambda _: None)
        self.root = self._region.notes.api_endpoints()[0].removesuffix("/v2.1")

    def start(self, options: Mapping[str, Mapping[str, str]]) -> None:
        with self._folder.hold_lock():
            try:
                make.make_region(self._region)
                for group, values in options.items():
                    set_options(self._folder.etc / "api.conf", group, values)
            except BaseException:
                stop(self._region)
                raise
            # Client libraries take a server without an address for a broken one.
            self._region.commands.run("network", "create", NETWORK, "--physical-network", "physnet1")
            self._region.commands.run("subnet", "add", NETWORK, SUBNET)
            Start(self._region).run()

    def add_image(self, *words: str) -> None:
        self._region.commands.run("image", "add", *words)

    def close(self) -> None:
        with self._folder.hold_lock():
            stop(self._region)
