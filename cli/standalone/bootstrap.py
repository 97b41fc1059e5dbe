"""Make a new all-in-one deployment with the project's own commands, printing each as an operator would type it."""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

import msgspec

from cli.standalone.all_in_one import StateFolder
from cli.standalone.starter import FLAVORS, NETWORK, SUBNET
from db.api.deployment import cell_mappings, host_mappings
from db.api.projects import flavors
from db.api.servers import networks
from db.sql.engine import ApiDatabase
from images import spark
from objects import errors


class Commands:
    """Runs ``superconductor`` commands in this process against one state folder."""

    def __init__(self, folder: StateFolder, out: TextIO | None) -> None:
        self._state = str(folder.path)
        self._out = out

    def run(self, *words: str) -> None:
        """Run one command. Raises ``errors.Invalid`` if it fails; what it says is on stderr then."""
        from cli import app  # the application imports this module through its table of commands

        if self._out:
            print("$ superconductor " + shlex.join(words), file=self._out, flush=True)
        if app.main(["--quiet", "--state", self._state, *words]) != 0:
            raise errors.Invalid(f"'superconductor {shlex.join(words)}' failed")


def bootstrap_databases(folder: StateFolder, cells: Sequence[str], commands: Commands) -> None:
    """Sync the schemas, and create cell0 and ``cells`` where they are missing."""
    commands.run("db", "sync", "--api")
    known = _cell_names(folder)
    if "cell0" not in known:
        commands.run("cell", "create", "cell0", "--cell0", "--database-connection", folder.database_url("cell0"))
    for name in cells:
        if name not in known:
            commands.run(
                *("cell", "create", name, "--database-connection", folder.database_url(name)),
                *("--transport-url", folder.bus_url(name)),
            )
    _adopt_files(folder)
    commands.run("db", "sync")


def _adopt_files(folder: StateFolder) -> None:
    """A folder that was moved or copied brings its databases along: its cells are those files, not the ones left behind."""
    database = ApiDatabase(folder.database_url("api"), name="api")
    try:
        for mapping in database.read(cell_mappings.list_all):
            url = folder.database_url(mapping.name)
            if mapping.database_url != url and (folder.path / f"{mapping.name}.db").exists():
                database.write(cell_mappings.update_mapping, msgspec.structs.replace(mapping, database_url=url))
    finally:
        database.dispose_connections()


def add_starters(folder: StateFolder, commands: Commands, *, network: bool) -> None:
    """A few usual sizes and, where ``network``, a network, for a deployment that is new: its hosts are not mapped yet."""
    database = ApiDatabase(folder.database_url("api"), name="api")
    try:
        if database.read(host_mappings.list_all):
            return
        known = {flavor.name for flavor in database.read(flavors.list_all)}
        has_networks = bool(database.read(networks.list_all))
    finally:
        database.dispose_connections()
    for name, vcpus, ram, disk in FLAVORS:
        if name not in known:
            commands.run("flavor", "create", name, "--vcpus", str(vcpus), "--ram", str(ram), "--disk", str(disk))
    if network and not has_networks:
        commands.run("network", "create", NETWORK, "--physical-network", "physnet1")
        commands.run("subnet", "add", NETWORK, SUBNET)


def starter_image(folder: StateFolder, commands: Commands) -> None:
    """The guest ``spark``, for a deployment whose image store is empty: something that boots everywhere in a second."""
    if any(folder.images_folder.iterdir()):
        return
    with tempfile.TemporaryDirectory(dir=folder.path, prefix="starter-") as temporary_folder:
        disk = Path(temporary_folder) / f"{spark.NAME}.raw"
        spark.write_disk(disk)
        commands.run("image", "add", str(disk), "--name", spark.NAME, "--id", spark.IMAGE_ID)


def _cell_names(folder: StateFolder) -> set[str]:
    database = ApiDatabase(folder.database_url("api"), name="api")
    try:
        return {mapping.name for mapping in database.read(cell_mappings.list_all)}
    finally:
        database.dispose_connections()
