"""``superconductor quickstart``: a deployment of one cell, ready to be started, and later one more cell for it."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path

from cells import administration
from cells.administration import CellChange, NewCell
from cli.fleet.cell import sync_schema
from cli.install import folder as install_folder
from cli.install.quickstart_files import Access, QuickstartFolder
from cli.shared.base import Admin, secret_text
from cli.standalone.command import port_number
from cli.standalone.starter import add_flavors
from db.sql import sync
from db.sql.engine import ApiDatabase
from objects import errors
from objects.cell import CellMapping
from objects.mask import mask_url
from rpc.transport import Bus
from service import config
from service.opts import list_opts
from service.vault import Vault, new_key

FIRST = "cell1"
BROKER = "rabbit://guest:guest@127.0.0.1:5672/"
IMAGE = "70a599e0-31e7-49b7-b260-868f441e862b"


class Quickstart(Admin):
    """Make a deployment of one cell in a folder: configuration files, keys, schemas, cell0 and cell1; then say what starts it.

    Databases are SQLite files of the folder, or of a server where --database-connection names one; {name} in a URL stands for api,
    cell0, cell1. The databases of a server, and virtual hosts of the broker, must be there. Files that exist are not overwritten.
    @FILE reads a URL from a file, - from standard input, which keeps its password off the command line.

    With --add-cell the deployment gets one more cell, while it runs. With --install-files, DIR/install gets systemd units, the
    definition of a container image and a Helm chart, which install it on machines or in a cluster.

    Examples:
      superconductor quickstart ./cloud
      superconductor quickstart ./cloud --database-connection @database.url --transport-url @bus.url
      superconductor quickstart ./cloud --add-cell cell2 --transport-url @cell2.url
      superconductor quickstart ./cloud --install-files --database-connection @database.url --transport-url @bus.url
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("folder", metavar="DIR", type=Path, help="folder for its files")
        parser.add_argument(
            "--database-connection", metavar="URL", type=secret_text, help="URL of the databases (default: SQLite files)"
        )
        parser.add_argument(
            "--transport-url", metavar="URL", type=secret_text, help=f"URL of the bus (default: {BROKER}, for API level and cell)"
        )
        parser.add_argument("--port", type=port_number, default=8774, help="port of the API (default: 8774)")
        parser.add_argument("--add-cell", metavar="NAME", help="add this cell to the existing deployment")
        parser.add_argument(
            "--install-files", action="store_true", help="also write systemd units, an image definition and a Helm chart"
        )
        parser.add_argument("--force", action="store_true", help="overwrite files, but keep the keys in them")

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        self._args = parsed_args
        self._files = QuickstartFolder(parsed_args.folder, install=parsed_args.install_files)
        self._add_cell() if parsed_args.add_cell else self._begin_deployment()

    def _begin_deployment(self) -> None:
        files = self._files
        self._refuse_existing(files.api, files.cell_file(FIRST), files.agent_file(FIRST), *self._install_files(FIRST))
        self._refuse_files_of_one_machine()
        bus = self._args.transport_url or BROKER
        key = self._key_before() or new_key()
        urls = {name: self._database_of(name) for name in ("api", "cell0", FIRST)}
        self._try_buses(_fill_name(bus, "api"), _fill_name(bus, FIRST))
        files.make_folders()
        sync.sync_schema(urls["api"], "api")
        database = ApiDatabase(urls["api"], name="api")
        try:
            _register_cell(database, NewCell(name="cell0", database_url=urls["cell0"], cell0=True))
            cell = _register_cell(database, NewCell(name=FIRST, database_url=urls[FIRST], transport_url=_fill_name(bus, FIRST)))
            add_flavors(database)
        finally:
            database.dispose_connections()
        files.write_api(Access(bus=_fill_name(bus, "api"), database=urls["api"], keys=key), self._args.port)
        self._write_cell(cell, [key])
        self._say_line(
            f"The deployment in {files.path} has cell0 and {FIRST}: database {mask_url(urls['api'])}, bus {mask_url(bus)}"
        )
        self._say_start(FIRST, api=True)

    def _add_cell(self) -> None:
        files, name = self._files, self._args.add_cell
        if name == "api" or name.endswith("-compute"):
            raise errors.Invalid(f"--add-cell: the files of a cell {name!r} would overwrite other files; give it another name")
        if not files.api.exists():
            raise errors.NotFound(f"There is no {files.api}: 'superconductor quickstart {self._args.folder}' makes a deployment")
        if not self._args.transport_url:
            raise errors.Invalid("Each cell needs a bus of its own: give --transport-url URL, with another virtual host")
        self._refuse_existing(files.cell_file(name), files.agent_file(name), *self._install_files(name))
        if files.install:
            if not files.install.is_present():
                raise errors.NotFound(
                    f"There is no {files.install.path}: 'superconductor quickstart --install-files --force' makes it"
                )
            install_folder.check_cell_name(name)
            self._refuse_files_of_one_machine()
        conf = config.load_options([f"--config-file={files.api}"], list_opts())
        bus = _fill_name(self._args.transport_url, name)
        self._try_buses(bus)
        files.make_folders()
        database = ApiDatabase(conf.api_database.connection, name="api")
        try:
            cell = _register_cell(database, NewCell(name=name, database_url=self._database_of(name), transport_url=bus))
        finally:
            database.dispose_connections()
        self._write_cell(cell, conf.secrets["keys"])
        self._say_line(
            f"The deployment in {files.path} has {name} now: database {mask_url(cell.database_url)}, bus {mask_url(bus)}"
        )
        self._say_start(name, api=False)

    def _refuse_existing(self, *files: Path) -> None:
        there = [str(file) for file in files if file.exists()]
        if there and not self._args.force:
            raise errors.Conflict(f"{', '.join(there)} exists already: give another folder, or --force to overwrite it")

    def _install_files(self, cell: str) -> list[Path]:
        """The private one, which is written last: an interrupted run is finished by the next."""
        install = self._files.install
        return [] if install is None else [install.values_file(cell if self._args.add_cell else "api")]

    def _refuse_files_of_one_machine(self) -> None:
        """Databases and a bus that other machines and pods cannot reach."""
        if not self._files.install:
            return
        database, bus = self._args.database_connection, self._args.transport_url
        if database is None or database.startswith("sqlite:"):
            raise errors.Invalid("--install-files: services and pods share no files: give --database-connection URL of a server")
        if bus is None or bus.startswith("embedded:"):
            raise errors.Invalid("--install-files: services and pods need a broker: give --transport-url URL")

    def _key_before(self) -> str | None:
        """The keys of the file that is to be overwritten: what was sealed with them must be opened."""
        if not self._files.api.exists():
            return None
        return ",".join(config.load_options([f"--config-file={self._files.api}"], list_opts()).secrets["keys"]) or None

    def _database_of(self, name: str) -> str:
        url: str | None = self._args.database_connection
        if url is None:
            return f"sqlite:///{self._files.path}/db/{name}.db"
        if "{name}" not in url and not self._args.add_cell:
            raise errors.Invalid(
                "--database-connection: each level needs a database of its own; write {name} where its name belongs"
            )
        return _fill_name(url, name)

    def _try_buses(self, *urls: str) -> None:
        for url in dict.fromkeys(urls):
            bus = Bus(url)
            try:
                bus.check_broker()
            finally:
                bus.close()

    def _write_cell(self, cell: CellMapping, masters: list[str]) -> None:
        keys = ",".join(Vault(masters).keys_of(cell.uuid))
        self._files.write_cell(cell.name, Access(bus=cell.transport_url, database=cell.database_url, keys=keys))

    def _say_start(self, cell: str, *, api: bool) -> None:
        files = self._files
        roles = [("conductor", files.cell_file(cell)), ("compute", files.agent_file(cell))]
        roles += [(role, files.api) for role in ("scheduler", "conductor", "api")] if api else []
        if files.users_file(cell).exists():
            self._say_line("\nThis makes the broker user of the agent, where the broker is administered:\n")
            self._say_line(f"    rabbitmqctl import_definitions < {shlex.quote(str(files.users_file(cell)))}")
        if files.install:
            self._say_line(
                f"\n{files.install.path} has systemd units, an image and a Helm chart; docs/installing.md says how to use them"
            )
            return
        self._say_line("\nThese start it, each in a terminal of its own or under a supervisor:\n")
        for role, file in roles:
            self._say_line(f"    superconductor-{role} --config-file {shlex.quote(str(file))}")
        if api:
            endpoint = f"--endpoint http://127.0.0.1:{self._args.port}/v2.1"
            self._say_line("\nAnd it boots:\n")
            self._say_line(f"    superconductor server boot web --flavor m1.tiny --image {IMAGE} --wait {endpoint}")

    def _say_line(self, text: str) -> None:
        if not self.is_quiet:
            print(text, file=self.app.stdout)


def _fill_name(url: str, name: str) -> str:
    return url.replace("{name}", name)


def _register_cell(database: ApiDatabase, new: NewCell) -> CellMapping:
    """The cell with its schema applied, made or, where it is there already, at these places now."""
    if new.name not in {mapping.name for mapping in administration.list_cells(database)}:
        return administration.create_cell(database, new, sync_schema)
    change = CellChange(database_url=new.database_url, transport_url=new.transport_url or None)
    mapping = administration.change_cell(database, new.name, change, sync_schema)
    sync_schema(mapping)
    return mapping
