"""The configuration files of a quick start, as a person would write them. From then on they are the operator's."""

from __future__ import annotations

from pathlib import Path

from cli.fleet import agent_files
from cli.install import units
from cli.install.folder import InstallFolder
from objects import errors
from objects.base import Object
from service import private_files

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

[console]
# Where users reach superconductor-console-proxy, if it is started with this file. Without this there are no serial consoles.
# serial_url = ws://127.0.0.1:6083/

[conductor]
roles = super

[images]
# The snapshots of shelved servers. Agents have the same folder.
folder = {images}
"""

CELL = """\
# The conductors of {cell}: its own bus and database, and a key that is good for this cell only. Nothing here names the API level.

[DEFAULT]
transport_url = {bus}

[cell_database]
connection = {database}

[secrets]
# As 'superconductor secrets derive {cell}' prints it.
keys = {keys}

[conductor]
roles = cell
# required: each agent logs in to the bus as the user of its host, and is believed about that host only.
agent_users = {users}
"""

AGENT = """\
# One host of {cell}: its cell's bus, and no password of any database. 'superconductor host user' makes the file of another host.

[DEFAULT]
transport_url = {bus}

[compute]
# Unique in the whole deployment. The agent refuses another name while the host has guests.
host = {cell}-host1
driver = simulated

[simulated]
# A guest is a line in a file here; several hosts may have their files here.
state_path = {hosts}
shared_folder = true

[images]
# The snapshots of shelved servers, as in api.conf.
folder = {images}
"""


class Access(Object, frozen=True, kw_only=True):
    """Where one level is, and the keys that open its tenants' secrets."""

    bus: str
    database: str
    keys: str

    def __repr__(self) -> str:
        return "Access()"  # all of it may hold passwords


class QuickstartFolder:
    """The folder of a quick start: ``etc`` with its files, ``db`` for databases, ``hosts`` for guests, ``images`` for snapshots.

    ``install``: has the files to install it, too. Guests and snapshots are then where systemd units and images have their state.
    """

    def __init__(self, path: Path, *, install: bool = False) -> None:
        self.path = path.absolute()
        self.etc = self.path / "etc"
        self.api = self.etc / "api.conf"
        folder = InstallFolder(self.path / "install")
        self.install = folder if install or folder.is_present() else None
        self._state = Path(units.STATE) if self.install else self.path

    def cell_file(self, name: str) -> Path:
        """The file of a cell's conductors."""
        return self.etc / f"{name}.conf"

    def agent_file(self, name: str) -> Path:
        """The file of a cell's first agent."""
        return self.etc / f"{name}-compute.conf"

    def users_file(self, name: str) -> Path:
        """The broker user of a cell's first host, as 'rabbitmqctl import_definitions' takes it."""
        return self.etc / f"{name}-host1.users.json"

    def make_folders(self) -> None:
        """Make the folders. Raises Misconfigured where that cannot be done."""
        try:
            private_files.own_folder(self.path)
            for name in ("etc", "install") if self.install else ("etc", "db", "hosts", "images"):
                private_files.own_folder(self.path / name)
        except OSError as error:
            raise errors.Misconfigured(f"{self.path} cannot be used: {error.strerror}; give another folder") from None

    def write_api(self, access: Access, port: int) -> None:
        self._write(self.api, API, access, etc=self.etc, port=port, images=self._state / "images")
        if self.install:
            self.install.write_common(port)
            self.install.write_api_values(self.api.read_text())

    def write_cell(self, name: str, access: Access) -> None:
        """The files of a cell's conductors and of its first agent."""
        login = None
        if agent_files.has_users(access.bus):
            password = agent_files.password_before(self.users_file(name))
            login = agent_files.new_login(access.bus, f"{name}-host1", password=password)
            agent_files.write_private(self.users_file(name), agent_files.users_text(login))
        self._write(self.cell_file(name), CELL, access, cell=name, users="required" if login else "shared")
        agents = access if login is None else Access(bus=login.bus, database="", keys="")
        self._write(self.agent_file(name), AGENT, agents, cell=name, hosts=self._state / "hosts", images=self._state / "images")
        if self.install:
            conductor, agent = self.cell_file(name).read_text(), self.agent_file(name).read_text()
            self.install.write_cell_values(name, f"{name}-host1", conductor=conductor, agent=agent)

    def _write(self, file: Path, template: str, access: Access, **words: object) -> None:
        """Only its owner may read it, from its first byte on; whoever reads it meanwhile sees the old file or the new one."""
        # a single $ would begin the name of another option
        words |= {name: getattr(access, name).replace("$", "$$") for name in ("bus", "database", "keys")}
        agent_files.write_private(file, template.format(**words))
