"""A MariaDB of our own. It runs as whoever starts it, and commits durably as the server does by default."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
from pathlib import Path

from deploy import ports, sql
from deploy.server import Server
from deploy.unavailable import Unavailable


class MariaDB(Server):
    NAME = "MariaDB"
    PACKAGE = "mariadb-server"
    PROGRAM = "mariadbd"
    connections = 500
    """The most that it takes at once. To be set before the start, as what follows."""
    tables = 2000
    """Open tables that it keeps, each as often as connections use it at once. Fewer than are used make every statement slow."""

    @property
    def admin_url(self) -> str:
        return self._build_url("mysql+pymysql", "root", self._password, "mysql")

    def create_database(self, name: str, user: str, password: str) -> str:
        """Make the database and the user where they are missing, give the user that database only, and return its URL."""
        account = f"{sql.quote_text(sql.checked_name(user), True)}@'{ports.HOST}'"
        only = sql.checked_name(name).replace("_", r"\_")  # an underscore stands for any character in what is granted
        self._run_sql(
            f"CREATE DATABASE IF NOT EXISTS `{name}` CHARACTER SET utf8mb4",
            f"CREATE USER IF NOT EXISTS {account}",
            f"ALTER USER {account} IDENTIFIED BY {sql.quote_text(password, True)}",
            f"GRANT ALL ON `{only}`.* TO {account}",
        )
        return self._build_url("mysql+pymysql", user, password, name)

    def _prepare_folder(self) -> None:
        self._temporary_folder().mkdir(exist_ok=True)
        self._hand_over(self._temporary_folder())
        if self._data_folder().is_dir():
            return
        new = self.folder / "data.new"  # an initialisation that was cut short is begun again
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir()
        self._hand_over(new)
        self._run(
            self._find_program("mariadb-install-db"),
            "--no-defaults",
            f"--datadir={new}",
            f"--tmpdir={self._temporary_folder()}",
            "--auth-root-authentication-method=normal",
            "--skip-test-db",
            f"--user={self._run_user() or _user_name()}",
        )
        new.rename(self._data_folder())

    def _hand_over(self, path: Path) -> None:
        """Give a file or folder to the server's user, where that is another one."""
        if (user := self._run_user()) is not None:
            shutil.chown(path, user, user)

    def _temporary_folder(self) -> Path:
        """Not the machine's: a MariaDB that starts removes the temporary tables it finds, those of all others with them."""
        return self.folder / "tmp"

    def _server_command(self) -> list[str]:
        password = sql.quote_text(self._password, True)
        # Read by the server before it serves anybody: at no moment is there an administrator without a password.
        first = self._write_private(
            "init.sql",
            f"ALTER USER root@localhost IDENTIFIED BY {password};\n"
            f"CREATE USER IF NOT EXISTS root@'{ports.HOST}';\n"
            f"ALTER USER root@'{ports.HOST}' IDENTIFIED BY {password};\n"
            f"GRANT ALL ON *.* TO root@'{ports.HOST}' WITH GRANT OPTION;\n".encode(),
        )
        client = self._write_private(
            "client.cnf", f"[client]\nuser=root\npassword={self._password}\nhost={ports.HOST}\nport={self.port}\n".encode()
        )
        for path in (first, client):
            self._hand_over(path)
        return [
            self._find_program(self.PROGRAM),
            "--no-defaults",
            f"--user={self._run_user() or _user_name()}",
            f"--datadir={self._data_folder()}",
            f"--tmpdir={self._temporary_folder()}",
            f"--bind-address={ports.HOST}",
            f"--port={self.port}",
            "--socket=mariadbd.sock",  # in the data folder: a full path may be longer than a socket's name may be
            "--pid-file=mariadbd.pid",
            f"--init-file={first}",
            "--skip-name-resolve",
            "--skip-log-bin",
            f"--secure-file-priv={self._data_folder()}",
            f"--max-connections={self.connections}",
            f"--table-open-cache={self.tables}",
            f"--table-definition-cache={self.tables}",
            "--character-set-server=utf8mb4",
        ]

    def _is_serving(self) -> bool:
        try:  # cheaper than a client process for every look
            socket.create_connection((ports.HOST, self.port), timeout=1).close()
        except OSError:
            return False
        try:
            self._run_sql("SELECT 1")
        except Unavailable:
            return False
        return True

    def _run_sql(self, *statements: str) -> str:
        client = self._find_program("mariadb")
        return self._run(client, f"--defaults-file={self.folder / 'client.cnf'}", "--batch", said=";\n".join(statements))


def _user_name() -> str:
    """The user that runs this. As root the server insists on being told."""
    return pwd.getpwuid(os.geteuid()).pw_name
