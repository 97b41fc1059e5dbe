"""The configuration files of a quick start, as a person would write them. From then on they are the operator's."""

from __future__ import annotations

import os
from pathlib import Path

from objects import errors
from objects.base import Object

API = """\
# The API level: superconductor-api, superconductor-scheduler and superconductor-conductor read this file, and so do commands:
#     superconductor --config-file {etc}/api.conf cell list
# Cells are not named here: they are rows of the API database, and processes follow them without a restart.

[DEFAULT]
transport_url = {bus}

[api_database]
connection = {database}

[secrets]
# The master key, which user data and admin passwords are encrypted with until their servers are built. Keep a copy of it.
keys = {keys}

[api]
port = {port}

[conductor]
roles = super
"""

CELL = """\
# The conductors of {cell}: its own bus and database, and a key that is good for this cell only. Nothing here names the API level.

[DEFAULT]
transport_url = {bus}

[cell_database]
connection = {database}

[secrets]
# As 'superconductor secrets cell {cell}' prints it.
keys = {keys}

[conductor]
roles = cell
"""

AGENT = """\
# One host of {cell}: its cell's bus, and no password of any database. For another host copy the file, and change 'host'.

[DEFAULT]
transport_url = {bus}

[compute]
# Unique in the whole deployment, and never changed while the host has guests.
host = {cell}-host1
driver = simulated

[simulated]
# A guest is a line in a file here.
state_path = {hosts}
"""


class Access(Object, frozen=True, kw_only=True):
    """Where one level is, and the keys that open its tenants' secrets."""

    bus: str
    database: str
    keys: str

    def __repr__(self) -> str:
        return "Access()"  # all of it may hold passwords


class Place:
    """The folder of a quick start: ``etc`` with its files, ``db`` for databases in files, ``hosts`` for simulated guests."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.etc = self.path / "etc"
        self.api = self.etc / "api.conf"

    def cell(self, name: str) -> Path:
        """The file of a cell's conductors."""
        return self.etc / f"{name}.conf"

    def agent(self, name: str) -> Path:
        """The file of a cell's first agent."""
        return self.etc / f"{name}-compute.conf"

    def prepare(self) -> None:
        """Make the folders. Raises Misconfigured where that cannot be done."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            for name, mode in (("etc", 0o700), ("db", 0o700), ("hosts", 0o755)):
                (self.path / name).mkdir(exist_ok=True, mode=mode)
        except OSError as error:
            raise errors.Misconfigured(f"{self.path} cannot be used: {error.strerror}; give another folder") from None

    def write_api(self, access: Access, port: int) -> None:
        self._write(self.api, API, access, etc=self.etc, port=port)

    def write_cell(self, name: str, access: Access) -> None:
        """The files of a cell's conductors and of its first agent."""
        self._write(self.cell(name), CELL, access, cell=name)
        self._write(self.agent(name), AGENT, access, cell=name, hosts=self.path / "hosts")

    def _write(self, file: Path, template: str, access: Access, **words: object) -> None:
        """Only its owner may read it, from its first byte on; whoever reads it meanwhile sees the old file or the new one."""
        # a single $ would begin the name of another option
        words |= {name: getattr(access, name).replace("$", "$$") for name in ("bus", "database", "keys")}
        new = file.with_name(f".{file.name}.new")
        new.unlink(missing_ok=True)
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as opened:
            opened.write(template.format(**words))
        new.replace(file)
