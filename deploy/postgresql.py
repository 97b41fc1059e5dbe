"""A PostgreSQL of our own. It refuses to run as root, and is then run as the user of its package."""

from __future__ import annotations

import shutil
import signal
import socket
from collections.abc import Iterator, Sequence
from typing import ClassVar

from deploy import ports, processes, sql
from deploy.server import Server
from deploy.unavailable import Unavailable

ADMINISTRATOR = "postgres"


class PostgreSQL(Server):
    NAME = "PostgreSQL"
    PACKAGE = "postgresql"
    PROGRAM = "postgres"
    PLACES: ClassVar[Sequence[str]] = ("/usr/lib/postgresql/*/bin", "/usr/local/pgsql/bin", *Server.PLACES)
    USER = "postgres"
    STOP = signal.SIGINT  # ends sessions too; SIGTERM would wait for them

    @property
    def admin_url(self) -> str:
        return self._build_url("postgresql+psycopg", ADMINISTRATOR, self._password, "postgres")

    def create_database(self, name: str, user: str, password: str) -> str:
        """Make the database and the user where they are missing, give the user that database only, and return its URL."""
        database, role = sql.checked_name(name), sql.checked_name(user)
        self._run_sql(
            # psql runs what \\gexec is given as a statement of its own: neither of the two knows IF NOT EXISTS.
            f"SELECT 'CREATE ROLE \"{role}\"' WHERE to_regrole('\"{role}\"') IS NULL \\gexec",
            f'ALTER ROLE "{role}" LOGIN PASSWORD {sql.quote_text(password, False)};',
            f'SELECT \'CREATE DATABASE "{database}" OWNER "{role}"\'',
            f"WHERE '{database}' <> ALL (ARRAY(SELECT datname FROM pg_database)) \\gexec",  # noqa: S608 - a name that was checked
            f'REVOKE ALL ON DATABASE "{database}" FROM PUBLIC;',
            f'GRANT ALL ON DATABASE "{database}" TO "{role}";',
        )
        return self._build_url("postgresql+psycopg", user, password, name)

    def leftover_processes(self) -> Iterator[int]:
        """The processes for sessions overwrite their environment; they are known by where they are at work."""
        yield from super().leftover_processes()
        yield from processes.at_work_in(self._data_folder(), "postgres")

    def _prepare_folder(self) -> None:
        if self._run_user() is not None:
            self._open_folder()
        if self._data_folder().is_dir():
            # We have the folder's lock and have ended what was left: its number may be anybody's by now.
            (self._data_folder() / "postmaster.pid").unlink(missing_ok=True)
            return
        new = self.folder / "data.new"  # an initialisation that was cut short is begun again
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir(0o700)
        password = self._write_private("initdb.password", self._password.encode())
        try:
            if (user := self._run_user()) is not None:
                for path in (new, password):
                    shutil.chown(path, user, user)
            options = ("-A", "scram-sha-256", f"--pwfile={password}", "-U", ADMINISTRATOR, "-E", "UTF8", "--locale=C")
            self._run(self._find_program("initdb"), "-D", str(new), *options)
        finally:
            password.unlink()
        new.rename(self._data_folder())

    def _open_folder(self) -> None:
        self.folder.chmod(0o711)
        try:
            self._run("/usr/bin/test", "-x", str(self.folder))
        except Unavailable:
            where = self.folder.parent
            raise Unavailable(
                f"PostgreSQL cannot run as root, and user {self.USER} may not pass through {where}: choose another folder"
            ) from None

    def _server_command(self) -> list[str]:
        settings = {
            "listen_addresses": ports.HOST,
            "port": str(self.port),
            "unix_socket_directories": "",
            "max_connections": "300",
            "log_min_error_statement": "panic",  # a statement that failed may hold a password
        }
        options = [part for key, value in settings.items() for part in ("-c", f"{key}={value}")]
        return [self._find_program(self.PROGRAM), "-D", str(self._data_folder()), *options]

    def _is_serving(self) -> bool:
        try:  # cheaper than a client process for every look
            socket.create_connection((ports.HOST, self.port), timeout=1).close()
        except OSError:
            return False
        try:
            self._run_sql("SELECT 1;")
        except Unavailable:
            return False
        return True

    def _finish_start(self) -> None:
        self._run_sql("REVOKE CONNECT ON DATABASE postgres, template1 FROM PUBLIC;")

    def _run_sql(self, *statements: str, port: int | None = None) -> str:
        target = ("-h", ports.HOST, "-p", str(port or self.port), "-U", ADMINISTRATOR, "-d", "postgres")
        command = (self._find_program("psql"), "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", *target)
        environment = {"PGPASSWORD": self._password, "PGCONNECT_TIMEOUT": "10"}
        return self._run(*command, said="\n".join(statements) + "\n", environment=environment)
